// Files that pass every checksum and were made to do harm: they name no path, and take no more memory than they have
// bytes.
#include <sys/resource.h>
#include <sys/stat.h>

#include "checkpoints/parts.h"
#include "checkpoints/user_block.h"
#include "framework/io/hdf5.h"
#include "tests/checkpoints/single.h"

namespace keel::checkpoints {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTensor = "/parameters/tall";  // [137, 3]

class CraftedContents : public Single {
 protected:
  CraftedContents() { save(path); }

  // Changes the file with HDF5's own calls, and signs it.
  void craft(const std::function<void(hid_t)>& change) {
    io.run([&](io::IoContext& context) {
      io::File file = io::File::open(context, path, io::Access::read_write);
      change(file.id());
      file.close();
    });
    write_user_block(path, user_block_bytes(0), {});
  }
  // In place of a tensor: `creation` is a property list that it makes its own.
  void replace(const std::function<void(hid_t)>& set, hid_t type = H5T_IEEE_F32LE,
               const std::vector<hsize_t>& dims = {137, 3}) {
    craft([&](hid_t file) {
      ASSERT_GE(H5Ldelete(file, kTensor, H5P_DEFAULT), 0);
      const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
      set(creation);
      const hid_t space = H5Screate_simple(int(dims.size()), dims.data(), nullptr);
      const hid_t made = H5Dcreate2(file, kTensor, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
      ASSERT_GE(made, 0);
      H5Dclose(made);
      H5Sclose(space);
      H5Pclose(creation);
    });
  }
  // Each way to read it is refused in the same words.
  void refused(const std::string& why, const std::string& where = "parameters/tall") {
    for (const std::function<void()>& read : std::vector<std::function<void()>>{
             [&] { read_contents(io, path); }, [&] { verify_tensors(io, path, [](double) {}); },
             [&] { read_weights(io, path, {"tall"}); }, [&] { read_tensors(io, path, state.tensors(), "rms"); }}) {
      try {
        read();
        ADD_FAILURE() << "was read";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
        EXPECT_THAT(error.what(), HasSubstr(path + ": " + where));
        EXPECT_THAT(error.what(), HasSubstr(why));
      }
    }
  }

  const std::string path = folder / file_name(40);
};

TEST_F(CraftedContents, AnUnchangedOneIsRead) {
  craft([](hid_t) {});
  verify_tensors(io, path, [](double) {});
}

TEST_F(CraftedContents, ExternalLink) {
  save(folder / "other.h5");
  for (const std::string& to : {folder / "other.h5", std::string("other.h5")}) {
    craft([&](hid_t file) {
      H5Ldelete(file, kTensor, H5P_DEFAULT);
      H5Lcreate_external(to.c_str(), kTensor, file, kTensor, H5P_DEFAULT, H5P_DEFAULT);
    });
    refused("which is none of its parts", "a link to " + to);
  }
}

TEST_F(CraftedContents, LinkInPlaceOfTheVersion) {
  craft([&](hid_t file) {
    H5Ldelete(file, "format_version", H5P_DEFAULT);
    H5Lcreate_external("/other.h5", "x", file, "format_version", H5P_DEFAULT, H5P_DEFAULT);
  });
  refused("", "a link in place of format_version");
}

// What looks for a member of a group follows the group's link: the list of parts would come from a file that nobody has
// looked at, or the open of a FIFO would never end.
TEST_F(CraftedContents, LinkInPlaceOfTheParts) {
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  for (const char* member : {"parts", "parts/names"}) {
    craft([&](hid_t file) {
      if (H5Lexists(file, "parts", H5P_DEFAULT) > 0) H5Ldelete(file, "parts", H5P_DEFAULT);
      const hid_t intermediate = H5Pcreate(H5P_LINK_CREATE);
      H5Pset_create_intermediate_group(intermediate, 1);
      H5Lcreate_external("fifo", "/parts", file, member, intermediate, H5P_DEFAULT);
      H5Pclose(intermediate);
    });
    refused("a link, which no checkpoint has there", member);
  }
}

TEST_F(CraftedContents, LinkByName) {
  craft([&](hid_t file) {
    H5Ldelete(file, kTensor, H5P_DEFAULT);
    H5Lcreate_soft("/moment1/tall", file, kTensor, H5P_DEFAULT, H5P_DEFAULT);
  });
  refused("a link by name");
}

// A group within itself, which a walk would never leave.
TEST_F(CraftedContents, TwoNames) {
  craft([&](hid_t file) { H5Lcreate_hard(file, "/parameters", file, "/parameters/again", H5P_DEFAULT, H5P_DEFAULT); });
  refused("a second name", "parameters/again");
}

TEST_F(CraftedContents, ElementsInAnotherFile) {
  testing::write_bytes(folder / "secret", std::string(4 * 137 * 3, 'x'));
  replace([&](hid_t creation) { H5Pset_external(creation, (folder / "secret").c_str(), 0, H5F_UNLIMITED); });
  refused("its elements lie in other files");
}

TEST_F(CraftedContents, VirtualDataset) {
  save(folder / "other.h5");
  replace([&](hid_t creation) {
    const hsize_t dims[] = {137, 3};
    const hid_t space = H5Screate_simple(2, dims, nullptr);
    H5Pset_virtual(creation, space, (folder / "other.h5").c_str(), kTensor, space);
    H5Sclose(space);
  });
  refused("its elements lie in other files");
}

// Dims that no bytes stand behind.
TEST_F(CraftedContents, NothingAllocated) {
  const std::vector<hsize_t> huge = {hsize_t(1) << 40, 3};
  replace([](hid_t) {}, H5T_IEEE_F32LE, huge);
  refused("more bytes than the file has");
  replace([](hid_t) {}, H5T_IEEE_F32LE, {hsize_t(1) << 62, 4});  // in bytes: 0, and no more
  refused("more bytes than the file has");
  replace(
      [](hid_t creation) {
        const hsize_t chunk[] = {1 << 20, 3};
        H5Pset_chunk(creation, 2, chunk);
      },
      H5T_IEEE_F32LE, huge);
  refused("in chunks");
}

TEST_F(CraftedContents, TextsOfAnyLength) {
  const hid_t text = io.run([&](io::IoContext&) {
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    return type;
  });
  replace([](hid_t) {}, text);
  refused("texts of any length");
}

TEST_F(CraftedContents, NamedType) {
  craft([&](hid_t file) {
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tcommit2(file, "/parameters/type", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Tclose(type);
  });
  refused("neither a group nor a dataset", "parameters/type");
}

TEST_F(CraftedContents, DatasetInPlaceOfAGroup) {
  craft([&](hid_t file) {
    H5Lmove(file, "/moment1", file, "/elsewhere", H5P_DEFAULT, H5P_DEFAULT);
    H5Lmove(file, kTensor, file, "/moment1", H5P_DEFAULT, H5P_DEFAULT);
  });
  for (const auto& read : std::vector<std::function<void()>>{[&] { verify_tensors(io, path, [](double) {}); },
                                                             [&] { read_tensors(io, path, state.tensors(), "rms"); }}) {
    try {
      read();
      ADD_FAILURE() << "was read";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
    }
  }
}

// A part is signed by the file that links it, so that file is crafted, too.
TEST_F(CraftedContents, PartsThatLeadElsewhere) {
  const auto sign = [&](const std::vector<std::string>& names) {
    write_checkpoint(*world, io, state.tensors(), some_run_state(), {.path = path, .parts = 2, .tile_elements = 16});
    craft([&](hid_t file) {
      H5Ldelete(file, "/parts/names", H5P_DEFAULT);
      const hid_t type = H5Tcopy(H5T_C_S1);
      const size_t width = 64;
      H5Tset_size(type, width);
      H5Tset_strpad(type, H5T_STR_NULLPAD);
      std::string padded;
      for (std::string name : names) name.resize(width), padded += name;
      const hsize_t count = names.size();
      const hid_t space = H5Screate_simple(1, &count, nullptr);
      const hid_t made = H5Dcreate2(file, "/parts/names", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      H5Dwrite(made, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, padded.data());
      H5Dclose(made), H5Sclose(space), H5Tclose(type);
    });
  };
  const std::string one = part_name(file_name(40), 0), two = part_name(file_name(40), 1);
  sign({one, two});
  verify_tensors(io, path, [](double) {});
  sign({one, "../" + two});
  refused("is no name of a part beside it", "'../");
  sign({one, one});
  refused("named twice", "a part is");
  sign({one});
  refused("which is none of its parts", "a link to " + two);
}

}  // namespace
}  // namespace keel::checkpoints
