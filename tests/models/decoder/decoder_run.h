// Whole training runs of small decoders on the device under test, over any split of the world's ranks.
#pragma once

#include <fmt/format.h>

#include <optional>

#include "framework/data/token_writer.h"
#include "framework/parallel/tensor_parallel.h"
#include "framework/train/trainer.h"
#include "models/decoder/decoder.h"
#include "tests/support/device_world.h"
#include "tests/support/folder.h"

namespace keel::testing {

// Threads of a GPU take their turns on the CPU in tests: fewer layouts, steps and verbs there.
inline bool on_cpu() {
  return test_device().kind == DeviceKind::cpu;
}

struct Layout {
  int tensor = 1, data = 1;
  bool zero = true;
  int ranks() const { return tensor * data; }
};

inline std::string text_of(const Layout& layout) {
  return fmt::format("tensor {} x data {}{}", layout.tensor, layout.data, layout.zero ? " zero" : "");
}

// A file of documents of 1 to 23 tokens, so that rows count unequal numbers; the p-th of all is token_at(p) modulo the
// vocabulary.
class TokenFile {
 public:
  explicit TokenFile(
      int64_t vocabulary, int64_t (*token_at)(int64_t p) = [](int64_t p) { return p * p; })
      : vocabulary_(vocabulary) {
    data::TokenWriter writer(path(), vocabulary);
    for (int64_t i = 0, length = 1; i < 900; i += length, length = i * 7 % 23 + 1) {
      std::vector<int32_t> document;
      for (int64_t p = i; p < i + length; ++p) document.push_back(int32_t(token_at(p) % vocabulary));
      writer.append(document);
      writer.end_document();
    }
    writer.finish();
  }

  data::Dataset dataset(int64_t T) const {
    return data::Dataset({{path()}}, {.T = T, .vocabulary = vocabulary_, .document_mask = true});
  }

 private:
  std::string path() const { return folder_ / "tokens"; }

  int64_t vocabulary_;
  TemporaryFolder folder_;
};

// `keys` are laid after those of a two-layer decoder of hidden size 32.
inline models::DecoderConfig small_decoder(int64_t vocabulary, const std::string& keys) {
  return models::read_decoder_config(config::parse(
      fmt::format("{{kind: decoder, vocab: {}, hidden: 32, layers: 2, ffn: 48, {}}}", vocabulary, keys), "test"));
}

struct DecoderRunOptions {
  int tensor = 1;
  train::BatchSizes batch;
  DType activation = DType::f32;
  int64_t bucket_elements = 2048;
  train::TrainerOptions trainer;
};

// One training over all of `ranks`: the same weights and order of samples each time.
template <class Model = models::Decoder>
class DecoderRun {
 public:
  DecoderRun(comm::Communicator& ranks, const data::Dataset& dataset, const models::DecoderConfig& config,
             const DecoderRunOptions& options)
      : mesh(ranks, options.tensor),
        group_(mesh.tensor()),
        order(dataset.training_order(3)),
        decoder(config),
        batches(dataset, options.batch, true, test_device()) {
    decoder.allocate({.parameters = {.device = test_device(),
                                     .activation = options.activation,
                                     .tensor = mesh.tensor_position(),
                                     .data_ranks = mesh.data().size(),
                                     .bucket_elements = options.bucket_elements},
                      .group = &group_,
                      .batch = options.batch.shape()});
    decoder.initialise(1);
    trainer.emplace(decoder, mesh, batches, order, options.trainer);
  }

  void go() {
    trainer->weights_changed();
    trainer->run();
  }

  parallel::Mesh mesh;

 private:
  parallel::TensorParallel group_;

 public:
  const data::SampleOrder order;
  Model decoder;
  train::StepBatches batches;
  std::optional<train::Trainer> trainer;
};

}  // namespace keel::testing
