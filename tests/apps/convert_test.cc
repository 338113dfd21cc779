// espalier convert, run as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/command.h"
#include "support/files.h"
#include "support/tiny_llama.h"

namespace espalier {
namespace {

using test::CommandResult;
using test::TemporaryDirectory;
using ::testing::HasSubstr;

CommandResult convert(const std::filesystem::path& input, const std::filesystem::path& output,
                      const std::vector<std::string>& options) {
  std::vector<std::string> command = {ESPALIER_BINARY, "convert", input.string(), output.string()};
  command.insert(command.end(), options.begin(), options.end());
  return test::run_command(command);
}

TEST(ConvertVerb, ThereAndBack) {
  const TemporaryDirectory folder;
  const auto gguf =
      test::tiny_llama({.hidden = 64, .formats = {"Q8_0", "IQ4_NL"}}).write(folder / "m.gguf");
  const CommandResult refused = convert(gguf, folder / "dir", {"--to", "safetensors"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("IQ4_NL has no counterpart"));

  const CommandResult there = convert(
      gguf, folder / "dir", {"--to", "safetensors", "--unpack", "f16", "--shard-size", "40KB"});
  EXPECT_EQ(there.exit_code, 0) << there.err;
  EXPECT_EQ(there.out, "");
  EXPECT_THAT(there.err, HasSubstr("7 of 20 tensors became F16 numbers"));
  EXPECT_TRUE(std::filesystem::exists(folder / "dir" / "model.safetensors.index.json"));

  const CommandResult back = convert(folder / "dir", folder / "back.gguf", {"--to", "gguf"});
  EXPECT_EQ(back.exit_code, 0) << back.err;
  EXPECT_EQ(back.err, "");
}

TEST(ConvertVerbWrong, CommandLine) {
  const TemporaryDirectory folder;
  const auto gguf = test::tiny_llama().write(folder / "m.gguf");
  EXPECT_EQ(convert(gguf, folder / "x", {}).exit_code, 2);
  const CommandResult unknown = convert(gguf, folder / "x", {"--to", "onnx"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("onnx not in {gguf,safetensors}"));
  EXPECT_EQ(convert(gguf, folder / "x", {"--to", "safetensors", "--unpack", "q4"}).exit_code, 2);
  EXPECT_EQ(convert(gguf, folder / "x", {"--to", "safetensors", "--shard-size", "0"}).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(folder / "x"));
  const CommandResult same = convert(gguf, gguf, {"--to", "safetensors"});
  EXPECT_EQ(same.exit_code, 2);
  EXPECT_EQ(same.err, "error: " + gguf.string() + ": exists already; convert replaces nothing\n");
}

}  // namespace
}  // namespace espalier
