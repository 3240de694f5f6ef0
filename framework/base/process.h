// What the system says of this process and its machine.
#pragma once

#include <cstdint>
#include <string>

namespace keel {

// "unknown" where the system does not say.
std::string host_name();
// Bytes of memory held now, and at most so far; 0 where the system does not say.
int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace keel
