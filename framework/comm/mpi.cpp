#include "framework/comm/mpi.h"

#include "framework/comm/mpi_verbs.h"

namespace keel::comm {
namespace {

constexpr int kPointToPointTag = 0;
constexpr int kCollectiveTags = 32767;  // MPI promises tags up to this; so many collectives may be in flight

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MpiGroup group, std::shared_ptr<MpiEngine> engine)
      : Communicator(group.rank, group.size), group_(std::move(group)), engine_(std::move(engine)) {}
  ~MpiCommunicator() override {
    if (!engine_->broken()) MPI_Comm_free(&group_.comm);
  }

  void barrier() override {
    MpiOperation& operation = begin("barrier", Tensor(nullptr, {0}, DType::i32));
    operation.start(meet(operation)).wait();
  }
  void poll() override { engine_->poll(); }
  std::unique_ptr<Communicator> split(int color, int key, std::string_view name) override;
  double set_time_limit(double seconds) override { return std::exchange(engine_->options.time_limit_seconds, seconds); }
  bool broken() const override { return engine_->broken(); }
  void stand_at(int64_t step, const char* phase) override { engine_->standing->at(step, phase); }
  std::shared_ptr<Standing> standing() const override { return engine_->standing; }

 private:
  Request do_all_reduce(Tensor out, ConstTensor in, Reduction reduction) override {
    MpiOperation& operation = begin("all_reduce", in);
    const int64_t n = in.elements();
    Exchange x{out.data(), in.data(), {n, (n + size() - 1) / size()}, in.dtype(), reduction};
    bool small = size() * in.size_bytes() <= engine_->options.small_bytes;
    return operation.start(small ? small_all_reduce(operation, x) : reduce_blocks(operation, x, true));
  }
  Request do_reduce_scatter(Tensor out, ConstTensor in) override {
    MpiOperation& operation = begin("reduce_scatter", in);
    Exchange x{out.data(), in.data(), {in.elements(), out.elements()}, in.dtype(), Reduction::sum};
    return operation.start(reduce_blocks(operation, x, false));
  }
  Request do_all_gather(Tensor out, ConstTensor in) override {
    MpiOperation& operation = begin("all_gather", out);
    Exchange x{out.data(), in.data(), {out.elements(), in.elements()}, in.dtype(), Reduction::sum};
    return operation.start(gather_blocks(operation, x));
  }
  Request do_all_to_all(Tensor out, ConstTensor in) override {
    MpiOperation& operation = begin("all_to_all", in);
    Exchange x{out.data(), in.data(), {in.elements(), in.elements() / size()}, in.dtype(), Reduction::sum};
    return operation.start(exchange_blocks(operation, x));
  }
  Request do_broadcast(Tensor x, int root) override {
    MpiOperation& operation = begin("broadcast", x);
    return operation.start(comm::broadcast(operation, x, root));
  }
  Request do_send(ConstTensor x, int to) override {
    MpiOperation& operation = begin("send", x, kPointToPointTag);
    return operation.start(send_one(operation, x, to));
  }
  Request do_recv(Tensor x, int from) override {
    MpiOperation& operation = begin("recv", x, kPointToPointTag);
    return operation.start(receive_one(operation, x, from));
  }

  // The next collective; its number is its tag, so that started verbs do not mix.
  MpiOperation& begin(const char* verb, const ConstTensor& x) {
    return begin(verb, x, 1 + int(collectives_++ % kCollectiveTags));
  }
  MpiOperation& begin(const char* verb, const ConstTensor& x, int tag) {
    require(x.device().kind == DeviceKind::cpu, "MPI moves CPU tensors, not one on {}", x.device().text());
    return engine_->take().prepare(group_, tag, {verb, x.elements(), x.dtype()});
  }

  MpiGroup group_;
  std::shared_ptr<MpiEngine> engine_;
  uint64_t collectives_ = 0;
};

// A group of one rank exchanges nothing, and must not pay for sums of one part.
std::unique_ptr<Communicator> wrap(MPI_Comm comm, std::shared_ptr<MpiEngine> engine, std::string_view name) {
  MpiGroup group{{0, 1, std::string(name)}, comm};
  KEEL_MPI(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  KEEL_MPI(MPI_Comm_rank(comm, &group.rank));
  KEEL_MPI(MPI_Comm_size(comm, &group.size));
  if (group.size == 1) {
    KEEL_MPI(MPI_Comm_free(&comm));
    return make_self_communicator(engine->standing);
  }
  return std::make_unique<MpiCommunicator>(std::move(group), std::move(engine));
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key, std::string_view name) {
  require(color >= 0, "split: the color {} is negative", color);
  barrier();  // MPI waits for a rank that does not come without a limit
  MPI_Comm comm = MPI_COMM_NULL;
  KEEL_MPI(MPI_Comm_split(group_.comm, color, key, &comm));
  return wrap(comm, engine_, name);
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm parent, const MpiOptions& options, std::string_view name) {
  MPI_Comm comm = MPI_COMM_NULL;
  KEEL_MPI(MPI_Comm_dup(parent, &comm));
  return wrap(comm, std::make_shared<MpiEngine>(options), name);
}

}  // namespace keel::comm
