// espalier tokenize, run as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/command.h"
#include "support/files.h"
#include "support/tiny_llama.h"
#include "support/zstd.h"

namespace espalier {
namespace {

using test::CommandResult;
using testing::HasSubstr;

class TokenizeVerb : public testing::Test {
 protected:
  TokenizeVerb() : model_(folder_ / "vocabulary.gguf") {
    test::write_file(model_, test::read_zstd_data("tokenizers/llama-spm.gguf.zst"));
  }

  CommandResult tokenize(std::vector<std::string> options, std::string_view input = "") const {
    options.insert(options.begin(), {ESPALIER_BINARY, "tokenize", model_.string()});
    return test::run_command(options, input);
  }

  static void expect_output(const CommandResult& result, const std::string& output) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, output);
    EXPECT_EQ(result.err, "");
  }

  test::TemporaryDirectory folder_;
  std::filesystem::path model_;
};

TEST_F(TokenizeVerb, PrintsIds) {
  expect_output(tokenize({"-p", "Hello world"}), "1,15043,3186\n");
  expect_output(tokenize({"-p", "Hello world", "--json"}), "{\"ids\":[1,15043,3186]}\n");
  expect_output(tokenize({"-p", "Hello world", "--no-add-special"}), "15043,3186\n");
  expect_output(tokenize({"--no-add-special", "-p", ""}), "\n");
  expect_output(tokenize({"--no-add-special", "--json", "-p", ""}), "{\"ids\":[]}\n");
}

TEST_F(TokenizeVerb, ReadsStandardInput) {
  expect_output(tokenize({}, "Hello world"), "1,15043,3186\n");
  expect_output(tokenize({"-p", "-"}, "Hello world"), "1,15043,3186\n");
  expect_output(tokenize({"--no-add-special"}, "a\xff"), "263,258\n");
}

TEST_F(TokenizeVerb, TakesControlTokensAsTextWhenTold) {
  expect_output(tokenize({"-p", "</s>", "--no-add-special"}), "2\n");
  EXPECT_NE(tokenize({"-p", "</s>", "--no-add-special", "--no-parse-special"}).out, "2\n");
}

TEST_F(TokenizeVerb, DecodesBytes) {
  expect_output(tokenize({"--decode", "1,15043,3186"}), "<s> Hello world");
  expect_output(tokenize({"--decode", "258"}), "\xff");
}

TEST_F(TokenizeVerb, SaysWhatIsWrong) {
  CommandResult result = tokenize({"--decode", "1,32000"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err,
              HasSubstr("--decode: token id 32000 is out of range, expected 0 to 31999"));
  EXPECT_THAT(result.err, HasSubstr(model_.string()));

  EXPECT_EQ(tokenize({"--decode", "one"}).exit_code, 2);
  EXPECT_EQ(tokenize({"--decode", "1", "-p", "x"}).exit_code, 2);
  EXPECT_EQ(tokenize({"--decode", "1", "--json"}).exit_code, 2);

  model_ = folder_ / "missing.gguf";
  result = tokenize({"-p", "x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("missing.gguf"));
}

TEST_F(TokenizeVerb, WarnsAboutAMissingPreTokenizer) {
  test::GgufBuilder file;
  file.add("tokenizer.ggml.model", "gpt2")
      .add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"})
      .add("tokenizer.ggml.merges", std::vector<std::string>{});
  file.write(model_);
  const CommandResult result = tokenize({"-p", "ab"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "0,1\n");
  EXPECT_THAT(result.err, HasSubstr("warning: "));
  EXPECT_THAT(result.err, HasSubstr("'tokenizer.ggml.pre' is missing"));
}

}  // namespace
}  // namespace espalier
