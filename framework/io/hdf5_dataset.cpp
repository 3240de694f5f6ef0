// Datasets: creation, and parts of arrays in and out.
#include <algorithm>
#include <functional>
#include <numeric>

#include "framework/io/hdf5.h"

namespace keel::io {
namespace {

constexpr uint64_t kLargestChunk_bytes = uint64_t(1) << 30;  // HDF5 refuses 4 GiB, and reads a chunk as a whole

std::vector<hsize_t> sizes(std::span<const uint64_t> values) {
  return {values.begin(), values.end()};
}

// The chunk asked for, within what the dataset may grow to, at least 1 and below 1 GiB: the longest dim is halved.
std::vector<uint64_t> fitting_chunk(const DatasetOptions& options, std::span<const uint64_t> dims, uint64_t bytes) {
  std::vector<uint64_t> chunk = options.chunk;
  for (size_t i = 0; i < chunk.size(); ++i) {
    uint64_t limit = options.largest.empty() ? dims[i] : options.largest[i];
    chunk[i] = std::clamp<uint64_t>(chunk[i], 1, std::max<uint64_t>(limit, 1));
  }
  auto above = [&] {  // in floating point, where it cannot wrap
    double total = double(bytes);
    for (uint64_t length : chunk) total *= double(length);
    return total >= double(kLargestChunk_bytes);
  };
  while (above()) {
    auto longest = std::max_element(chunk.begin(), chunk.end());
    *longest = (*longest + 1) / 2;
  }
  return chunk;
}

// Selects `slab` of the file's space; an empty one selects nothing.
void select(const Dataspace& space, const Slab& slab, const std::string& subject) {
  if (slab.elements() == 0) {
    KEEL_HDF5(subject, H5Sselect_none(space.id()));
    return;
  }
  auto offset = sizes(slab.offset), count = sizes(slab.count);
  if (count.empty()) return;  // a scalar: everything
  KEEL_HDF5(subject, H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, offset.data(), nullptr, count.data(), nullptr));
}

void check_slab(const Slab& slab, std::span<const uint64_t> dims, const std::string& subject) {
  require(slab.offset.size() == dims.size() && slab.count.size() == dims.size(),
          "{}: a slab with {} offsets and {} counts in {} dims", subject, slab.offset.size(), slab.count.size(),
          dims.size());
  for (size_t i = 0; i < dims.size(); ++i)
    require(slab.count[i] == 0 || (slab.offset[i] < dims[i] && slab.count[i] <= dims[i] - slab.offset[i]),
            "{}: {} elements from {} do not lie within dim {} of {}", subject, slab.count[i], slab.offset[i], i,
            dims[i]);
}

}  // namespace

void for_each_piece(const Slab& slab, uint64_t largest, const std::function<void(const Slab&, uint64_t)>& f) {
  if (slab.elements() <= largest) return f(slab, 0);
  const size_t dim =
      size_t(std::find_if(slab.count.begin(), slab.count.end(), [](auto n) { return n > 1; }) - slab.count.begin());
  require(largest > 0 && dim < slab.count.size(), "no pieces of {} elements", largest);
  const uint64_t row = slab.elements() / slab.count[dim], rows = std::max<uint64_t>(1, largest / row);
  for (uint64_t at = 0; at < slab.count[dim]; at += rows) {
    Slab group = slab;
    group.offset[dim] += at;
    group.count[dim] = std::min(rows, slab.count[dim] - at);
    for_each_piece(group, largest, [&](const Slab& piece, uint64_t first) { f(piece, at * row + first); });
  }
}

Dataset Location::create_dataset(const std::string& path, const ElementType& type, std::span<const uint64_t> dims,
                                 const DatasetOptions& options) {
  const std::string subject = inside(path);
  require(options.chunk.empty() || options.chunk.size() == dims.size(), "{}: a chunk of {} dims for {} dims", subject,
          options.chunk.size(), dims.size());
  require(options.largest.empty() || !options.chunk.empty(), "{}: only a chunked dataset can grow", subject);
  const PropertyList creation(H5P_DATASET_CREATE), links = PropertyList::for_links();
  // A fixed dataset without elements has nothing to put in chunks, and HDF5 takes no chunk larger than the dataset.
  if (!options.chunk.empty() && (!options.largest.empty() || elements_of(dims) > 0)) {
    auto chunk = sizes(fitting_chunk(options, dims, type.bytes));
    KEEL_HDF5(subject, H5Pset_chunk(creation.id(), int(chunk.size()), chunk.data()));
  }
  if (!options.fill) {
    KEEL_HDF5(subject, H5Pset_fill_time(creation.id(), H5D_FILL_TIME_NEVER));
    KEEL_HDF5(subject, H5Pset_alloc_time(creation.id(), H5D_ALLOC_TIME_EARLY));
  }
  Dataspace space = Dataspace::array(dims, options.largest);
  hid_t made =
      KEEL_HDF5(subject, H5Dcreate2(id(), path.c_str(), type.file, space.id(), links.id(), creation.id(), H5P_DEFAULT));
  Dataset dataset(made, H5Dclose, subject, sharing_);
  dataset.dims_.assign(dims.begin(), dims.end());
  return dataset;
}

