#include "framework/io/hdf5.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "tests/support/disk.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace keel::io {
namespace {

using namespace keel::testing;
using Dims = std::vector<uint64_t>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Hdf5 : public ::testing::Test {
 protected:
  template <class Job>
  auto run(Job job) {
    return io_.run(std::move(job));
  }
  // The message of what opening `path` throws.
  std::string open_error(const std::string& path, Access access = Access::read) {
    return message_of([&] { run([&](IoContext& c) { File::open(c, path, access); }); });
  }
  void make_small(const std::string& path) {
    run([&](IoContext& c) {
      File file = File::create(c, path);
      file.write_scalar<int64_t>("step", 7);
      file.close();
    });
  }
  TemporaryFolder scratch_;
  IoThread io_;
};

template <class T>
class Hdf5Types : public Hdf5 {};
using Types = ::testing::Types<float, double, int32_t, int64_t, uint32_t, uint8_t>;
TYPED_TEST_SUITE(Hdf5Types, Types);

TYPED_TEST(Hdf5Types, ExtremesSurviveAndOtherTypesAreRefused) {
  using T = TypeParam;
  const std::string path = this->scratch_ / "a.h5";
  const std::vector<T> values = {std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max(), T(0), T(1)};
  this->run([&](IoContext& c) {
    File file = File::create(c, path);
    file.create_dataset<T>("deep/in/values", Dims{2, 2}).template write<T>(values);
    file.write_scalar<T>("scalar", values[0]);
    file.close();
  });
  this->run([&](IoContext& c) {
    File file = File::open(c, path, Access::read);
    Dataset dataset = file.open_dataset("deep/in/values");
    EXPECT_EQ(dataset.dims(), (Dims{2, 2}));
    EXPECT_EQ(dataset.template read_all<T>(), values);
    EXPECT_EQ(file.read_scalar<T>("scalar"), values[0]);
    using Other = std::conditional_t<std::same_as<T, int32_t>, uint32_t, int32_t>;
    EXPECT_THAT(message_of([&] { dataset.template read_all<Other>(); }), HasSubstr("deep/in/values: holds "));
    EXPECT_THAT(message_of([&] { file.read_scalar<Other>("scalar"); }), HasSubstr("scalar: holds "));
  });
}

TEST_F(Hdf5, SlabsLandWhereTheySay) {
  run([&](IoContext& c) {
    File file = File::create(c, scratch_ / "a.h5");
    Dataset dataset = file.create_dataset<int32_t>("x", Dims{4, 5});  // filled with zeros
    dataset.write<int32_t>(std::vector<int32_t>{1, 2, 3, 4, 5, 6}, {{1, 2}, {2, 3}});
    dataset.write<int32_t>({}, {{4, 5}, {0, 0}});  // nothing, even at the very end
    EXPECT_THAT(dataset.read_all<int32_t>(), ElementsAre(0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 4, 5, 6, 0, 0, 0, 0, 0));
    std::vector<int32_t> column(3);
    dataset.read<int32_t>(column, {{0, 3}, {3, 1}});
    EXPECT_THAT(column, ElementsAre(0, 2, 5));
  });
}

// CASES R42: what is more than one transfer takes goes in pieces: groups of rows, or parts of a row.
TEST(Slabs, InPieces) {
  const Slab slab{{10, 20, 30}, {5, 3, 4}};
  for (uint64_t largest : {1, 2, 3, 4, 7, 8, 12, 13, 30, 59, 60, 1000}) {
    uint64_t next = 0, pieces = 0;
    for_each_piece(slab, largest, [&](const Slab& piece, uint64_t first) {
      EXPECT_EQ(first, next) << largest;
      EXPECT_LE(piece.elements(), largest);
      // Where the piece begins, row-major within the slab.
      EXPECT_EQ(((piece.offset[0] - 10) * 3 + piece.offset[1] - 20) * 4 + piece.offset[2] - 30, first) << largest;
      next += piece.elements();
      ++pieces;
    });
    EXPECT_EQ(next, 60u) << largest;
    EXPECT_EQ(pieces == 1, largest >= 60) << largest;
  }
  int pieces = 0;
  for_each_piece({{0, 7}, {0, 3}}, 1, [&](const Slab& piece, uint64_t) { pieces += 1 + int(piece.elements()); });
  EXPECT_EQ(pieces, 1);  // one empty piece: a rank without elements takes part
}

TEST_F(Hdf5, SlabsOutsideOrOfAnotherSizeAreRefused) {
  run([&](IoContext& c) {
    File file = File::create(c, scratch_ / "a.h5");
    Dataset dataset = file.create_dataset<float>("x", Dims{4, 5});
    std::vector<float> five(5);
    EXPECT_THAT(message_of([&] { dataset.write<float>(five, {{4, 0}, {1, 5}}); }), HasSubstr("1 elements from 4"));
    EXPECT_THAT(message_of([&] {
                  dataset.write<float>(five, {{0, 1}, {1, 5}});
                }),
                HasSubstr("do not lie within dim 1"));
    EXPECT_THAT(message_of([&] { dataset.write<float>(five, {{0, UINT64_MAX}, {1, 5}}); }), HasSubstr("do not lie"));
    EXPECT_THAT(message_of([&] {
                  dataset.write<float>(five, {{0, 0}, {1, 4}});
                }),
                HasSubstr("20 bytes for 4 elements"));
    EXPECT_THAT(message_of([&] { dataset.read<float>(five, {{0}, {5}}); }), HasSubstr("1 offsets and 1 counts in 2"));
  });
}

TEST_F(Hdf5, TextsOfEveryKind) {
  const std::string path = scratch_ / "a.h5", large(3 << 20, 'y');
  run([&](IoContext& c) {
    File file = File::create(c, path);
    file.write_text("config", "seed: 1\n# \u00fcml\u00e4ut\n");
    file.write_text("large", large);
    file.write_text("empty", "");
    file.write_texts("names", std::vector<std::string>{"q", "", "a longer one"});
    file.write_texts("none", {});
    EXPECT_THAT(message_of([&] { file.write_text("bad", std::string("a\0b", 3)); }),
                HasSubstr("bad: a text with a NUL"));
    file.close();
  });
  run([&](IoContext& c) {
    File file = File::open(c, path, Access::read);
    EXPECT_EQ(file.read_text("config"), "seed: 1\n# \u00fcml\u00e4ut\n");
    EXPECT_EQ(file.read_text("large"), large);
    EXPECT_EQ(file.read_text("empty"), "");
    EXPECT_THAT(file.read_texts("names"), ElementsAre("q", "", "a longer one"));
    EXPECT_TRUE(file.read_texts("none").empty());
    EXPECT_THAT(file.names(), ElementsAre("config", "empty", "large", "names", "none"));
    EXPECT_THAT(message_of([&] { file.read_text("names"); }), HasSubstr("names: holds 3 texts"));
    EXPECT_THAT(message_of([&] { file.read_scalar<float>("config"); }), HasSubstr("holds a text, but float32"));
    EXPECT_THAT(message_of([&] { file.read_text("absent/config"); }), HasSubstr("absent/config: there is no such"));
  });
}

TEST_F(Hdf5, ReadsTextsOfVariableLengthThatOthersWrite) {
  run([&](IoContext& c) {
    File file = File::create(c, scratch_ / "a.h5");
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, H5T_VARIABLE);
    hid_t dataset = H5Dcreate2(file.id(), "text", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    const char* text = "of any length";
    H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, &text);
    H5Dclose(dataset), H5Sclose(space), H5Tclose(type);
    EXPECT_EQ(file.read_text("text"), text);
  });
}

