#include "launch/common/gpu_architectures.h"

#include <gmock/gmock.h>

#include "framework/base/error.h"

namespace keel {
namespace {

std::string refusal(int major, int minor, const std::string& compiler) {
  try {
    require_kernels_for({.name = "GPU", .capability_major = major, .capability_minor = minor}, compiler);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

TEST(GpuArchitectures, APlainNumberRunsOnWhatCameLaterOneWithALetterOnItsOwnOnly) {
  EXPECT_EQ(refusal(9, 0, "nvcc 13.0.88 for 90a"), "");
  EXPECT_EQ(refusal(8, 9, "nvcc 13.0.88 for 80"), "");
  EXPECT_EQ(refusal(12, 0, "nvcc 13.0.88 for 90a;100"), "");
  for (const char* words : {"native", "all", "all-major"})
    EXPECT_EQ(refusal(9, 0, std::string("nvcc 13.0.88 for ") + words), "");
  EXPECT_EQ(refusal(8, 0, "executed on the CPU by tests/support/cuda_host"), "");
  EXPECT_THAT(refusal(8, 0, "nvcc 13.0.88 for 90a;100"), ::testing::HasSubstr("gpu-bundle.sh 80 "));
  EXPECT_THAT(refusal(10, 0, "nvcc 13.0.88 for 90a"), ::testing::HasSubstr("kernels for 90a only"));
  EXPECT_THAT(refusal(9, 0, "nvcc 13.0.88 for 100"), ::testing::HasSubstr("gpu-bundle.sh 90a "));
}

}  // namespace
}  // namespace keel
