// Models from one container into the other: the same weights, the same logits, or a clear refusal.
#include "convert/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "compute/reference/reference.h"
#include "convert/names.h"
#include "model/model.h"
#include "run/generate.h"
#include "support/data.h"
#include "support/files.h"
#include "support/tiny_llama.h"
#include "text/tokenizer.h"

namespace espalier::convert {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::atomic<bool> kGoOn{false};

file::Container open(const fs::path& path) {
  auto container = file::open_container(path);
  if (!container) throw std::runtime_error(container.error().message);
  return std::move(*container);
}

Result<Report> convert_path(const fs::path& input, const fs::path& output, Options options) {
  ESPALIER_TRY(const file::Container container, file::open_container(input));
  return convert(container, output, options, kGoOn);
}

// Converts by the kind of the input and expects success.
void expect_converted(const fs::path& input, const fs::path& output, Options options = {}) {
  options.target = fs::is_directory(input) ? Target::kGguf : Target::kSafetensors;
  const auto report = convert_path(input, output, options);
  ASSERT_TRUE(report) << report.error().message;
}

std::vector<float> logits_of(const fs::path& path) {
  const file::Container container = open(path);
  const auto* gguf = std::get_if<file::Gguf>(&container);
  auto loaded = gguf != nullptr ? model::load_model(*gguf)
                                : model::load_model(std::get<file::HfDirectory>(container));
  if (!loaded) throw std::runtime_error(loaded.error().message);
  const std::vector<run::TokenId> tokens = {1, 17, 3, 0, 20, 5, 5, 11};
  auto cache = run::KvCache::create((*loaded)->info(), 1, tokens.size(), compute::KvType::kF32);
  std::vector<float> logits(tokens.size() * (*loaded)->info().vocab_size);
  run::forward_sequence({**loaded, *reference::make_ops(), *cache}, tokens, 0,
                        run::Wanted::kAllLogits, logits.data());
  return logits;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

// The formats in a container, and how many tensors have each.
std::map<std::string_view, int> formats_in(const fs::path& path) {
  const file::Container container = open(path);
  const auto list = file::list_matrices(container);
  std::map<std::string_view, int> formats;
  for (const file::NamedMatrix& tensor : *list) ++formats[tensor.matrix.format->name];
  return formats;
}

std::set<std::string> files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

fs::path write_tiny(const fs::path& path, std::vector<std::string> formats) {
  return test::tiny_llama({.hidden = 64, .mlp_hidden = 128, .formats = std::move(formats)})
      .write(path);
}

TEST(Convert, GgufToDirectoryAndBack) {
  const test::TemporaryDirectory folder;
  const fs::path gguf = write_tiny(folder / "m.gguf", {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                                       "F16", "BF16", "MXFP4", "NVFP4", "F32"});
  expect_converted(gguf, folder / "dir");
  EXPECT_EQ(files_in(folder / "dir"),
            (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                   "tokenizer.json", "tokenizer_config.json"}));
  const auto there = formats_in(folder / "dir");
  EXPECT_EQ(there.at("MLX-4-g32"), 4);
  EXPECT_EQ(there.at("MLX-5-g32"), 4);
  EXPECT_EQ(there.at("MLX-8-g32"), 2);
  EXPECT_EQ(there.at("MLX-MXFP4"), 1);
  EXPECT_EQ(there.at("MLX-NVFP4"), 1);

  expect_converted(folder / "dir", folder / "back.gguf");
  EXPECT_EQ(formats_in(folder / "back.gguf"), formats_in(gguf));
  const file::Container before = open(gguf);
  const file::Container after = open(folder / "back.gguf");
  for (const file::GgufTensor& tensor : std::get<file::Gguf>(before).tensors()) {
    const file::GgufTensor* same = std::get<file::Gguf>(after).find_tensor(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    EXPECT_EQ(as_text(same->data), as_text(tensor.data)) << tensor.name;
  }
  // Scores are sums over a head's features, whose order the two containers do not share; in double
  // that does not show in these logits.
  const std::vector<float> logits = logits_of(gguf);
  EXPECT_EQ(logits_of(folder / "back.gguf"), logits);
  EXPECT_LT(largest_difference(logits_of(folder / "dir"), logits), 1e-5f);
}

TEST(Convert, ConfigurationSaysWhatGgufSaid) {
  const test::TemporaryDirectory folder;
  test::TinyLlama shape{.hidden = 64, .formats = {"Q4_0", "Q8_0", "Q4_0"}};
  test::GgufBuilder file = test::tiny_llama(shape);
  file.add("llama.rope.freq_base", 500000.0f)
      .add("llama.rope.scaling.type", "yarn")
      .add("llama.rope.scaling.factor", 4.0f)
      .add("llama.rope.scaling.original_context_length", std::uint32_t{32});
  file.tensor("output.weight", {64, 300}, std::vector<float>(64 * 300, 0.5f));
  file.tensor("blk.0.attn_q.bias", {64}, std::vector<float>(64, 1.0f));
  expect_converted(file.write(folder / "m.gguf"), folder / "dir");
  const auto config = file::read_json(folder / "dir" / "config.json");
  ASSERT_TRUE(config);
  EXPECT_EQ((*config)["model_type"], "llama");
  EXPECT_EQ((*config)["num_hidden_layers"], 2);
  EXPECT_EQ((*config)["num_key_value_heads"], 2);
  EXPECT_EQ((*config)["head_dim"], 16);
  EXPECT_EQ((*config)["vocab_size"], 300);
  EXPECT_EQ((*config)["rms_norm_eps"].dump(), "1e-05");
  EXPECT_EQ((*config)["rope_theta"], 500000);
  EXPECT_EQ((*config)["rope_scaling"],
            (file::Json{
                {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}}));
  EXPECT_EQ((*config)["tie_word_embeddings"], false);
  EXPECT_EQ((*config)["attention_bias"], true);
  EXPECT_EQ((*config)["mlp_bias"], false);
  // Most modules are Q4_0, so the others are named.
  const file::Json& quantization = (*config)["quantization"];
  EXPECT_EQ(quantization["bits"], 4);
  EXPECT_EQ(quantization["group_size"], 32);
  EXPECT_EQ(quantization["mode"], "affine");
  EXPECT_EQ(quantization["model.layers.0.self_attn.q_proj"],
            (file::Json{{"bits", 8}, {"group_size", 32}, {"mode", "affine"}}));
  EXPECT_EQ((*config)["quantization_config"], quantization);

  expect_converted(folder / "dir", folder / "back.gguf");
  EXPECT_EQ(logits_of(folder / "back.gguf"), logits_of(folder / "m.gguf"));
}

TEST(Convert, FactorsOfLlama3) {
  const test::TemporaryDirectory folder;
  const fs::path dir = folder / "dir";
  fs::copy(test::data_path("models/llama-bf16"), dir);
  auto config = file::read_json(dir / "config.json");
  ASSERT_TRUE(config);
  (*config)["rope_parameters"] = {
      {"rope_type", "llama3"},   {"rope_theta", 10000.0},
      {"factor", 8.0},           {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  test::write_file(dir / "config.json", config->dump());
  expect_converted(dir, folder / "m.gguf");
  const file::Container gguf = open(folder / "m.gguf");
  const file::GgufTensor* factors = std::get<file::Gguf>(gguf).find_tensor("rope_freqs.weight");
  ASSERT_NE(factors, nullptr);
  EXPECT_EQ(load<float>(factors->data.data()), 1.0f);
  // Factors are floats in GGUF, frequencies doubles where they come from config.json.
  EXPECT_LT(largest_difference(logits_of(folder / "m.gguf"), logits_of(dir)), 1e-4f);

  expect_converted(folder / "m.gguf", folder / "again");
  const auto again = file::read_json(folder / "again" / "config.json");
  ASSERT_TRUE(again);
  EXPECT_EQ((*again)["rope_scaling"]["rope_type"], "llama3");
  EXPECT_LT(largest_difference(logits_of(folder / "again"), logits_of(dir)), 1e-4f);
}

// By the publishers' own tools: what fits goes over, and gives the same logits.
TEST(Convert, DirectoriesOfOthers) {
  const test::TemporaryDirectory folder;
  const std::pair<const char*, const char*> cases[] = {{"models/llama-bf16", "BF16"},
                                                       {"models/mistral", "BF16"},
                                                       {"models/qwen3", "BF16"},
                                                       {"models/awq-gemm-g128", "Q5_0"},
                                                       {"models/ct-w4a16-asym-g128", "Q5_0"}};
  for (const auto& [name, format] : cases) {
    SCOPED_TRACE(name);
    const fs::path gguf = folder / (fs::path(name).filename().string() + ".gguf");
    expect_converted(test::data_path(name), gguf);
    EXPECT_TRUE(formats_in(gguf).contains(format)) << formats_in(gguf).begin()->first;
    EXPECT_LT(largest_difference(logits_of(gguf), logits_of(test::data_path(name))), 1e-5f);
    const fs::path back = folder / fs::path(name).filename().string();
    expect_converted(gguf, back);
    // Llama 3's factors, which llama-bf16 has, are floats in GGUF.
    EXPECT_LT(largest_difference(logits_of(back), logits_of(test::data_path(name))), 1e-5f);
  }
}

TEST(Convert, UnpackWritesTheRestAsPlainNumbers) {
  const test::TemporaryDirectory folder;
  const Options f32{.plain = pack::find_format("F32")};
  for (const char* name :
       {"models/exl3-mul1-mcg", "models/gptq-v1-g128-desc_act-asym", "models/mlx-4-6-g64"}) {
    SCOPED_TRACE(name);
    const fs::path gguf = folder / (fs::path(name).filename().string() + ".gguf");
    expect_converted(test::data_path(name), gguf, f32);
    EXPECT_LT(largest_difference(logits_of(gguf), logits_of(test::data_path(name))), 1e-4f);
  }
  EXPECT_EQ(formats_in(folder / "mlx-4-6-g64.gguf"),
            (std::map<std::string_view, int>{{"F32", 7}, {"Q4_1", 13}}));

  const fs::path mixed = write_tiny(folder / "mixed.gguf", {"Q8_0", "IQ4_NL"});
  expect_converted(mixed, folder / "mixed", f32);
  EXPECT_LT(largest_difference(logits_of(folder / "mixed"), logits_of(mixed)), 1e-5f);
}

TEST(Convert, SeveralShardsWithAnIndex) {
  const test::TemporaryDirectory folder;
  const fs::path gguf = write_tiny(folder / "m.gguf", {"Q8_0"});
  expect_converted(gguf, folder / "one");
  expect_converted(gguf, folder / "many", {.shard_bytes = 30000});
  const std::set<std::string> files = files_in(folder / "many");
  EXPECT_TRUE(files.contains("model.safetensors.index.json"));
  EXPECT_GT(files.size(), 4u);
  for (const std::string& name : files) {
    if (name.ends_with(".safetensors")) {
      EXPECT_LT(fs::file_size(folder / "many" / name), 34000u) << name;
    }
  }
  EXPECT_EQ(logits_of(folder / "many"), logits_of(folder / "one"));
}

TEST(Convert, TheSameWhateverTheThreads) {
  const test::TemporaryDirectory folder;
  const fs::path gguf = write_tiny(folder / "m.gguf", {"Q8_0", "Q4_1"});
  expect_converted(gguf, folder / "one", {.threads = 1});
  expect_converted(gguf, folder / "three", {.threads = 3});
  for (const char* name : {"config.json", "model.safetensors"}) {
    EXPECT_EQ(test::read_file(folder / "one" / name), test::read_file(folder / "three" / name));
  }
}

// --- Tokenizers ----------------------------------------------------------------------------------

const char* const kTexts[] = {"",
                              "a",
                              " in the  end",
                              "It's 1234 o'clock,\n\n\tand ALL'S well.\r\n ",
                              "<|control_261|>x</s>",
                              "na\u00efve \u4f60\u597d \U0001f600\u2581x"};

// Both make the same ids of the texts, and the same bytes of the ids.
void expect_same_tokenizer(const text::Tokenizer& a, const text::Tokenizer& b) {
  for (const char* text : kTexts) {
    for (const auto parse : {text::ParseSpecial::kNo, text::ParseSpecial::kYes}) {
      const auto ids = a.encode(text, text::AddSpecial::kYes, parse);
      EXPECT_EQ(b.encode(text, text::AddSpecial::kYes, parse), ids) << text;
      EXPECT_EQ(*b.detokenize(ids), *a.detokenize(ids)) << text;
    }
  }
  EXPECT_EQ(a.begin_of_sequence(), b.begin_of_sequence());
  EXPECT_EQ(a.end_of_sequence(), b.end_of_sequence());
}

void expect_same_tokenizers(const fs::path& gguf, const fs::path& folder) {
  expect_converted(gguf, folder / "dir");
  expect_converted(folder / "dir", folder / "back.gguf");
  const auto opened = file::Gguf::open(gguf);
  const auto back = file::Gguf::open(folder / "back.gguf");
  ASSERT_TRUE(opened && back);
  const auto original = text::tokenizer_from_gguf(*opened);
  const auto there = text::tokenizer_from_directory(folder / "dir");
  const auto again = text::tokenizer_from_gguf(*back);
  ASSERT_TRUE(original && there && again);
  expect_same_tokenizer(**original, **there);
  expect_same_tokenizer(**original, **again);
}

TEST(ConvertTokenizer, ByteLevel) {
  const test::TemporaryDirectory folder;
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-v3", "default"}) {
    SCOPED_TRACE(pre);
    const fs::path place = folder / pre;
    fs::create_directory(place);
    test::GgufBuilder file;
    test::add_tiny_llama_metadata(file, {});
    test::add_tiny_llama_vocabulary(file, {.pre = pre});
    test::add_tiny_llama_tensors(file, {});
    file.add("tokenizer.ggml.bos_token_id", std::uint32_t{261})
        .add("tokenizer.ggml.eot_token_id", std::uint32_t{262})
        .add("tokenizer.chat_template", "{{ messages }}");
    expect_same_tokenizers(file.write(place / "m.gguf"), place);
    EXPECT_EQ(test::read_file(place / "dir" / "chat_template.jinja"), "{{ messages }}");
    const auto generation = file::read_json(place / "dir" / "generation_config.json");
    EXPECT_EQ((*generation)["eos_token_id"], (file::Json{260, 262}));
    EXPECT_EQ((*generation)["bos_token_id"], 261);
    const auto back = file::Gguf::open(place / "back.gguf");
    EXPECT_EQ(**back->string("tokenizer.chat_template"), "{{ messages }}");
    EXPECT_EQ(**back->unsigned_integer("tokenizer.ggml.eot_token_id"), 262u);
    EXPECT_EQ(**back->boolean("tokenizer.ggml.add_bos_token"), std::string(pre) == "llama-bpe");
  }
}

// Pieces with scores, byte tokens for what no piece spells.
TEST(ConvertTokenizer, SentencePiece) {
  const test::TemporaryDirectory folder;
  for (const bool prefix : {true, false}) {
    const fs::path place = folder / (prefix ? "prefix" : "none");
    fs::create_directory(place);
    test::GgufBuilder file;
    test::add_tiny_llama_metadata(file, {});
    std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
    std::vector<std::int32_t> types = {2, 3, 3};
    std::vector<float> scores = {0, 0, 0};
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back(fmt::format("<0x{:02X}>", byte));
      types.push_back(6);
      scores.push_back(0);
    }
    for (const char* piece :
         {"\u2581t", "in", "\u2581the", "he", "\u2581in", "nd", "and", "\u2581\u2581", "\u2581",
          "t", "h", "e", "i", "n", "d", "a", "\u2581a", "l", "ll"}) {
      tokens.emplace_back(piece);
      types.push_back(1);
      scores.push_back(static_cast<float>(259) - static_cast<float>(tokens.size()));
    }
    while (tokens.size() < 300) {
      tokens.push_back(fmt::format("<extra_{}>", tokens.size()));
      types.push_back(4);
      scores.push_back(0);
    }
    file.add("tokenizer.ggml.model", "llama")
        .add("tokenizer.ggml.tokens", tokens)
        .add("tokenizer.ggml.token_type", types)
        .add("tokenizer.ggml.scores", scores)
        .add("tokenizer.ggml.bos_token_id", std::uint32_t{1})
        .add("tokenizer.ggml.eos_token_id", std::uint32_t{2})
        .add("tokenizer.ggml.unknown_token_id", std::uint32_t{0})
        .add("tokenizer.ggml.add_space_prefix", prefix);
    test::add_tiny_llama_tensors(file, {});
    expect_same_tokenizers(file.write(place / "m.gguf"), place);
  }
}

TEST(ConvertTokenizer, WhatCannotBeExpressedMayBeLeftOut) {
  const test::TemporaryDirectory folder;
  test::GgufBuilder file;
  test::add_tiny_llama_metadata(file, {});
  test::add_tiny_llama_vocabulary(file, {.pre = "superbpe"});  // cuts digits from the right
  test::add_tiny_llama_tensors(file, {});
  const fs::path gguf = file.write(folder / "m.gguf");
  const auto refused = convert_path(gguf, folder / "dir", {.target = Target::kSafetensors});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message,
            gguf.string() +
                ": metadata key 'tokenizer.ggml.pre': 'superbpe' cuts from the right, "
                "which no step of a tokenizer.json does");
  expect_converted(gguf, folder / "dir", {.tokenizer = TokenizerPart::kLeaveOut});
  EXPECT_FALSE(fs::exists(folder / "dir" / "tokenizer.json"));
}

// --- What cannot be -----------------------------------------------------------------------------

std::string refused(const fs::path& input, const fs::path& output, Options options) {
  const auto report = convert_path(input, output, options);
  EXPECT_FALSE(report);
  EXPECT_FALSE(fs::exists(output));
  if (report) return "";
  EXPECT_EQ(report.error().kind, ErrorKind::kInput);
  EXPECT_EQ(report.error().message.find('\n'), std::string::npos);
  return report.error().message;
}

TEST(ConvertWrong, FormatsThatTheTargetCannotCarry) {
  const test::TemporaryDirectory folder;
  const fs::path mixed = write_tiny(folder / "m.gguf", {"Q8_0", "IQ4_NL"});
  EXPECT_EQ(refused(mixed, folder / "dir", {.target = Target::kSafetensors}),
            mixed.string() +
                ": 7 of 20 tensors cannot go into a directory as they are: 'blk.0.attn_q.weight' "
                "and 6 more: IQ4_NL has no counterpart. It carries F32, F16, BF16 and, in MLX's "
                "form, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q1_0, Q2_0, TQ1_0, TQ2_0, MXFP4 and NVFP4. "
                "With --unpack TYPE they become plain numbers");
  EXPECT_THAT(refused(test::data_path("models/exl3-mul1-mcg"), folder / "e.gguf", {}),
              HasSubstr("15 of 21 tensors cannot go into a GGUF file as they are: "
                        "'model.layers.1.mlp.down_proj.weight' and "));
  EXPECT_THAT(refused(test::data_path("models/mlx-4-6-g64"), folder / "e.gguf", {}),
              HasSubstr("2 of 20 tensors cannot go into a GGUF file as they are: "
                        "'model.layers.0.mlp.down_proj.weight' and 1 more: MLX-6-g64 cannot become "
                        "Q8_0: the weight in row "));
  EXPECT_THAT(refused(test::data_path("models/gptq-v1-g128-desc_act-asym"), folder / "e.gguf", {}),
              HasSubstr("GPTQ-V1-4-g128 in act-order has no counterpart"));
  EXPECT_EQ(files_in(folder.path()), (std::set<std::string>{"m.gguf"}));
}

TEST(ConvertWrong, OutputsAndInputs) {
  const test::TemporaryDirectory folder;
  const fs::path gguf = write_tiny(folder / "m.gguf", {"Q8_0"});
  const auto error = [](const auto& report) {
    return report ? std::string("none") : report.error().message;
  };
  const Options to_directory{.target = Target::kSafetensors};
  EXPECT_EQ(error(convert_path(gguf, gguf, to_directory)),
            gguf.string() + ": exists already; convert replaces nothing");
  EXPECT_EQ(error(convert_path(gguf, folder.path(), to_directory)),
            folder.path().string() + ": exists already; convert replaces nothing");
  fs::create_symlink("nowhere", folder / "link");
  EXPECT_THAT(error(convert_path(gguf, folder / "link", to_directory)),
              HasSubstr("exists already"));
  EXPECT_EQ(refused(gguf, folder / "x.gguf", {}), gguf.string() + ": is a GGUF file already");
  const fs::path bf16 = test::data_path("models/llama-bf16");
  EXPECT_EQ(refused(bf16, folder / "x", to_directory), bf16.string() + ": is a directory already");
  EXPECT_THAT(refused(folder / "absent", folder / "x", to_directory), HasSubstr("cannot open"));
  const auto no_parent = convert_path(gguf, folder / "no" / "where", to_directory);
  ASSERT_FALSE(no_parent);
  EXPECT_EQ(no_parent.error().kind, ErrorKind::kWork);
  EXPECT_THAT(no_parent.error().message, HasSubstr("cannot create"));
}

TEST(ConvertWrong, ModelsThatAreIncomplete) {
  const test::TemporaryDirectory folder;
  const fs::path dir = folder / "dir";
  fs::copy(test::data_path("models/llama-bf16"), dir);
  fs::remove(dir / "config.json");
  EXPECT_THAT(refused(dir, folder / "m.gguf", {}), HasSubstr("config.json: cannot open"));
  test::write_file(dir / "config.json", R"({"model_type": "llama"})");
  EXPECT_THAT(refused(dir, folder / "m.gguf", {}), HasSubstr("is missing"));
  test::write_file(dir / "config.json", R"({"model_type": "nothing"})");
  EXPECT_THAT(refused(dir, folder / "m.gguf", {}), HasSubstr("'nothing' is not supported"));

  EXPECT_THAT(refused(test::data_path("models/qwen2"), folder / "m.gguf", {}),
              HasSubstr("layers that slide beside others that do not have no counterpart"));
  EXPECT_THAT(refused(test::data_path("models/gemma3"), folder / "m.gguf", {}),
              HasSubstr("models of architecture 'gemma3_text' cannot be converted"));

  test::GgufBuilder extra = test::tiny_llama();
  extra.tensor("blk.0.attn_q.scale", {1}, {1.0f});
  EXPECT_THAT(
      refused(extra.write(folder / "e.gguf"), folder / "x", {.target = Target::kSafetensors}),
      HasSubstr("tensor 'blk.0.attn_q.scale' is none that models of architecture 'llama' "
                "have"));
  test::GgufBuilder factors = test::tiny_llama();
  factors.tensor("rope_freqs.weight", {4}, {1.0f, 2.0f, 1.0f, 7.0f});
  EXPECT_THAT(
      refused(factors.write(folder / "f.gguf"), folder / "x", {.target = Target::kSafetensors}),
      HasSubstr("'rope_freqs.weight' holds other factors than Llama 3's"));
}

TEST(ConvertWrong, InterruptionLeavesNothingBehind) {
  const test::TemporaryDirectory folder;
  const std::atomic<bool> stop{true};
  const fs::path gguf = write_tiny(folder / "m.gguf", {"Q8_0"});
  const auto report = convert(open(gguf), folder / "dir", {.target = Target::kSafetensors}, stop);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().kind, ErrorKind::kWork);
  EXPECT_EQ(report.error().message, "interrupted; nothing was written");
  EXPECT_EQ(files_in(folder.path()), (std::set<std::string>{"m.gguf"}));
}