TEST_F(Hdf5, GroupsNestAndPathsAreChecked) {
  run([&](IoContext& c) {
    File file = File::create(c, scratch_ / "a.h5");
    Group group = file.create_group("model/layer_0");
    group.write_scalar<float>("gain", 2);
    EXPECT_TRUE(file.has("model/layer_0/gain"));
    EXPECT_FALSE(file.has("model/layer_1/gain"));
    EXPECT_FALSE(file.has("mode"));
    EXPECT_EQ(file.open_group("model").open_group("layer_0").read_scalar<float>("gain"), 2);
    EXPECT_THAT(message_of([&] { file.open_group("model/layer_1"); }), HasSubstr("there is no such group"));
    EXPECT_THAT(message_of([&] { file.write_scalar<float>("model/layer_0/gain", 2); }),
                HasSubstr("name already exists"));
  });
}

// CASES R42: chunks that do not fit are made to.
TEST_F(Hdf5, ChunksAreClamped) {
  run([&](IoContext& c) {
    File file = File::create(c, scratch_ / "a.h5");
    auto chunk_of = [&](const std::string& name, const Dims& dims, const DatasetOptions& options) {
      Dataset dataset = file.create_dataset<float>(name, dims, options);
      hid_t list = H5Dget_create_plist(dataset.id());
      Dims chunk(dims.size());
      if (H5Pget_layout(list) == H5D_CHUNKED)
        H5Pget_chunk(list, int(dims.size()), reinterpret_cast<hsize_t*>(chunk.data()));
      else
        chunk.clear();
      H5Pclose(list);
      return chunk;
    };
    EXPECT_EQ(chunk_of("three", {3}, {.chunk = {1024}}), (Dims{3}));
    EXPECT_EQ(chunk_of("plain", {3}, {}), Dims{});
    EXPECT_EQ(chunk_of("zero", {0, 8}, {.chunk = {1024, 8}}), Dims{});
    EXPECT_EQ(chunk_of("growing", {0, 8}, {.chunk = {1024, 9}, .largest = {H5S_UNLIMITED, 8}}), (Dims{1024, 8}));
    EXPECT_EQ(chunk_of("large", {1 << 20, 1 << 12}, {.chunk = {1 << 20, 1 << 12}}), (Dims{1 << 15, 1 << 12}));
    EXPECT_EQ(chunk_of("huge", {UINT64_MAX / 8}, {.chunk = {UINT64_MAX / 8}}).size(), 1u);
    EXPECT_THAT(message_of([&] { chunk_of("bad", {3}, {.largest = {6}}); }), HasSubstr("only a chunked dataset"));
    Dataset none = file.open_dataset("zero");
    none.write<float>({});
    EXPECT_TRUE(none.read_all<float>().empty());
  });
}

