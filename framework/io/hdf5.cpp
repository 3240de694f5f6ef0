#include "framework/io/hdf5.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "framework/base/log.h"
#include "framework/io/hdf5_parallel.h"

namespace keel::io {
namespace {

// The access properties that every file is opened with.
PropertyList file_access(const std::string& path, const FileOptions& options) {
  PropertyList access(H5P_FILE_ACCESS);
  KEEL_HDF5(path, H5Pset_libver_bounds(access.id(), options.oldest_format, H5F_LIBVER_V110));
  // With open objects inside, closing fails instead of waiting for them and calling that success.
  KEEL_HDF5(path, H5Pset_fclose_degree(access.id(), H5F_CLOSE_SEMI));
  if (!options.lock) KEEL_HDF5(path, H5Pset_file_locking(access.id(), false, true));
  return access;
}

}  // namespace

uint64_t elements_of(std::span<const uint64_t> dims) {
  return std::accumulate(dims.begin(), dims.end(), uint64_t(1), std::multiplies<>());
}

template <>
const ElementType& element_type<float>() {
  static const ElementType type = {H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 4, "float32"};
  return type;
}
template <>
const ElementType& element_type<double>() {
  static const ElementType type = {H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, 8, "float64"};
  return type;
}
template <>
const ElementType& element_type<int32_t>() {
  static const ElementType type = {H5T_STD_I32LE, H5T_NATIVE_INT32, 4, "int32"};
  return type;
}
template <>
const ElementType& element_type<int64_t>() {
  static const ElementType type = {H5T_STD_I64LE, H5T_NATIVE_INT64, 8, "int64"};
  return type;
}
template <>
const ElementType& element_type<uint32_t>() {
  static const ElementType type = {H5T_STD_U32LE, H5T_NATIVE_UINT32, 4, "uint32"};
  return type;
}
template <>
const ElementType& element_type<uint8_t>() {
  static const ElementType type = {H5T_STD_U8LE, H5T_NATIVE_UINT8, 1, "uint8"};
  return type;
}

Handle::Handle(Handle&& other) noexcept
    : id_(std::exchange(other.id_, -1)), close_(other.close_), name_(std::move(other.name_)) {}

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this == &other) return *this;
  close_or_log();
  id_ = std::exchange(other.id_, -1);
  close_ = other.close_;
  name_ = std::move(other.name_);
  return *this;
}

Handle::~Handle() {
  close_or_log();
}

void Handle::close() {
  if (!is_open()) return;
  require_io_thread();
  checked_hdf5(close_(std::exchange(id_, -1)), name_, "close");
}

void Handle::close_or_log() noexcept {
  try {
    close();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
  }
}

Object& Object::operator=(Object&& other) noexcept {
  if (this == &other) return *this;
  close_or_note();
  Handle::operator=(std::move(other));
  sharing_ = std::move(other.sharing_);
  return *this;
}

void Object::close_or_note() noexcept {
  if (!is_open() || !on_io_thread()) return;  // the rest is Handle's
  try {
    close();
  } catch (...) {
    if (!*sharing_.loss) *sharing_.loss = std::current_exception();
  }
}

Dataspace Dataspace::scalar() {
  return Dataspace(KEEL_HDF5("dataspace", H5Screate(H5S_SCALAR)));
}

Dataspace Dataspace::array(std::span<const uint64_t> dims, std::span<const uint64_t> largest) {
  require(largest.empty() || largest.size() == dims.size(), "{} dims may grow to {} dims", dims.size(), largest.size());
  std::vector<hsize_t> now(dims.begin(), dims.end()), later(largest.begin(), largest.end());
  return Dataspace(
      KEEL_HDF5("dataspace", H5Screate_simple(int(now.size()), now.data(), later.empty() ? nullptr : later.data())));
}

std::vector<uint64_t> Dataspace::dims() const {
  int rank = KEEL_HDF5(name(), H5Sget_simple_extent_ndims(id()));
  std::vector<hsize_t> dims(rank);
  KEEL_HDF5(name(), H5Sget_simple_extent_dims(id(), dims.data(), nullptr));
  return {dims.begin(), dims.end()};
}

uint64_t Dataspace::elements() const {
  return uint64_t(KEEL_HDF5(name(), H5Sget_simple_extent_npoints(id())));
}

PropertyList::PropertyList(hid_t property_class)
    : Handle(KEEL_HDF5("property list", H5Pcreate(property_class)), H5Pclose, "property list") {}

PropertyList PropertyList::for_links() {
  PropertyList links(H5P_LINK_CREATE);
  KEEL_HDF5("property list", H5Pset_create_intermediate_group(links.id(), 1));
  return links;
}

Datatype Datatype::fixed_text(uint64_t bytes) {
  Datatype type(KEEL_HDF5("text", H5Tcopy(H5T_C_S1)));
  KEEL_HDF5("text", H5Tset_size(type.id(), std::max<uint64_t>(bytes, 1)));
  KEEL_HDF5("text", H5Tset_strpad(type.id(), H5T_STR_NULLPAD));
  KEEL_HDF5("text", H5Tset_cset(type.id(), H5T_CSET_UTF8));
  return type;
}

bool Datatype::is_text() const {
  return H5Tget_class(id()) == H5T_STRING;
}
bool Datatype::is_variable_text() const {
  return is_text() && KEEL_HDF5(name(), H5Tis_variable_str(id())) > 0;
}
uint64_t Datatype::bytes() const {
  return H5Tget_size(id());
}

uint64_t Slab::elements() const {
  return elements_of(count);
}

File File::create(IoContext&, const std::string& path, const FileOptions& options) {
  PropertyList access = file_access(path, options), creation(H5P_FILE_CREATE);
  Sharing sharing = share_file(access, path, options);
  KEEL_HDF5(path, H5Pset_userblock(creation.id(), options.user_block_bytes));
  hid_t id = KEEL_HDF5(path, H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.id(), access.id()));
  return File(id, H5Fclose, path, sharing);
}

File File::open(IoContext&, const std::string& path, Access mode, const FileOptions& options) {
  PropertyList access = file_access(path, options);
  Sharing sharing = share_file(access, path, options);
  unsigned flags = mode == Access::read ? H5F_ACC_RDONLY : H5F_ACC_RDWR;
  hid_t id = KEEL_HDF5(path, H5Fopen(path.c_str(), flags, access.id()));
  if (!sharing.parallel) sharing.links = std::make_shared<PropertyList>(std::move(access));
  return File(id, H5Fclose, path, sharing);
}

void File::throw_loss() {
  if (std::exception_ptr loss = std::exchange(*sharing_.loss, nullptr)) std::rethrow_exception(loss);
}

void File::close() {
  if (!is_open()) return;
  const unsigned kinds = H5F_OBJ_DATASET | H5F_OBJ_GROUP | H5F_OBJ_ATTR | H5F_OBJ_LOCAL;
  ssize_t open = KEEL_HDF5(name(), H5Fget_obj_count(id(), kinds));
  require(open == 0, "{}: closed before {} of its datasets and groups", name(), open);
  try {
    Object::close();
  } catch (...) {
    throw_loss();  // the earlier failure is the cause of this one
    throw;
  }
  throw_loss();
}

File::~File() {
  try {
    if (is_open()) close();
  } catch (const std::exception& error) {
    log::error("{}", error.what());
  }
}

}  // namespace keel::io