// A value that a half cannot hold, found only while writing: what was begun is removed.
TEST(ConvertWrong, AFailureWhileWritingLeavesNothingBehind) {
  const test::TemporaryDirectory folder;
  test::GgufBuilder file = test::tiny_llama({.hidden = 64});
  file.tensor("output.weight", {64, 300}, "IQ4_NL", std::vector<float>(64 * 300, 1e6f));
  const fs::path gguf = file.write(folder / "m.gguf");
  EXPECT_THAT(refused(gguf, folder / "dir",
                      {.target = Target::kSafetensors, .plain = pack::find_format("F16")}),
              HasSubstr("too large for this format"));
  EXPECT_EQ(files_in(folder.path()), (std::set<std::string>{"m.gguf"}));
}

// --- Names --------------------------------------------------------------------------------------

TEST(ConvertNames, BothWays) {
  const Architecture& llama = *find_architecture(Side::kGguf, "llama");
  EXPECT_EQ(find_architecture(Side::kDirectory, "llama"), &llama);
  EXPECT_EQ(find_architecture(Side::kGguf, "none"), nullptr);
  const std::pair<const char*, const char*> names[] = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output.weight", "lm_head.weight"},
      {"blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"},
      {"blk.123.ffn_norm.weight", "model.layers.123.post_attention_layernorm.weight"}};
  for (const auto& [gguf, hf] : names) {
    EXPECT_EQ(translate(llama, Side::kGguf, gguf)->name, hf);
    EXPECT_EQ(translate(llama, Side::kDirectory, hf)->name, gguf);
  }
  for (const char* none : {"", ".weight", "blk.0.attn_q", "blk.0.attn_q.scale",
                           "blk.00.attn_q.weight", "blk.attn_q.weight", "blk.{}.attn_q.weight",
                           "blk.99999999.attn_q.weight", "model.norm.weight"}) {
    EXPECT_FALSE(translate(llama, Side::kGguf, none)) << none;
  }
}

TEST(ConvertNames, RotatedRowsAreInverse) {
  for (std::uint64_t row = 0; row < 24; ++row) {
    EXPECT_EQ(rotated_row(Side::kGguf, rotated_row(Side::kDirectory, row, 8), 8), row);
  }
  // The directory's rows 0 and 4 of a head of 8 are a pair, GGUF's rows 0 and 1.
  EXPECT_EQ(rotated_row(Side::kDirectory, 1, 8), 4u);
  EXPECT_EQ(rotated_row(Side::kDirectory, 8, 8), 8u);
  EXPECT_EQ(rotated_row(Side::kGguf, 4, 8), 1u);
}

}  // namespace
}  // namespace espalier::convert
