# One library per floor. poolgrad_floor(<folder> SOURCES ... DEPENDS <lower floors> LIBRARIES <packages> PUBLIC_FOLDERS ...) makes
# poolgrad_<folder>, with the alias poolgrad::<folder>. Sources are listed, never globbed. Installs every header at the
# top of the folder and in PUBLIC_FOLDERS below it; headers in other subfolders (kernels/cpu/) are private.
function(poolgrad_floor name)
  cmake_parse_arguments(FLOOR "" "" "SOURCES;DEPENDS;LIBRARIES;PUBLIC_FOLDERS" ${ARGN})
  set(target poolgrad_${name})
  add_library(${target} STATIC ${FLOOR_SOURCES})
  add_library(poolgrad::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/poolgrad>)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:poolgrad_options> poolgrad_threads)
  foreach(library IN LISTS FLOOR_LIBRARIES)
    if(library MATCHES "^(Eigen3|nlohmann_json)::")  # header-only: a consumer of the archive does not need it
      set(library $<BUILD_INTERFACE:${library}>)
    endif()
    target_link_libraries(${target} PRIVATE ${library})
  endforeach()
  foreach(lower IN LISTS FLOOR_DEPENDS)
    target_link_libraries(${target} PUBLIC poolgrad_${lower})
  endforeach()

  foreach(folder IN ITEMS "" LISTS FLOOR_PUBLIC_FOLDERS)
    file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.h)
    install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/poolgrad/${name}/${folder})
  endforeach()
  install(TARGETS ${target} EXPORT poolgradTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# poolgrad_test(<source relative to tests/> [LIBRARIES ...] [LABELS ...] [ENVIRONMENT ...]) makes one GoogleTest program
# and registers each of its tests with ctest, labelled with its folder. The target gpu_tests builds those labelled gpu.
function(poolgrad_test source)
  cmake_parse_arguments(TEST "" "" "LIBRARIES;LABELS;ENVIRONMENT" ${ARGN})
  string(REGEX REPLACE "\\.cpp$" "" name ${source})
  string(REGEX REPLACE "/.*" "" floor ${name})
  string(REPLACE "/" "_" name ${name})
  add_executable(${name} ${PROJECT_SOURCE_DIR}/tests/${source})
  target_link_libraries(${name} PRIVATE poolgrad_all poolgrad_options poolgrad_threads
    GTest::gmock GTest::gtest_main ${TEST_LIBRARIES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)  # a quarter less to wait for than -O3
  set(labels ${floor} ${TEST_LABELS})
  if(gpu IN_LIST TEST_LABELS)
    if(NOT TARGET gpu_tests)
      add_custom_target(gpu_tests)
    endif()
    add_dependencies(gpu_tests ${name})
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600 ENVIRONMENT "${TEST_ENVIRONMENT}")
  # gtest_discover_tests takes the second of several labels for a property, so ctest sets them when it lists the tests.
  set(labelling ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
  file(CONFIGURE OUTPUT ${labelling} CONTENT [[
foreach(test IN LISTS @name@_TESTS)
  set_tests_properties(${test} PROPERTIES LABELS "@labels@")
endforeach()
]] @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labelling})
endfunction()