// CASES R42: 5 GiB, contiguous, touched at both ends (the file is sparse).
TEST_F(Hdf5, ADatasetOfFiveGibibytesWorks) {
  const std::string path = scratch_ / "a.h5";
  const uint64_t rows = 5 << 10, columns = 1 << 18;  // 5 GiB of float
  const std::vector<float> ends = {1.5f, -2.5f};
  run([&](IoContext& c) {
    File file = File::create(c, path);
    Dataset dataset = file.create_dataset<float>("x", Dims{rows, columns}, {.fill = false});
    dataset.write<float>(std::span(ends).first(1), {{0, 0}, {1, 1}});
    dataset.write<float>(ends, {{rows - 1, columns - 2}, {1, 2}});
    dataset.close(), file.close();
  });
  EXPECT_GT(std::filesystem::file_size(path), uint64_t(5) << 30);
  run([&](IoContext& c) {
    File file = File::open(c, path, Access::read);
    std::vector<float> last(2);
    file.open_dataset("x").read<float>(last, {{rows - 1, columns - 2}, {1, 2}});
    EXPECT_EQ(last, ends);
  });
}

TEST_F(Hdf5, GrowsAndShrinks) {
  run([&](IoContext& c) {
    File file = File::create(c, scratch_ / "a.h5");
    Dataset dataset = file.create_dataset<int64_t>("x", Dims{0, 2}, {.chunk = {4, 2}, .largest = {H5S_UNLIMITED, 2}});
    dataset.resize(Dims{5, 2});
    dataset.write<int64_t>(std::vector<int64_t>{1, 2}, {{4, 0}, {1, 2}});
    EXPECT_THAT(dataset.read_all<int64_t>(), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 1, 2));
    dataset.resize(Dims{1, 2});
    EXPECT_EQ(dataset.elements(), 2u);
    EXPECT_NE(message_of([&] { dataset.resize(Dims{1, 3}); }), "");
    EXPECT_NE(message_of([&] { file.create_dataset<float>("fixed", Dims{3}).resize(Dims{4}); }), "");
  });
}

