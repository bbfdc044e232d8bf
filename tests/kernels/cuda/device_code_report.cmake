# Compiles a file of kernels for Hopper and holds them to what kernels that wait for memory must keep: no stack, no spills, and few
# enough registers, 64 or REGISTERS where there is a reason, for many threads of a multiprocessor to be there at once.
if(NOT REGISTERS)
  set(REGISTERS 64)
endif()
execute_process(
  COMMAND ${NVCC} -std=c++20 -O3 --expt-relaxed-constexpr -Werror=all-warnings -I${ROOT}
    -gencode arch=compute_90a,code=sm_90a -Xptxas -v -cubin -o ${OUTPUT} ${SOURCE}
  RESULT_VARIABLE failed OUTPUT_VARIABLE report ERROR_VARIABLE report)
if(failed)
  message(FATAL_ERROR "nvcc does not compile ${SOURCE}:\n${report}")
endif()
string(REGEX MATCHALL "[0-9]+ bytes stack frame, [0-9]+ bytes spill stores" frames "${report}")
list(LENGTH frames kernels)
list(REMOVE_DUPLICATES frames)
if(NOT frames STREQUAL "0 bytes stack frame, 0 bytes spill stores")
  message(FATAL_ERROR "there are stack frames or spills: ${frames}\n${report}")
endif()
string(REGEX MATCHALL "Used [0-9]+ registers" registers "${report}")
list(REMOVE_DUPLICATES registers)
foreach(used IN LISTS registers)
  string(REGEX REPLACE "[^0-9]" "" number "${used}")
  if(number GREATER REGISTERS)
    message(FATAL_ERROR "a kernel takes ${number} registers:\n${report}")
  endif()
endforeach()
message("${kernels} kernels: ${registers}")
