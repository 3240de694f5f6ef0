// A checkpoint of several files: parts that hold the tensors, and the file that links them. README.md has the grammar.
#pragma once

#include "checkpoints/tensor_file.h"

namespace keel::checkpoints {

// "step-00001000.part-0003.h5" for part 3 of "step-00001000.h5"; and back, "" for other names.
std::string part_name(const std::string& linking_name, int64_t part);
std::string linked_by(const std::string& name);
// The parts beside `path` that exist, by name, whether or not `path` does.
std::vector<std::string> parts_of(const std::string& path);

// Tensors spread over `files` by size: the largest first, each where the least is so far. The same on every rank.
std::vector<std::vector<LogicalTensor>> spread(std::vector<LogicalTensor> tensors, int64_t files);

// Makes every tensor of part files, which are complete but for their names, reachable through `file`.
struct LinkedPart {
  std::string name;    // the final one
  std::string header;  // header_bytes of the file
  const std::vector<LogicalTensor>& tensors;
};
void write_links(io::File& file, const std::vector<LinkedPart>& parts);

// Paths of the parts that `file` links, none where it holds all itself. Each is there, whole outside its tensors, the
// one that was linked, and links nothing, as `file` links nothing else; anything else is an input error that names it.
// To be called before anything in `file` is opened.
std::vector<std::string> verified_parts(io::IoContext& context, const io::File& file);

}  // namespace keel::checkpoints
