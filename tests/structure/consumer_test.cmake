# Installs the build to an empty prefix, then configures, builds and runs tests/consumer against it.
function(run_or_fail)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${status}:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${FOLDER})
run_or_fail(${CMAKE_COMMAND} --install ${BUILD} --prefix ${FOLDER}/prefix)
run_or_fail(${CMAKE_COMMAND} -S ${CONSUMER} -B ${FOLDER}/build -G ${GENERATOR}
  -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${FOLDER}/prefix -DCMAKE_BUILD_TYPE=Release)
run_or_fail(${CMAKE_COMMAND} --build ${FOLDER}/build)
run_or_fail(${FOLDER}/build/consumer)
run_or_fail(${FOLDER}/build/consumer_of_one_floor)
