# oneDNN by its library and header. Debian's own dnnl-config.cmake asks for OpenCL's development files, which Keel
# does not use.
include(FindPackageHandleStandardArgs)
find_library(dnnl_LIBRARY dnnl)
find_path(dnnl_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
if(dnnl_INCLUDE_DIR)
  file(STRINGS ${dnnl_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h dnnl_lines REGEX "#define DNNL_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]*([0-9]+)[^0-9]*([0-9]+).*" "\\1.\\2.\\3" dnnl_VERSION "${dnnl_lines}")
endif()
find_package_handle_standard_args(dnnl REQUIRED_VARS dnnl_LIBRARY dnnl_INCLUDE_DIR VERSION_VAR dnnl_VERSION)
if(dnnl_FOUND AND NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${dnnl_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${dnnl_INCLUDE_DIR})
endif()
