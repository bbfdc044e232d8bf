#!/usr/bin/env bash
# shellcheck disable=SC2016 # what programs do is expanded when they do it
# gpu_check_test.sh ROOT [REHEARSAL]: tests the order of the steps of ./run gpu-check, its ends and its output, with
# stand-ins for nvidia-smi, compute-sanitizer, PyTorch and poolgrad's programs. With the folder REHEARSAL, its programs
# run instead, on the emulated device; SHOW=1 prints their output.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
mkdir -p "$folder/tools" "$folder/benchmarks" "$folder/build/gpu/gpu" "$folder/tests"
cp "$1/run" "$folder"
cp -r "$1/benchmarks/gpu_check.sh" "$1/benchmarks/gpu_table.awk" "$folder/benchmarks"
export PATH=$folder/tools:$PATH NOTES=$folder/notes FAULTS=$folder/faults
unset POOLGRAD_CMAKE_OPTIONS POOLGRAD_SANITIZED POOLGRAD_SANITIZED_OPERATORS POOLGRAD_GPU_CHECK_SECONDS POOLGRAD_MMA

tool() { cat >"$folder/$1" && chmod +x "$folder/$1"; }
tool tools/nvidia-smi <<<$'#!/bin/sh\necho "GPU 0: one"'
tool tools/ldconfig <<<$'#!/bin/sh\necho "\tlibcublasLt.so.13 (libc6,x86-64) => /lib/libcublasLt.so.13"'
tool tools/ldd <<<$'#!/bin/sh\nprintf "\\tlibcudart.so.13 => /lib/libcudart.so.13 (0x00007f2a)\\n"'
# The stand-in for every other program: it writes down its call, and runs the file of its name in faults.
tool told <<'PROGRAM'
#!/bin/sh
name=${0##*/}
echo "${POOLGRAD_MMA:+portable }$name $*" >>"$NOTES"
if [ -f "$FAULTS/$name" ]; then . "$FAULTS/$name"; fi
for option; do
  case $option in --benchmark_out=*) cat "${FAULTS%/*}/$name.json" >"${option#*=}" ;; esac
