#include "framework/comm/nccl.h"

#include <cstdlib>
#include <cstring>
#include <optional>

#include "framework/comm/float_keys_cuda.h"
#include "framework/comm/nccl_channel.h"
#include "framework/tensor/buffer.h"
#include "framework/tensor/copy.h"

namespace keel::comm {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::f64:
      return ncclFloat64;
  }
  return ncclNumTypes;
}

bool is_float(DType dtype) {
  return dtype != DType::i32 && dtype != DType::i64;
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> mpi, std::shared_ptr<NcclFamily> family, std::string_view name)
      : Communicator(mpi->rank(), mpi->size()),
        mpi_(std::move(mpi)),
        channel_(std::move(family), {rank(), size(), std::string(name)}) {
    channel_.connect(agree_on_id());
  }

  void barrier() override { mpi_->barrier(); }
  void poll() override {
    mpi_->poll();
    channel_.family().look();
  }
  // The ids of groups travel over MPI, as the first one did: ncclCommSplit would be a second way to make a
  // communicator, and wants its parent idle.
  std::unique_ptr<Communicator> split(int color, int key, std::string_view name) override {
    auto group = mpi_->split(color, key, name);
    if (group->size() == 1) return make_self_communicator(standing());
    return std::make_unique<NcclCommunicator>(std::move(group), family(), name);
  }
  double set_time_limit(double seconds) override {
    channel_.family().time_limit_seconds = seconds;
    return mpi_->set_time_limit(seconds);
  }
  bool broken() const override { return mpi_->broken() || channel_.family().broken(); }
  void stand_at(int64_t step, const char* phase) override { mpi_->stand_at(step, phase); }
  std::shared_ptr<Standing> standing() const override { return mpi_->standing(); }

 private:
  Request do_all_reduce(Tensor out, ConstTensor in, Reduction reduction) override;
  Request do_reduce_scatter(Tensor out, ConstTensor in) override;
  Request do_all_gather(Tensor out, ConstTensor in) override;
  Request do_all_to_all(Tensor out, ConstTensor in) override;
  Request do_broadcast(Tensor x, int root) override;
  Request do_send(ConstTensor x, int to) override;
  Request do_recv(Tensor x, int from) override;

  std::shared_ptr<NcclFamily> family() { return channel_.shared_family(); }
  ncclUniqueId agree_on_id();
  Request maximum_of_floats(Tensor out, ConstTensor in);

  // Whether MPI carries it; on this rank's GPU NCCL does.
  bool is_mpi(const ConstTensor& x) {
    if (x.device().kind == DeviceKind::cpu) return true;
    const Device own = channel_.stream().device();
    require(x.device() == own, "this rank's GPU is {}, the tensor is on {}", own.text(), x.device().text());
    return false;
  }

  // One verb over NCCL; calls(comm, stream) makes its calls.
  template <class Calls>
  Request run(const char* verb, const ConstTensor& x, const Calls& calls) {
    const Label label{verb, x.elements(), x.dtype()};
    NcclOperation& operation = channel_.begin(label);
    channel_.call(label, calls);
    return channel_.end(operation);
  }
  Request message(const char* verb, const ConstTensor& x, int peer, bool leaves);

  std::unique_ptr<Communicator> mpi_;
  NcclChannel channel_;
};

// Rank 0 of the group makes the id. Where it cannot, no rank waits for it.
ncclUniqueId NcclCommunicator::agree_on_id() {
  ncclUniqueId id{};
  std::string text;
  std::optional<Error> error;
  if (rank() == 0) {
    try {
      KEEL_NCCL(ncclGetUniqueId(&id));
      text.assign(id.internal, sizeof id.internal);
    } catch (const Error& caught) {
      error = caught;
    }
  }
  text = broadcast_text(*mpi_, text);
  if (error) channel_.fail({"ncclGetUniqueId", 0, DType::f32}, *error);
  require(!text.empty(), "rank 0 of the group could not start NCCL");
  std::memcpy(id.internal, text.data(), sizeof id.internal);
  return id;
}

Request NcclCommunicator::do_all_reduce(Tensor out, ConstTensor in, Reduction reduction) {
  if (is_mpi(in)) return mpi_->start_all_reduce(out, in, reduction);
  if (reduction == Reduction::max && is_float(in.dtype())) return maximum_of_floats(out, in);
  return run("all_reduce", in, [&](ncclComm_t comm, cudaStream_t stream) {
    KEEL_NCCL(ncclAllReduce(in.data(), out.data(), size_t(in.elements()), nccl_type(in.dtype()),
                            reduction == Reduction::max ? ncclMax : ncclSum, comm, stream));
  });
}

