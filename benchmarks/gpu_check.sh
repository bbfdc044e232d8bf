#!/usr/bin/env bash
# gpu_check.sh ROOT: the steps of ./run gpu-check on a machine with a GPU, with the programs in ROOT/build/gpu/gpu.
# First the steps whose faults explain later ones: the device, then kernels and operators against the CPU, and some of
# them under sanitizers, which may be missing or refuse the device. Then all other tests, and measurements. The first
# failed test ends the check. All steps together take at most POOLGRAD_GPU_CHECK_SECONDS (570). The check names each
# step that has no time left, and does not pass if that is a test. ROOT/build/gpu/report has the output of every step.
# The tables come last, even after a failure. POOLGRAD_SANITIZED and POOLGRAD_SANITIZED_OPERATORS are filters of the
# tests that run under sanitizers; an empty filter selects none. POOLGRAD_BENCHMARK_SMALL=1 measures tiny sizes, to try
# the check itself.
set -uo pipefail

root=$1
programs=$root/build/gpu/gpu report=$root/build/gpu/report limit=${POOLGRAD_GPU_CHECK_SECONDS:-570}
sanitized=${POOLGRAD_SANITIZED-CudaBlock.*:*CudaUnary*/gelu:*CudaBinary*/add:CudaReduction.HasTheSameBits*:\
CudaSoftmax.Overwrites*:CudaScan.MayOverwrite*:CudaIndexing.SupportsMisaligned*:CudaIndexing.ManyIndices*:\
CudaAttentionForward.KeepsEveryBit*:CudaAttentionBackward.HasTheSameBits*:\
MmaAttentionForward.KeepsEveryBit*:MmaAttentionBackward.HasTheSameBits*}
in_each=Cuda/OperatorTest.AgreesWithF64OnTheCpuInEveryFloatingDtype*
sanitized_operators=${POOLGRAD_SANITIZED_OPERATORS-$in_each/where:$in_each/dropout:$in_each/layer_norm:\
$in_each/softmax:$in_each/cumsum:$in_each/sort:$in_each/embedding:$in_each/index_add:$in_each/scatter_add:\
$in_each/unfold}
# Matches the line of a tool that names a fault of a kernel.
fault='^=+ *((error|warning|fatal): *)?(race reported|potential |invalid |uninitialized |barrier error|warpgroup mma'
fault+='|malloc/free error|program hit|hardware exception)'
command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
export OMP_WAIT_POLICY=passive POOLGRAD_GOLDEN=$root/tests/golden
rm -rf "$report"
mkdir -p "$report"

say() { printf 'poolgrad: gpu-check: %s\n' "$*"; }

left() { echo $((limit - SECONDS)); }

# The outcome of each step, for the table; the number of unfinished tests.
outcomes=()
unfinished=0
outcome() {
  outcomes+=("$(printf '%-11s %4s s  %s' "$1" "$2" "$3")")
  say "$1 after $2 s: $3"
}

skip() {  # WHAT WHY
  outcomes+=("$(printf '%-11s %4s s  %s' skipped 0 "$1: $2")")
  say "skipped: $1: $2"
}

# attempt SECONDS NAME COMMAND...: runs the command with output to NAME.txt, and returns its status: 124 after a
# timeout. The command is a job of this shell, so that a signal to the check also ends the command.
attempt() {
  before=$SECONDS
  timeout --kill-after=5 "$1" "${@:3}" >"$report/$2.txt" 2>&1 </dev/null &
  local status=0
  wait $! || status=$?
  if [ $status = 137 ] && [ $((SECONDS - before)) -ge "$1" ]; then status=124; fi  # it ignored the first signal
  return $status
}

# fail NAME STATUS WHAT: ends the check with the end of the step's output.
fail() {
  outcome FAILED $((SECONDS - before)) "$3 (status $2)"
  echo "the end of its output:"
  tail -n 60 "$report/$1.txt"
  exit 1
}

# check NAME WHAT COMMAND...: a step that must succeed; false if the time for all steps ends first.
check() {
  local status=0 seconds=240
  [ "$(left)" -ge $seconds ] || seconds=$(left)
  if [ $seconds -lt 1 ]; then
    skip "$2" "the $limit s are over"
    unfinished=$((unfinished + 1))
    return 1
  fi
  say "$2"
  attempt $seconds "$1" "${@:3}" || status=$?
  if [ $status = 124 ] && [ "$(left)" -lt 1 ]; then
    outcome unfinished $seconds "$2"
    unfinished=$((unfinished + 1))
    return 1
  fi
  [ $status = 0 ] || fail "$1" $status "$2$([ $status != 124 ] || echo ", which took more than $seconds s")"
  outcome passed $((SECONDS - before)) "$2"
}

