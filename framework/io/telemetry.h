// telemetry.h5: arrays of one shape per step, such as the largest logit of every layer and head.
//   /NAME/step   int64 [rows], ascending        /NAME/value   float32 or int64 [rows, dims...]
// Which arrays a run writes: framework/README.md, "telemetry.h5".
// Rows wait in memory and go to the file in blocks. For each block the file is opened, extended and closed, so that
// between blocks it is a complete HDF5 file for any reader (and a run that is killed then loses only waiting rows).
// HDF5's SWMR mode would keep the file open instead; it forbids new datasets and network file systems, and leaves a
// file that needs h5clear after a kill. A kill while a block is written leaves HDF5's mark "open for writing" in the
// file: on resume it is put aside. Locks are not used: a reader never stops a run, and sees that mark during a block.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "framework/io/io_thread.h"

namespace keel::io {

class Telemetry {
 public:
  // For one rank. Continues the file after `last_step` (0 in a new run; steps count from 1): later rows are cut. A file
  // that cannot be used is renamed to PATH.broken-1 (-2, ...), with a warning. `io` must outlive this.
  Telemetry(IoThread& io, std::string path, int64_t last_step, uint64_t rows_per_block = 64);
  ~Telemetry();  // flushes
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // `dims` of one step's array. An input error where the file holds it with others; a name has no '/'. Waits for no
  // I/O.
  void declare(const std::string& name, std::vector<uint64_t> dims);
  // One row, of the type of the array's first one; steps ascend. Blocks only while the I/O queue is full; a failure to
  // write surfaces at IoThread::check().
  void append(const std::string& name, int64_t step, std::span<const float> values);
  void append(const std::string& name, int64_t step, std::span<const int64_t> values);
  // Hands the waiting rows to the I/O thread.
  void flush();

 private:
  struct Array {
    std::vector<uint64_t> dims;
    std::vector<int64_t> steps = {};  // of the waiting rows
    std::variant<std::vector<float>, std::vector<int64_t>> values = {};
    int64_t last_step = 0;
  };
  template <class T>
  void append_row(const std::string& name, int64_t step, std::span<const T> values);
  using Arrays = std::map<std::string, Array>;
  static void write_block(IoContext& context, const std::string& path, const Arrays& block);

  IoThread& io_;
  const std::string path_;
  const uint64_t rows_per_block_;
  int64_t last_step_;                                    // that the run continued after
  std::map<std::string, std::vector<uint64_t>> stored_;  // dims of a row of what the file held then
  Arrays arrays_;
};

}  // namespace keel::io
