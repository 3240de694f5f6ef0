// Owners of HDF5 handles, and whole values and parts of arrays in and out of files. Everything here runs on the I/O
// thread: a File is made with the IoContext that a job gets, and every call checks where it runs. An owner must also
// be destroyed there (elsewhere it is leaked, and an error logged). Names inside a file are paths: "model/weights".
#pragma once

#include <hdf5.h>
#include <mpi.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/io/hdf5_error.h"
#include "framework/io/io_thread.h"

namespace keel::io {

// Of an array with these dims.
uint64_t elements_of(std::span<const uint64_t> dims);

// Whether this HDF5 can open a file from several ranks at once; a serial one serves communicators of one rank.
bool parallel_hdf5();

// What an array may hold; in files always IEEE or two's complement, little-endian.
template <class T>
concept Element = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, int32_t> ||
    std::same_as<T, int64_t> || std::same_as<T, uint32_t> || std::same_as<T, uint8_t>;

struct ElementType {
  hid_t file, memory;  // HDF5's own types: never closed
  uint64_t bytes;      // of one element
  const char* name;    // for messages: "float32"
};
template <Element T>
const ElementType& element_type();

// Owns one HDF5 handle. `name` is its subject in messages: "run/step-3.h5", "run/step-3.h5: model/weights".
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close, std::string name) : id_(id), close_(close), name_(std::move(name)) {}
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle&& other) noexcept;
  ~Handle();

  hid_t id() const { return id_; }
  const std::string& name() const { return name_; }
  bool is_open() const { return id_ >= 0; }
  // Closes now and throws what HDF5 has to say; the handle is gone either way (HDF5 crashes when asked twice). The
  // destructor closes too, but can only log.
  void close();

 private:
  void close_or_log() noexcept;
  hid_t id_ = -1;
  Close close_ = nullptr;
  std::string name_;
};

class Dataspace : public Handle {
 public:
  explicit Dataspace(hid_t id) : Handle(id, H5Sclose, "dataspace") {}
  static Dataspace scalar();
  // `largest` as long as `dims`, or empty where the dims stay; H5S_UNLIMITED grows without end.
  static Dataspace array(std::span<const uint64_t> dims, std::span<const uint64_t> largest = {});
  std::vector<uint64_t> dims() const;
  uint64_t elements() const;
};

class PropertyList : public Handle {
 public:
  explicit PropertyList(hid_t property_class);  // H5P_DATASET_CREATE, ...
  static PropertyList for_links();              // the groups on the way to a new object are made
};

class Datatype : public Handle {
 public:
  explicit Datatype(hid_t id) : Handle(id, H5Tclose, "datatype") {}
  static Datatype fixed_text(uint64_t bytes);  // UTF-8, padded with zeros; at least one byte
  std::string description() const;             // for messages: "float32", "a text"
  bool is_text() const;
  bool is_variable_text() const;
  uint64_t bytes() const;
};

// A box of an array: elements [offset, offset + count) in every dim. A count of 0 anywhere selects nothing.
struct Slab {
  std::vector<uint64_t> offset, count;
  uint64_t elements() const;
};
// Calls f(piece, its first element within the slab) for pieces of at most `largest` elements, in the order of the
// elements: groups of rows, and parts of a row that is larger.
void for_each_piece(const Slab& slab, uint64_t largest, const std::function<void(const Slab&, uint64_t)>& f);

struct DatasetOptions {
  std::vector<uint64_t> chunk = {};    // empty: one contiguous block. Clamped to the dataset, and below 1 GiB
  std::vector<uint64_t> largest = {};  // dims it may grow to (needs a chunk); empty: fixed. H5S_UNLIMITED: without end
  bool fill = true;                    // false: space is allocated at once, and elements nobody writes are undefined
};

// What the objects of one open file know in common.
struct Sharing {
  bool parallel = false;  // opened with a communicator through MPI-IO
  bool first = true;      // this is rank 0 of it: the one that writes whole values
  uint64_t largest_transfer_bytes = 0;
  // How files that this one links are opened: as it was itself. Null: as HDF5 does, which takes locks.
  std::shared_ptr<PropertyList> links = nullptr;
  // What the destructor of a dataset or group could not throw (HDF5 writes a chunk as late as that): File::close does.
  std::shared_ptr<std::exception_ptr> loss = std::make_shared<std::exception_ptr>();
};

// A file, group or dataset that is open.
class Object : public Handle {
 public:
  Object() = default;
  Object(hid_t id, Close close, std::string name, Sharing sharing)
      : Handle(id, close, std::move(name)), sharing_(std::move(sharing)) {}
  Object(Object&&) = default;
  Object& operator=(Object&& other) noexcept;
  ~Object() { close_or_note(); }

 protected:
  Sharing sharing_;

 private:
  void close_or_note() noexcept;
};

class Dataset : public Object {
 public:
  using Object::Object;
  const std::vector<uint64_t>& dims() const { return dims_; }
  uint64_t elements() const;
  // Grows or shrinks a chunked dataset within its largest dims; collective in a parallel file.
  void resize(std::span<const uint64_t> dims);
  // Where a contiguous dataset's elements begin in the file, user block included. An error where no space is allocated
  // yet: see DatasetOptions::fill.
  uint64_t file_offset_bytes() const;