# tests NAME PROGRAM [options]: at least one test must run; without a device all would be skipped.
tests() {
  local what="tests of $2${3:+ $3}"
  check "$1" "$what" "$programs/$2" --gtest_brief=1 "${@:3}" || return 0
  grep -q '^\[  PASSED  \] [1-9]' "$report/$1.txt" || fail "$1" 0 "$what, of which none has run"
  grep -E 'tests? from .* ran|^\[  (PASSED|SKIPPED )' "$report/$1.txt" | head -n 3
}

# sanitize SECONDS TOOL WHAT PROGRAM FILTER: false if the tool refuses the device. Refused driver calls are no fault:
# programs make some of them to find out whether the device has a feature.
sanitize() {
  local name=$2_$3 what="compute-sanitizer $2 over some of the $3" status=0 refusal refuses said
  there_is_time "$1" "$what" || return 0
  say "$what"
  attempt "$1" "$name" compute-sanitizer --tool "$2" --report-api-errors no --error-exitcode 9 "$programs/$4" \
    --gtest_brief=1 --gtest_filter="$5" || status=$?
  said=$report/$name.txt refuses='^=+ .*(not supported|unsupported|unable to|failed to|internal .*error)'
  if [ $status = 9 ] || grep -qiE "$fault" "$said"; then
    fail "$name" $status "$what, which found something"
  elif refusal=$(grep -m 1 -iE "$refuses" "$said"); then
    outcome refused $((SECONDS - before)) "compute-sanitizer refuses this device: $refusal"
    return 1
  elif [ $status != 0 ] && [ $status != 124 ]; then
    fail "$name" $status "$what"
  elif grep -qE '^=+ .*SUMMARY: [1-9]' "$said"; then
    fail "$name" $status "$what, which found something"
  elif [ $status = 124 ]; then
    outcome unfinished "$1" "$what; nothing was found until then"
  elif ! grep -q '^\[  PASSED  \] [1-9]' "$said"; then
    fail "$name" 0 "$what, of which none has run"
  else
    outcome passed $((SECONDS - before)) "$what"
  fi
}

# there_is_time SECONDS WHAT
there_is_time() {
  [ "$(left)" -lt "$1" ] || return 0
  skip "$2" "it may take $1 s, and $(left) s of $limit are left"
  return 1
}

# timed SECONDS NAME WHAT COMMAND...: runs the command for at most that long, if so much time is left. Returns false on
# a failure, with its status in `failure`.
timed() {
  there_is_time "$1" "$3" || return 0
  say "$3"
  failure=0
  attempt "$1" "$2" "${@:4}" || failure=$?
  case $failure in
    0) outcome measured $((SECONDS - before)) "$3" ;;
    124) outcome unfinished "$1" "$3" ;;
    *) return 1 ;;
  esac
}

# measure SECONDS NAME WHAT COMMAND...: a failure ends the check.
measure() { timed "$@" || fail "$2" $failure "$3"; }

# beside SECONDS NAME WHAT COMMAND...: measures another library; a failure is reported and does not end the check.
beside() { timed "$@" || outcome "no result" $((SECONDS - before)) "$3: $(tail -n 1 "$report/$2.txt")"; }

# bench SECONDS NAME WHAT PROGRAM [options]
bench() {
  measure "$1" "$2" "$3" "$programs/$4" --device=cuda:0 --benchmark_min_time=$every --benchmark_color=false \
    --benchmark_out="$report/$2.json" --benchmark_out_format=json "${@:5}"
}

# shown NAME...: prints the output of these steps, if they ran.
shown() {
  local name
  for name in "$@"; do
    [ ! -s "$report/$name.txt" ] || { echo && cat "$report/$name.txt"; }
  done
}

