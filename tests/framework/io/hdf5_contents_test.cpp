// Which files of unknown origin may be opened by name. Whole checkpoints made to do harm:
// tests/checkpoints/contents_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "framework/io/hdf5.h"
#include "tests/support/folder.h"

namespace keel::io {
namespace {

using namespace keel::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class CheckedLinks : public ::testing::Test {
 protected:
  // What the walk returns over a file with a number, "step", and what `change` adds to it.
  std::map<std::string, std::string> walk(const std::function<void(hid_t)>& change) {
    const std::string path = scratch_ / "x.h5";
    return io_.run([&](IoContext& context) {
      File file = File::create(context, path);
      file.write_scalar<int64_t>("step", 7);
      change(file.id());
      file.close();
      return File::open(context, path, Access::read).checked_links();
    });
  }
  std::string refusal(const std::function<void(hid_t)>& change) {
    try {
      walk(change);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.what();
    }
    return "accepted";
  }

  TemporaryFolder scratch_;
  IoThread io_;
};

TEST_F(CheckedLinks, OfAPlainFileThereAreNone) {
  EXPECT_THAT(walk([](hid_t) {}), IsEmpty());
}

TEST_F(CheckedLinks, OtherFilesAreNamedAndNotOpened) {
  const auto names = walk([](hid_t file) {
    ASSERT_GE(H5Lcreate_external("elsewhere.h5", "/step", file, "other", H5P_DEFAULT, H5P_DEFAULT), 0);
  });
  EXPECT_THAT(names, ElementsAre(Pair("other", "elsewhere.h5")));
}

TEST_F(CheckedLinks, LinksByNameAndSecondNamesAreRefused) {
  EXPECT_THAT(
      refusal([](hid_t file) { ASSERT_GE(H5Lcreate_soft("/step", file, "soft", H5P_DEFAULT, H5P_DEFAULT), 0); }),
      HasSubstr("soft: a link by name"));
  EXPECT_THAT(
      refusal([](hid_t file) { ASSERT_GE(H5Lcreate_hard(file, "step", file, "twice", H5P_DEFAULT, H5P_DEFAULT), 0); }),
      HasSubstr("twice: a second name"));
  EXPECT_THAT(
      refusal([](hid_t file) { ASSERT_GE(H5Lcreate_hard(file, "/", file, "circle", H5P_DEFAULT, H5P_DEFAULT), 0); }),
      ::testing::Not("accepted"));
}

}  // namespace
}  // namespace keel::io
