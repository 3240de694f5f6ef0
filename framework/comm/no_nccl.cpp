// Stands in the place of the NCCL files in a build without CUDA.
#include "framework/comm/nccl.h"

namespace keel::comm {
namespace {

[[noreturn]] void refuse() {
  throw input_error("this build has no NCCL: configure with the preset cuda, or choose device: cpu");
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator>, Device, std::string_view,
                                                     std::function<void()>) {
  refuse();
}
void check_gpus_reach_each_other(Communicator&, Device) {
  refuse();
}
std::string nccl_versions() {
  return {};
}

}  // namespace keel::comm