# Prints the tables after success and after failure.
finish() {
  local status=$?
  trap - EXIT
  shown facts latency pool
  if compgen -G "$report/*.json" >/dev/null; then awk -f "$root/benchmarks/gpu_table.awk" "$report"/*.json; fi
  shown train headline sdpa sdpa_mma step
  echo
  printf '%s\n' "${outcomes[@]}"
  local how=passed
  if [ $status = 0 ] && [ $unfinished != 0 ]; then
    how="UNFINISHED, with no time for $unfinished of the tests" status=1
  elif [ $status != 0 ]; then
    how=FAILED
  fi
  say "$how in $SECONDS s; the output of every step is in $report"
  exit $status
}
trap finish EXIT
# The shell knows its jobs from their first instant on.
ended() {
  local running
  running=$(jobs -rp)
  # shellcheck disable=SC2086 # none or several
  [ -z "$running" ] || { kill $running && wait $running; }
  say "ended by a signal"
  exit 143
}
trap ended INT TERM

# If the loader does not know cuBLASLt of the CUDA version of these programs, take that of a toolkit or a Python
# package.
cuda=$(ldd "$programs/kernels_cuda_gpu_test" 2>/dev/null | sed -nE 's/^\s*libcudart\.so\.([0-9]+).*/\1/p')
library=libcublasLt.so.$cuda
if [ -n "$cuda" ] && ! grep -qF "$library " <<<"$(ldconfig -p 2>/dev/null)"; then
  cublas=$(compgen -G "/usr/local/cuda*/lib64/$library" || python3 -c 'if True:
    import glob, sys
    print(*(f for path in sys.path for f in glob.glob(path + "/nvidia/*/lib/" + sys.argv[1])), sep="\n")' \
    "$library" 2>/dev/null)
  if [ -n "$cublas" ]; then
    cublas=$(dirname "$(head -n 1 <<<"$cublas")")
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cublas
    say "taking cuBLASLt from $cublas"
  else
    say "no $library on this machine, which matrix products need"
  fi
fi

check facts "the device, and the architectures of the programs" "$programs/device_check" facts
cat "$report/facts.txt"
differences='*PassesGrad*'  # gradcheck
tests allocator allocator_gpu_device_test
tests kernels kernels_cuda_gpu_test
tests operators autograd_gpu_test "--gtest_filter=-$differences"

if [ -z "$sanitized$sanitized_operators" ]; then
  say "POOLGRAD_SANITIZED is empty: no tests under compute-sanitizer"
elif ! command -v compute-sanitizer >/dev/null; then
  say "no compute-sanitizer on this machine: no tests under it"
else
  for tool in memcheck racecheck initcheck synccheck; do
    [ -z "$sanitized" ] || sanitize 40 $tool kernels kernels_cuda_gpu_test "$sanitized" || break
    [ -z "$sanitized_operators" ] || sanitize 20 $tool operators autograd_gpu_test "$sanitized_operators" || break
  done
fi

tests stress gpu_test
tests gradients autograd_gpu_test "--gtest_filter=$differences"
for test in autograd_memory_gpu attention_gpu nn_gpu golden_gpu examples_gpu; do
  tests $test ${test}_test
done
for test in nn_devices_gpu attention_ring_devices_gpu parallel_devices_gpu; do
  check $test "tests of ${test}_test, which are skipped with a single GPU" "$programs/${test}_test" --gtest_brief=1 &&
    grep -E '^\[  (PASSED|SKIPPED )' "$report/$test.txt"
done
check train "training on poolgrad's own text" "$programs/train" --device cuda --steps 200 --report 100 \
  --text "$root/allocator" "$root/kernels"
check pool "the pool: hits, steady steps, accounts" "$programs/device_check" pool
check latency "the calls of the driver: a table for the simulator" "$programs/device_check" latency cuda "$root/build/gpu"

if [ "${POOLGRAD_BENCHMARK_SMALL:-}" = 1 ]; then
  every=0.0001 sizes=
else
  every=0.05 sizes='queries:(4096/.*/heads:16|16384/.*/heads:4)/'
fi
patterns='(dense|causal|window_256|dilated_causal)'
bench 60 kernels "kernels, against the driver's own copies" kernels_benchmark
bench 60 products "products; the largest is the ceiling" gemm_benchmark
POOLGRAD_MMA=0 bench 75 attention "attention by portable kernels" attention_benchmark \
  --benchmark_filter="/((f32|bf16)/$patterns/.*|f16/$patterns/forward/.*)$sizes"
bench 45 attention_mma "attention by tensor cores" attention_benchmark \
  --benchmark_filter="/((f32|bf16)/$patterns/.*|f16/$patterns/forward/.*)$sizes"
POOLGRAD_MMA=0 bench 60 steps "training steps with portable attention" step_benchmark
bench 30 steps_mma "training steps with attention by tensor cores" step_benchmark \
  --benchmark_filter='f32|bf16'
if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
  peers=$root/benchmarks/peers sizes=(--device cuda --repeats 5 --lengths 4096 16384)
  beside 150 step "training steps, PyTorch beside" python3 "$peers/step.py" --device=cuda "$programs/step_benchmark" 15 3 4
  POOLGRAD_MMA=0 beside 75 sdpa "attention by portable kernels, PyTorch beside" python3 "$peers/sdpa.py" \
    "$programs/attention_benchmark" "${sizes[@]}"
  beside 75 sdpa_mma "attention by tensor cores, PyTorch beside" python3 "$peers/sdpa.py" \
    "$programs/attention_benchmark" "${sizes[@]}"
else
  say "no PyTorch with a GPU here: no measurements beside it"
fi
measure 90 headline "headline rows" "$programs/headline" --device cuda --row-seconds 5 --seconds 3
