// A byte n-gram model with interpolated Witten-Bell smoothing (Witten & Bell 1991, method C; Chen & Goodman 1998, eq.
// 13): the number a trained model has to beat. With h the last bytes, c(hw) counts and t(h) the number of different
// bytes seen after h,
//   p_0(w) = 1/256,   p_n(w | h) = (c(hw) + t(h) p_{n-1}(w | h')) / (c(h) + t(h)),   h' = h without its first byte;
// p_n = p_{n-1} where h was never seen. Order n looks at n-1 bytes before w.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace keel::data {

inline constexpr int kLargestOrder = 8;  // so that an n-gram fits into 64 bits

// A map from 64-bit keys to counts: open addressing, linear probing, 16 bytes a slot.
class CountTable {
 public:
  struct Entry {
    uint64_t key = 0;
    uint64_t count = 0;  // 0: an empty slot
  };
  void add(uint64_t key, uint64_t count);
  uint64_t find(uint64_t key) const;  // 0 where the key is missing
  int64_t bytes() const { return int64_t(slots_.size() * sizeof(Entry)); }
  const std::vector<Entry>& slots() const { return slots_; }  // empty ones included

 private:
  size_t place_of(uint64_t key) const;
  void grow();

  std::vector<Entry> slots_;
  int64_t size_ = 0;
};

class NgramModel {
 public:
  // order in [1, kLargestOrder]; add() and finish() throw an input_error where the tables have outgrown memory_bytes.
  NgramModel(int order, int64_t memory_bytes);

  // Counts more text, which continues the text before.
  void add(std::string_view text);
  // Ends counting; probabilities can be asked for from here on.
  void finish();

  // p_1 .. p_order of `next` after the bytes of `history` (the last order-1 are looked at).
  void probabilities(std::string_view history, uint8_t next, std::vector<double>& by_order) const;

  int64_t bytes_counted() const { return bytes_counted_; }
  int order() const { return order_; }

 private:
  // A table is cut by key into shards; each thread reads everything and counts what falls into its own shards.
  static constexpr int shards = 16;
  struct Order {
    std::vector<CountTable> ngrams = std::vector<CountTable>(shards);    // c(hw) by hw, n bytes
    std::vector<CountTable> contexts = std::vector<CountTable>(shards);  // c(h) * 512 + t(h) by h; t(h) <= 256
  };
  static size_t shard_of(uint64_t key);
  template <class Each>
  static void share_out(std::vector<CountTable>& tables, const Each& each);
  void check_memory() const;

  int order_;
  int64_t memory_bytes_;
  int64_t bytes_counted_ = 0;
  std::string first_;          // the text's first order-1 bytes
  uint64_t last_ = 0;          // its last 8 so far
  std::vector<Order> orders_;  // orders_[n-1]
};

// Nats per byte of a held-out text that comes in parts, at every order up to the model's.
class NgramScore {
 public:
  explicit NgramScore(const NgramModel& model) : model_(model), nats_(size_t(model.order()), 0.0) {}
  void add(std::string_view text);
  double nats_per_byte(int order) const;
  int64_t bytes() const { return bytes_; }

 private:
  const NgramModel& model_;
  std::vector<double> nats_;
  std::string history_;
  int64_t bytes_ = 0;
};

// Hands on the bytes behind `path` in parts of a few MiB: those of a text file, or of a token file decoded by the
// tokenizer its notes name (a byte tokenizer where a pair of one-byte or 257-id tokens has none). Errors: TokenFile's
// and tokenizer_of's.
void each_text(const std::string& path, const std::function<void(std::string_view)>& f);

}  // namespace keel::data
