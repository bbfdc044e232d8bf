#!/bin/sh
# orders.sh PROGRAM FILTER: runs tests of results that do not depend on the order of the emulated device, in three more
# orders. Each run prints its seed; POOLGRAD_TEST_SEED repeats all three.
seed=${POOLGRAD_TEST_SEED:-$(date +%s)}
for more in 1 2 3; do
  POOLGRAD_TEST_SEED=$((seed + more)) "$1" --gtest_brief=1 --gtest_filter="$2" || exit 1
done
