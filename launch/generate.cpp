// keel generate CKPT --prompt TEXT
#include <algorithm>
#include <cmath>
#include <numeric>

#include "framework/base/rng.h"
#include "framework/io/files.h"
#include "framework/tensor/copy.h"
#include "launch/commands.h"
#include "launch/compare_text.h"
#include "launch/loaded_model.h"
#include "launch/run_tokenizer.h"

namespace keel {
namespace {

struct Arguments {
  std::string checkpoint, prompt, compare;
  int64_t tokens = 200;
  double temperature = 0.8;
  int64_t top = 50;
  uint64_t seed = 1;
};

// Draws from the `top` most likely ids at this temperature; 0 takes the likeliest.
int32_t draw(std::span<const float> logits, const Arguments& arguments, int64_t place) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t top = std::clamp<size_t>(size_t(arguments.top), 1, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + int64_t(top), ids.end(), [&](int32_t a, int32_t b) {
    return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b;
  });
  if (arguments.temperature == 0) return ids[0];
  std::vector<double> weights(top);
  for (size_t i = 0; i < top; ++i)
    weights[i] = std::exp((double(logits[size_t(ids[i])]) - double(logits[size_t(ids[0])])) / arguments.temperature);
  double left = uniform(key_of(arguments.seed, "generate"), uint64_t(place)) *
                std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < top; ++i)
    if ((left -= weights[i]) <= 0) return ids[i];
  return ids[top - 1];
}

// The next token's logits over the first `known` ids, the same on every rank.
std::vector<float> next_logits(LoadedModel& model, std::vector<int32_t>& context, int64_t known) {
  const int64_t T = int64_t(context.size());
  std::vector<int32_t> positions(context.size());
  std::iota(positions.begin(), positions.end(), 0);
  const auto there = [&](std::vector<int32_t>& values) {
    OwnedTensor ids({1, T}, DType::i32, model.device);
    copy(ids, Tensor(values.data(), {1, T}, DType::i32));
    return ids;
  };
  const OwnedTensor tokens = there(context), places = there(positions);
  const int64_t columns = model.decoder.classifier().table->local[0];
  OwnedTensor own({1, columns}, DType::f32, model.device);
  OwnedTensor gathered({model.group.size(), columns}, DType::f32, model.device);
  model.decoder.next_logits(own, {tokens, {}, places, {}});
  model.group.gather(gathered, own);
  const HostTensor host(gathered);
  const float* values = host.tensor().as<float>();
  return {values, values + known};
}

void check_ids(const std::vector<int32_t>& ids, int64_t vocabulary) {
  for (int32_t id : ids)
    if (id >= vocabulary)
      throw input_error("the prompt has id {}, and the model knows {} ids: its tokenizer is another one", id,
                        vocabulary);
}

void run(const Arguments& arguments, comm::World& world) {
  if (!(arguments.temperature >= 0))  // NaN, too
    throw input_error("--temperature {}: must be a number of at least 0", arguments.temperature);
  LoadedModel model(
      world, {.path = arguments.checkpoint, .overrides = {}, .as_data_ranks = false, .sequences = 1, .length = 0});
  const auto tokenizer = tokenizer_of_run(model.config, arguments.checkpoint);
  std::vector<int32_t> ids;
  tokenizer->begin_document(ids);
  tokenizer->encode(arguments.prompt, ids);
  if (ids.empty()) ids.push_back(tokenizer->end_of_document());
  check_ids(ids, model.config.model.vocab.value());
  const size_t prompt = ids.size();
  // A model may have ids that its tokenizer does not use.
  const int64_t known = std::min(model.config.model.vocab.value(), tokenizer->vocabulary());
  std::string text;
  for (int64_t i = 0; i < arguments.tokens; ++i) {
    const size_t seen = std::min(ids.size(), size_t(model.sizes.length));
    std::vector<int32_t> context(ids.end() - int64_t(seen), ids.end());
    ids.push_back(draw(next_logits(model, context, known), arguments, i));
    if (ids.back() == tokenizer->end_of_document()) break;
  }
  tokenizer->decode(std::span(ids).subspan(prompt), text);
  if (world.rank() != 0) return;
  fmt::print("{}{}\n", arguments.prompt, text);
  if (arguments.compare.empty()) return;
  const TextComparison c = compare_text(text, io::read_file(arguments.compare, uint64_t(1) << 36));
  fmt::print(stderr,
             "keel: {} of {} words ({:.0f}%) occur in {}; the longest run of it that is copied has {} bytes: \"{}\"\n",
             c.known_words, c.words, 100.0 * double(c.known_words) / double(std::max<int64_t>(1, c.words)),
             arguments.compare, c.longest_copy.size(), c.longest_copy);
}

}  // namespace

void add_generate(CLI::App& program, comm::World& world) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.add_subcommand("generate", "Write text with a checkpoint");
  command->add_option("checkpoint", arguments->checkpoint, "step-NNNNNNNN.h5")->required();
  command->add_option("--prompt", arguments->prompt, "The text to go on from");
  command->add_option("--tokens", arguments->tokens, "How many tokens at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--temperature", arguments->temperature, "0 takes the likeliest token")->capture_default_str();
  command->add_option("--top", arguments->top, "Draw from this many likeliest tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--compare", arguments->compare,
                      "Say how many words of the text occur in this file, and what was copied from it");
  command->add_option("--seed", arguments->seed, "The same seed writes the same text")->capture_default_str();
  command->callback([arguments, &world] { run(*arguments, world); });
}

}  // namespace keel
