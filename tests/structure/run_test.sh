#!/usr/bin/env bash
# run_test.sh RUN: tests the CUDA options that the script RUN passes to cmake, its messages, and the end of its ranks. A
# stand-in for cmake writes down its options, and a GPU comes and goes.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cp "$1" "$folder/run"
mkdir "$folder/tools"
export PATH=$folder/tools:$PATH NOTES=$folder/notes GPU=$folder/gpu
unset POOLGRAD_CMAKE_OPTIONS

tool() { cat >"$folder/tools/$1" && chmod +x "$folder/tools/$1"; }
tool apt-get <<<$'#!/bin/sh\n'
tool dpkg-query <<<$'#!/bin/sh\nprintf installed'
tool ctest <<<$'#!/bin/sh\n'
tool nvidia-smi <<<$'#!/bin/sh\n[ -e "$GPU" ] && echo "GPU 0: one"'
tool cmake <<'CMAKE'
#!/bin/sh
echo "$*" >>"$NOTES"
mkdir -p build/release/bin
touch build/release/build.ninja
for program in train mlp; do
  printf '#!/bin/sh\necho %s "$@" $GOMP_SPINCOUNT\n' $program >build/release/bin/$program
  chmod +x build/release/bin/$program
done
CMAKE
for name in g++ ninja; do tool $name <<<$'#!/bin/sh\n'; done

fail() {
  echo "$1; cmake was told:"
  cat "$NOTES"
  exit 1
}
# told WHAT OPTIONS COMMAND...: cmake configures with these options about CUDA ("never": not at all).
told() {
  : >"$NOTES"
  "$folder/run" "${@:3}" >/dev/null 2>&1 || fail "$1: ./run ${*:3} failed"
  local options=never
  if grep -q -e --preset "$NOTES"; then options=$(grep -o 'POOLGRAD_CUDA=[A-Z]*' "$NOTES" | paste -sd ' ' || true); fi
  [ "$options" = "$2" ] || fail "$1: expected '$2', found '$options'"
}

for command in '' test bench gpu-check sanitize format docs; do
  # shellcheck disable=SC2086 # none is no word
  help=$("$folder/run" $command --help 2>&1) || fail "./run $command --help failed"
  [[ $help == "usage: ./run COMMAND"* ]] || fail "./run $command --help said '$help'"
  [ ! -e "$NOTES" ] || fail "./run $command --help builds"
done

told "the first build, without a GPU" POOLGRAD_CUDA=OFF train
told "the second" never train
touch "$GPU"
told "a GPU is there" POOLGRAD_CUDA=AUTO train
told "and stays" never train
rm -r "$folder/build"
told "the first build, with a GPU" '' train
rm -r "$folder/build" "$GPU"
told "tests" POOLGRAD_CUDA=AUTO test
told "and then an example" never train
rm -r "$folder/build"
POOLGRAD_CMAKE_OPTIONS=-DPOOLGRAD_CUDA=ON told "somebody says so" POOLGRAD_CUDA=ON train
rm -r "$folder/build"
POOLGRAD_CMAKE_OPTIONS=-DPOOLGRAD_CUDA=OFF told "or says not, of tests" POOLGRAD_CUDA=OFF test

: >"$NOTES"
"$folder/run" train --steps 1 >/dev/null 2>&1
! grep -q train_watched "$NOTES" || fail "train alone builds train_watched too"
"$folder/run" train --steps 1 --html=page.html >/dev/null 2>&1
grep -q -e '--target train train_watched' "$NOTES" || fail "train --html does not build train_watched"

mkdir -p "$folder/examples/first_steps"
echo 'int main(int argc, char** argv) {}' | tee "$folder/examples/train.cpp" >"$folder/examples/first_steps/mlp.cpp"
echo 'int helper();' >"$folder/examples/picture.cpp"
: >"$NOTES"
spun() { [ "$("${@:2}" "$folder/run" example mlp --seed 3 2>/dev/null)" = "mlp --seed 3$1" ]; }
unset OMP_WAIT_POLICY GOMP_SPINCOUNT
spun ' 10000' env || fail "example mlp does not run as told, with threads that spin briefly"
spun ' 5' env GOMP_SPINCOUNT=5 || fail "example mlp does not spin as the user says"
spun '' env OMP_WAIT_POLICY=passive || fail "example mlp does not wait as the user says"
grep -q -e '--target mlp$' "$NOTES" || fail "example mlp does not build it alone"
: >"$NOTES"
for name in '' picture ../train; do
  answer=$("$folder/run" example $name 2>&1) && fail "example '$name' is taken for a program"
  [[ $answer == *"there are: mlp train" ]] || fail "example '$name' does not say which there are: $answer"
done
[ ! -s "$NOTES" ] || fail "what is no example is built"

# said PATTERN COMMAND...
# shellcheck disable=SC2053
said() { answer=$("$folder/run" "${@:2}" 2>&1) || true; [[ $answer == $1 ]] || fail "./run ${*:2} said: $answer"; }
said "*there is no command 'trian': did you mean train?" trian --steps 3
said "*there is no command 'frobnicate'; ./run --help lists them" frobnicate
said "*not 'mpl': did you mean mlp?*" example mpl
[ ! -s "$NOTES" ] || fail "a wrong command builds"
says_of_building() { tool cmake <<<$'#!/bin/sh\necho "[0/2] Re-checking globbed directories..."; echo "'"$1"'"'; }
says_of_building 'ninja: no work to do.'
said 'train --steps 3 10000' train --steps 3
says_of_building '[1/1] Linking CXX executable bin/train'
said $'poolgrad: building train in build/release\n?1/1? Linking CXX executable bin/train\ntrain --steps 3 10000' train --steps 3

tool doxygen <<<$'#!/bin/sh\necho "$POOLGRAD_HEADERS: $1"'
tool g++ <<<$'#!/bin/sh\nprintf "poolgrad.o: poolgrad.h tensor/tensor.h \\\\\n  nn/module.h\n"'
said $'*nn/module.h poolgrad.h tensor/tensor.h: cmake/Doxyfile\npoolgrad: wrote */build/docs/html/index.html' docs

# Two ranks that SIGUSR1 would end in their first half second, as mpirun starts them.
tool mpirun <<'MPIRUN'
#!/usr/bin/env bash
rank() { sleep 0.5; trap 'exit 0' USR1; while :; do sleep 0.02; done; }
rank & first=$!
rank & second=$!
trap 'kill -USR1 $first $second' USR1
echo $$ >"$NOTES"
for rank in $first $second; do
  while kill -0 $rank 2>/dev/null; do wait $rank; done
  wait $rank || exit 1
done
MPIRUN
for signals in HUP 'HUP HUP' TERM; do
  : >"$NOTES"
  "$folder/run" ring -n 2 >/dev/null 2>&1 &
  until [ -s "$NOTES" ]; do sleep 0.02; done
  for signal in $signals; do kill -"$signal" $!; done
  wait $! || fail "ranks that start do not survive $signals: $?"
  ! kill -0 "$(cat "$NOTES")" 2>/dev/null || fail "mpirun survives $signals"
done
