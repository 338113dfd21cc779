// espalier run and espalier logits as a user calls them, on a small random model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "file/safetensors.h"
#include "support/command.h"
#include "support/data.h"
#include "support/files.h"
#include "support/tiny_llama.h"

namespace espalier {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RunVerbs : public ::testing::Test {
 protected:
  RunVerbs() { test::tiny_llama().write(model_); }

  static test::CommandResult espalier(std::vector<std::string> arguments,
                                      std::string_view input = "") {
    arguments.insert(arguments.begin(), ESPALIER_BINARY);
    return test::run_command(arguments, input);
  }

  // The result of `run --json` on the model with these further arguments.
  nlohmann::json run_json(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"run", "-m", model_, "--json"});
    const test::CommandResult result = espalier(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  }

  // The one line of an input error.
  static void expect_error(const test::CommandResult& result, const std::string& message) {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "error: " + message + "\n");
  }

  test::TemporaryDirectory folder_;
  std::string model_ = folder_ / "tiny.gguf";
};

TEST_F(RunVerbs, RunPrintsTextAndSpeeds) {
  const auto result = espalier({"run", "-m", model_, "-p", "the rain", "-n", "5", "--temp", "0"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, EndsWith("\n"));
  EXPECT_THAT(result.err, HasSubstr("prompt: 6 of 6 tokens"));
  EXPECT_THAT(result.err, HasSubstr("generation: "));
}

// A program that reads its prompt has not prepared its weights yet.
TEST_F(RunVerbs, CtrlCBeforeTheWeightsArePreparedEndsRun) {
  test::tiny_llama({.formats = {"Q8_0"}}).write(model_);
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto result =
        test::signal_command({ESPALIER_BINARY, "run", "-m", model_, "-p", "-"}, "the rain", signal);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err, "error: interrupted while the weights were prepared\n");
  }
}

TEST_F(RunVerbs, CtrlCBeforeTheWeightsArePreparedEndsLogits) {
  test::tiny_llama({.formats = {"Q8_0"}}).write(model_);
  const std::string output = folder_ / "logits.safetensors";
  const auto result = test::signal_command(
      {ESPALIER_BINARY, "logits", model_, "-p", "-", "-o", output}, "the rain", SIGINT);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err,
            "error: interrupted after 0 of 6 positions; nothing was written to " + output + "\n");
  EXPECT_FALSE(std::filesystem::exists(output));
}

TEST_F(RunVerbs, JsonSaysWhatWasDone) {
  const auto result = run_json({"-p", "the rain", "-n", "5", "--temp", "0"});
  EXPECT_EQ(result["prompt_tokens"], 6);
  EXPECT_EQ(result["output_tokens"], result["tokens"].size());
  EXPECT_TRUE(result["text"].is_string());
  EXPECT_THAT(result["stop"].get<std::string>(), testing::AnyOf("token_limit", "end_token"));
  EXPECT_GT(result["timings"]["prompt_seconds"], 0);
}

TEST_F(RunVerbs, TheSameSeedGivesTheSameTextForAnyNumberOfThreads) {
  const auto with = [&](const char* seed, const char* threads) {
    return run_json({"-p", "a b c", "-n", "20", "--temp", "1.5", "--top-k", "0", "--seed", seed,
                     "--threads", threads})["tokens"];
  };
  const auto one = with("7", "1");
  EXPECT_EQ(one, with("7", "2"));
  EXPECT_EQ(one, with("7", "3"));
  EXPECT_NE(one, with("8", "1"));
}

TEST_F(RunVerbs, PromptComesFromStandardInput) {
  const auto result = espalier({"run", "-m", model_, "-p", "-", "-n", "1", "--json"}, "the rain");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["prompt_tokens"], 6);
}

TEST_F(RunVerbs, GenerationStopsWhereTheContextIsFull) {
  const auto result = run_json({"-p", "abcd", "-n", "50", "--ctx", "8", "--temp", "1.5"});
  EXPECT_LE(result["output_tokens"], 5);  // the last one is not fed back
}

TEST_F(RunVerbs, WrongPromptsAreInputErrors) {
  expect_error(espalier({"run", "--raw", "-m", model_, "-p", ""}),
               "the prompt is empty: it has no token to start from");
  expect_error(espalier({"run", "--raw", "-m", model_, "-p", "abcdefgh", "--ctx", "7"}),
               "the prompt has 8 tokens, but the context holds 7; see --ctx");
  const std::string output = folder_ / "x";
  expect_error(espalier({"logits", model_, "--tokens", "1,300", "-o", output}),
               "token 1 is 300, expected 0 to 299, the vocabulary of " + model_);
  expect_error(espalier({"logits", model_, "--tokens", "1,-1", "-o", output}),
               "token 1 is -1, expected 0 to 299, the vocabulary of " + model_);
  expect_error(espalier({"logits", model_, "--tokens", "1,b", "-o", output}),
               "--tokens: found 'b', expected a token id");
}

TEST_F(RunVerbs, AVocabularyLargerThanTheEmbeddingIsAnError) {
  const std::string path = folder_ / "wrong.gguf";
  test::tiny_llama({.rows = 299}).write(path);
  expect_error(espalier({"run", "-m", path, "-p", "a"}),
               path + ": the vocabulary has 300 tokens, but the embedding only 299 rows");
}

