#include "tests/fuzz/targets.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "checkpoints/reader.h"
#include "checkpoints/recovery.h"
#include "checkpoints/safetensors/model_files.h"
#include "framework/base/error.h"
#include "framework/data/token_file.h"
#include "framework/data/tokenizer.h"
#include "framework/io/jsonl.h"
#include "launch/common/run_setup.h"
#include "models/decoder/hugging_face.h"

namespace keel::fuzz {
namespace {

// A directory of this process, kept for all calls: files in it are overwritten.
const std::string& folder() {
  static const std::string path = [] {
    const auto made = std::filesystem::temp_directory_path() / fmt::format("keel_fuzz_{}", getpid());
    std::filesystem::create_directories(made);
    return made.string() + "/";
  }();
  return path;
}

std::string file(const std::string& name, Bytes bytes) {
  const std::string path = folder() + name;
  io::Descriptor out(path, O_WRONLY | O_CREAT | O_TRUNC, "cannot open for writing");
  out.write_all({bytes.data(), bytes.size()});
  return path;
}

// Passes input errors over, and nothing else.
template <class F>
void read(F f) {
  try {
    f();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
  }
}

void read_tokens(const std::string& path) {
  read([&] {
    const data::TokenFile tokens(path);
    tokens.verify_ids(65536);
    for (int64_t document = 0; document <= tokens.documents(); ++document) tokens.document_start(document);
    std::vector<int32_t> some(size_t(std::min<int64_t>(tokens.tokens(), 64)));
    tokens.read(tokens.tokens() - int64_t(some.size()), some);
    if (tokens.tokens() > 0) tokens.document_of(tokens.tokens() - 1);
    tokens.content_hash();
  });
}

}  // namespace

void config(Bytes bytes) {
  std::string text;
  std::vector<std::string> overrides;
  for (size_t at = 0; at < bytes.size();) {
    const auto* end = std::find(bytes.data() + at, bytes.data() + bytes.size(), '\n');
    const std::string line(bytes.data() + at, end);
    line.starts_with('=') ? overrides.push_back(line.substr(1)) : void(text += line + "\n");
    at += line.size() + 1;
  }
  read([&] { parse_full_config(text, "fuzz.yaml", overrides).text(); });
}

void token_index(Bytes bytes) {
  static const std::vector<char> zeros(4096);
  file("pair.bin", zeros);
  file("pair.idx", bytes);
  read_tokens(folder() + "pair");
}

void token_npy(Bytes bytes) {
  read_tokens(file("tokens.npy", bytes));
}

void token_llmc(Bytes bytes) {
  read_tokens(file("tokens.bin", bytes));
}

void checkpoint(Bytes bytes) {
  static io::IoThread io;
  const std::string path = file("step-00000001.h5", bytes);
  read([&] { checkpoints::read_contents(io, path); });
  read([&] { checkpoints::verify_tensors(io, path, [](double) {}); });
}

void json_lines(Bytes bytes) {
  const std::string path = file("events.jsonl", bytes);
  read([&] { io::truncate_after(path, 10); });
  read([&] { io::JsonLinesWriter writer(path); });
  read([&] { io::read_json_lines(path); });
  read([&] { io::cut_after(file("metrics.jsonl", bytes), 10); });
}

void recovery(Bytes bytes) {
  static const auto world = comm::make_self_communicator();
  file("recovery.json", bytes);
  config::StabilityConfig options;
  options.fallbacks.resize(2);
  read([&] { checkpoints::Recovery(*world, folder(), options).may_roll_back(3); });
}

void safetensors(Bytes bytes) {
  const std::string path = file("model.safetensors", bytes);
  read([&] {
    const checkpoints::safetensors::ModelFiles files(path);
    for (const std::string& name : files.names()) {
      std::vector<float> values(size_t(files.find(name)->elements()));
      files.read(name, 0, values);
    }
  });
}

void foreign_config(Bytes bytes) {
  read([&] { models::read_hugging_face_config({bytes.data(), bytes.size()}, "config.json"); });
}

void tokenizer(Bytes bytes) {
  static const std::string beside = R"({"eos_token": "<|end|>"})";
  file("tokenizer_config.json", beside);
  const std::string path = file("tokenizer.json", bytes);
  read([&] {
    const auto tokenizer = data::tokenizer_at(path);
    std::vector<int32_t> ids;
    tokenizer->begin_document(ids);
    tokenizer->encode("It's the norm of a query, 42 times.\n  <|end|> \xff", ids);
    std::string text;
    tokenizer->decode(ids, text);
  });
}

}  // namespace keel::fuzz
