# The package: headers under include/poolgrad/, archives, and what find_package(poolgrad) reads.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/poolgrad)

# What is public is what poolgrad.h lists.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/poolgrad.h)
file(STRINGS ${PROJECT_SOURCE_DIR}/poolgrad.h POOLGRAD_PUBLIC_HEADERS REGEX "^#include \"")
list(TRANSFORM POOLGRAD_PUBLIC_HEADERS REPLACE "^#include \"([^\"]+)\"$" "\\1")
foreach(header IN ITEMS poolgrad.h LISTS POOLGRAD_PUBLIC_HEADERS)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/poolgrad/${folder})
endforeach()
install(TARGETS poolgrad_all EXPORT poolgradTargets)
install(EXPORT poolgradTargets NAMESPACE poolgrad:: DESTINATION ${package_folder})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/poolgradConfig.cmake.in
  ${PROJECT_BINARY_DIR}/poolgradConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/poolgradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/poolgradConfig.cmake
  ${PROJECT_BINARY_DIR}/poolgradConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FindOneDNN.cmake
  DESTINATION ${package_folder})
