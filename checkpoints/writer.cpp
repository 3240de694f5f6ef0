#include "checkpoints/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoints/parts.h"
#include "framework/io/files.h"

namespace keel::checkpoints {
namespace {

// Texts may differ between ranks (hosts do): rank 0's are the file's.
RunState as_on_rank_0(comm::Communicator& world, RunState state) {
  for (std::string* text : {&state.config, &state.environment, &state.data_fingerprint, &state.qk_norm, &state.hooks})
    *text = comm::broadcast_text(world, *text);
  return state;
}

// One save: its steps in order, each of which ends on all ranks in the same way.
class Save {
 public:
  Save(comm::Communicator& world, io::IoThread& io, const LocalTensors& tensors, const RunState& state,
       const WriteOptions& options);
  void create();
  void write_tiles();
  void close();
  void complete();
  void abandon();
  int64_t bytes();

 private:
  struct PartFile {
    std::string path, temporary;
    std::vector<LogicalTensor> tensors;
    std::vector<ByteRange> ranges;  // on rank 0
    std::unique_ptr<TensorFile> open;
    uint64_t block_bytes() const { return user_block_bytes(tensors.size()); }
  };
  void create_file(io::IoContext& context, PartFile& part);
  void create_linking_file(io::IoContext& context);
  io::FileOptions file_options(uint64_t block_bytes) const;
  uint64_t expected_bytes(const PartFile& part) const;
  void on_writers(const std::string& doing, const std::function<void(io::IoContext&)>& job);
  bool linked() const { return options_.parts > 1; }
  int writers() const { return options_.one_writer ? 1 : world_.size(); }

