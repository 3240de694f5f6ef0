// What is known of GPUs by their names.
#include <gmock/gmock.h>

#include "launch/common/device_sheet.h"

namespace keel {
namespace {

TEST(DeviceSheets, AreFoundByWholeWords) {
  for (auto [product, name] : {std::pair("NVIDIA H200", "h200"),
                               {"NVIDIA GH200 480GB", "gh200"},
                               {"NVIDIA B200", "b200"},
                               {"NVIDIA H100 80GB HBM3", "h100"},
                               {"NVIDIA A100-SXM4-80GB", "a100"}}) {
    ASSERT_TRUE(known_gpu(product)) << product;
    EXPECT_EQ(known_gpu(product)->name, name);
  }
  for (const char* product :
       {"NVIDIA GB200", "NVIDIA H100 PCIe", "NVIDIA H200 NVL", "NVIDIA RTX A1000", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"})
    EXPECT_FALSE(known_gpu(product)) << product;
}

}  // namespace
}  // namespace keel
