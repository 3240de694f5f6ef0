#include "framework/data/ngram.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "framework/base/error.h"
#include "framework/base/text.h"
#include "framework/data/token_file.h"
#include "framework/data/tokenizer.h"

namespace keel::data {
namespace {

constexpr uint64_t kTotalsUnit = 512;  // contexts hold c(h) * 512 + t(h)
constexpr int64_t kPart_bytes = 4 << 20;

uint64_t hash_of(uint64_t key) {
  key *= 0x9e3779b97f4a7c15u;
  key ^= key >> 32;
  return key * 0xd6e8feb86659fd93u;
}

// The last n bytes of a key.
uint64_t suffix(uint64_t key, int n) {
  return n == 8 ? key : key & ((uint64_t(1) << (8 * n)) - 1);
}

uint64_t pushed(uint64_t key, char c) {
  return key << 8 | uint8_t(c);
}

}  // namespace

size_t CountTable::place_of(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t place = hash_of(key) & mask;
  while (slots_[place].count != 0 && slots_[place].key != key) place = (place + 1) & mask;
  return place;
}

void CountTable::grow() {
  std::vector<Entry> old(std::max<size_t>(64, slots_.size() * 2));
  std::swap(old, slots_);
  for (const Entry& entry : old)
    if (entry.count != 0) slots_[place_of(entry.key)] = entry;
}

void CountTable::add(uint64_t key, uint64_t count) {
  if (size_ * 5 >= int64_t(slots_.size()) * 3) grow();
  Entry& entry = slots_[place_of(key)];
  size_ += entry.count == 0;
  entry.key = key;
  entry.count += count;
}

uint64_t CountTable::find(uint64_t key) const {
  return slots_.empty() ? 0 : slots_[place_of(key)].count;
}

NgramModel::NgramModel(int order, int64_t memory_bytes)
    : order_(order), memory_bytes_(memory_bytes), orders_(size_t(std::clamp(order, 1, kLargestOrder))) {
  if (order < 1 || order > kLargestOrder)
    throw input_error("an n-gram of order {}; orders 1 to {} are counted", order, kLargestOrder);
}

size_t NgramModel::shard_of(uint64_t key) {
  return hash_of(key) >> 60;
}  // high bits; a table's place takes low ones

template <class Each>
void NgramModel::share_out(std::vector<CountTable>& tables, const Each& each) {
#pragma omp parallel
  {
    const auto thread = size_t(omp_get_thread_num()), threads = size_t(omp_get_num_threads());
    each([&](uint64_t key, uint64_t count) {
      const size_t shard = shard_of(key);
      if (shard % threads == thread) tables[shard].add(key, count);
    });
  }
}

void NgramModel::add(std::string_view text) {
  const auto before = size_t(std::min<int64_t>(bytes_counted_, order_ - 1));
  const size_t skipped = std::min(text.size(), size_t(order_ - 1) - before);  // no whole n-gram ends there
  first_.append(text.substr(0, skipped));
  const uint64_t start = last_;
  share_out(orders_.back().ngrams, [&](auto count) {
    uint64_t key = start;
    for (size_t i = 0; i < text.size(); ++i) {
      key = pushed(key, text[i]);
      if (i >= skipped) count(suffix(key, order_), 1);
    }
  });
  for (char c : text.substr(text.size() - std::min<size_t>(8, text.size()))) last_ = pushed(last_, c);
  bytes_counted_ += int64_t(text.size());
  check_memory();
}

void NgramModel::check_memory() const {
  int64_t bytes = 0;
  for (const Order& order : orders_)
    for (const auto* tables : {&order.ngrams, &order.contexts})
      for (const CountTable& table : *tables) bytes += table.bytes();
  if (bytes > memory_bytes_)
    throw input_error("counting {}-grams takes more than {} after {} of text; use a lower order or allow more memory",
                      order_, human_bytes(double(memory_bytes_)), human_bytes(double(bytes_counted_)));
}

// Lower orders follow from the highest: c(w) = sum over a of c(aw), and once more for the n-gram the text begins with.
void NgramModel::finish() {
  for (int n = order_ - 1; n >= 1; --n) {
    const auto& longer = orders_[size_t(n)].ngrams;
    share_out(orders_[size_t(n) - 1].ngrams, [&](auto count) {
      for (const CountTable& table : longer)
        for (const auto& [key, times] : table.slots())
          if (times != 0) count(suffix(key, n), times);
      uint64_t beginning = 0;
      for (char c : first_.substr(0, size_t(n))) beginning = pushed(beginning, c);
      if (int64_t(first_.size()) >= n) count(beginning, 1);
    });
    check_memory();
  }
  for (Order& order : orders_) {
    share_out(order.contexts, [&](auto count) {
      for (const CountTable& table : order.ngrams)
        for (const auto& [key, times] : table.slots())
          if (times != 0) count(key >> 8, times * kTotalsUnit + 1);
    });
    check_memory();
  }
}

void NgramModel::probabilities(std::string_view history, uint8_t next, std::vector<double>& by_order) const {
  by_order.assign(size_t(order_), 0);
  history = history.substr(history.size() - std::min<size_t>(history.size(), 7));
  uint64_t key = 0;
  for (char c : history) key = pushed(key, c);
  double p = 1.0 / 256;
  for (int n = 1; n <= order_; ++n) {
    if (int64_t(history.size()) >= n - 1) {
      const uint64_t h = suffix(key, n - 1), hw = pushed(h, char(next));
      const uint64_t context = orders_[size_t(n) - 1].contexts[shard_of(h)].find(h);
      const auto total = double(context / kTotalsUnit), followers = double(context % kTotalsUnit);
      const auto times = double(orders_[size_t(n) - 1].ngrams[shard_of(hw)].find(hw));
      if (context != 0) p = (times + followers * p) / (total + followers);
    }
    by_order[size_t(n) - 1] = p;
  }
}

void NgramScore::add(std::string_view text) {
  const std::string joined = history_ + std::string(text);
  std::vector<double> by_order;
  for (size_t i = history_.size(); i < joined.size(); ++i) {
    model_.probabilities(std::string_view(joined).substr(0, i), uint8_t(joined[i]), by_order);
    for (size_t n = 0; n < nats_.size(); ++n) nats_[n] -= std::log(by_order[n]);
  }
  bytes_ += int64_t(text.size());
  history_ = joined.substr(joined.size() - std::min<size_t>(joined.size(), kLargestOrder - 1));
}

double NgramScore::nats_per_byte(int order) const {
  require(order >= 1 && order <= model_.order() && bytes_ > 0, "no score of order {} over {} bytes", order, bytes_);
  return nats_[size_t(order) - 1] / double(bytes_);
}

void each_text(const std::string& path, const std::function<void(std::string_view)>& f) {
  std::string text;
  const bool tokens = path.ends_with(".bin") || path.ends_with(".idx") || path.ends_with(".npy");
  if (!tokens && std::filesystem::is_regular_file(path)) {
    std::ifstream file(path, std::ios::binary);
    text.resize(size_t(kPart_bytes));
    while (file.read(text.data(), kPart_bytes) || file.gcount() > 0)
      f(std::string_view(text).substr(0, size_t(file.gcount())));
    if (!file.eof()) throw input_error("{}: cannot read it", path);
    return;
  }
  const TokenFile file(path);
  const auto tokenizer = file.notes() ? tokenizer_of(*file.notes()) : byte_tokenizer();
  file.verify_ids(tokenizer->vocabulary());
  std::vector<int32_t> ids;
  for (int64_t at = 0; at < file.tokens(); at += int64_t(ids.size())) {
    ids.resize(size_t(std::min(kPart_bytes / 4, file.tokens() - at)));
    file.read(at, ids);
    text.clear();
    tokenizer->decode(ids, text);
    f(text);
  }
}

}  // namespace keel::data
