// Reading a mapped file that was cut short, or whose disk fails, is no error that a call returns but SIGBUS. Of what is
// remembered here it ends the process with a line that names the file and exit code 1, after which a launcher ends the
// other ranks; any other one goes its way.
#pragma once

#include <cstdint>
#include <string>

namespace keel::data {

struct MappedRange;

MappedRange* remember_mapping(const char* begin, int64_t size_bytes, const std::string& path);
void forget_mapping(MappedRange* range);

}  // namespace keel::data
