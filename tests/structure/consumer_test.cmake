# Installs the build to an empty prefix, then configures, builds and runs tests/consumer and the first steps of
# examples/ against it, and the first program of docs/start.md as on the page.
function(run_or_fail)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${status}:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${FOLDER})
run_or_fail(${CMAKE_COMMAND} --install ${BUILD} --prefix ${FOLDER}/prefix)
run_or_fail(${CMAKE_COMMAND} -S ${CONSUMER} -B ${FOLDER}/build -G ${GENERATOR} -DEXAMPLES=${EXAMPLES}
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${FOLDER}/prefix -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_CXX_FLAGS_RELEASE=-O0)  # the libraries take the time
run_or_fail(${CMAKE_COMMAND} --build ${FOLDER}/build)
run_or_fail(${FOLDER}/build/consumer)
run_or_fail(${FOLDER}/build/consumer_of_one_floor)
run_or_fail(${FOLDER}/build/gradients_test)
file(COPY ${FOLDER}/prefix/include/poolgrad/tensor/tensor.h DESTINATION ${FOLDER})
run_or_fail(${FOLDER}/build/own_text ${FOLDER}/tensor.h 1)
if(NOT EXISTS ${FOLDER}/tensor.h.safetensors)
  message(FATAL_ERROR "own_text saved no model")
endif()
file(GLOB first_steps ${EXAMPLES}/first_steps/*.cpp)
list(LENGTH first_steps count)
if(count LESS 5)
  message(FATAL_ERROR "of five first steps there are ${count} in ${EXAMPLES}")
endif()
foreach(source ${first_steps})
  cmake_path(GET source STEM program)
  run_or_fail(${FOLDER}/build/${program})
endforeach()

run_or_fail(${CMAKE_COMMAND} -S ${FIRST} -B ${FOLDER}/first -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${FOLDER}/prefix)
run_or_fail(${CMAKE_COMMAND} --build ${FOLDER}/first)
execute_process(COMMAND ${FOLDER}/first/first RESULT_VARIABLE status OUTPUT_VARIABLE line)
if(NOT status EQUAL 0 OR NOT line MATCHES "^y = (2|1.99[0-9]*|2.00[0-9]*) x [+] (1|0.99[0-9]*|1.00[0-9]*)\n$")
  message(FATAL_ERROR "the first program of docs/start.md ended with ${status} and printed: ${line}")
endif()
