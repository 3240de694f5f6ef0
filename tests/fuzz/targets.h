// What reads files of unknown origin, as functions of their bytes. Each reads as the program would, to the last byte,
// and ends in one way of two: fine, or an input error. Anything else (another error, a crash, a hang, more memory than
// the bytes justify) is a bug. fuzz_test.cpp feeds them mutated real files, libfuzzer.cpp whatever libFuzzer makes up.
#pragma once

#include <span>
#include <string>

namespace keel::fuzz {

using Bytes = std::span<const char>;

// A YAML file; lines that begin with '=' are overrides.
void config(Bytes bytes);
// A pair's index, beside a token file of zeros; a NumPy file; llm.c's.
void token_index(Bytes bytes);
void token_npy(Bytes bytes);
void token_llmc(Bytes bytes);
// Read, verified, its config parsed.
void checkpoint(Bytes bytes);
// The same where whoever changed the file made its checksums anew, so that HDF5 gets to see it; and of a file that
// links two parts.
void sealed_checkpoint(Bytes bytes);
void sealed_parts(Bytes bytes);
// metrics.jsonl, events.jsonl, as a resumed run reads them; recovery.json.
void json_lines(Bytes bytes);
void recovery(Bytes bytes);
// Of models made elsewhere: model.safetensors, config.json, tokenizer.json.
void safetensors(Bytes bytes);
void foreign_config(Bytes bytes);
void tokenizer(Bytes bytes);

// A checkpoint's bytes. Its parts stay where sealed_parts reads: what is stored of them holds for those alone.
std::string checkpoint_seed(int64_t parts);

struct Target {
  const char* name;
  void (*run)(Bytes);
};
inline constexpr Target kTargets[] = {{"config", config},
                                      {"token_index", token_index},
                                      {"token_npy", token_npy},
                                      {"token_llmc", token_llmc},
                                      {"checkpoint", checkpoint},
                                      {"sealed_checkpoint", sealed_checkpoint},
                                      {"sealed_parts", sealed_parts},
                                      {"json_lines", json_lines},
                                      {"recovery", recovery},
                                      {"safetensors", safetensors},
                                      {"foreign_config", foreign_config},
                                      {"tokenizer", tokenizer}};

}  // namespace keel::fuzz
