#include "checkpoints/reader.h"

#include "framework/io/hdf5.h"
#include "tests/checkpoints/single.h"

namespace keel::checkpoints {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Reader = Single;

TEST_F(Reader, GivesBackTheRunState) {
  const std::string path = folder / file_name(40);
  const int64_t bytes = save(path);
  const Contents contents = read_contents(io, path);
  const RunState expected = some_run_state();
  EXPECT_EQ(contents.bytes, bytes);
  EXPECT_EQ(uint64_t(bytes), std::filesystem::file_size(path));
  EXPECT_EQ(contents.state.progress.step, 40);
  EXPECT_EQ(contents.state.progress.updates, 37);
  EXPECT_EQ(contents.state.progress.tokens_consumed, int64_t(3) << 33);
  EXPECT_EQ(contents.state.progress.samples, expected.progress.samples);
  EXPECT_EQ(contents.state.config, expected.config);
  EXPECT_EQ(contents.state.environment, expected.environment);
  EXPECT_EQ(contents.state.data_fingerprint, expected.data_fingerprint);
  EXPECT_EQ(contents.state.qk_norm, expected.qk_norm);
  EXPECT_EQ(contents.state.hooks, expected.hooks);
  EXPECT_FALSE(contents.state.weights_only);
  ASSERT_EQ(contents.parameters.size(), state.parameters.all().size());
  EXPECT_EQ(contents.parameters.front().name, "attention.k.weight");
  EXPECT_EQ(contents.parameters.front().shape, (std::vector<uint64_t>{8, 6}));
}

// Room was reserved for more than the file takes; none of that stays.
TEST_F(Reader, FileIsNoLargerThanItsContent) {
  const int64_t bytes = save(folder / file_name(1), kTileElements);
  int64_t elements = 0;
  for (const nn::Parameter& parameter : state.parameters.all()) elements += parameter.spec.shape.elements();
  EXPECT_LT(bytes, 12 * elements + (200 << 10));
}

// CASES R04: the tensor with both shapes, and both variants.
TEST_F(Reader, AnotherVariant) {
  const std::string path = folder / file_name(1);
  const Declare shared = [](nn::ParameterSet& p, int) { declare_one(p, "q_norm.weight", {8}); };
  const Declare per_head = [](nn::ParameterSet& p, int) { declare_one(p, "q_norm.weight", {4, 8}); };
  State saved(*world, {}, shared);
  saved.fill();
  write_checkpoint(*world, io, saved.tensors(), some_run_state(), {.path = path});
  EXPECT_EQ(complaint(path, shared), "");
  EXPECT_THAT(complaint(path, per_head, "rms per head"),
              AllOf(HasSubstr(path), HasSubstr("q_norm.weight is [8] there and [4, 8] here"),
                    HasSubstr("QK-Norm is \"rms\" there and \"rms per head\" here")));
  EXPECT_THAT(complaint(path, shared, "l2"), HasSubstr("QK-Norm is \"rms\" there and \"l2\" here"));
}

// CASES R10: each missing and each unexpected tensor by name, and no other.
TEST_F(Reader, MissingAndUnexpected) {
  const std::string path = folder / file_name(1);
  save(path);
  const Declare more = [](nn::ParameterSet& p, int tensor) {
    declare_all(p, tensor);
    declare_one(p, "blocks.3.k_norm.weight", {8});
    declare_one(p, "blocks.4.k_norm.weight", {8});
  };
  EXPECT_THAT(complaint(path, more), AllOf(HasSubstr("blocks.3.k_norm.weight is missing"),
                                           HasSubstr("blocks.4.k_norm.weight is missing"), Not(HasSubstr("tall"))));
  const Declare less = [](nn::ParameterSet& p, int) { declare_one(p, "embedding.weight", {12, 5}); };
  EXPECT_THAT(complaint(path, less),
              AllOf(HasSubstr("tall is not expected"), HasSubstr("one is not expected"), Not(HasSubstr("embedding"))));
  const Declare turned = [](nn::ParameterSet& p, int) { declare_one(p, "embedding.weight", {5, 12}); };
  EXPECT_THAT(complaint(path, turned), HasSubstr("embedding.weight is [12, 5] there and [5, 12] here"));
}

TEST_F(Reader, AnotherVersionAndOtherFiles) {
  const std::string path = folder / file_name(1);
  save(path);
  io.run([&](io::IoContext& context) {  // an ordinary HDF5 file
    io::File file = io::File::create(context, folder / "other.h5");
    file.write_scalar<int64_t>("format_version", kFormatVersion);
    file.close();
  });
  EXPECT_THAT(complaint(folder / "other.h5", declare_all), HasSubstr("not a Keel checkpoint"));
  EXPECT_THAT(complaint(folder / "absent.h5", declare_all), HasSubstr("No such file"));
}

}  // namespace
}  // namespace keel::checkpoints
