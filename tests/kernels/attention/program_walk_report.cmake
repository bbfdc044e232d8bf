# Compiles the kernels that read a program for Hopper. Checks that they have no stack and no spills, that the walk takes
# fewer than 64 registers, and that the compiler takes only seconds.
set(source ${ROOT}/tests/kernels/attention/program_walk.cu)
string(TIMESTAMP begin "%s")
execute_process(
  COMMAND ${NVCC} -std=c++20 -O3 --expt-relaxed-constexpr -Werror=all-warnings -I${ROOT}
    -gencode arch=compute_90a,code=sm_90a -Xptxas -v -cubin -o ${OUTPUT} ${source}
  RESULT_VARIABLE failed OUTPUT_VARIABLE report ERROR_VARIABLE report)
string(TIMESTAMP end "%s")
math(EXPR seconds "${end} - ${begin}")
message("${report}")
if(failed)
  message(FATAL_ERROR "nvcc does not compile ${source}")
endif()
if(seconds GREATER_EQUAL 20)
  message(FATAL_ERROR "nvcc takes ${seconds} s")
endif()
string(REGEX MATCHALL "[0-9]+ bytes stack frame, [0-9]+ bytes spill stores" frames "${report}")
list(REMOVE_DUPLICATES frames)
if(NOT frames STREQUAL "0 bytes stack frame, 0 bytes spill stores")
  message(FATAL_ERROR "there are stack frames or spills: ${frames}")
endif()
if(NOT report MATCHES "[^\n]*function '[^']*walk_program[^\n]*'[^']*Used ([0-9]+) registers")
  message(FATAL_ERROR "no report of walk_program")
endif()
if(CMAKE_MATCH_1 GREATER_EQUAL 64)
  message(FATAL_ERROR "the walk takes ${CMAKE_MATCH_1} registers")
endif()
