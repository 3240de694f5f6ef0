#include "tests/fuzz/targets.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "checkpoints/reader.h"
#include "checkpoints/recovery.h"
#include "checkpoints/safetensors/model_files.h"
#include "checkpoints/user_block.h"
#include "framework/base/error.h"
#include "framework/data/token_file.h"
#include "framework/data/tokenizer.h"
#include "framework/io/jsonl.h"
#include "launch/common/run_setup.h"
#include "models/decoder/hugging_face.h"
#include "tests/checkpoints/state.h"
#include "tests/support/folder.h"

namespace keel::fuzz {
namespace {

// A directory of this process, kept for all calls: files in it are overwritten.
const testing::TemporaryFolder& folder() {
  static const testing::TemporaryFolder folder;
  return folder;
}

std::string file(const std::string& name, Bytes bytes) {
  const std::string path = folder() / name;
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

io::IoThread& io_thread() {  // one for all targets
  static io::IoThread io;
  return io;
}

// What checkpoints are loaded into.
checkpoints::State& state() {
  static const auto world = comm::make_self_communicator();
  static checkpoints::State state(*world, {});
  return state;
}

void read_checkpoint(const std::string& path) {
  read([&] { checkpoints::read_contents(io_thread(), path); });
  read([&] { checkpoints::verify_tensors(io_thread(), path, [](double) {}); });
  read([&] { checkpoints::read_tensors(io_thread(), path, state().tensors(), "rms"); });
}

// Makes the block at the beginning anew, where there is room for one.
bool sealed(const std::string& path) {
  const uint64_t block_bytes = checkpoints::user_block_bytes(0);
  if (std::filesystem::file_size(path) < block_bytes) return false;
  checkpoints::write_user_block(path, block_bytes, {});
  return true;
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
  read_tokens(folder() / "pair");
}

void token_npy(Bytes bytes) {
  read_tokens(file("tokens.npy", bytes));
}

void token_llmc(Bytes bytes) {
  read_tokens(file("tokens.bin", bytes));
}

void checkpoint(Bytes bytes) {
  read_checkpoint(file(checkpoints::file_name(1), bytes));
}

void sealed_checkpoint(Bytes bytes) {
  const std::string path = file(checkpoints::file_name(1), bytes);
  if (sealed(path)) read_checkpoint(path);
}

void sealed_parts(Bytes bytes) {
  const std::string path = file(checkpoints::file_name(2), bytes);
  if (sealed(path)) read_checkpoint(path);
}

std::string checkpoint_seed(int64_t parts) {
  const std::string path = folder() / checkpoints::file_name(parts);
  state().fill();
  checkpoints::write_checkpoint(state().mesh.world(), io_thread(), state().tensors(), checkpoints::some_run_state(),
                                {.path = path, .parts = parts, .tile_elements = 16});
  return testing::read_bytes(path);
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
  read([&] { checkpoints::Recovery(*world, folder().path(), options).may_roll_back(3); });
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
