# Configures a build of which every program has the emulated device (POOLGRAD_CUDA=EMULATED), and looks what its archives
# are made of: the emulated device, and not the stubs that say that there is none. To build it takes minutes.
function(said_by result)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${status}:\n${output}")
  endif()
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${FOLDER})
said_by(output ${CMAKE_COMMAND} -S ${SOURCE} -B ${FOLDER} -G Ninja -DCMAKE_MAKE_PROGRAM=${NINJA}
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release -DPOOLGRAD_CUDA=EMULATED -DPOOLGRAD_MPI=OFF)
foreach(part "allocator;memory;cuda_driver_stub" "kernels;kernels;/stub")
  list(POP_FRONT part floor objects stub)
  said_by(inputs ${NINJA} -C ${FOLDER} -t query ${floor}/libpoolgrad_${floor}.a)
  if(NOT inputs MATCHES "poolgrad_emulated_${objects}\\.dir/[^\n]*\\.o\n" OR inputs MATCHES "${stub}[^\n]*\\.o\n")
    message(FATAL_ERROR "the archive of ${floor} is not of the emulated device:\n${inputs}")
  endif()
endforeach()
said_by(output ${NINJA} -C ${FOLDER} -n train)  # there is a rule for all that it needs
