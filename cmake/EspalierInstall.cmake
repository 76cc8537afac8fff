# Installs the binary, the public headers and the attention library behind mla.h, as espalier::mla for
# find_package(espalier). What the other folders hold has no public header, so it is not exported. The component runtime is
# what a package of the program has.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)

install(TARGETS espalier RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
install(TARGETS espalier_mla espalier_base EXPORT espalierTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/espalier DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT espalierTargets NAMESPACE espalier:: DESTINATION ${package_dir})
configure_package_config_file(cmake/espalierConfig.cmake.in espalierConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(espalierConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/espalierConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/espalierConfigVersion.cmake
        DESTINATION ${package_dir})
