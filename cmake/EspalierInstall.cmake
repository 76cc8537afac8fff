# Installs binary, libraries and headers, and exports espalier::<folder> targets for find_package(espalier).
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY ESPALIER_LIBRARIES)
list(REMOVE_ITEM libraries espalier_cli)  # the command line is a program, not a library

install(TARGETS espalier RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS ${libraries} EXPORT espalierTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/espalier DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# The C++ interfaces are included by folder, as inside the project: "mla/contract.hpp".
install(DIRECTORY src/base src/linalg src/mla src/conformance src/ops src/checkpoint src/text src/cache src/batch src/speculate src/schedule src/model src/accept src/engine src/lossless src/trace src/replay
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/espalier/internal FILES_MATCHING PATTERN "*.hpp")
install(EXPORT espalierTargets NAMESPACE espalier:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)
configure_package_config_file(cmake/espalierConfig.cmake.in espalierConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)
write_basic_package_version_file(espalierConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/espalierConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/espalierConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/espalier)