// What the checkpoint format builds on: a user block, and raw data at a known place.
TEST_F(Hdf5, UserBlockAndPlaces) {
  const std::string path = scratch_ / "a.h5";
  const std::vector<float> values = {1, 2, 3};
  uint64_t place = run([&](IoContext& c) {
    File file = File::create(c, path, {.user_block_bytes = 4096});
    Dataset dataset = file.create_dataset<float>("x", Dims{3}, {.fill = false});
    dataset.write<float>(values);
    EXPECT_NE(message_of([&] { file.create_dataset<float>("late", Dims{3}).file_offset_bytes(); }), "");
    uint64_t offset = dataset.file_offset_bytes();
    dataset.close(), file.close();
    return offset;
  });
  std::string bytes = read_bytes(path);
  EXPECT_EQ(bytes.substr(0, 4096), std::string(4096, '\0'));
  EXPECT_EQ(bytes.substr(4096, 4), "\x89HDF");
  EXPECT_EQ(std::memcmp(bytes.data() + place, values.data(), 12), 0);
  write_bytes(path, std::string(4096, 'u') + bytes.substr(4096));  // the owner of the user block writes it afterwards
  run([&](IoContext& c) { EXPECT_EQ(File::open(c, path, Access::read).open_dataset("x").read_all<float>(), values); });
  EXPECT_NE(message_of([&] { run([&](IoContext& c) { File::create(c, path, {.user_block_bytes = 1000}); }); }), "");
}

TEST_F(Hdf5, ClosingAFileWithOpenObjectsFails) {
  run([&](IoContext& c) {
    File file = File::create(c, scratch_ / "a.h5");
    Dataset dataset = file.create_dataset<float>("x", Dims{3});
    EXPECT_THAT(message_of([&] { file.close(); }), HasSubstr("a.h5: closed before 1 of its datasets"));
    dataset.close();
    EXPECT_NO_THROW(file.close());
  });
}

TEST_F(Hdf5, RefusedOutsideTheIoThread) {
  std::unique_ptr<File> file =
      run([&](IoContext& c) { return std::make_unique<File>(File::create(c, scratch_ / "a.h5")); });
  EXPECT_THAT(message_of([&] { file->write_scalar<float>("x", 1); }), HasSubstr("outside the I/O thread"));
  EXPECT_THAT(message_of([&] { file->close(); }), HasSubstr("outside the I/O thread"));
  run([&](IoContext&) { file->write_scalar<float>("x", 1), file->close(); });
}

TEST_F(Hdf5, NothingStaysOpen) {  // CASES R76
  const std::string path = scratch_ / "a.h5";
  for (int i = 0; i < 20; ++i) {
    make_small(path);
    write_bytes(scratch_ / "cut.h5", read_bytes(path).substr(0, 96));
    EXPECT_NE(open_error(scratch_ / "cut.h5"), "");
  }
  EXPECT_EQ(run([](IoContext&) { return H5Fget_obj_count(H5F_OBJ_ALL, H5F_OBJ_ALL); }), 0);
}

TEST_F(Hdf5, OpeningWhatIsNotThereSaysSo) {
  EXPECT_THAT(open_error(scratch_ / "absent.h5"), HasSubstr("absent.h5: No such file or directory (H5Fopen, errno 2"));
  EXPECT_THAT(open_error(scratch_.path()), HasSubstr(scratch_.path()));
  EXPECT_THAT(message_of([&] { run([&](IoContext& c) { File::create(c, scratch_ / "no/such/dir.h5"); }); }),
              HasSubstr("No such file or directory"));
  try {
    run([&](IoContext& c) { File::open(c, scratch_ / "absent.h5", Access::read); });
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
  }
}