Request NcclCommunicator::maximum_of_floats(Tensor out, ConstTensor in) {
  const Label label{"all_reduce", in.elements(), in.dtype()};
  NcclOperation& operation = channel_.begin(label);
  StreamScope scope(channel_.stream());
  const Tensor keys = cuda::float_keys(out, in);
  channel_.call(label, [&](ncclComm_t comm, cudaStream_t stream) {
    KEEL_NCCL(ncclAllReduce(keys.data(), keys.data(), size_t(keys.elements()), nccl_type(keys.dtype()), ncclMax, comm,
                            stream));
  });
  cuda::floats_of_keys(out, keys);
  return channel_.end(operation);
}

Request NcclCommunicator::do_reduce_scatter(Tensor out, ConstTensor in) {
  if (is_mpi(in)) return mpi_->start_reduce_scatter(out, in);
  return run("reduce_scatter", in, [&](ncclComm_t comm, cudaStream_t stream) {
    KEEL_NCCL(
        ncclReduceScatter(in.data(), out.data(), size_t(out.elements()), nccl_type(in.dtype()), ncclSum, comm, stream));
  });
}

Request NcclCommunicator::do_all_gather(Tensor out, ConstTensor in) {
  if (is_mpi(in)) return mpi_->start_all_gather(out, in);
  return run("all_gather", out, [&](ncclComm_t comm, cudaStream_t stream) {
    KEEL_NCCL(ncclAllGather(in.data(), out.data(), size_t(in.elements()), nccl_type(in.dtype()), comm, stream));
  });
}

Request NcclCommunicator::do_all_to_all(Tensor out, ConstTensor in) {
  if (is_mpi(in)) return mpi_->start_all_to_all(out, in);
  const int64_t block = in.elements() / size(), block_bytes = block * bytes_of(in.dtype());
  return run("all_to_all", in, [&](ncclComm_t comm, cudaStream_t stream) {
    NcclGroup group;
    for (int peer = 0; peer < size(); ++peer) {
      const auto* from = static_cast<const std::byte*>(in.data()) + peer * block_bytes;
      auto* to = static_cast<std::byte*>(out.data()) + peer * block_bytes;
      KEEL_NCCL(ncclSend(from, size_t(block), nccl_type(in.dtype()), peer, comm, stream));
      KEEL_NCCL(ncclRecv(to, size_t(block), nccl_type(in.dtype()), peer, comm, stream));
    }
    group.end();
  });
}

Request NcclCommunicator::do_broadcast(Tensor x, int root) {
  if (is_mpi(x)) return mpi_->start_broadcast(x, root);
  return run("broadcast", x, [&](ncclComm_t comm, cudaStream_t stream) {
    KEEL_NCCL(ncclBroadcast(x.data(), x.data(), size_t(x.elements()), nccl_type(x.dtype()), root, comm, stream));
  });
}

Request NcclCommunicator::do_send(ConstTensor x, int to) {
  return is_mpi(x) ? mpi_->start_send(x, to) : message("send", x, to, true);
}

Request NcclCommunicator::do_recv(Tensor x, int from) {
  return is_mpi(x) ? mpi_->start_recv(x, from) : message("recv", x, from, false);
}

Request NcclCommunicator::message(const char* verb, const ConstTensor& x, int peer, bool leaves) {
  if (x.elements() == 0) return {};  // both ends know
  NcclOperation& operation = channel_.begin({verb, x.elements(), x.dtype()});
  return channel_.end_later(operation,
                            {leaves, const_cast<void*>(x.data()), size_t(x.elements()), nccl_type(x.dtype()), peer});
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> mpi, Device device,
                                                     std::string_view name, std::function<void()> on_timeout) {
  setenv("NCCL_NVLS_ENABLE", "0", 0);  // nccl.h says why
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  const double limit_seconds = mpi->set_time_limit(0);
  mpi->set_time_limit(limit_seconds);
  auto family = std::make_shared<NcclFamily>(device, limit_seconds, mpi->standing(), std::move(on_timeout));
  return std::make_unique<NcclCommunicator>(std::move(mpi), std::move(family), name);
}

void check_gpus_reach_each_other(Communicator& group, Device device) {
  int64_t sum = group.rank();
  const Tensor here(&sum, {1}, DType::i64);
  const OwnedTensor there({1}, DType::i64, device);
  copy(there, here);
  group.all_reduce(there);
  copy(here, there);
  const int64_t expected = int64_t(group.size()) * (group.size() - 1) / 2;
  require(sum == expected, "the sum of {} ranks came out as {}, not {}: NCCL is broken here", group.size(), sum,
          expected);
}

std::string nccl_versions() {
  int version = 0;
  KEEL_NCCL(ncclGetVersion(&version));
  return fmt::format("{}, built with {}", version_text(version), version_text(NCCL_VERSION_CODE));
}

}  // namespace keel::comm
