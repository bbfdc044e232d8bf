# The package: headers under include/poolgrad/, archives, and what find_package(poolgrad) reads.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/poolgrad)

install(FILES ${PROJECT_SOURCE_DIR}/poolgrad.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/poolgrad)
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
