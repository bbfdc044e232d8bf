# The headers that nearly every source of a library includes, compiled once for each of the two optimization levels. GCC
# restores the options of a precompiled header, so a source has the level of its header, not of its own flags.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/headers.cpp CONTENT "")
foreach(headers poolgrad_headers poolgrad_headers_fastest)
  add_library(${headers} OBJECT ${PROJECT_BINARY_DIR}/headers.cpp)
  set_target_properties(${headers} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${headers} PRIVATE poolgrad_options)
  target_precompile_headers(${headers} PRIVATE
    <algorithm> <array> <atomic> <bit> <cmath> <condition_variable> <cstddef> <cstdint> <cstring> <functional> <limits> <map>
    <memory> <mutex> <optional> <set> <span> <sstream> <string> <string_view> <thread> <tuple> <type_traits> <unordered_map>
    <utility> <variant> <vector>)
endforeach()
target_precompile_headers(poolgrad_headers PRIVATE <fmt/format.h>)
target_link_libraries(poolgrad_headers PRIVATE fmt::fmt)
target_compile_options(poolgrad_headers PRIVATE ${POOLGRAD_FAST})
target_compile_options(poolgrad_headers_fastest PRIVATE ${POOLGRAD_FASTEST})

# poolgrad_fast(<target>): compiles a library at -O1. Its time is that of the -O3 libraries that it calls.
function(poolgrad_fast target)
  target_compile_options(${target} PRIVATE ${POOLGRAD_FAST})
  target_precompile_headers(${target} REUSE_FROM poolgrad_headers)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:poolgrad_options> fmt::fmt)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD_BATCH_SIZE 12)
endfunction()

