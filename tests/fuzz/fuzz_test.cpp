// A short fixed run over mutated real files, the same on every machine; tests/fuzz/CMakeLists.txt has the long form.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <random>

#include "framework/base/log.h"
#include "framework/data/token_writer.h"
#include "tests/fuzz/targets.h"
#include "tests/support/folder.h"
#include "tests/support/golden.h"

namespace keel::fuzz {
namespace {

constexpr const char* kConfig = R"(precision: fp32
model: {kind: decoder, hidden: 32, layers: 2, ffn: 64, vocab: 300, attention: {heads: 4, kv_heads: 2}}
data: {train: [{path: a, weight: 0.5}, b], valid: null, sequence_length: 32}
batch: &batch {sequences: 8, micro_sequences: 2}
optimizer: {lr: 3e-3, clip_norm: null}
train: {steps: 20, stop_after: 3h50m}
checkpoint: {every: 5, mpi_hints: {striping_factor: 8}}
stability: {fallbacks: [{optimizer.lr: 1e-4}], "on_event": 'cat', spike: {sigmas: 7}}
=batch.sequences=16
=schedule={kind: wsd, decay_steps: 4}
)";

std::string npy() {
  std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (500,), }";
  header.resize(117, ' ');
  return std::string("\x93NUMPY\x01\0\x76\0", 10) + header + "\n" + std::string(1000, '\1');
}

std::string llmc() {
  std::string bytes(256 * 4 + 1000, '\1');
  const int32_t header[] = {20240520, 1, 500};
  std::memcpy(bytes.data(), header, sizeof header);
  return bytes;
}

std::string safetensors_file() {
  const std::string header = R"({"__metadata__": {"format": "pt"},)"
                             R"( "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},)"
                             R"( "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}})";
  const uint64_t bytes = header.size();
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + header + std::string(32, '\1');
}

class Fuzz : public ::testing::TestWithParam<Target> {
 protected:
  Fuzz() {
    log::set_speaker({.least = log::Level::error});
    // What the files justify is far less; a reader that believes a size of theirs gets no memory for it.
    // A sanitizer's own map of the memory is larger than any limit.
    getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = kMemory_bytes;
    if (!KEEL_SANITIZED) setrlimit(RLIMIT_AS, &limit);
  }
  ~Fuzz() override {
    setrlimit(RLIMIT_AS, &before_);
    log::set_speaker({});
  }

  std::string seed_of(const std::string& name) {
    if (name == "config") return kConfig;
    if (name == "token_npy") return npy();
    if (name == "token_llmc") return llmc();
    if (name == "json_lines")
      return "{\"event\":\"skip\",\"step\":9,\"loss\":\"nan\"}\n{\"step\":11,\"lasting\":true}\n{\"st";
    if (name == "recovery") return R"({"gone_back_to":[5,5],"fallbacks_taken":1,"last_trouble":9,"left_out":[[3,9]]})";
    if (name == "safetensors") return safetensors_file();
    if (name == "foreign_config") return testing::read_bytes(testing::golden_file("families/gemma3/config.json"));
    if (name == "tokenizer") return testing::read_bytes(testing::golden_file("tokenizers/llama3/tokenizer.json"));
    if (name == "token_index") {
      const testing::TemporaryFolder scratch;
      data::TokenWriter writer(scratch / "pair", 300);
      for (int document = 0; document < 4; ++document) {
        writer.append(std::vector<int32_t>(512, 0));
        writer.end_document();
      }
      writer.finish();
      return testing::read_bytes(scratch / "pair.idx");
    }
    return checkpoint_seed(name == "sealed_parts" ? 2 : 1);
  }

  // Bits, bytes, numbers of all widths at their limits, cuts, and pieces moved and repeated.
  std::string mutated(std::string bytes) {
    for (uint64_t changes = 1 + random_() % 4; changes > 0 && !bytes.empty(); --changes) {
      const size_t at = random_() % bytes.size();
      constexpr int64_t kNumbers[] = {0,         -1,        1,         255,       65535,
                                      INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int64_t(1) << 40};
      const int64_t number = kNumbers[random_() % std::size(kNumbers)];
      const size_t width = std::min<size_t>(bytes.size() - at, size_t(1) << random_() % 4);
      switch (random_() % 6) {
        case 0:
          bytes[at] = char(bytes[at] ^ (1 << random_() % 8));
          break;
        case 1:
          std::memcpy(&bytes[at], &number, width);
          break;
        case 2:
          bytes.resize(at);
          break;
        case 3:
          bytes.erase(at, random_() % 64);
          break;
        case 4:
          bytes.insert(at, bytes.substr(random_() % bytes.size(), random_() % 64));
          break;
        default:
          bytes.insert(at, std::to_string(number));
      }
    }
    return bytes;
  }

  std::mt19937_64 random_{1};

 private:
  static constexpr rlim_t kMemory_bytes = rlim_t(4) << 30;  // with the libraries, and the I/O thread's stack
  rlimit before_{};
};

TEST_P(Fuzz, IsFineOrAnInputError) {
  constexpr auto kTime = std::chrono::seconds(8);
  const std::string seed = seed_of(GetParam().name);
  if (const char* seeds = std::getenv("KEEL_FUZZ_SEEDS"))  // where libFuzzer is to begin
    std::ofstream(std::string(seeds) + "/" + GetParam().name, std::ios::binary) << seed;
  GetParam().run(seed);
  GetParam().run({});
  const auto begin = std::chrono::steady_clock::now();
  int runs = 0;
  for (; runs < 2000 && std::chrono::steady_clock::now() - begin < kTime; ++runs) {
    const std::string bytes = mutated(seed);
    try {
      GetParam().run(bytes);
    } catch (const std::exception& error) {
      std::ofstream("fuzz-" + std::string(GetParam().name), std::ios::binary) << bytes;
      FAIL() << "mutation " << runs << " (kept in fuzz-" << GetParam().name << "): " << error.what();
    }
  }
  EXPECT_GT(runs, 50);
}

INSTANTIATE_TEST_SUITE_P(Targets, Fuzz, ::testing::ValuesIn(kTargets),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace keel::fuzz
