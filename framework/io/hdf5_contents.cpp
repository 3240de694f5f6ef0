// What a file of unknown origin may consist of.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "framework/io/hdf5.h"

namespace keel::io {
namespace {

constexpr int kDeepest = 16;  // groups within groups, many more than any file of Keel's has

// Elements times bytes of one, at most `limit`; above it `limit` + 1.
uint64_t bytes_within(std::span<const uint64_t> dims, uint64_t element_bytes, uint64_t limit) {
  uint64_t bytes = element_bytes;
  if (std::ranges::find(dims, uint64_t(0)) != dims.end()) return 0;
  for (uint64_t dim : dims) {
    if (bytes > limit || dim > limit / std::max<uint64_t>(bytes, 1)) return limit + 1;
    bytes *= dim;
  }
  return bytes;
}

class Walk {
 public:
  explicit Walk(const std::string& path) : path_(path), file_bytes_(std::filesystem::file_size(path)) {}

  void group(const Location& group, const std::string& name, int depth);
  void member(const Location& group, const std::string& member, const std::string& name, int depth);
  std::map<std::string, std::string> linked;

 private:
  void object(const Location& group, const std::string& member, const std::string& name, int depth);
  void external(const Location& group, const std::string& member, const std::string& name, uint64_t bytes);
  void dataset(hid_t id, const std::string& subject) const;
  void layout(hid_t id, const std::string& subject) const;
  uint64_t bytes_of(hid_t id, const std::string& subject) const;

  const std::string path_;
  const uint64_t file_bytes_;
  std::set<std::pair<unsigned long, unsigned long>> seen_;  // objects, by their places in the file
};

void Walk::group(const Location& group, const std::string& name, int depth) {
  if (depth > kDeepest) throw input_error("{}: {}: groups within {} others", path_, name, kDeepest);
  for (const std::string& one : group.names()) member(group, one, name.empty() ? one : name + "/" + one, depth);
}

void Walk::member(const Location& group, const std::string& member, const std::string& name, int depth) {
  const std::string subject = path_ + ": " + name;
  H5L_info_t link;
  KEEL_HDF5(subject, H5Lget_info(group.id(), member.c_str(), &link, H5P_DEFAULT));
  if (link.type == H5L_TYPE_HARD) return object(group, member, name, depth);
  if (link.type == H5L_TYPE_EXTERNAL) return external(group, member, name, link.u.val_size);
  throw input_error("{}: a link by name, which no checkpoint has", subject);
}

// Names of one object each, so that the walk ends.
void Walk::object(const Location& group, const std::string& member, const std::string& name, int depth) {
  const std::string subject = path_ + ": " + name;
  H5G_stat_t object;
  KEEL_HDF5(subject, H5Gget_objinfo(group.id(), member.c_str(), true, &object));
  if (!seen_.insert({object.objno[0], object.objno[1]}).second)
    throw input_error("{}: a second name of what has one already", subject);
  if (object.type == H5G_GROUP) return this->group(group.open_group(member), name, depth + 1);
  if (object.type != H5G_DATASET) throw input_error("{}: neither a group nor a dataset", subject);
  const Handle opened(KEEL_HDF5(subject, H5Dopen2(group.id(), member.c_str(), H5P_DEFAULT)), H5Dclose, subject);
  dataset(opened.id(), subject);
}

void Walk::external(const Location& group, const std::string& member, const std::string& name, uint64_t bytes) {
  const std::string subject = path_ + ": " + name;
  std::vector<char> value(bytes);
  KEEL_HDF5(subject, H5Lget_val(group.id(), member.c_str(), value.data(), value.size(), H5P_DEFAULT));
  unsigned flags = 0;
  const char *file = nullptr, *object = nullptr;
  KEEL_HDF5(subject, H5Lunpack_elink_val(value.data(), value.size(), &flags, &file, &object));
  linked[name] = file;
}

// The layout first: even the dims of a virtual dataset are looked up in the files that it names.
void Walk::dataset(hid_t id, const std::string& subject) const {
  layout(id, subject);
  const uint64_t bytes = bytes_of(id, subject), stored = H5Dget_storage_size(id);
  if (bytes > file_bytes_ || bytes != stored)
    throw input_error("{}: more bytes than the file has for it ({}): damaged, or made by something else", subject,
                      stored);
  const haddr_t begin = H5Dget_offset(id);  // none where the elements lie with the dataset's own description
  H5Eclear2(H5E_DEFAULT);
  if (begin != HADDR_UNDEF && bytes > 0 && (begin > file_bytes_ || bytes > file_bytes_ - begin))
    throw input_error("{}: lies behind the end of the file", subject);
}

void Walk::layout(hid_t id, const std::string& subject) const {
  const Handle creation(KEEL_HDF5(subject, H5Dget_create_plist(id)), H5Pclose, subject);
  const H5D_layout_t layout = KEEL_HDF5(subject, H5Pget_layout(creation.id()));
  if (layout == H5D_VIRTUAL ||
      (layout == H5D_CONTIGUOUS && KEEL_HDF5(subject, H5Pget_external_count(creation.id())) > 0))
    throw input_error("{}: its elements lie in other files, which no checkpoint of Keel's has", subject);
  if (layout != H5D_CONTIGUOUS && layout != H5D_COMPACT)
    throw input_error("{}: in chunks, which no checkpoint of Keel's has", subject);
}

uint64_t Walk::bytes_of(hid_t id, const std::string& subject) const {
  const Datatype type(KEEL_HDF5(subject, H5Dget_type(id)));
  const H5T_class_t kind = H5Tget_class(type.id());
  if ((kind != H5T_INTEGER && kind != H5T_FLOAT && kind != H5T_STRING) || type.is_variable_text())
    throw input_error("{}: holds {}, which no checkpoint has", subject,
                      kind == H5T_STRING ? "texts of any length" : type.description());
  const Dataspace space(KEEL_HDF5(subject, H5Dget_space(id)));
  if (KEEL_HDF5(subject, H5Sget_simple_extent_type(space.id())) == H5S_NULL)
    throw input_error("{}: a dataset without elements", subject);
  return bytes_within(space.dims(), type.bytes(), file_bytes_);
}

}  // namespace

std::map<std::string, std::string> File::checked_links(const std::string& member) const {
  Walk walk(name());
  member.empty() ? walk.group(*this, "", 0) : walk.member(*this, member, member, 0);
  return std::move(walk.linked);
}

}  // namespace keel::io