# One library per layer. poolgrad_floor(<folder> [FASTEST] SOURCES ... DEPENDS <lower layers> LIBRARIES <packages>) makes
# poolgrad_<folder>, with the alias poolgrad::<folder>. Sources are listed, never globbed. FASTEST layers take the time of
# a step and are compiled at -O3. The others call them and are compiled at -O1, in two thirds of the time of -O2.
function(poolgrad_floor name)
  cmake_parse_arguments(FLOOR "FASTEST" "" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  set(target poolgrad_${name})
  add_library(${target} STATIC ${FLOOR_SOURCES})
  add_library(poolgrad::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:poolgrad_options>)
  if(FLOOR_FASTEST)
    target_compile_options(${target} PRIVATE ${POOLGRAD_FASTEST})
    target_precompile_headers(${target} REUSE_FROM poolgrad_headers_fastest)
  else()
    poolgrad_fast(${target})
  endif()
  foreach(library IN LISTS FLOOR_LIBRARIES)
    if(library MATCHES "^(Eigen3|nlohmann_json)::")  # header-only: a consumer of the archive does not need it
      set(library $<BUILD_INTERFACE:${library}>)
    endif()
    target_link_libraries(${target} PRIVATE ${library})
  endforeach()
  foreach(lower IN LISTS FLOOR_DEPENDS)
    target_link_libraries(${target} PUBLIC poolgrad_${lower})
  endforeach()

  install(TARGETS ${target} EXPORT poolgradTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# poolgrad_test_part(<target> <level>): compiles a target like tests, at -O0 or -O1, with their precompiled headers.
function(poolgrad_test_part target level)
  target_link_libraries(${target} PRIVATE poolgrad_options GTest::gmock GTest::gtest poolgrad_test_options)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(${target} PRIVATE ${level})
  target_precompile_headers(${target} REUSE_FROM poolgrad_test_headers${level})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${POOLGRAD_UNITY})
endfunction()

# poolgrad_tests(<folder> [AS <part>] [OPTIMIZED] [EMULATED] [NVCC] [NEEDS_GPU [TWO]] SOURCES <names> [LIBRARIES ...]
# [DEFINITIONS ...] [LABELS ...] [ENVIRONMENT ...]) makes one GoogleTest program of tests/<folder>/<name>_test.cpp. Its
# name is <folder>_test, with _ for /, or <folder>_<part>_test. ctest runs each of its tests; under sanitizers, or with
# POOLGRAD_TESTS_BY_PROGRAM, it runs the program as one test.
# The first folder is a label, and names the layer to link. LABELS are further labels; the targets gpu_tests and
# core_tests build the programs labeled gpu and core.
# Most of the compile time of tests goes into templates of GoogleTest and the standard library. So six sources are
# compiled at a time, or ten if a program is one test, which takes up to a quarter less time. Names in anonymous
# namespaces must therefore be unique in a program. Tests are compiled at -O0, and at -O1 if they compute much
# (OPTIMIZED).
# EMULATED: links the emulated device. NVCC: the tests launch kernels of their own. NEEDS_GPU: the program exists if
# POOLGRAD_CUDA is ON, has the label gpu, and skips its tests with the reason if there is no device, or (TWO) no second
# one. Programs labeled gpu lie in gpu/, where ./run gpu-check runs them.
function(poolgrad_tests folder)
  cmake_parse_arguments(TEST "OPTIMIZED;EMULATED;NVCC;NEEDS_GPU;TWO" "AS" "SOURCES;LIBRARIES;DEFINITIONS;LABELS;ENVIRONMENT" ${ARGN})
  string(REGEX REPLACE "/.*" "" floor ${folder})
  string(REPLACE "/" "_" name ${folder})
  if(TEST_AS)
    string(APPEND name _${TEST_AS})
  endif()
  string(APPEND name _test)
  list(TRANSFORM TEST_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/tests/${folder}/)
  list(TRANSFORM TEST_SOURCES APPEND _test.cpp)
  set(skips)
  if(TEST_NEEDS_GPU)
    if(NOT POOLGRAD_CUDA STREQUAL ON)
      return()
    endif()
    list(APPEND TEST_LABELS gpu)
    list(APPEND TEST_DEFINITIONS POOLGRAD_GPUS_NEEDED=$<IF:$<BOOL:${TEST_TWO}>,2,1>)
    set(skips ${PROJECT_SOURCE_DIR}/tests/gpu/needs_gpu.cpp)
  endif()
  add_executable(${name} ${TEST_SOURCES} ${skips})
  if(TEST_EMULATED)
    list(APPEND TEST_LIBRARIES poolgrad_emulated_memory)
    if(NOT floor STREQUAL allocator)
      list(APPEND TEST_LIBRARIES poolgrad_emulated_kernels)
    endif()
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/emulation/include)  # before the tree
  endif()
  set(library poolgrad_all)
  if(TARGET poolgrad_${floor})
    set(library poolgrad_${floor})
  endif()
  target_link_libraries(${name} PRIVATE ${TEST_LIBRARIES} ${library} poolgrad_options
    GTest::gmock GTest::gtest_main poolgrad_test_options)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE ${TEST_DEFINITIONS})
  set(together 6)
  if(POOLGRAD_TESTS_BY_PROGRAM)
    set(together 10)
  endif()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${POOLGRAD_UNITY} UNITY_BUILD_BATCH_SIZE ${together})
  set(level -O0)
  if(TEST_OPTIMIZED)
    set(level -O1)
  endif()
  if(TEST_NVCC)
    set_source_files_properties(${TEST_SOURCES} PROPERTIES LANGUAGE CUDA COMPILE_OPTIONS "--expt-relaxed-constexpr;-diag-suppress=20208")
    set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  else()
    target_compile_options(${name} PRIVATE ${level})
    target_precompile_headers(${name} REUSE_FROM poolgrad_test_headers${level})
  endif()
  set(labels ${floor} ${TEST_LABELS})
  foreach(label IN ITEMS gpu core)
    if(label IN_LIST labels)
      add_dependencies(${label}_tests ${name})
    endif()
  endforeach()
  if("gpu" IN_LIST labels)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/gpu)
  endif()
  # Tests use more threads than there are cores and run beside each other, so waiting threads must not spin.
  set(environment OMP_WAIT_POLICY=passive ${TEST_ENVIRONMENT})
  if(POOLGRAD_TESTS_BY_PROGRAM)  # starting a process costs more than most tests
    add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name} PROPERTIES TIMEOUT 1800 LABELS "${labels}" ENVIRONMENT "${environment}")
    if(TEST_OPTIMIZED OR TEST_EMULATED)  # the longest programs start first
      set_tests_properties(${name} PROPERTIES COST 100)
    endif()
    return()
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
  # gtest_discover_tests takes the second of several labels for a property, so ctest sets lists when it lists the tests.
  set(labelling ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
  file(CONFIGURE OUTPUT ${labelling} CONTENT [[
foreach(test IN LISTS @name@_TESTS)
  set_tests_properties(${test} PROPERTIES LABELS "@labels@" ENVIRONMENT "@environment@")
endforeach()
]] @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labelling})
endfunction()
