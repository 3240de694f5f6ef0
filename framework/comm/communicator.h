// A group of ranks that exchange tensors. One contract for every implementation:
//
// - Arguments are contiguous tensors (outputs first); they carry sizes, type and device, and all three are checked.
//   Types: fp32, bf16, int32, int64, fp64. Zero elements are fine. A violation is an internal error.
// - Every rank calls the collective verbs in the same order with the same sizes; waits may come in any order.
// - On the CPU sums add in rank order, in the type itself, bf16 in fp32 with one rounding at the end. So a sum has the
//   same bits on all ranks, for any position in the tensor, and for all_reduce as for reduce_scatter followed by
//   all_gather. On GPUs the order is NCCL's: nccl.h says what remains. max keeps a NaN.
// - wait() means: what this thread does next sees the outputs and may change the inputs. On the CPU it returns when the
//   verb has ended. On a GPU what comes next is what is started on Stream::current; the host goes on at once.
// - Tensors on the meta device are checked, and nothing is sent: this is how memory is planned.
// - A communicator and all that was split from it belong to one thread; other threads get their own from World.
// - A rank that waits longer than the time limit throws "comm timeout: ..." with rank, verb, size and, on the CPU, the
//   missing ranks.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "framework/comm/standing.h"
#include "framework/tensor/tensor.h"

namespace keel::comm {

enum class Reduction { sum, max };

// A started verb, as its implementer sees it. Operations are recycled: a step starts verbs without allocating.
class Operation {
 public:
  // Advances it; true once nothing is left but finish().
  virtual bool test() = 0;
  // Waits for the end, recycles the operation, throws what went wrong.
  virtual void finish() = 0;
  // The same in a destructor: an error is kept and thrown by the communicator's next verb.
  virtual void release() noexcept = 0;

 protected:
  ~Operation() = default;
};

// A started verb, as its caller sees it. Until it was waited for, inputs may be read only and outputs not touched, and
// the communicator must live. Destroying a request waits for it, unless an exception is passing: then only briefly.
class Request {
 public:
  Request() = default;  // already ended
  explicit Request(Operation& operation) : operation_(&operation) {}
  Request(Request&& other) noexcept : operation_(std::exchange(other.operation_, nullptr)) {}
  Request& operator=(Request&& other) noexcept;
  ~Request();

  void wait();
  // Advances it a little; true once it has ended.
  bool test();

 private:
  Operation* operation_ = nullptr;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // out[i] = sum or maximum over ranks of in[i]. out is in, or apart from it.
  Request start_all_reduce(Tensor out, ConstTensor in, Reduction reduction = Reduction::sum);
  // Rank r gets block r of the sum; in has size() * out elements. out is the rank's own block of in, or apart from in.
  Request start_reduce_scatter(Tensor out, ConstTensor in);
  // Block r of out is rank r's in; out has size() * in elements. in is the rank's own block of out, or apart from out.
  Request start_all_gather(Tensor out, ConstTensor in);
  // Block r of rank s's out is block s of rank r's in. out is apart from in.
  Request start_all_to_all(Tensor out, ConstTensor in);
  // x of rank `root` everywhere.
  Request start_broadcast(Tensor x, int root);
  // Messages between two ranks arrive in the order sent. A send may wait until the other rank receives; ranks that
  // exchange start both and wait then. A rank may send to itself.
  Request start_send(ConstTensor x, int to);
  Request start_recv(Tensor x, int from);

  void all_reduce(Tensor out, ConstTensor in, Reduction reduction = Reduction::sum);
  void all_reduce(Tensor x, Reduction reduction = Reduction::sum) { all_reduce(x, x, reduction); }
  void reduce_scatter(Tensor out, ConstTensor in) { start_reduce_scatter(out, in).wait(); }
  void all_gather(Tensor out, ConstTensor in) { start_all_gather(out, in).wait(); }
  void all_to_all(Tensor out, ConstTensor in) { start_all_to_all(out, in).wait(); }
  void broadcast(Tensor x, int root) { start_broadcast(x, root).wait(); }
  void send(ConstTensor x, int to) { start_send(x, to).wait(); }
  void recv(Tensor x, int from) { start_recv(x, from).wait(); }

  // Returns once every rank has called it.
  virtual void barrier() = 0;
  // Advances every started verb; to be called now and then while computing, since MPI makes little progress by itself.
  virtual void poll() = 0;
  // Ranks with one color (0 or more) form a group, ordered by key, then by rank here. Collective. `name` is for
  // messages.
  virtual std::unique_ptr<Communicator> split(int color, int key, std::string_view name = "split") = 0;
  // Seconds that one wait may take, here and in all groups split from or with this one; 0 is no limit. Returns the
  // limit before.
  virtual double set_time_limit(double seconds) = 0;
  // Whether a message was given up, as after a wait that took too long: no verb is possible any more, and what the
  // other ranks have seen of this one is unknown.
  virtual bool broken() const = 0;
  // What this rank is about to do, for the lines of a wait that takes too long. `phase` is a literal.
  virtual void stand_at(int64_t step, const char* phase) = 0;
  // Where this rank stands; the same for groups split from one another, and what takes this one over.
  virtual std::shared_ptr<Standing> standing() const = 0;

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  // Implementations get checked arguments on the CPU or a GPU, with at least one element (send and recv: any number).
  virtual Request do_all_reduce(Tensor out, ConstTensor in, Reduction reduction) = 0;
  virtual Request do_reduce_scatter(Tensor out, ConstTensor in) = 0;
  virtual Request do_all_gather(Tensor out, ConstTensor in) = 0;
  virtual Request do_all_to_all(Tensor out, ConstTensor in) = 0;
  virtual Request do_broadcast(Tensor x, int root) = 0;
  virtual Request do_send(ConstTensor x, int to) = 0;
  virtual Request do_recv(Tensor x, int from) = 0;

  int rank_;
  int size_;
};

// Another time limit as long as this lives.
class TimeLimit {
 public:
  TimeLimit(Communicator& group, double seconds) : group_(group), before_(group.set_time_limit(seconds)) {}
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
  ~TimeLimit() { group_.set_time_limit(before_); }

 private:
  Communicator& group_;
  double before_;
};

// The communicator of one rank, on any device: collectives are the identity, sends go to a queue of its own.
std::unique_ptr<Communicator> make_self_communicator(std::shared_ptr<Standing> standing = std::make_shared<Standing>());

// One number from each rank, reduced; the same on all ranks.
double all_reduce_value(Communicator& group, double value, Reduction reduction = Reduction::sum);
int64_t all_reduce_value(Communicator& group, int64_t value, Reduction reduction = Reduction::sum);
// The lowest rank where `here` holds; the group's size where it holds nowhere.
int64_t lowest_rank_where(Communicator& group, bool here);
// The text that rank `root` has, everywhere.
std::string broadcast_text(Communicator& group, std::string_view text, int root = 0);
// Throws on all ranks, naming the first rank whose bytes differ from rank 0's: "config differs between ranks: ...". For
// texts (input errors) and for replicated weights (internal errors). Compares length and a 64-bit hash.
void require_same(Communicator& group, std::string_view name, std::string_view bytes,
                  ErrorKind kind = ErrorKind::input);

}  // namespace keel::comm
