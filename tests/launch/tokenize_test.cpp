// Text to tokens and on, as the program is used: documents, standard input, what fits together and what does not.
#include <gmock/gmock.h>

#include "framework/data/token_file.h"
#include "tests/launch/run_fixture.h"

namespace keel::testing {
namespace {

using ::testing::HasSubstr;

class Tokenize : public RunFixture {
 protected:
  void works(const std::string& arguments) {
    const Ended ended = keel(arguments);
    EXPECT_EQ(ended.code, 0) << arguments << "\n" << ended.output;
    output_ = ended.output;
  }
  void refused(const std::string& arguments, const std::string& words) {
    const Ended ended = keel(arguments);
    EXPECT_EQ(ended.code, 2) << arguments << "\n" << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(words)) << arguments;
    output_ = ended.output;
  }
  int64_t documents(const std::string& prefix) { return data::TokenFile(directory_ / prefix).documents(); }
  // Text of its own for each seed.
  void write_words(const std::string& name, uint64_t seed) {
    std::ofstream text(directory_ / name);
    for (uint64_t i = 0; i < 6000; ++i) {
      const auto word = uint64_t(uniform(seed, i) * 200);
      for (uint64_t letter = 0; letter < 5; ++letter) text << char('a' + uniform(seed + 9, 5 * word + letter) * 26);
      text << (i % 11 == 0 ? "\n" : " ");
    }
  }

  std::string output_;
};

TEST_F(Tokenize, DocumentsAndStandardInput) {
  write_config("d.txt", "a\nb\n\nc\n");
  write_config("d.jsonl", "{\"body\": \"one\"}\n{\"body\": \"two\"}\n");
  for (const auto& [rule, count] : {std::pair("file", 1), {"blank", 2}, {"line", 4}}) {
    works(fmt::format("tokenize d.txt --documents {} --out d", rule));
    EXPECT_EQ(documents("d"), count) << rule;
    works(fmt::format("tokenize - --documents {} --out d < d.txt", rule));
    EXPECT_EQ(documents("d"), count) << rule;
  }
  const Ended piped = run_command(fmt::format("cd {} && cat d.txt d.txt | {} tokenize - --documents line --out d",
                                              directory_.string(), KEEL_PROGRAM));
  EXPECT_EQ(piped.code, 0) << piped.output;
  EXPECT_EQ(documents("d"), 8);

  works("tokenize d.jsonl --documents jsonl --json-key body --out j");
  EXPECT_EQ(documents("j"), 2);
  refused("tokenize d.jsonl --documents jsonl --out j", "d.jsonl:1: the object has no text under the key 'text'");
  works("tokenize d.jsonl --out j");
  EXPECT_THAT(output_, ::testing::Not(HasSubstr("JSON Lines")));
  write_config("t.jsonl", "{\"text\": \"one\"}\n");
  works("tokenize t.jsonl --out j");
  EXPECT_THAT(output_, HasSubstr("t.jsonl: looks like JSON Lines"));
  write_config("d.gz", "\x1f\x8b\x08 and so on");
  refused("tokenize d.gz --out g", "zcat d.gz | keel tokenize -");
  works("tokenize d.txt --out corpus");
  EXPECT_THAT(output_, HasSubstr("corpus-valid"));
}

TEST_F(Tokenize, ItsInputStays) {
  std::filesystem::copy_file(directory_ / "text.txt", directory_ / "wiki.json");
  const auto size = std::filesystem::file_size(directory_ / "wiki.json");
  refused("tokenize wiki.json --out wiki", "wiki.json: wiki.json would replace this text");
  refused("tokenize - --out wiki < wiki.json", "wiki.json would replace this text");
  refused("tokenize text.txt --out wiki", "wiki.json: is there, and no notes of `keel tokenize`");
  EXPECT_EQ(std::filesystem::file_size(directory_ / "wiki.json"), size);
}

// A tokenizer made anew, of the same size, is not the one of a model.
TEST_F(Tokenize, ModelsKnowTheirTokenizer) {
  write_words("one.txt", 1);
  write_words("two.txt", 2);
  works("tokenize one.txt --out sp --sentencepiece 330 --valid 0.1");
  works("train run.yaml name=sp train.steps=6 data.train=sp.bin data.valid=sp-valid");
  const std::string generate = "generate " + checkpoint("sp", 5) + " --prompt words --tokens 3",
                    eval = "eval " + checkpoint("sp", 5);
  works(generate);
  works(eval);
  refused(eval + " --data corpus-valid", "their tokens are of different tokenizers (kind sentencepiece and bytes)");
  refused("train run.yaml 'data.train=[sp, corpus]' data.valid=null", "different tokenizers");
  refused("train run.yaml data.train=sp", "sp.json and corpus-valid.json: their tokens are of different tokenizers");
  works("tokenize two.txt --out sp --sentencepiece 330 --valid 0.1");
  refused(generate, "sp.model: not the tokenizer that the model was trained with");
  EXPECT_THAT(output_, ::testing::Not(HasSubstr("data.tokenizer_crc32c=null"))) << "the notes say it again";
  std::filesystem::copy_file(directory_ / "sp.model", directory_ / "other.model");
  refused(generate + " data.tokenizer=other.model", "or take this one with data.tokenizer_crc32c=null");
  works(generate + " data.tokenizer=other.model data.tokenizer_crc32c=null");
  refused(eval, "sp-valid.json: its tokens are of another tokenizer than the model's");
}

TEST_F(Tokenize, ShardsAreOneSet) {
  const std::string two = "data.valid=null train.steps=6 name=two ";
  works("train run.yaml 'data.train=[corpus-valid, corpus]' " + two);
  EXPECT_THAT(output_, HasSubstr("corpus: "));
  EXPECT_THAT(output_, HasSubstr("corpus-valid: "));
  EXPECT_THAT(output_, HasSubstr("samples of 32 tokens, "));
  for (const char* ending : {".bin", ".idx", ".json"})  // corpus-valid beside corpus would be left out
    for (const auto& [from, to] : {std::pair("corpus-valid", "shard-0"), {"corpus", "shard-1"}})
      std::filesystem::copy_file(directory_ / (from + std::string(ending)), directory_ / (to + std::string(ending)));
  works("train run.yaml 'data.train=shard-*.bin' name=pattern train.steps=6 data.valid=null");
  EXPECT_EQ(metric("pattern", "loss"), metric("two", "loss"));
  refused("train run.yaml 'data.train=nothing*.bin' name=none", "nothing*.bin: no token file (.bin or .npy) matches");
  refused("train run.yaml 'data.train=[{path: corpus, weight: 2}, corpus-valid]' name=none data.valid=null",
          "some sources have a weight, others none (corpus-valid)");
  refused("train run.yaml 'data.train=[{path: corpus-valid, weight: 1}, {path: corpus, weight: 1}]' " + two,
          "data.train[0].weight: fixed when a run is resumed");
}

}  // namespace
}  // namespace keel::testing