// CASES R35: a file cut to half, to 96 bytes, to nothing, or not of this kind at all.
TEST_F(Hdf5, DamagedFilesAreRefusedWithAdvice) {
  const std::string path = scratch_ / "a.h5";
  run([&](IoContext& c) {
    File file = File::create(c, path);
    file.create_dataset<float>("x", Dims{1000}).write<float>(std::vector<float>(1000, 1));
    file.close();
  });
  const std::string whole = read_bytes(path);
  write_bytes(path, whole.substr(0, whole.size() / 2));
  EXPECT_THAT(open_error(path), HasSubstr("the file is cut short"));
  write_bytes(path, whole.substr(0, 96));
  EXPECT_THAT(open_error(path), HasSubstr("the file is cut short"));
  for (const std::string& content : {std::string(), std::string("{\"step\": 1}\n"), std::string(5000, '\0')}) {
    write_bytes(path, content);
    EXPECT_THAT(open_error(path), HasSubstr("not an HDF5 file")) << content.size();
  }
  std::string damaged = whole;
  damaged[20] ^= 1;  // in the superblock, which has a checksum
  write_bytes(path, damaged);
  EXPECT_NE(open_error(path), "");
}

// CASES R44: the lock of another process (flock is per open file, so a second descriptor will do).
TEST_F(Hdf5, ALockHeldElsewhereNamesTheSwitch) {
  const std::string path = scratch_ / "a.h5";
  make_small(path);
  int other = open(path.c_str(), O_RDWR);
  ASSERT_EQ(flock(other, LOCK_EX | LOCK_NB), 0);
  std::string message = open_error(path);
  EXPECT_THAT(message, HasSubstr("a.h5: "));
  EXPECT_THAT(message, HasSubstr("errno 11"));
  EXPECT_THAT(message, HasSubstr("another process holds the file's lock"));
  EXPECT_THAT(message, HasSubstr("HDF5_USE_FILE_LOCKING=FALSE"));
  EXPECT_EQ(run([&](IoContext& c) {
              return File::open(c, path, Access::read, {.lock = false}).read_scalar<int64_t>("step");
            }),
            7);
  // HDF5 reads the switch once, as it starts: another process.
  std::string child =
      std::filesystem::read_symlink("/proc/self/exe").string() + " --gtest_filter=Hdf5Child.* >/dev/null";
  EXPECT_EQ(std::system(("KEEL_TEST_FILE=" + path + " HDF5_USE_FILE_LOCKING=FALSE " + child).c_str()), 0);
  EXPECT_NE(std::system(("KEEL_TEST_FILE=" + path + " HDF5_USE_FILE_LOCKING=TRUE " + child).c_str()), 0);
  close(other);
  EXPECT_EQ(open_error(path), "");
}

TEST_F(Hdf5, ReadsFromAReadOnlyDirectory) {  // CASES R44
  std::filesystem::create_directory(scratch_ / "ro");
  make_small(scratch_ / "ro/a.h5");
  ReadOnly read_only(scratch_ / "ro");
  if (!read_only.ok()) GTEST_SKIP() << "cannot make a directory read-only here";
  EXPECT_EQ(open_error(scratch_ / "ro/a.h5"), "");
  EXPECT_NE(open_error(scratch_ / "ro/a.h5", Access::read_write), "");
  std::string message = message_of([&] { run([&](IoContext& c) { File::create(c, scratch_ / "ro/b.h5"); }); });
  EXPECT_THAT(message, HasSubstr("b.h5: Read-only file system (H5Fcreate, errno 30): this disk is mounted read-only"));
}

