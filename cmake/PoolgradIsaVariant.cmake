# Called as a script, cmake -DOBJECTS=... -DOUTPUT=... -DLINKER=... -DNM=... -DOBJCOPY=... -P: one relocatable object of
# several, in which weak functions (inline functions, template instances) and weak constants are local. Variables stay
# common to the program.
if(CMAKE_SCRIPT_MODE_FILE)
  function(run)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT status EQUAL 0)
      list(JOIN ARGN " " command)
      file(REMOVE ${OUTPUT})
      message(FATAL_ERROR "${command}\n${output}")
    endif()
    set(output "${output}" PARENT_SCOPE)
  endfunction()

  # The linker would share these with other objects: weak functions, and weak or unique constants.
  function(list_shared)
    run(${NM} --defined-only --format=sysv ${OUTPUT})
    string(REGEX MATCHALL "[^\n| ]+ *\\|[^\n|]*\\|   W  \\||[^\n| ]+ *\\|[^\n|]*\\|   [Vu]  \\|[^\n]*\\|\\.rodata" shared "${output}")
    list(TRANSFORM shared REPLACE " *\\|.*" "")
    set(shared ${shared} PARENT_SCOPE)
  endfunction()

  # Takes sections out of their groups: the linker would still keep one group of each name.
  run(${LINKER} -r --force-group-allocation -o ${OUTPUT} ${OBJECTS})
  list_shared()
  list(JOIN shared "\n" names)
  file(WRITE ${OUTPUT}.local "${names}\n")
  run(${OBJCOPY} --localize-symbols=${OUTPUT}.local ${OUTPUT})
  list_shared()
  if(shared)
    file(REMOVE ${OUTPUT})
    message(FATAL_ERROR "still shared with the program: ${shared}")
  endif()
  return()
endif()

# poolgrad_isa_variant(<target> <variant> SOURCES ... FLAGS ...) compiles sources of a library once more, for a newer
# instruction set, with the macro POOLGRAD_VARIANT=<variant>: their functions are in a namespace of that name. The objects
# become one, with inline functions and templates of its own (see the script above). Otherwise the linker keeps one
# copy of std::max, or of a member function of a common header, for the whole program. It might be the copy that only a
# newer CPU can run.
function(poolgrad_isa_variant target variant)
  cmake_parse_arguments(VARIANT "" "" "SOURCES;FLAGS" ${ARGN})
  set(objects ${target}_${variant})
  add_library(${objects} OBJECT ${VARIANT_SOURCES})
  set_target_properties(${objects} PROPERTIES
    POSITION_INDEPENDENT_CODE ON INTERPROCEDURAL_OPTIMIZATION OFF UNITY_BUILD OFF)
  target_compile_features(${objects} PRIVATE cxx_std_20)
  target_compile_options(${objects} PRIVATE ${POOLGRAD_FASTEST} ${VARIANT_FLAGS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # unique symbols cannot be made local
    target_compile_options(${objects} PRIVATE -fno-gnu-unique)
  endif()
  target_compile_definitions(${objects} PRIVATE POOLGRAD_VARIANT=${variant})
  target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${objects} PRIVATE poolgrad_options)

  set(linked ${CMAKE_CURRENT_BINARY_DIR}/${objects}.o)
  set(script ${PROJECT_SOURCE_DIR}/cmake/PoolgradIsaVariant.cmake)
  add_custom_command(OUTPUT ${linked}
    COMMAND ${CMAKE_COMMAND} "-DOBJECTS=$<TARGET_OBJECTS:${objects}>" -DOUTPUT=${linked} -DLINKER=${CMAKE_LINKER}
            -DNM=${CMAKE_NM} -DOBJCOPY=${CMAKE_OBJCOPY} -P ${script}
    DEPENDS ${objects} $<TARGET_OBJECTS:${objects}> ${script}
    VERBATIM)
  set_source_files_properties(${linked} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(${target} PRIVATE ${linked})
endfunction()

# poolgrad_compiles_for(<result> <macro> [flags]): whether the compiler takes the flags beside -march=${POOLGRAD_ISA}, and
# then defines the macro.
function(poolgrad_compiles_for result macro)
  include(CheckCXXSourceCompiles)
  list(JOIN ARGN " " flags)
  set(CMAKE_REQUIRED_FLAGS "-march=${POOLGRAD_ISA} ${flags}")
  set(CMAKE_REQUIRED_QUIET ON)
  string(MAKE_C_IDENTIFIER "POOLGRAD_COMPILES ${POOLGRAD_ISA} ${macro} ${flags}" known)
  check_cxx_source_compiles("#ifndef ${macro}\n#error not for this\n#endif\nint main() {}" ${known})
  set(${result} ${${known}} PARENT_SCOPE)
endfunction()
