#include "framework/comm/agreement.h"

#include <new>
#include <optional>

namespace keel::comm {

void together(Communicator& group, const std::function<void()>& f) {
  std::optional<Error> error;
  try {
    f();
  } catch (const Error& own) {
    error = own;
  } catch (...) {
    error = Error(ErrorKind::internal, text_of_exception());
  }
  try {
    const int64_t first = lowest_rank_where(group, error.has_value());
    if (first == group.size()) return;
    const bool speaks = group.rank() == first;  // and knows where in the source it was
    const int64_t kind = all_reduce_value(group, speaks ? int64_t(error->kind()) : 0, Reduction::max);
    const std::string message = broadcast_text(group, speaks ? error->what() : "", int(first));
    if (!speaks) error = Error(ErrorKind(kind), message);
  } catch (const Error&) {
    if (!error) throw;  // else what f threw came first, and says more
  }
  throw *error;
}

void on_rank_0(Communicator& group, const std::function<void()>& f) {
  together(group, [&] {
    if (group.rank() == 0) f();
  });
}

bool rank_0_sees(Communicator& group, const std::function<bool()>& f) {
  return all_reduce_value(group, int64_t(group.rank() == 0 && f()), Reduction::max) != 0;
}

void naming_rank(const Communicator& group, const std::string& advice, const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    const std::string place = group.size() > 1 ? fmt::format("rank {}: ", group.rank()) : "";
    throw Error(error.kind(), place + error.what() + advice);
  }
}

std::string text_of_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "out of memory: use fewer micro_sequences, more ranks or a smaller model";
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace keel::comm
