// Groups, and whole values: scalars, texts.
#include <algorithm>

#include "framework/io/hdf5.h"

namespace keel::io {
namespace {

void check_text(const std::string& subject, std::string_view text) {
  if (text.find('\0') != text.npos) throw input_error("{}: a text with a NUL byte cannot be stored", subject);
}

}  // namespace

std::string Datatype::description() const {
  switch (H5Tget_class(id())) {
    case H5T_STRING:
      return "a text";
    case H5T_FLOAT:
      return fmt::format("float{}", bytes() * 8);
    case H5T_INTEGER:
      return fmt::format("{}int{}", H5Tget_sign(id()) == H5T_SGN_NONE ? "u" : "", bytes() * 8);
    default:
      return "a type that Keel does not use";
  }
}

bool Location::has(const std::string& path) const {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    if (KEEL_HDF5(inside(path), H5Lexists(id(), path.substr(0, end).c_str(), H5P_DEFAULT)) <= 0) return false;
    if (end == path.npos) return true;
  }
}

std::vector<std::string> Location::names() const {
  std::vector<std::string> names;
  auto add = [](hid_t, const char* member, const H5L_info_t*, void* list) {
    static_cast<std::vector<std::string>*>(list)->push_back(member);
    return herr_t(0);
  };
  KEEL_HDF5(name(), H5Literate(id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, add, &names));
  return names;
}

Group Location::create_group(const std::string& path) {
  const PropertyList links = PropertyList::for_links();
  hid_t made = KEEL_HDF5(inside(path), H5Gcreate2(id(), path.c_str(), links.id(), H5P_DEFAULT, H5P_DEFAULT));
  return Group(made, H5Gclose, inside(path), sharing_);
}

Group Location::open_group(const std::string& path) const {
  if (!has(path)) throw input_error("{}: there is no such group in the file", inside(path));
  return Group(KEEL_HDF5(inside(path), H5Gopen2(id(), path.c_str(), H5P_DEFAULT)), H5Gclose, inside(path), sharing_);
}

void Location::link(const std::string& path, const std::string& file, const std::string& target) {
  const PropertyList links = PropertyList::for_links();
  KEEL_HDF5(inside(path),
            H5Lcreate_external(file.c_str(), target.c_str(), id(), path.c_str(), links.id(), H5P_DEFAULT));
}

// Creates a dataset for one value, together, and stores rank 0's: independently, because Open MPI loses the error of a
// collective write.
void Location::write_value(const std::string& path, const Value& value) {
  const std::string subject = inside(path);
  const PropertyList links = PropertyList::for_links();
  hid_t made = KEEL_HDF5(
      subject, H5Dcreate2(id(), path.c_str(), value.file_type, value.space.id(), links.id(), H5P_DEFAULT, H5P_DEFAULT));
  Handle dataset(made, H5Dclose, subject);
  if (sharing_.first) KEEL_HDF5(subject, H5Dwrite(made, value.memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, value.data));
}

void Location::write_scalar(const std::string& path, const ElementType& type, const void* value) {
  write_value(path, {type.file, type.memory, Dataspace::scalar(), value});
}

void Location::read_scalar(const std::string& path, const ElementType& type, void* value) const {
  Dataset dataset = open_dataset(path);
  if (dataset.elements() != 1)
    throw input_error("{}: holds {} values, but one is needed", dataset.name(), dataset.elements());
  dataset.check_type(type);
  KEEL_HDF5(dataset.name(), H5Dread(dataset.id(), type.memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, value));
}

void Location::write_text(const std::string& path, std::string_view text) {
  check_text(inside(path), text);
  Datatype type = Datatype::fixed_text(text.size());
  std::string padded(text);
  padded.resize(type.bytes());
  write_value(path, {type.id(), type.id(), Dataspace::scalar(), padded.data()});
}

void Location::write_texts(const std::string& path, std::span<const std::string> texts) {
  size_t longest = 1;
  for (const std::string& text : texts) longest = std::max(longest, text.size());
  std::vector<char> padded(texts.size() * longest, '\0');
  for (size_t i = 0; i < texts.size(); ++i) {
    check_text(inside(path), texts[i]);
    std::copy(texts[i].begin(), texts[i].end(), padded.begin() + ptrdiff_t(i * longest));
  }
  Datatype type = Datatype::fixed_text(longest);
  const uint64_t n = texts.size();
  write_value(path, {type.id(), type.id(), Dataspace::array(std::span(&n, 1)), padded.data()});
}

std::vector<std::string> Location::read_texts(const std::string& path) const {
  const Dataset dataset = open_dataset(path);
  const std::string& subject = dataset.name();
  const Datatype stored(KEEL_HDF5(subject, H5Dget_type(dataset.id())));
  if (!stored.is_text()) throw input_error("{}: holds {}, but a text is needed", subject, stored.description());
  const uint64_t n = dataset.elements();
  std::vector<std::string> texts(n);
  if (n == 0) return texts;
  auto read = [&](void* to) {
    KEEL_HDF5(subject, H5Dread(dataset.id(), stored.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, to));
  };
  if (stored.is_variable_text()) {
    std::vector<char*> pointers(n, nullptr);
    read(pointers.data());
    for (uint64_t i = 0; i < n; ++i)
      if (pointers[i]) texts[i] = pointers[i];
    const Dataspace space(KEEL_HDF5(subject, H5Dget_space(dataset.id())));
    KEEL_HDF5(subject, H5Dvlen_reclaim(stored.id(), space.id(), H5P_DEFAULT, pointers.data()));
    return texts;
  }
  const uint64_t bytes = stored.bytes();
  std::vector<char> buffer(n * bytes);
  read(buffer.data());
  for (uint64_t i = 0; i < n; ++i) {
    const char* begin = buffer.data() + i * bytes;
    texts[i].assign(begin, std::find(begin, begin + bytes, '\0'));
  }
  return texts;
}

std::string Location::read_text(const std::string& path) const {
  std::vector<std::string> texts = read_texts(path);
  if (texts.size() != 1) throw input_error("{}: holds {} texts, but one is needed", inside(path), texts.size());
  return texts[0];
}

}  // namespace keel::io