// CASES R44: file systems that refuse locks, by the words HDF5 uses for them.
TEST_F(Hdf5, LocksThatAFileSystemRefusesNameTheSwitch) {
  for (int system_error : {37, 95, 524}) {
    std::string message = run([&](IoContext&) {
      H5Epush2(H5E_DEFAULT, "H5FDsec2.c", "H5FD_sec2_lock", 1, H5E_ERR_CLS, H5E_FILE, H5E_CANTLOCKFILE,
               "unable to lock file, errno = %d, error message = '?'", system_error);
      H5Epush2(H5E_DEFAULT, "H5F.c", "H5F_open", 1, H5E_ERR_CLS, H5E_FILE, H5E_CANTOPENFILE, "unable to open file");
      Error error = hdf5_error("a.h5", "H5Fopen(...)", std::source_location::current());
      EXPECT_EQ(error.exit_code(), 2);
      return std::string(error.what());
    });
    EXPECT_THAT(message, HasSubstr("errno " + std::to_string(system_error) + "): this file system refuses file locks"));
    EXPECT_THAT(message, HasSubstr("HDF5_USE_FILE_LOCKING=FALSE"));
  }
}

// CASES R35. HDF5 writes contiguous data at once, but chunks and its own records only when something is closed.
TEST_F(Hdf5, AFullDiskIsReportedHoweverLate) {
  SmallDisk disk(scratch_ / "disk", "256k");
  if (!disk.ok()) GTEST_SKIP() << "cannot mount a small file system here";
  const std::vector<float> megabyte(1 << 18, 1);
  auto save = [&](const DatasetOptions& options) {
    return message_of([&] {
      run([&](IoContext& c) {
        File file = File::create(c, scratch_ / "disk/a.h5");
        { file.create_dataset<float>("x", Dims{megabyte.size()}, options).write<float>(megabyte); }
        file.close();
      });
    });
  };
  for (const DatasetOptions& options : {DatasetOptions{}, DatasetOptions{.chunk = {1 << 16}}}) {
    const std::string message = save(options);
    EXPECT_THAT(message, HasSubstr("disk/a.h5: x: No space left on device"));
    EXPECT_THAT(message, HasSubstr("errno 28, writing "));
    EXPECT_THAT(message, HasSubstr("free some space on that disk"));
  }
  std::filesystem::remove(scratch_ / "disk/a.h5");
  EXPECT_EQ(run([&](IoContext& c) {  // and the library still works
              File file = File::create(c, scratch_ / "b.h5");
              file.write_scalar<int64_t>("step", 3);
              file.close();
              return File::open(c, scratch_ / "b.h5", Access::read).read_scalar<int64_t>("step");
            }),
            3);
}

TEST_F(Hdf5, ALimitOnTheFileSizeIsReported) {
  const std::vector<float> megabyte(1 << 18, 1);
  FileSizeLimit limit(256 << 10);
  EXPECT_THAT(message_of([&] {
                run([&](IoContext& c) {
                  File file = File::create(c, scratch_ / "a.h5");
                  file.create_dataset<float>("x", Dims{megabyte.size()}).write<float>(megabyte);
                  file.close();
                });
              }),
              HasSubstr("ulimit -f"));
}

TEST(Hdf5Child, OpensTheFileInTheEnvironment) {
  const char* path = std::getenv("KEEL_TEST_FILE");
  if (!path) return;  // run by ALockHeldElsewhereNamesTheSwitch
  IoThread io;
  io.run([&](IoContext& c) { File::open(c, path, Access::read); });
}

// CASES R44: a reader beside a reader, and a reader of one file while another is written.
TEST_F(Hdf5, ReadersDoNotDisturbEachOther) {
  make_small(scratch_ / "a.h5");
  run([&](IoContext& c) {
    File one = File::open(c, scratch_ / "a.h5", Access::read), two = File::open(c, scratch_ / "a.h5", Access::read);
    File writer = File::create(c, scratch_ / "b.h5");
    EXPECT_EQ(one.read_scalar<int64_t>("step") + two.read_scalar<int64_t>("step"), 14);
    writer.write_scalar<int64_t>("step", 8);
    EXPECT_THROW(one.write_scalar<int64_t>("more", 1), Error);  // opened for reading only
  });
}

}  // namespace
}  // namespace keel::io