// A directory whose tokenizer has a letter, a space or a control token for each of its 24 rows.
std::string write_directory(const test::TemporaryDirectory& folder) {
  const std::filesystem::path directory = folder / "model";
  std::filesystem::create_directory(directory);
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::copy(test::data_path("models/llama-bf16") / file, directory / file);
  }
  nlohmann::json vocab = {{"<s>", 0}, {"</s>", 1}, {"\u0120", 2}};
  for (int i = 3; i < 24; ++i) vocab[std::string(1, static_cast<char>('a' + i - 3))] = i;
  const nlohmann::json tokenizer = {
      {"added_tokens",
       {{{"id", 0}, {"content", "<s>"}, {"special", true}},
        {{"id", 1}, {"content", "</s>"}, {"special", true}}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  test::write_file(directory / "tokenizer.json", tokenizer.dump());
  return directory.string();
}

TEST_F(RunVerbs, DirectoriesAreModelsToo) {
  model_ = write_directory(folder_);
  const auto result = run_json({"-p", "<s>the egg", "-n", "5", "--temp", "0"});
  EXPECT_EQ(result["prompt_tokens"], 8);
  EXPECT_EQ(result["output_tokens"], result["tokens"].size());
  EXPECT_EQ(espalier({"tokenize", model_, "-p", "<s>a b"}).out, "0,3,2,4\n");

  const std::string from_text = folder_ / "text", from_ids = folder_ / "ids";
  ASSERT_EQ(espalier({"logits", model_, "-p", "<s>a b", "-o", from_text}).exit_code, 0);
  ASSERT_EQ(espalier({"logits", model_, "--tokens", "0,3,2,4", "-o", from_ids}).exit_code, 0);
  EXPECT_EQ(test::read_file(from_text), test::read_file(from_ids));
}

TEST_F(RunVerbs, ADirectoryWithoutATokenizerTakesTokensOnly) {
  model_ = write_directory(folder_);
  std::filesystem::remove(std::filesystem::path(model_) / "tokenizer.json");
  const std::string message = model_ + ": there is no tokenizer.json";
  expect_error(espalier({"run", "-m", model_, "-p", "a"}), message);
  expect_error(espalier({"tokenize", model_, "-p", "a"}), message);
  const std::string output = folder_ / "ids";
  expect_error(espalier({"logits", model_, "-p", "a", "-o", output}), message);
  EXPECT_EQ(espalier({"logits", model_, "--tokens", "1,2", "-o", output}).exit_code, 0);
}

TEST_F(RunVerbs, WrongCommandLinesExitWith2) {
  EXPECT_EQ(espalier({"run", "-m", model_, "--json"}).exit_code, 2);
  EXPECT_EQ(espalier({"run", "-m", model_, "-p", "a", "--reasoning", "maybe"}).exit_code, 2);
  EXPECT_EQ(espalier({"run", "-m", model_, "-p", "a", "--raw", "--system", "b"}).exit_code, 2);
  EXPECT_EQ(espalier({"run"}).exit_code, 2);
  EXPECT_EQ(espalier({"run", "-m", model_, "-p", "a", "--temp", "-1"}).exit_code, 2);
  EXPECT_EQ(espalier({"run", "-m", model_, "-p", "a", "--frobnicate"}).exit_code, 2);
  EXPECT_EQ(espalier({"fly"}).exit_code, 2);
  EXPECT_EQ(espalier({}).exit_code, 2);
  EXPECT_EQ(espalier({"logits", model_, "-p", "a", "--tokens", "1", "-o", "x"}).exit_code, 2);
  EXPECT_EQ(espalier({"run", "-m", folder_ / "none.gguf", "-p", "a"}).exit_code, 2);
}

TEST_F(RunVerbs, VersionAndHelp) {
  EXPECT_THAT(espalier({"--version"}).out, StartsWith("espalier 0."));
  for (const char* verb : {"run", "logits", "inspect", "tokenize"}) {
    const auto help = espalier({verb, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("--help")) << verb;
  }
}

TEST_F(RunVerbs, LogitsOfATextOfTokensAndOfAFileAreEqual) {
  const auto logits_of = [&](std::vector<std::string> input, const std::string& backend) {
    const std::string path = folder_ / "logits.safetensors";
    input.insert(input.begin(), {"logits", model_, "-o", path, "--backend", backend});
    const auto result = espalier(input);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto file = file::Safetensors::open(path);
    EXPECT_TRUE(file);
    const auto* logits = file->find("logits");
    EXPECT_EQ(logits->shape, (std::vector<std::uint64_t>{3, 300}));
    EXPECT_EQ(file->find("tokens")->shape, std::vector<std::uint64_t>{3});
    std::vector<float> values(900);
    std::memcpy(values.data(), logits->data.data(), logits->data.size());
    return values;
  };
  const std::string list = folder_ / "tokens.txt";
  test::write_file(list, "97, 98\n99\n");
  const auto reference = logits_of({"-p", "abc"}, "reference");
  EXPECT_EQ(reference, logits_of({"--tokens", "97,98,99"}, "reference"));
  EXPECT_EQ(reference, logits_of({"--tokens-file", list}, "reference"));
  const auto cpu = logits_of({"-p", "abc"}, "cpu");
  for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(cpu[i], reference[i], 0.02);
}

}  // namespace
}  // namespace espalier
