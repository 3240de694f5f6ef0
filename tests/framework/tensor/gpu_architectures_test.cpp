// Which GPUs a build's kernels run on.
#include "framework/tensor/gpu_architectures.h"

#include <gmock/gmock.h>

namespace keel {
namespace {

std::string refusal(int major, int minor, const std::string& compiler) {
  return missing_kernels({.name = "GPU", .capability_major = major, .capability_minor = minor}, compiler);
}

TEST(GpuArchitectures, APlainNumberRunsOnWhatCameLaterOneWithALetterOnItsOwnOnly) {
  EXPECT_EQ(refusal(9, 0, "nvcc 13.0.88 for 90a"), "");
  EXPECT_EQ(refusal(8, 9, "nvcc 13.0.88 for 80"), "");
  EXPECT_EQ(refusal(12, 0, "nvcc 13.0.88 for 90a;100"), "");
  for (const char* words : {"native", "all", "all-major"})
    EXPECT_EQ(refusal(9, 0, std::string("nvcc 13.0.88 for ") + words), "");
  EXPECT_EQ(refusal(8, 0, ""), "");
  EXPECT_THAT(refusal(8, 0, "nvcc 13.0.88 for 90a;100"), ::testing::EndsWith("gpu-bundle.sh 80"));
  EXPECT_THAT(refusal(10, 0, "nvcc 13.0.88 for 90a"), ::testing::HasSubstr("kernels for 90a only"));
  EXPECT_THAT(refusal(9, 0, "nvcc 13.0.88 for 100"), ::testing::HasSubstr("-DKEEL_CUDA_ARCHITECTURES=90a,"));
}

}  // namespace
}  // namespace keel
