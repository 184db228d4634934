# cmake --install, and find_package(Tidegate) from what it leaves.
include(CMakePackageConfigHelpers)
install(TARGETS tidegate EXPORT TidegateTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/ ${PROJECT_BINARY_DIR}/generated/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT TidegateTargets NAMESPACE Tidegate:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tidegate)
configure_package_config_file(cmake/TidegateConfig.cmake.in TidegateConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tidegate)
write_basic_package_version_file(TidegateConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TidegateConfig.cmake ${PROJECT_BINARY_DIR}/TidegateConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Tidegate)
if(TIDEGATE_TOOL)
    install(TARGETS tidegate_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
