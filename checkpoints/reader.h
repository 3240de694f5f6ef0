// Reads a checkpoint into any layout: each rank takes the regions that its shards need, and every tile it touches is
// checked. A step of it that takes longer than its limit ends all ranks (io_limit.h).
#pragma once

#include <functional>
#include <map>

#include "checkpoints/io_limit.h"
#include "checkpoints/local_runs.h"
#include "framework/io/io_thread.h"

namespace keel::checkpoints {

// Name and logical shape of a stored tensor.
struct StoredTensor {
  std::string name;
  std::vector<uint64_t> shape;
};

struct Contents {
  RunState state;
  std::vector<StoredTensor> parameters;
  int64_t parts = 0;  // files with tensors beside this one, which links them
  int64_t bytes = 0;  // of all files
};

struct ReadOptions {
  double limit_seconds = kIoLimit_seconds;  // of one step: to open the file, to read a tensor
  // The ranks that read the same file: they take the same steps and agree on each, so that none waits for another
  // longer than for one step, and all throw what one of them does. None: this rank reads for itself.
  comm::Communicator* agreeing = nullptr;
};

// Checks the user block, and those of parts, then reads everything but tensors. Not collective.
Contents read_contents(io::IoThread& io, const std::string& path, double limit_seconds = kIoLimit_seconds);

// Fills this rank's part. Collective over `agreeing`. Before anything is overwritten, missing, unexpected and
// mis-shaped tensors are an input error that names each of them; `qk_norm` is the variant at hand, for the message.
void read_tensors(io::IoThread& io, const std::string& path, const LocalTensors& tensors, const std::string& qk_norm,
                  const ReadOptions& options = {});

// Logical weights, row-major, by name. Not collective.
std::map<std::string, std::vector<float>> read_weights(io::IoThread& io, const std::string& path,
                                                       const std::vector<std::string>& names);

// Reads every tile; throws naming the first tensor that is damaged. `progress` gets the share done. Several readers can
// divide the tiles: each calls it with its place among them. Collective over `agreeing`.
void verify_tensors(io::IoThread& io, const std::string& path, const std::function<void(double)>& progress,
                    nn::AxisPosition share = {}, const ReadOptions& options = {});

}  // namespace keel::checkpoints