  // `data` holds the slab's elements, row-major; its size and the element type must match exactly (HDF5 would convert
  // silently). Errors name the dataset. Each rank transfers independently of the others, in pieces of at most
  // FileOptions::largest_transfer_bytes: Open MPI loses the error of a collective write.
  template <Element T>
  void write(std::span<const T> data, const Slab& slab) {
    write(element_type<T>(), std::as_bytes(data), slab);
  }
  template <Element T>
  void read(std::span<T> data, const Slab& slab) const {
    read(element_type<T>(), std::as_writable_bytes(data), slab);
  }
  // The whole dataset.
  template <Element T>
  void write(std::span<const T> data) {
    write<T>(data, whole());
  }
  template <Element T>
  std::vector<T> read_all() const {
    check_type(element_type<T>());  // before anything is allocated
    std::vector<T> data(elements());
    read<T>(data, whole());
    return data;
  }
  template <Element T>
  bool holds() const {
    return holds(element_type<T>());
  }

 private:
  friend class Location;
  Slab whole() const { return {std::vector<uint64_t>(dims_.size(), 0), dims_}; }
  bool holds(const ElementType& type) const;
  void check_type(const ElementType& type) const;
  // What write and read have in common; `call(memory space, file space, byte)` moves one piece.
  template <class Call>
  void transfer(const ElementType& type, uint64_t bytes, const Slab& slab, Call call) const;
  void write(const ElementType& type, std::span<const std::byte> data, const Slab& slab);
  void read(const ElementType& type, std::span<std::byte> data, const Slab& slab) const;
  std::vector<uint64_t> dims_;
};

class Group;

// A file or a group: the place of datasets and groups. In a parallel file every call that creates or writes a whole
// value is collective: all ranks make it with the same arguments, and rank 0's value is stored. Reading is independent.
class Location : public Object {
 public:
  using Object::Object;
  bool has(const std::string& path) const;      // every part of the path exists
  std::vector<std::string> names() const;       // the direct members, sorted by name
  Group create_group(const std::string& path);  // with the groups above it
  Group open_group(const std::string& path) const;

  template <Element T>
  Dataset create_dataset(const std::string& path, std::span<const uint64_t> dims, const DatasetOptions& options = {}) {
    return create_dataset(path, element_type<T>(), dims, options);
  }
  Dataset open_dataset(const std::string& path) const;
  // Makes `path` another name for `target` in `file`, which readers look for in the directory of this file.
  void link(const std::string& path, const std::string& file, const std::string& target);

  // Whole values. Texts are UTF-8 without NUL bytes. Reading the wrong kind, or an absent path, is an input error.
  template <Element T>
  void write_scalar(const std::string& path, T value) {
    write_scalar(path, element_type<T>(), &value);
  }
  template <Element T>
  T read_scalar(const std::string& path) const {
    T value;
    read_scalar(path, element_type<T>(), &value);
    return value;
  }
  void write_text(const std::string& path, std::string_view text);
  std::string read_text(const std::string& path) const;
  void write_texts(const std::string& path, std::span<const std::string> texts);  // a 1-D array
  std::vector<std::string> read_texts(const std::string& path) const;

 private:
  Dataset create_dataset(const std::string& path, const ElementType& type, std::span<const uint64_t> dims,
                         const DatasetOptions& options);
  struct Value {
    hid_t file_type, memory_type;
    Dataspace space;
    const void* data;
  };
  void write_value(const std::string& path, const Value& value);
  void write_scalar(const std::string& path, const ElementType& type, const void* value);
  void read_scalar(const std::string& path, const ElementType& type, void* value) const;
  std::string inside(const std::string& path) const { return name() + ": " + path; }
};

class Group : public Location {
 public:
  using Location::Location;
};

struct FileOptions {
  // All ranks of `communicator` open the file together, through MPI-IO, and close it together. MPI_COMM_NULL: this
  // process alone. The hints (MPI_Info) go to MPI-IO as they are: {"romio_cb_write", "enable"}.
  MPI_Comm communicator = MPI_COMM_NULL;
  std::vector<std::pair<std::string, std::string>> mpi_hints = {};
  // Of one call of MPI-IO, which counts bytes in an int: 2 GiB fail.
  uint64_t largest_transfer_bytes = uint64_t(1) << 30;
  // At the beginning, the caller's: 0, or a power of two >= 512.
  uint64_t user_block_bytes = 0;
  H5F_libver_t oldest_format = H5F_LIBVER_V18;  // with checksums over metadata
  bool lock = true;  // false: no file lock, whatever HDF5_USE_FILE_LOCKING says; true: as that variable says
};

enum class Access { read, read_write };

class File : public Location {
 public:
  // Replaces what is there. An input error where the directory is absent or not writable.
  static File create(IoContext&, const std::string& path, const FileOptions& options = {});
  // An input error where it is absent, locked, cut short, or no HDF5 file.
  static File open(IoContext&, const std::string& path, Access access, const FileOptions& options = {});
  File(File&&) = default;
  File& operator=(File&&) = default;
  ~File();
  // For a file of unknown origin, before anything in it is opened by name. An input error unless every dataset holds
  // numbers or texts of fixed size, in one piece that lies within the file as a whole, under one name: so what is read
  // takes no more memory than the file takes room. Returns each external link with the file that it names, without
  // opening those; there are no other ways out. `member`: of that alone.
  std::map<std::string, std::string> checked_links(const std::string& member = {}) const;
  // The last writes happen here, so whoever wrote calls it. Throws what HDF5 has to say, and what the destructors of
  // datasets and groups inside could not; an internal error where one of those is still open.
  void close();

 private:
  using Location::Location;
  void throw_loss();
};

}  // namespace keel::io