done
case $name in *_test | compute-sanitizer) echo "[  PASSED  ] 3 tests." ;; *) echo "what $name prints" ;; esac
PROGRAM
# figures PROGRAM: writes its measurements in the format of Google Benchmark.
figures() {
  printf '{ "context": { "num_cpus": 2 },\n  "benchmarks": [\n    {\n%s\n    }\n  ]\n}\n' "$(cat)" >"$folder/$1.json"
}
figures kernels_benchmark <<'FIGURES'
      "name": "Softmax/4096/4096/real_time",
      "time_unit": "us",
      "bytes_per_second": 2.7000000000000000e+12,
      "of_copy": 9.0000000000000002e-01
    },
    {
      "name": "Unary/gelu/4096/4096/real_time",
      "bytes_per_second": 1.5e+12,
      "of_copy": 5.0000000000000000e-01
FIGURES
figures gemm_benchmark <<<'      "name": "Gemm/cublaslt/bf16/forward/tokens:8192/in:8192/out:8192/real_time",
      "FLOPS": 8.0e+14'
figures attention_benchmark <<<'      "name": "Attention/bf16/causal/forward/batch:1/queries:4096/keys:4096/heads:16/depth:64/real_time",
      "FLOPS": 2.0e+14'
figures step_benchmark <<<'      "name": "training_step/bf16/B:8/T:512/C:256/L:6/H:4/V:256/real_time",
      "real_time": 2.5e+00,
      "items_per_second": 1.6384e+06'
for name in tools/compute-sanitizer tools/python3; do cp "$folder/told" "$folder/$name"; done
tests=(allocator_gpu_device kernels_cuda_gpu autograd_gpu autograd_memory_gpu attention_gpu nn_gpu golden_gpu
  examples_gpu gpu {nn,attention_ring,parallel}_devices_gpu)
for name in "${tests[@]/%/_test}" device_check train headline {kernels,gemm,attention,step}_benchmark; do
  cp "$folder/told" "$folder/build/gpu/gpu/$name"
done

fail() {
  echo "$1; gpu-check called:"
  cat "$NOTES"
  echo "and it said:"
  cat "$folder/said"
  exit 1
}
# checked STATUS: runs the whole check, which must exit with this status.
checked() {
  : >"$NOTES"
  local status=0
  "$folder/run" gpu-check --no-build >"$folder/said" 2>&1 || status=$?
  [ $status = "$1" ] || fail "status $status instead of $1"
}
# fault PROGRAM COMMANDS: from now on the program runs these commands first; all others succeed.
fault() {
  rm -rf "$FAULTS" && mkdir "$FAULTS"
  [ $# = 0 ] || echo "$2" >"$FAULTS/$1"
}
says() { grep -qE -e "$1" "$folder/said" || fail "it does not say '$1'"; }
says_not() { ! grep -qE -e "$1" "$folder/said" || fail "it says '$1'"; }
calls() { grep -qE -e "$1" "$NOTES" || fail "'$1' was not called"; }
calls_not() { ! grep -qE -e "$1" "$NOTES" || fail "'$1' was called"; }
# in_order WHAT: the calls were the lines of standard input, in this order.
in_order() { diff - <(cut -d ' ' -f 1-4 "$NOTES" | sed -E "s|$folder/||g; s/ +$//") || fail "$1: another order"; }

# Every step with the programs themselves, on an emulated device.
if [ $# -gt 1 ]; then
  for name in device_check {kernels,gemm,attention,step}_benchmark; do
    ln -sf "$2/$name" "$folder/build/gpu/gpu/$name"
  done
  fault
  POOLGRAD_BENCHMARK_SMALL=1 checked 0
  says '^cuda:0: emulated device, '
  says '^compiled for the host'
  says '^device calls of ten steady steps +0$'
  says '^set_access +[0-9.]+ +[0-9.]+$'
  says '^written to .*/build/gpu/latency-emulated-device.txt: ./run lab replay'
  grep -q '^synchronize ' "$folder"/build/gpu/latency-emulated-device.txt || fail "there is no latency table"
  for kernel in Copy Unary/gelu SoftmaxBackward LayerNormBackward SumOfSquares EmbeddingBackward AdamWStep; do
    says "^$kernel .* GB/s +[0-9.]+ % (met|missed)"
  done
  for dtype in f32 bf16 f16 f64; do says "^$dtype weight_gradient +[0-9.]+"; done
  for pattern in dense causal window_256 dilated_causal; do
    says "^f32 $pattern forward_backward, 48 of 2 heads +[0-9.]+"
    for dtype in bf16 f16; do says "^$dtype $pattern forward, 48 of 2 heads +[0-9.]+ +[0-9.]+"; done
  done
  says '^training_step/f32 +\(1, 16, 32, 1, 2, 16\) +[0-9.]+ ms'
  says '^training_step/f32/recorded +\(1, 16, 32, 1, 2, 16\) +[0-9.]+ ms'
  says '^training_step/bf16, tensor cores +\(1, 16, 32, 1, 2, 16\) +[0-9.]+ ms'
  [ -z "${SHOW:-}" ] || cat "$folder/said"
  exit
fi

# Without a fault: the order, and every measurement with and without tensor cores.
fault
checked 0
in_order "all is well" <<'ORDER'
device_check facts
allocator_gpu_device_test --gtest_brief=1
kernels_cuda_gpu_test --gtest_brief=1
autograd_gpu_test --gtest_brief=1 --gtest_filter=-*PassesGrad*
compute-sanitizer --tool memcheck --report-api-errors
compute-sanitizer --tool memcheck --report-api-errors
compute-sanitizer --tool racecheck --report-api-errors
compute-sanitizer --tool racecheck --report-api-errors
compute-sanitizer --tool initcheck --report-api-errors
compute-sanitizer --tool initcheck --report-api-errors
compute-sanitizer --tool synccheck --report-api-errors
compute-sanitizer --tool synccheck --report-api-errors
gpu_test --gtest_brief=1
autograd_gpu_test --gtest_brief=1 --gtest_filter=*PassesGrad*
autograd_memory_gpu_test --gtest_brief=1
attention_gpu_test --gtest_brief=1
nn_gpu_test --gtest_brief=1
golden_gpu_test --gtest_brief=1
examples_gpu_test --gtest_brief=1
nn_devices_gpu_test --gtest_brief=1
attention_ring_devices_gpu_test --gtest_brief=1
parallel_devices_gpu_test --gtest_brief=1
train --device cuda --steps
device_check pool
device_check latency cuda build/gpu
kernels_benchmark --device=cuda:0 --benchmark_min_time=0.05 --benchmark_color=false
gemm_benchmark --device=cuda:0 --benchmark_min_time=0.05 --benchmark_color=false
portable attention_benchmark --device=cuda:0 --benchmark_min_time=0.05
attention_benchmark --device=cuda:0 --benchmark_min_time=0.05 --benchmark_color=false
portable step_benchmark --device=cuda:0 --benchmark_min_time=0.05
step_benchmark --device=cuda:0 --benchmark_min_time=0.05 --benchmark_color=false
python3 -c import torch;
python3 benchmarks/peers/step.py --device=cuda build/gpu/gpu/step_benchmark
portable python3 benchmarks/peers/sdpa.py build/gpu/gpu/attention_benchmark
python3 benchmarks/peers/sdpa.py build/gpu/gpu/attention_benchmark --device
headline --device cuda --row-seconds
ORDER
while read -r line; do says "$line"; done <<'SAYS'
^poolgrad: gpu-check: tests of golden_gpu_test$
^poolgrad: gpu-check: passed after [0-9]+ s: tests of golden_gpu_test$
^driver's copy +3000 GB/s at 64 MiB
^Softmax +2700 GB/s  90.0 % met
^Unary/gelu +1500 GB/s  50.0 % missed
^the goal is missed 1 times
^bf16 forward +800.0 100%
^bf16 causal forward, 4096 of 16 heads +200.0  25% +200.0  25%
^training_step/bf16 +\(8, 512, 256, 6, 4, 256\) +2.50 ms +1638400
^what headline prints
^measured +[0-9]+ s  attention by tensor cores$
SAYS
tail -n 1 "$folder/said" | grep -q '^poolgrad: gpu-check: passed in ' || fail "the outcome is not its last line"
[ -s "$folder/build/gpu/report/products.json" ] || fail "the report has no figures"

# Sanitizers run tests of kernels and of operators. They do not report calls that the driver refuses.
calls '^compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 .*/kernels_cuda_gpu_test '
calls '^compute-sanitizer --tool synccheck --report-api-errors no --error-exitcode 9 .*/autograd_gpu_test '
patterns=$(sed -n 's/^compute-sanitizer --tool memcheck .*--gtest_filter=//p' "$NOTES" | tr ':\n' '  ')
[[ $patterns == *CudaAttention*OperatorTest* ]] || fail "not all that is to run is in '$patterns'"
for pattern in $patterns; do
  [[ $pattern =~ ^(Cuda/|\*)?([A-Za-z]+)(\.([A-Za-z]*))? ]] || fail "the pattern '$pattern' is of no kind that is known"
  grep -rqE "^TEST(_[FP])?\(${BASH_REMATCH[2]}, ${BASH_REMATCH[4]}" "$1/tests/kernels/cuda" "$1/tests/autograd" ||
    fail "no test is called '$pattern'"
  [[ $pattern != *OperatorTest* ]] || grep -qE "(name = |one_input\(|unary\()\"${pattern##*/}\"" \
    "$1"/tests/autograd/operator_table*.cpp || fail "no operator is called '$pattern'"
done

# The first failed test ends the check. Its output comes first, then the tables of the steps until then.
fault kernels_cuda_gpu_test 'echo "Actual: 1"; exit 1'
checked 1
calls '^allocator_gpu_device_test'
calls_not '^autograd_gpu_test|^compute-sanitizer|_benchmark|^python3'
says '^Actual: 1$'
says '^passed +[0-9]+ s  tests of allocator_gpu_device_test'
says '^FAILED +[0-9]+ s  tests of kernels_cuda_gpu_test \(status 1\)'
tail -n 1 "$folder/said" | grep -q '^poolgrad: gpu-check: FAILED in ' || fail "the outcome is not its last line"

# Tests that find no device end it, too, and so do differing accounts. With one GPU, tests of two do not.
fault nn_devices_gpu_test 'echo "[  PASSED  ] 0 tests."; echo "[  SKIPPED ] 9 tests."; exit 0'
checked 0
says '^\[  SKIPPED \] 9 tests'
fault attention_gpu_test 'echo "[  PASSED  ] 0 tests."; echo "[  SKIPPED ] 3 tests."; exit 0'
checked 1
says 'tests of attention_gpu_test, of which none has run'
fault device_check '[ $1 != pool ] || { echo "device_check: the accounts differ"; exit 1; }'
checked 1
says '^device_check: the accounts differ$'
calls_not '^device_check latency'

# A sanitizer that refuses the device runs once and does not end the check; one with a finding ends it.
fault compute-sanitizer 'echo "========= Error: Device not supported. Please refer to the documentation"; exit 1'
checked 0
says 'compute-sanitizer refuses this device: =+ Error: Device not supported'
[ "$(grep -c '^compute-sanitizer' "$NOTES")" = 1 ] || fail "other tools were tried"
calls '^kernels_benchmark'
fault compute-sanitizer '[ $2 != racecheck ] || { echo "========= RACECHECK SUMMARY: 1 hazard"; exit 9; }'
checked 1
says '^========= RACECHECK SUMMARY: 1 hazard$'
says '^FAILED .*compute-sanitizer racecheck over some of the kernels, which found something'
calls_not '^gpu_test|^kernels_benchmark'
fault compute-sanitizer 'case $* in *autograd_gpu_test*) echo "========= ERROR SUMMARY: 2 errors" ;; esac'
checked 1
says '^FAILED .*compute-sanitizer memcheck over some of the operators, which found something \(status 0\)'
# The findings of a sanitizer that times out count. (A stand-in for `timeout` waits for no minute.)
tool tools/timeout <<<$'#!/bin/sh\nshift 2\ncase $1 in compute-sanitizer) "$@"; exit 124 ;; esac\nexec "$@"'
for line in 'Invalid __global__ read of size 4 bytes' 'Uninitialized __global__ memory read of size 4 bytes' \
  'Error: Race reported between Write access at a()+0xf0' 'Warning: Race reported between Read access at a()+0xf0' \
  'Barrier error detected. Divergent thread(s) in block' 'ERROR SUMMARY: 3 errors'; do
  fault compute-sanitizer "echo '========= $line'"
  checked 1
  says "^FAILED .*compute-sanitizer memcheck over some of the kernels, which found something \(status 124\)"
done
fault compute-sanitizer 'echo "========= COMPUTE-SANITIZER"; echo "Invalid"; echo "========= ERROR SUMMARY: 0 errors"'
checked 0
says '^unfinished +40 s  compute-sanitizer memcheck over some of the kernels; nothing was found until then$'
calls '^compute-sanitizer --tool synccheck'
rm "$folder/tools/timeout"
fault compute-sanitizer 'echo "[  PASSED  ] 0 tests."; exit 0'
checked 1
says 'of which none has run'
fault
POOLGRAD_SANITIZED='' checked 0
calls '^compute-sanitizer .*autograd_gpu_test'
calls_not '^compute-sanitizer .*kernels_cuda_gpu_test'
POOLGRAD_SANITIZED='' POOLGRAD_SANITIZED_OPERATORS='' checked 0
calls_not '^compute-sanitizer'

# Measurements of other libraries may fail, poolgrad's own programs may not.
fault python3 '[ "${1##*/}" != step.py ] || { echo "CUDA error"; exit 1; }'
checked 0
says '^no result +[0-9]+ s  training steps, PyTorch beside: CUDA error'
calls '^portable python3'
fault python3 '[ $1 != -c ] || exit 1'
checked 0
says 'no PyTorch with a GPU here'
calls_not 'peers'
fault gemm_benchmark 'echo "out of memory"; exit 1'
checked 1
says '^FAILED .*products; the largest is the ceiling \(status 1\)'

# If the loader does not know cuBLASLt of the CUDA of the build, the check searches for it.
tool tools/ldd <<<$'#!/bin/sh\nprintf "\\tlibcudart.so.97 => /lib/libcudart.so.97 (0x00007f2a)\\n"'
fault python3 'case $2 in *libcublasLt*|*nvidia*) echo "/some/where/$3" && exit ;; esac'
checked 0
says 'taking cuBLASLt from /some/where$'
calls ' libcublasLt\.so\.97$'
calls '^kernels_cuda_gpu_test'
fault python3 'case $2 in *nvidia*) exit ;; esac'
checked 0
says 'no libcublasLt\.so\.97 on this machine'
# The check finds it among any number of libraries.
tool tools/ldd <<<$'#!/bin/sh\nprintf "\\tlibcudart.so.13 => /lib/libcudart.so.13 (0x00007f2a)\\n"'
tool tools/ldconfig <<<$'#!/bin/sh\necho "\tlibcublasLt.so.13 (libc6,x86-64) => /lib/libcublasLt.so.13"\nseq 100000'
fault
checked 0
says_not 'libcublasLt|cuBLASLt'

# All steps share the time. The check names the steps without time, and fails if they are tests.
POOLGRAD_GPU_CHECK_SECONDS=70 checked 0
calls '^examples_gpu_test'
says '^poolgrad: gpu-check: skipped: attention by portable kernels: it may take 75 s, and [0-9]+ s of 70 are left$'
says '^skipped +0 s  headline rows: it may take 90 s'
calls '^kernels_benchmark'
calls_not '^portable attention_benchmark'
fault kernels_cuda_gpu_test 'exec sleep 100'
POOLGRAD_GPU_CHECK_SECONDS=3 checked 1
says '^unfinished +[1-3] s  tests of kernels_cuda_gpu_test$'
says '^skipped +0 s  compute-sanitizer memcheck over some of the operators: it may take 20 s, and -?[0-9]+ s of 3 are left$'
says '^skipped +0 s  tests of examples_gpu_test: the 3 s are over$'
says '^poolgrad: gpu-check: UNFINISHED, with no time for 15 of the tests in [3-9] s'
calls_not '^autograd_gpu_test|^compute-sanitizer|^examples_gpu_test|_benchmark'

# A signal to the check also ends its program, and the tables are printed.
fault train 'echo $$ >"$NOTES.train"; exec sleep 100'
: >"$NOTES"
"$folder/run" gpu-check --no-build >"$folder/said" 2>&1 &
check=$!
while [ ! -s "$NOTES.train" ]; do sleep 0.05; done
kill "$check"
wait "$check" && fail "it passes though it was ended"
says '^poolgrad: gpu-check: ended by a signal$'
says '^passed +[0-9]+ s  tests of examples_gpu_test'
for _ in $(seq 100); do kill -0 "$(cat "$NOTES.train")" 2>/dev/null || break; sleep 0.05; done
! kill -0 "$(cat "$NOTES.train")" 2>/dev/null || fail "the command goes on"

# --build copies the libraries that a machine may lack.
rm -r "$folder/build"
fault
tool tools/apt-get <<<$'#!/bin/sh\n'
tool tools/dpkg-query <<<$'#!/bin/sh\nprintf installed'
for name in nvcc g++ ninja; do tool "tools/$name" <<<$'#!/bin/sh\n'; done
tool tools/cmake <<'CMAKE'
#!/bin/sh
echo "cmake $*" >>"$NOTES"
mkdir -p build/gpu/gpu build/gpu/benchmarks build/gpu/bin
for name in benchmarks/kernels benchmarks/gemm benchmarks/attention benchmarks/step gpu/device; do
  case $name in gpu/*) name=${name}_check ;; *) name=${name}_benchmark ;; esac
  cp "$NOTES" "build/gpu/$name" && chmod +x "build/gpu/$name"
done
for name in train headline; do cp "$NOTES" "build/gpu/bin/$name" && chmod +x "build/gpu/bin/$name"; done
CMAKE
for name in libbenchmark.so.1debian libfmt.so.9 libcublasLt.so.13 libstdc++.so.6; do echo "$name" >"$folder/$name"; done
tool tools/ldd <<'LDD'
#!/bin/sh
printf '\tlinux-vdso.so.1 (0x00)\n'
for name in libbenchmark.so.1debian libfmt.so.9 libcublasLt.so.13 libstdc++.so.6; do
  printf '\t%s => %s (0x00007f2a)\n' $name "${NOTES%/*}/$name"
done
printf '\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00)\n\t/lib64/ld-linux-x86-64.so.2 (0x00)\n'
LDD
: >"$NOTES"
"$folder/run" gpu-check --build >"$folder/said" 2>&1 || fail "--build fails"
calls '^cmake --preset gpu .*-DCMAKE_BUILD_RPATH=\$ORIGIN'
calls '^cmake --build build/gpu .*gpu_tests device_check kernels_benchmark gemm_benchmark attention_benchmark step_benchmark'
taken=$(cd "$folder/build/gpu/gpu" && echo *)
[ "$taken" = "attention_benchmark device_check gemm_benchmark headline kernels_benchmark libbenchmark.so.1debian \
libfmt.so.9 step_benchmark train" ] || fail "--build takes along '$taken'"
