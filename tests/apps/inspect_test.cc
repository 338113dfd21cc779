// espalier inspect, run as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "file/safetensors.h"
#include "support/command.h"
#include "support/data.h"
#include "support/files.h"
#include "support/gguf_builder.h"

namespace espalier {
namespace {

using file::GgufType;
using nlohmann::json;
using test::CommandResult;
using test::gguf_array;
using test::gguf_string;
using test::GgufBuilder;
using test::TemporaryDirectory;
using ::testing::HasSubstr;
using ::testing::Not;

CommandResult inspect(const std::filesystem::path& path, std::vector<std::string> options = {}) {
  options.insert(options.begin(), {ESPALIER_BINARY, "inspect", path.string()});
  return test::run_command(options);
}

GgufBuilder sample() {
  GgufBuilder file;
  file.add("general.architecture", "llama")
      .add("llama.block_count", std::uint32_t{2})
      .add("llama.epsilon", 1e-5f)
      .add("tokenizer.ggml.tokens", std::vector<std::string>(1000, "tok"))
      .add("tokenizer.chat_template", std::string(5000, 't'));
  file.tensor("norm", {4}, {1, 2, 3, 4});
  file.tensor({.name = "proj.weight",
               .dims = {64, 100},
               .type = 3,
               .data = std::string(20 * 2 * 100, '\0')});
  return file;
}

TEST(Inspect, PrintsAFileForPeople) {
  const TemporaryDirectory folder;
  const CommandResult result = inspect(sample().write(folder / "m.gguf"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, (folder / "m.gguf").string() +
                            R"(
GGUF version 3, alignment 32, one file

metadata (5)
  general.architecture     string        "llama"
  llama.block_count        uint32        2
  llama.epsilon            float32       1e-05
  tokenizer.ggml.tokens    string[1000]  ["tok", "tok", "tok", "tok", "tok", "tok", "tok", "tok", "tok", "tok", …]
  tokenizer.chat_template  string        ")" +
                            std::string(72, 't') + R"(…"

tensors (2)
  norm         4         F32      16
  proj.weight  64 × 100  Q4_1  4,000

  group        type  tensors  values  bytes  bits per weight
  norm         F32         1       4     16           32.000
  proj.weight  Q4_1        1   6,400  4,000            5.000

  type  tensors  values  bytes  of all  bits per weight
  Q4_1        1   6,400  4,000   99.6%            5.000
  F32         1       4     16    0.4%           32.000
  all         2   6,404  4,016  100.0%            5.017
)");
}

TEST(Inspect, JsonHoldsEverythingWhole) {
  const TemporaryDirectory folder;
  const CommandResult result = inspect(sample().write(folder / "m.gguf"), {"--json"});
  EXPECT_EQ(result.exit_code, 0);
  const json out = json::parse(result.out);
  EXPECT_EQ(out["file"], (folder / "m.gguf").string());
  EXPECT_EQ(out["format"], "GGUF");
  EXPECT_EQ(out["version"], 3);
  EXPECT_EQ(out["alignment"], 32);
  EXPECT_EQ(out["parts"], 1);
  EXPECT_EQ(out["metadata"].size(), 5u);
  EXPECT_EQ(out["metadata"]["llama.block_count"], (json{{"type", "uint32"}, {"value", 2}}));
  EXPECT_EQ(out["metadata"]["llama.epsilon"]["value"].dump(), "1e-05");
  EXPECT_EQ(out["metadata"]["tokenizer.ggml.tokens"],
            (json{{"type", "array"},
                  {"element_type", "string"},
                  {"value", std::vector<std::string>(1000, "tok")}}));
  EXPECT_EQ(out["metadata"]["tokenizer.chat_template"]["value"], std::string(5000, 't'));
  ASSERT_EQ(out["tensors"].size(), 2u);
  EXPECT_EQ(out["tensors"][1]["name"], "proj.weight");
  EXPECT_EQ(out["tensors"][1]["shape"], (json{64, 100}));
  EXPECT_EQ(out["tensors"][1]["type"], "Q4_1");
  EXPECT_EQ(out["tensors"][1]["bytes"], 4000);
  EXPECT_EQ(out["types"]["Q4_1"],
            (json{{"tensors", 1}, {"values", 6400}, {"bytes", 4000}, {"bits_per_weight", 5.0}}));
  EXPECT_EQ(out["total"]["bytes"], 4016);
  EXPECT_EQ(out["total"]["values"], 6404);
}

TEST(Inspect, JsonOfEveryTypeOfValue) {
  const TemporaryDirectory folder;
  GgufBuilder file;
  file.add("u64", std::numeric_limits<std::uint64_t>::max())
      .add("i64", std::numeric_limits<std::int64_t>::min())
      .add("f64", 0.1)
      .add("infinity", std::numeric_limits<float>::infinity())
      .add("bool", true)
      .add("empty", std::vector<float>{})
      .add_raw("nested", 9,
               gguf_array(GgufType::kArray, 1, gguf_array(GgufType::kUint8, 2, "\x01\x02")));
  const json metadata =
      json::parse(inspect(file.write(folder / "m.gguf"), {"--json"}).out)["metadata"];
  EXPECT_EQ(metadata["u64"]["value"], std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(metadata["i64"]["value"], std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(metadata["f64"]["value"], 0.1);
  EXPECT_TRUE(metadata["infinity"]["value"].is_null());  // JSON has no such number
  EXPECT_EQ(metadata["bool"]["value"], true);
  EXPECT_EQ(metadata["empty"]["value"], json::array());
  EXPECT_EQ(metadata["nested"]["element_type"], "array");
  EXPECT_EQ(metadata["nested"]["value"], json::parse("[[1, 2]]"));
}

TEST(Inspect, AVocabularyWithoutTensorsIsFine) {
  const TemporaryDirectory folder;
  const auto path = GgufBuilder().add("tokenizer.ggml.model", "gpt2").write(folder / "v.gguf");
  const CommandResult text = inspect(path);
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("tensors (0)\n"));
  const json out = json::parse(inspect(path, {"--json"}).out);
  EXPECT_EQ(out["tensors"], json::array());
  EXPECT_EQ(out["total"]["bits_per_weight"], 0);
}

TEST(Inspect, ASplitModelIsOne) {
  const TemporaryDirectory folder;
  for (const std::uint16_t part : {0, 1}) {
    GgufBuilder()
        .add("split.no", part)
        .add("split.count", std::uint16_t{2})
        .tensor(fmt::format("t{}", part), {1}, {0.0f})
        .write(folder / fmt::format("m-{:05}-of-00002.gguf", part + 1));
  }
  const json out = json::parse(inspect(folder / "m-00001-of-00002.gguf", {"--json"}).out);
  EXPECT_EQ(out["parts"], 2);
  EXPECT_EQ(out["tensors"][1]["name"], "t1");
  EXPECT_EQ(out["tensors"][1]["part"], 1);
}

// A terminal acts on these bytes, in whichever place of the file they are.
TEST(Inspect, NothingOfTheFileReachesTheTerminalRaw) {
  const TemporaryDirectory folder;
  const std::string evil = "\x1b[2J\x07\x7f\xc2\x9b\xff\n\xe2\x80\xae";
  GgufBuilder file;
  file.add("key" + evil, "value" + evil);
  file.add("array", std::vector<std::string>{evil});
  file.tensor("tensor" + evil, {1}, {0.0f});
  const auto path = file.write(folder / "m.gguf");
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{}, std::vector<std::string>{"--json"}}) {
    const CommandResult result = inspect(path, options);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_TRUE(std::none_of(result.out.begin(), result.out.end(), [](unsigned char byte) {
      return (byte < 0x20 && byte != '\n') || byte == 0x7f || byte == 0x9b || byte == 0xff;
    })) << result.out;
    EXPECT_THAT(result.out, Not(HasSubstr("\u202e")));
  }
  const json out = json::parse(inspect(path, {"--json"}).out);
  EXPECT_EQ(out["tensors"][0]["name"], "tensor\x1b[2J\x07\x7f\xc2\x9b\ufffd\n\u202e");
}

TEST(Inspect, GroupsAreTensorsThatDifferInNumbersOnlyAndShareAType) {
  const TemporaryDirectory folder;
  GgufBuilder file;
  for (const char* name : {"blk.0.a.weight", "blk.10.a.weight", "blk.2a.a.weight", "7"}) {
    file.tensor(name, {1}, {0.0f});
  }
  file.tensor("blk.1.a.weight", {32}, "Q8_0", std::vector<float>(32));
  const json groups = json::parse(inspect(file.write(folder / "m.gguf"), {"--json"}).out)["groups"];
  const auto group = [](const char* name, const char* type, int tensors, int values, int bytes) {
    return json{{"name", name},     {"type", type},   {"tensors", tensors},
                {"values", values}, {"bytes", bytes}, {"bits_per_weight", 8.0 * bytes / values}};
  };
  EXPECT_EQ(groups,
            (json{group("blk.*.a.weight", "F32", 2, 2, 8), group("blk.2a.a.weight", "F32", 1, 1, 4),
                  group("*", "F32", 1, 1, 4), group("blk.*.a.weight", "Q8_0", 1, 32, 34)}));
}

struct DirectoryCase {
  const char* name;
  const char* quantization;
  const char* module;
  const char* type;
  std::uint64_t bytes;  // of the module with all its parts
};

// Sizes: codes, scales, zero points and groups of inputs, counted by hand.
TEST(Inspect, DirectoriesOfEveryKind) {
  const DirectoryCase cases[] = {
      {"models/llama-bf16", "not quantized", "model.layers.0.mlp.up_proj.weight", "BF16",
       256 * 128 * 2},
      {"models/awq-gemm-g128", "AWQ", "model.layers.0.mlp.up_proj.weight", "AWQ-4-g128",
       512 * (256 / 2 + 2 * 2 + 2 / 2)},
      {"models/ct-w4a16-asym-g128", "compressed-tensors", "model.layers.1.mlp.down_proj.weight",
       "CT-ASYM-4-g128", 256 * (512 / 2 + 4 * 2 + 4 / 2)},
      {"models/gptq-v1-g128-desc_act-asym", "GPTQ", "model.layers.1.mlp.down_proj.weight",
       "GPTQ-V1-4-g128", 256 * (512 / 2 + 4 * 2 + 4 / 2) + 512 * 4},
  };
  for (const DirectoryCase& expected : cases) {
    SCOPED_TRACE(expected.name);
    const CommandResult result = inspect(test::data_path(expected.name), {"--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json out = json::parse(result.out);
    EXPECT_EQ(out["format"], "Hugging Face directory");
    EXPECT_EQ(out["quantization"], expected.quantization);
    EXPECT_EQ(out["files"], (json{"model.safetensors"}));
    EXPECT_EQ(out["config"]["model_type"], "llama");
    const auto found =
        std::find_if(out["tensors"].begin(), out["tensors"].end(),
                     [&](const json& tensor) { return tensor["name"] == expected.module; });
    ASSERT_NE(found, out["tensors"].end());
    EXPECT_EQ((*found)["type"], expected.type);
    EXPECT_EQ((*found)["bytes"], expected.bytes);
    // The parts of packed modules are in these and are no tensors of their own.
    for (const json& tensor : out["tensors"]) EXPECT_NE(tensor["type"], "I32") << tensor;
    const std::string text = inspect(test::data_path(expected.name)).out;
    EXPECT_THAT(text, HasSubstr(fmt::format("Hugging Face directory, {}, one safetensors file\n",
                                            expected.quantization)));
    EXPECT_THAT(text, HasSubstr("  model.layers.*.mlp.up_proj.weight "));
  }
}

TEST(Inspect, ASafetensorsFileByItself) {
  const TemporaryDirectory folder;
  const auto path = folder / "t.safetensors";
  auto writer = file::SafetensorsWriter::create(
      path, {{"ids", file::Dtype::kI32, {2, 3}}, {"x", file::Dtype::kBF16, {4}}},
      {{"made", "by\nhand"}});
  ASSERT_TRUE(writer);
  const std::string zeros(24, '\0');
  ASSERT_TRUE(writer->write("ids", as_bytes(zeros)));
  ASSERT_TRUE(writer->write("x", as_bytes(zeros).first(8)));
  ASSERT_TRUE(writer->finish());
  EXPECT_EQ(inspect(path).out, path.string() + R"(
one safetensors file

metadata (1)
  made  string  "by\nhand"

tensors (2)
  ids  2 × 3  I32   24
  x    4      BF16   8

  group  type  tensors  values  bytes  bits per weight
  ids    I32         1       6     24           32.000
  x      BF16        1       4      8           16.000

  type  tensors  values  bytes  of all  bits per weight
  I32         1       6     24   75.0%           32.000
  BF16        1       4      8   25.0%           16.000
  all         2      10     32  100.0%           25.600
)");
  EXPECT_EQ(json::parse(inspect(path, {"--json"}).out)["metadata"]["made"], "by\nhand");
}

TEST(InspectWrong, OneLineAndExitCode2) {
  const TemporaryDirectory folder;
  const auto expect_error = [&](const std::filesystem::path& path, const std::string& message) {
    for (const std::vector<std::string>& options :
         {std::vector<std::string>{}, std::vector<std::string>{"--json"}}) {
      const CommandResult result = inspect(path, options);
      EXPECT_EQ(result.exit_code, 2);
      EXPECT_EQ(result.out, "");
      EXPECT_EQ(result.err, "error: " + path.string() + ": " + message + "\n");
    }
  };
  expect_error(folder / "absent.gguf", "cannot open: No such file or directory");
  const std::filesystem::path empty = folder / "empty";
  std::filesystem::create_directory(empty);
  const CommandResult no_config = inspect(empty);
  EXPECT_EQ(no_config.exit_code, 2);
  EXPECT_EQ(no_config.err, "error: " + (empty / "config.json").string() +
                               ": cannot open: No such file or directory\n");
  test::write_file(empty / "config.json", "{}");
  expect_error(empty, "holds no *.safetensors file");
  test::write_file(folder / "t.safetensors", "short");
  expect_error(folder / "t.safetensors",
               "not a safetensors file: it has 5 bytes, expected at least 8");
  test::write_file(folder / "text", "# A title");
  expect_error(folder / "text", "not a GGUF file: starts with '# A ', expected 'GGUF'");
  expect_error(sample().add("llama.block_count", "two").write(folder / "twice.gguf"),
               "metadata key 'llama.block_count' is there twice, expected once");
  expect_error(sample().tensor("\x1b[31m", {0}, {}).write(folder / "dim.gguf"),
               "tensor '\\x1b[31m': dimension 0 of 1 is 0, expected at least 1");
}

TEST(InspectWrong, CommandLine) {
  EXPECT_EQ(test::run_command({ESPALIER_BINARY, "inspect"}).exit_code, 2);
  EXPECT_EQ(test::run_command({ESPALIER_BINARY, "inspect", "a", "--nonsense"}).exit_code, 2);
  const CommandResult help = test::run_command({ESPALIER_BINARY, "inspect", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--json"));
}

TEST(InspectWrong, AFullDiskIsTheWorksFault) {
  const TemporaryDirectory folder;
  const auto path = sample().write(folder / "m.gguf");
  const CommandResult result = test::run_command(
      {"/bin/sh", "-c", "\"$0\" inspect \"$1\" > /dev/full", ESPALIER_BINARY, path.string()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "error: cannot write to standard output: No space left on device\n");
}

}  // namespace
}  // namespace espalier
