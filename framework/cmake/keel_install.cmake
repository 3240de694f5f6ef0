# Install and export: a consumer writes find_package(keel) and links keel::train or any other part.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY KEEL_LIBRARIES)
install(TARGETS ${libraries} EXPORT keel_targets)
install(EXPORT keel_targets NAMESPACE keel:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/keel)
install(DIRECTORY framework models checkpoints DESTINATION include/keel FILES_MATCHING PATTERN "*.h")
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/keel-config.cmake.in keel-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/keel)
write_basic_package_version_file(keel-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/keel-config.cmake ${PROJECT_BINARY_DIR}/keel-config-version.cmake
              ${CMAKE_CURRENT_LIST_DIR}/Finddnnl.cmake ${CMAKE_CURRENT_LIST_DIR}/Findnccl.cmake
              ${CMAKE_CURRENT_LIST_DIR}/Findsentencepiece.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/keel)
