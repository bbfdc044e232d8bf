# poolgrad_isa_variant(<target> <variant> SOURCES ... FLAGS ...) compiles sources of a library once more, for a newer
# instruction set, with the macro POOLGRAD_VARIANT=<variant>: what they offer is in a namespace of that name. The objects
# become one, whose inline functions and templates are its own (PoolgradIsaVariantLink.cmake): without that, the linker
# keeps one copy of std::max or of a member function of a common header for the whole program, and it might be the one
# that only a newer CPU can run.
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
  target_link_libraries(${objects} PRIVATE poolgrad_options poolgrad_threads)

  set(linked ${CMAKE_CURRENT_BINARY_DIR}/${objects}.o)
  add_custom_command(OUTPUT ${linked}
    COMMAND ${CMAKE_COMMAND} "-DOBJECTS=$<TARGET_OBJECTS:${objects}>" -DOUTPUT=${linked} -DLINKER=${CMAKE_LINKER}
            -DNM=${CMAKE_NM} -DOBJCOPY=${CMAKE_OBJCOPY} -P ${PROJECT_SOURCE_DIR}/cmake/PoolgradIsaVariantLink.cmake
    DEPENDS ${objects} $<TARGET_OBJECTS:${objects}> ${PROJECT_SOURCE_DIR}/cmake/PoolgradIsaVariantLink.cmake
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
