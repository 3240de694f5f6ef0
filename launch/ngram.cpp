// keel ngram TRAIN VALID --orders 2,4,5
#include "framework/data/ngram.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numbers>
#include <optional>

#include "framework/base/error.h"
#include "launch/common/commands.h"

namespace keel {
namespace {

struct NgramOptions {
  std::string train, valid;
  std::vector<int> orders = {2, 4, 5};
  double memory_gib = 8;
};

// The size of the text after bzip2 -9, or nothing where the program is missing.
std::optional<int64_t> bzip2_bytes(const std::string& path) {
  if (std::system("command -v bzip2 >/dev/null 2>&1") != 0) return std::nullopt;
  std::string packed = (std::filesystem::temp_directory_path() / "keel-ngram-XXXXXX").string();
  const int file = ::mkstemp(packed.data());
  if (file < 0) throw input_error("{}: cannot make a temporary file", packed);
  ::close(file);
  std::FILE* pipe = ::popen(("bzip2 -9 -c > '" + packed + "'").c_str(), "w");
  bool written = pipe != nullptr;
  if (pipe != nullptr) {
    data::each_text(path, [&](std::string_view text) {
      written = written && std::fwrite(text.data(), 1, text.size(), pipe) == text.size();
    });
    written = ::pclose(pipe) == 0 && written;
  }
  const auto bytes = int64_t(std::filesystem::file_size(packed));
  std::filesystem::remove(packed);
  if (!written) throw input_error("bzip2 cannot write to {}; is the disk full?", packed);
  return bytes;
}

void print_row(const std::string& name, double nats_per_byte) {
  fmt::print("{:<10} {:>10.4f} {:>10.4f}\n", name, nats_per_byte, nats_per_byte / std::numbers::ln2);
}

void run(const NgramOptions& options) {
  for (int order : options.orders)
    if (order < 1 || order > data::kLargestOrder)
      throw input_error("--orders: {} is outside 1 to {}", order, data::kLargestOrder);
  data::NgramModel model(*std::max_element(options.orders.begin(), options.orders.end()),
                         int64_t(options.memory_gib * double(1 << 30)));
  data::each_text(options.train, [&](std::string_view text) { model.add(text); });
  if (model.bytes_counted() == 0) throw input_error("{}: no text to count", options.train);
  model.finish();
  data::NgramScore score(model);
  data::each_text(options.valid, [&](std::string_view text) { score.add(text); });
  if (score.bytes() == 0) throw input_error("{}: no text to score", options.valid);

  fmt::print("# {} bytes counted, {} bytes scored\n", model.bytes_counted(), score.bytes());
  fmt::print("{:<10} {:>10} {:>10}\n", "order", "nats/byte", "bits/byte");
  for (int order : options.orders) print_row(std::to_string(order), score.nats_per_byte(order));
  if (const auto packed = bzip2_bytes(options.valid))
    print_row("bzip2 -9", double(*packed) * 8 * std::numbers::ln2 / double(score.bytes()));
}

}  // namespace

void add_ngram(CLI::App& program) {
  auto options = std::make_shared<NgramOptions>();
  CLI::App* command = program.add_subcommand(
      "ngram", "Score held-out text with byte n-grams (Witten-Bell), as a baseline in nats per byte");
  command->add_option("train", options->train, "Text, or the prefix of token files, to count")->required();
  command->add_option("valid", options->valid, "Held-out text, or the prefix of token files, to score")->required();
  command->add_option("--orders", options->orders, "Orders to score, 1 to 8 (default: 2,4,5)")->delimiter(',');
  command->add_option("--memory", options->memory_gib, "GiB the tables may take (default: 8)")
      ->check(CLI::PositiveNumber);
  command->callback([options] { run(*options); });
}

}  // namespace keel
