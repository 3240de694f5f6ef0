#include "launch/common/run_tokenizer.h"

#include <filesystem>

namespace keel {

namespace fs = std::filesystem;

namespace {

TokenizerPlace named_tokenizer(const FullConfig& config, const std::string& checkpoint) {
  if (const auto& given = config.run.data.tokenizer) {
    const fs::path beside = fs::path(checkpoint).parent_path() / fs::path(*given).filename();
    return {fs::exists(*given) || !fs::exists(beside) ? *given : beside.string(), std::nullopt};
  }
  const auto notes = training_notes(config.run);
  if (!notes)
    throw input_error("{}.json says which tokenizer made the data, and is not there; or give data.tokenizer",
                      config.run.data.train.front().path);
  return {notes->model.empty() ? "" : notes->model_path(), notes};
}

}  // namespace

TokenizerPlace find_tokenizer(const FullConfig& config, const std::string& checkpoint) {
  const TokenizerPlace place = named_tokenizer(config, checkpoint);
  const auto& trained = config.run.data.tokenizer_crc32c;
  if (trained && fs::exists(place.path))
    if (const int64_t found = data::tokenizer_crc32c(place.path); found != *trained)
      throw input_error(
          "{}: not the tokenizer that the model was trained with (its CRC32C is {}, data.tokenizer_crc32c of {} {}): "
          "give that one with data.tokenizer=FILE{}",
          place.path, found, checkpoint, *trained,
          place.notes ? "" : ", or take this one with data.tokenizer_crc32c=null");
  return place;
}

std::unique_ptr<data::Tokenizer> tokenizer_of_run(const FullConfig& config, const std::string& checkpoint) {
  const TokenizerPlace place = find_tokenizer(config, checkpoint);
  return place.notes ? data::tokenizer_of(*place.notes) : data::tokenizer_at(place.path);
}

std::optional<int64_t> end_of_text_of_run(const FullConfig& config, const std::string& checkpoint) {
  try {
    return tokenizer_of_run(config, checkpoint)->end_of_document();
  } catch (const Error&) {  // a model may come without one
    return std::nullopt;
  }
}

}  // namespace keel