  comm::Communicator& world_;
  io::IoThread& io_;
  LocalTensors tensors_;
  const RunState& state_;
  const WriteOptions& options_;
  std::string linking_temporary_;
  std::vector<PartFile> parts_;  // the checkpoint itself where nothing is linked
  std::map<LogicalTensor, size_t> part_of_;
};

Save::Save(comm::Communicator& world, io::IoThread& io, const LocalTensors& tensors, const RunState& state,
           const WriteOptions& options)
    : world_(world), io_(io), tensors_(tensors), state_(state), options_(options) {
  const std::filesystem::path path(options.path);
  linking_temporary_ = options.path + ".writing";
  const std::vector<LogicalTensor> all = tensors_of(tensors);
  for (auto& some : spread(all, std::min<int64_t>(options.parts, int64_t(all.size())))) {
    const int64_t number = int64_t(parts_.size());
    const std::string own =
        linked() ? (path.parent_path() / part_name(path.filename(), number)).string() : options.path;
    for (const LogicalTensor& tensor : some) part_of_[tensor] = parts_.size();
    parts_.push_back({own, own + ".writing", std::move(some), {}, nullptr});
  }
}

void Save::on_writers(const std::string& doing, const std::function<void(io::IoContext&)>& job) {
  comm::together(world_, [&] {
    comm::naming_rank(world_, "", [&] {
      if (world_.rank() < writers()) run_within(options_.io_limit_seconds, io_, doing, job);
    });
  });
}

// Hints matter when a file is made (striping); without them the system's own calls say best what fails.
io::FileOptions Save::file_options(uint64_t block_bytes) const {
  return {.communicator = options_.mpi_hints.empty() ? MPI_COMM_NULL : MPI_COMM_SELF,
          .mpi_hints = options_.mpi_hints,
          .user_block_bytes = block_bytes,
          .lock = false};
}

// What the file will take, texts and metadata generously.
uint64_t Save::expected_bytes(const PartFile& part) const {
  uint64_t bytes = (uint64_t(1) << 20) + 2 * (state_.config.size() + state_.environment.size() +
                                              state_.data_fingerprint.size() + state_.hooks.size());
  for (const LogicalTensor& tensor : part.tensors)
    bytes += 4096 + 4 * uint64_t(tensor.shape().elements() + Tiling(tensor.shape(), options_.tile_elements).tiles());
  return bytes;
}

void Save::create_file(io::IoContext& context, PartFile& part) {
  io::reserve_disk(part.temporary, expected_bytes(part));
  io::File file = io::File::create(context, part.temporary, file_options(part.block_bytes()));
  write_format(file, options_.tile_elements);
  if (!linked()) write_state(file, state_);
  part.ranges = create_tensors(file, part.tensors, options_.tile_elements);
  file.close();
  // Creating the file gave the room back.
  io::reserve_disk(part.temporary, io::Descriptor(part.temporary, O_RDONLY, "cannot open").size_bytes());
}

void Save::create() {
  run_on_rank_0(world_, options_.io_limit_seconds, io_, "creating " + options_.path, [&](io::IoContext& context) {
    for (PartFile& part : parts_) create_file(context, part);
  });
  comm::together(world_, [&] {
    comm::naming_rank(world_, "; every rank must see the same files", [&] {
      run_within(options_.io_limit_seconds, io_, "opening " + options_.path, [&](io::IoContext&) {
        for (const PartFile& part : parts_) io::Descriptor(part.temporary, O_RDWR, "cannot open for writing");
      });
    });
  });
  on_writers("opening " + options_.path, [&](io::IoContext& context) {
    for (PartFile& part : parts_) {
      io::FileOptions options{.mpi_hints = options_.mpi_hints, .lock = false};
      if (!options_.one_writer) options.communicator = options_.io_comm;
      part.open = std::make_unique<TensorFile>(context, part.temporary, options, options_.tile_elements);
    }
  });
}

void Save::write_tiles() {
  TileExchange exchange(world_, writers(), tensors_, options_.tile_elements);
  std::vector<FilledTile> filled;
  for (int64_t round = 0; round < exchange.rounds(); ++round) {
    comm::together(world_, [&] { filled = exchange.round(round); });
    on_writers("writing to " + options_.path, [&](io::IoContext&) {
      for (const FilledTile& tile : filled) parts_[part_of_.at(tile.tile.tensor)].open->write(tile);
    });
  }
}

void Save::close() {
  on_writers("closing " + options_.path, [&](io::IoContext&) {
    for (PartFile& part : parts_) part.open->close(), part.open.reset();
    for (PartFile& part : parts_) io::sync_file(part.temporary);  // each host has written some of it
  });
}

void Save::create_linking_file(io::IoContext& context) {
  std::vector<LinkedPart> links;
  for (const PartFile& part : parts_)
    links.push_back({std::filesystem::path(part.path).filename(), header_bytes(part.temporary), part.tensors});
  io::File file = io::File::create(context, linking_temporary_, file_options(user_block_bytes(0)));
  write_format(file, options_.tile_elements);
  write_state(file, state_);
  write_links(file, links);
  file.close();
  write_user_block(linking_temporary_, user_block_bytes(0), {});
}

void Save::complete() {
  run_on_rank_0(world_, options_.io_limit_seconds, io_, "completing " + options_.path, [&](io::IoContext& context) {
    for (const PartFile& part : parts_) write_user_block(part.temporary, part.block_bytes(), part.ranges);
    if (linked()) create_linking_file(context);
    for (PartFile& part : parts_) {
      io::rename_file(part.temporary, part.path);
      part.temporary = part.path;  // what a failure from here on must remove
    }
    if (linked()) io::rename_file(linking_temporary_, options_.path);
  });
}

// After a failure, on all ranks. Files stay open until the process ends: closing is collective, and MPI-IO may let the
// others wait in it for ever where one rank has failed. An open file keeps its room on the disk: that is given back
// first.
void Save::abandon() {
  for (PartFile& part : parts_) static_cast<void>(part.open.release());
  if (world_.rank() != 0) return;
  run_within(options_.io_limit_seconds, io_, "removing what was written of " + options_.path, [&](io::IoContext&) {
    for (const PartFile& part : parts_) io::discard_file(part.temporary);
    io::discard_file(linking_temporary_);
  });
}

int64_t Save::bytes() {
  uint64_t bytes = 0;
  run_on_rank_0(world_, options_.io_limit_seconds, io_, "completing " + options_.path, [&](io::IoContext&) {
    for (const PartFile& part : parts_) bytes += std::filesystem::file_size(part.path);
    if (linked()) bytes += std::filesystem::file_size(options_.path);
  });
  return comm::all_reduce_value(world_, int64_t(bytes), comm::Reduction::max);
}

}  // namespace

int64_t write_checkpoint(comm::Communicator& world, io::IoThread& io, const LocalTensors& tensors,
                         const RunState& own_state, const WriteOptions& options) {
  require(world.size() == 1 || options.one_writer || options.io_comm != MPI_COMM_NULL,
          "{} ranks write a file without a communicator for it", world.size());
  const comm::TimeLimit patience(world, options.io_limit_seconds + kPatience_seconds);
  const RunState state = as_on_rank_0(world, own_state);
  Save save(world, io, tensors, state, options);
  try {
    save.create();
    save.write_tiles();
    save.close();
    save.complete();
  } catch (...) {
    save.abandon();
    throw;
  }
  return save.bytes();
}

}  // namespace keel::checkpoints
