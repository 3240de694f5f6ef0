// The group of one rank.
#include <deque>
#include <vector>

#include "framework/comm/communicator.h"
#include "framework/tensor/copy.h"

namespace keel::comm {
namespace {

// A recv that was started before its send.
class Receive final : public Operation {
 public:
  Receive(Tensor out, std::deque<std::unique_ptr<Receive>>& all) : out(out), all_(all) {}

  bool test() override { return received; }
  void finish() override {
    bool complete = received;
    release();
    require(complete, "recv: the only rank waits for a message that it has not sent");
  }
  void release() noexcept override {
    std::erase_if(all_, [this](const auto& receive) { return receive.get() == this; });
  }

  const Tensor out;
  bool received = false;

 private:
  std::deque<std::unique_ptr<Receive>>& all_;
};

void deliver(const Tensor& out, const ConstTensor& in) {
  require(in.elements() == out.elements() && in.dtype() == out.dtype(),
          "recv: {} elements of {} were sent where {} of {} are expected", in.elements(), name_of(in.dtype()),
          out.elements(), name_of(out.dtype()));
  copy(out.flat(), in.flat());
}

class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(std::shared_ptr<Standing> standing) : Communicator(0, 1), standing_(std::move(standing)) {}

  void barrier() override {}
  void poll() override {}
  std::unique_ptr<Communicator> split(int color, int, std::string_view) override {
    require(color >= 0, "split: the color {} is negative", color);
    return make_self_communicator(standing_);
  }
  double set_time_limit(double) override { return 0; }
  bool broken() const override { return false; }
  void stand_at(int64_t step, const char* phase) override { standing_->at(step, phase); }
  std::shared_ptr<Standing> standing() const override { return standing_; }

 private:
  Request do_all_reduce(Tensor out, ConstTensor in, Reduction) override { return copied(out, in); }
  Request do_reduce_scatter(Tensor out, ConstTensor in) override { return copied(out, in); }
  Request do_all_gather(Tensor out, ConstTensor in) override { return copied(out, in); }
  Request do_all_to_all(Tensor out, ConstTensor in) override { return copied(out, in); }
  Request do_broadcast(Tensor, int) override { return {}; }

  Request do_send(ConstTensor x, int) override {
    for (auto& receive : receives_) {
      if (std::exchange(receive->received, true)) continue;
      deliver(receive->out, x);
      return {};
    }
    const OwnedTensor& message = messages_.emplace_back(Shape{x.elements()}, x.dtype(), x.device());
    copy(message, x.flat());
    return {};
  }

  Request do_recv(Tensor x, int) override {
    if (messages_.empty()) return Request(*receives_.emplace_back(std::make_unique<Receive>(x, receives_)));
    const OwnedTensor message = std::move(messages_.front());
    messages_.pop_front();
    deliver(x, message);
    return {};
  }

  static Request copied(const Tensor& out, const ConstTensor& in) {
    if (out.data() != in.data()) copy(out.flat(), in.flat());
    return {};
  }

  std::shared_ptr<Standing> standing_;
  std::deque<std::unique_ptr<Receive>> receives_;
  std::deque<OwnedTensor> messages_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator(std::shared_ptr<Standing> standing) {
  return std::make_unique<SelfCommunicator>(std::move(standing));
}

}  // namespace keel::comm
