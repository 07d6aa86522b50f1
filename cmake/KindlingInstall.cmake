# `cmake --install`: headers, the shared library, and package files for CMake and pkg-config. All
# paths in them are relative to where they lie, so the installed tree can be moved.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kindling)
install(DIRECTORY include/kindling TYPE INCLUDE FILES_MATCHING PATTERN "*.h")
install(TARGETS kindling EXPORT kindling-targets)
if(TARGET kindling_acl)
  # In a folder of their own: <acl/...> is a folder of others too.
  install(DIRECTORY capi/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kindling-acl
          FILES_MATCHING PATTERN "*.h")
  install(TARGETS kindling_acl EXPORT kindling-targets)
endif()
install(EXPORT kindling-targets NAMESPACE kindling:: DESTINATION ${package_dir})

configure_package_config_file(cmake/kindling-config.cmake.in kindling-config.cmake
                              INSTALL_DESTINATION ${package_dir}
                              NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(kindling-config-version.cmake
                                 COMPATIBILITY ${KINDLING_COMPATIBILITY})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kindling-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/kindling-config-version.cmake
        DESTINATION ${package_dir})

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH prefix_from_pcfiledir ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir}
     ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_from_pcfiledir ${prefix_from_pcfiledir})
configure_file(cmake/kindling.pc.in kindling.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kindling.pc DESTINATION ${pkgconfig_dir})
if(TARGET kindling_acl)
  configure_file(cmake/kindling-acl.pc.in kindling-acl.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/kindling-acl.pc DESTINATION ${pkgconfig_dir})
endif()

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/kindling)