Dataset Location::open_dataset(const std::string& path) const {
  const std::string subject = inside(path);
  if (!has(path)) throw input_error("{}: there is no such dataset in the file", subject);
  PropertyList access(H5P_DATASET_ACCESS);
  if (sharing_.links) KEEL_HDF5(subject, H5Pset_elink_fapl(access.id(), sharing_.links->id()));
  Dataset dataset(KEEL_HDF5(subject, H5Dopen2(id(), path.c_str(), access.id())), H5Dclose, subject, sharing_);
  dataset.dims_ = Dataspace(KEEL_HDF5(subject, H5Dget_space(dataset.id()))).dims();
  return dataset;
}

uint64_t Dataset::elements() const {
  return elements_of(dims_);
}

void Dataset::resize(std::span<const uint64_t> dims) {
  require(dims.size() == dims_.size(), "{}: resized from {} to {} dims", name(), dims_.size(), dims.size());
  KEEL_HDF5(name(), H5Dset_extent(id(), sizes(dims).data()));
  dims_.assign(dims.begin(), dims.end());
}

uint64_t Dataset::file_offset_bytes() const {
  // The status first: with a user block, H5Dget_offset adds its size to "nowhere" and calls that a place.
  H5D_space_status_t status;
  KEEL_HDF5(name(), H5Dget_space_status(id(), &status));
  haddr_t offset = H5Dget_offset(id());
  require(status == H5D_SPACE_STATUS_ALLOCATED && offset != HADDR_UNDEF,
          "{}: has no single place in the file: chunked, or no space allocated yet", name());
  return offset;
}

bool Dataset::holds(const ElementType& type) const {
  Datatype stored(KEEL_HDF5(name(), H5Dget_type(id())));
  return KEEL_HDF5(name(), H5Tequal(stored.id(), type.file)) > 0;
}

void Dataset::check_type(const ElementType& type) const {
  if (holds(type)) return;
  Datatype stored(KEEL_HDF5(name(), H5Dget_type(id())));
  throw input_error("{}: holds {}, but {} is needed: this file was made by something else", name(),
                    stored.description(), type.name);
}

template <class Call>
void Dataset::transfer(const ElementType& type, uint64_t bytes, const Slab& slab, Call call) const {
  check_slab(slab, dims_, name());
  require(bytes == slab.elements() * type.bytes, "{}: {} bytes for {} elements of {}", name(), bytes, slab.elements(),
          type.name);
  check_type(type);
  const uint64_t largest = sharing_.parallel ? sharing_.largest_transfer_bytes : UINT64_MAX;
  Dataspace file(KEEL_HDF5(name(), H5Dget_space(id())));
  for_each_piece(slab, largest / type.bytes, [&](const Slab& piece, uint64_t first) {
    select(file, piece, name());
    const uint64_t elements = piece.elements();
    const Dataspace memory = Dataspace::array(std::span(&elements, 1));
    call(memory.id(), file.id(), first * type.bytes);
  });
}

void Dataset::write(const ElementType& type, std::span<const std::byte> data, const Slab& slab) {
  transfer(type, data.size(), slab, [&](hid_t memory, hid_t file, uint64_t byte) {
    KEEL_HDF5(name(), H5Dwrite(id(), type.memory, memory, file, H5P_DEFAULT, data.data() + byte));
  });
}

void Dataset::read(const ElementType& type, std::span<std::byte> data, const Slab& slab) const {
  transfer(type, data.size(), slab, [&](hid_t memory, hid_t file, uint64_t byte) {
    KEEL_HDF5(name(), H5Dread(id(), type.memory, memory, file, H5P_DEFAULT, data.data() + byte));
  });
}

}  // namespace keel::io
