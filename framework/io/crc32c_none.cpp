// Chosen on other CPUs: no instruction for CRC32C.
#include "framework/io/crc32c_kernels.h"

namespace keel::io {

Crc32cKernel crc32c_instruction() {
  return nullptr;
}

}  // namespace keel::io
