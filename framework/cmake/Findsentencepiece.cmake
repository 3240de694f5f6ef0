# SentencePiece by its libraries and header. Debian 13's pkg-config file asks for protobuf's development files, which Keel
# does not use.
include(FindPackageHandleStandardArgs)
find_library(sentencepiece_LIBRARY sentencepiece)
find_library(sentencepiece_train_LIBRARY sentencepiece_train)
find_path(sentencepiece_INCLUDE_DIR sentencepiece_processor.h)
find_package_handle_standard_args(
  sentencepiece REQUIRED_VARS sentencepiece_LIBRARY sentencepiece_train_LIBRARY sentencepiece_INCLUDE_DIR)
if(sentencepiece_FOUND AND NOT TARGET sentencepiece::sentencepiece)
  add_library(sentencepiece::sentencepiece UNKNOWN IMPORTED)
  set_target_properties(sentencepiece::sentencepiece PROPERTIES IMPORTED_LOCATION ${sentencepiece_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${sentencepiece_INCLUDE_DIR}
                        INTERFACE_LINK_LIBRARIES ${sentencepiece_train_LIBRARY})
endif()
