// One small random model per architecture against float32 logits by Transformers
// (tests/data/models, made by tests/data/make_architecture_fixtures.py): out of Hugging Face
// directories with configurations in both styles, and out of GGUF.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/mapped_file.h"
#include "compute/cpu/cpu_ops.h"
#include "compute/reference/reference.h"
#include "model/model.h"
#include "run/generate.h"
#include "support/converted_gguf.h"
#include "support/fixture.h"

namespace espalier::model {
namespace {

using file::Json;

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

// A directory of tests/data/models whose config.json may be changed.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& name)
      : golden("models/" + name + "/golden.st"),
        weights_(value_or_throw(
            MappedFile::open(test::data_path("models/" + name + "/model.safetensors")))),
        name_(name) {
    config = value_or_throw(file::read_json(test::data_path("models/" + name + "/config.json")));
  }

  [[nodiscard]] Bytes weights() const { return weights_.bytes(); }

  // The directory with `config` as it is now.
  [[nodiscard]] file::HfDirectory directory() const {
    const std::string text = config.dump();
    const Bytes files[] = {weights_.bytes()};
    return value_or_throw(file::HfDirectory::parse(as_bytes(text), files, name_));
  }

  [[nodiscard]] std::span<const std::int32_t> tokens() const {
    return golden.get<std::int32_t>("tokens");
  }

  test::Fixture golden;
  Json config;

 private:
  MappedFile weights_;
  std::string name_;
};

// Logits [positions, vocabulary] of `tokens`, `chunk` rows at a time.
std::vector<float> logits(const Model& model, compute::Ops& ops,
                          std::span<const std::int32_t> tokens, std::size_t chunk) {
  auto cache =
      value_or_throw(run::KvCache::create(model.info(), 1, tokens.size(), compute::KvType::kF32));
  const std::size_t vocab = model.info().vocab_size;
  std::vector<float> all(tokens.size() * vocab);
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    run::forward_sequence({model, ops, cache},
                          tokens.subspan(first, std::min(chunk, tokens.size() - first)), first,
                          run::Wanted::kAllLogits, all.data() + first * vocab);
  }
  return all;
}

std::vector<float> logits(const file::HfDirectory& directory,
                          std::span<const std::int32_t> tokens) {
  const auto model = value_or_throw(load_model(directory));
  return logits(*model, *reference::make_ops(), tokens, tokens.size());
}

std::vector<float> logits(const file::Gguf& gguf, std::span<const std::int32_t> tokens) {
  const auto model = value_or_throw(load_model(gguf));
  return logits(*model, *reference::make_ops(), tokens, tokens.size());
}

// The largest difference relative to the standard deviation of the expected values.
double relative_error(std::span<const float> found, std::span<const float> expected) {
  if (found.size() != expected.size()) return INFINITY;
  double sum = 0;
  double squares = 0;
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    sum += expected[i];
    squares += double(expected[i]) * expected[i];
    largest = std::max(largest, std::abs(double(found[i]) - expected[i]));
  }
  const auto count = double(found.size());
  return largest / std::sqrt(squares / count - sum / count * (sum / count));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The safetensors file `bytes` as a multimodal checkpoint has it: `model` in place of "model.",
// `head` before all other names, and a tensor of the vision model.
std::string nested(Bytes bytes, const std::string& model, const std::string& head) {
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  const std::string_view text = as_text(bytes.subspan(sizeof(size), size));
  Json plain = Json::parse(text);
  plain.erase("__metadata__");
  Json header;
  for (const auto& [name, tensor] : plain.items()) {
    const bool in_model = name.starts_with("model.");
    header[in_model ? model + name.substr(6) : head + name] = tensor;
  }
  header["vision_tower.layers.0.norm.weight"] = {
      {"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {0, 0}}};
  std::string renamed = header.dump();
  size = renamed.size();
  renamed.insert(0, reinterpret_cast<const char*>(&size), sizeof(size));
  return renamed.append(as_text(bytes.subspan(sizeof(size) + text.size())));
}

// The configuration as Transformers wrote it before version 5: RoPE and layers by keys of their
// own.
Json in_older_style(Json config) {
  const Json rope = config["rope_parameters"];
  config.erase("rope_parameters");
  config.erase("layer_types");
  if (rope.contains("full_attention")) {
    config["rope_theta"] = rope["full_attention"]["rope_theta"];
    config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"];
    config["rope_scaling"] = nullptr;
    return config;
  }
  config["rope_theta"] = rope["rope_theta"];
  if (rope.contains("partial_rotary_factor")) {
    config["partial_rotary_factor"] = rope["partial_rotary_factor"];
  }
  if (rope["rope_type"] == "default") {
    config["rope_scaling"] = nullptr;
    return config;
  }
  Json scaling = rope;
  for (const char* key : {"rope_theta", "rope_type", "partial_rotary_factor"}) scaling.erase(key);
  scaling["type"] = rope["rope_type"] == "longrope" ? Json("su") : rope["rope_type"];
  config["rope_scaling"] = scaling;
  return config;
}

constexpr double kTolerance = 5e-5;

class Architectures : public ::testing::TestWithParam<const char*> {
 protected:
  Checkpoint checkpoint_{GetParam()};
};

TEST_P(Architectures, LogitsAreTheGoldenOnesHoweverTheTextIsCut) {
  const file::HfDirectory directory = checkpoint_.directory();
  const auto model = value_or_throw(load_model(directory));
  const auto tokens = checkpoint_.tokens();
  for (const auto& ops : {reference::make_ops(), cpu::make_ops(2)}) {
    const std::vector<float> whole = logits(*model, *ops, tokens, tokens.size());
    EXPECT_LT(relative_error(whole, checkpoint_.golden.get<float>("logits")), kTolerance);
    EXPECT_TRUE(same_bits(whole, logits(*model, *ops, tokens, 7)));
    EXPECT_TRUE(same_bits(whole, logits(*model, *ops, tokens, 1)));
  }
}

TEST_P(Architectures, ConfigurationsOfTheOlderStyleMeanTheSame) {
  const auto expected = logits(checkpoint_.directory(), checkpoint_.tokens());
  checkpoint_.config = in_older_style(checkpoint_.config);
  EXPECT_TRUE(same_bits(logits(checkpoint_.directory(), checkpoint_.tokens()), expected));
}

TEST_P(Architectures, GgufGivesTheSameLogits) {
  const std::string bytes = test::converted_gguf(checkpoint_.directory()).bytes();
  const auto gguf = value_or_throw(file::Gguf::parse(as_bytes(bytes), "converted.gguf"));
  EXPECT_LT(
      relative_error(logits(gguf, checkpoint_.tokens()), checkpoint_.golden.get<float>("logits")),
      kTolerance);
}

// What a multimodal checkpoint of Gemma 3 or of a later Qwen looks like.
TEST_P(Architectures, TheLanguageModelOfAMultimodalConfigurationIsRead) {
  const auto expected = logits(checkpoint_.directory(), checkpoint_.tokens());
  checkpoint_.config = Json{{"model_type", checkpoint_.config["model_type"]},
                            {"vision_config", Json{{"hidden_size", 7}}},
                            {"text_config", checkpoint_.config}};
  EXPECT_TRUE(same_bits(logits(checkpoint_.directory(), checkpoint_.tokens()), expected));
}

INSTANTIATE_TEST_SUITE_P(Models, Architectures,
                         ::testing::Values("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3",
                                           "smollm3", "phi3"),
                         [](const auto& name) { return std::string(name.param); });

// A multimodal checkpoint around one of the models above.
struct Nesting {
  const char* model_type;
  const char* text_type;
  const char* text_model;  // of tests/data/models
  const char* model;       // instead of "model."
  const char* head;        // before "lm_head"
};

TEST(MultimodalCheckpoints, TheLanguageModelIsThePlainOne) {
  constexpr Nesting kNestings[] = {
      {"gemma3", "gemma3_text", "gemma3", "model.language_model.", ""},
      {"gemma3", "gemma3_text", "gemma3", "language_model.model.", "language_model."},
      {"mistral3", "mistral", "mistral", "language_model.model.", "language_model."},
      {"llava_next", "llama", "llama", "model.language_model.", ""},
      {"qwen2_vl", "qwen2_vl_text", "qwen2", "model.language_model.", ""},
      {"qwen3_vl", "qwen3_vl_text", "qwen3", "model.language_model.", ""},
      {"qwen3_5", "qwen3_5_text", "qwen3.5", "model.language_model.", ""},
      {"qwen3_5_moe", "qwen3_5_moe_text", "qwen3.5-moe", "language_model.model.",
       "language_model."},
  };
  for (const Nesting& nesting : kNestings) {
    SCOPED_TRACE(std::string(nesting.model_type) + ": " + nesting.model);
    Checkpoint checkpoint(nesting.text_model);
    const auto tokens = checkpoint.tokens();
    const auto expected = logits(checkpoint.directory(), tokens);
    checkpoint.config["model_type"] = nesting.text_type;
    const std::string config = Json{
        {"model_type", nesting.model_type},
        {"text_config", checkpoint.config},
        {"vision_config",
         Json{{"hidden_size", 7}}}}.dump();
    const std::string weights = nested(checkpoint.weights(), nesting.model, nesting.head);
    const Bytes files[] = {as_bytes(weights)};
    const auto directory =
        value_or_throw(file::HfDirectory::parse(as_bytes(config), files, nesting.text_model));
    EXPECT_TRUE(same_bits(logits(directory, tokens), expected));
  }
}

// The first Qwen2-VL has everything in one configuration. Qwen3.5's sections interleave, and only a
// part of a head turns.
TEST(MultimodalCheckpoints, SectionsOfImagesDoNotChangeText) {
  for (const auto& [model, type, sections] :
       {std::tuple("qwen2", "qwen2_vl", R"({"type": "mrope", "mrope_section": [2, 1, 1]})"),
        std::tuple("qwen3.5", "qwen3_5",
                   R"({"mrope_interleaved": true, "mrope_section": [1, 1, 0]})")}) {
    Checkpoint checkpoint(model);
    const auto expected = logits(checkpoint.directory(), checkpoint.tokens());
    checkpoint.config["model_type"] = type;
    checkpoint.config["rope_parameters"].update(Json::parse(sections));
    EXPECT_TRUE(same_bits(logits(checkpoint.directory(), checkpoint.tokens()), expected)) << type;
  }
}

struct Variant {
  const char* model;
  const char* name;  // in variants.json
};

// The same weights with RoPE of other kinds.
class RopeVariants : public ::testing::TestWithParam<Variant> {
 protected:
  RopeVariants() {
    const std::string path = std::string("models/") + GetParam().model + "/variants.json";
    const Json variants = value_or_throw(file::read_json(test::data_path(path)));
    checkpoint_.config.update(variants[GetParam().name]);
    expected_ = checkpoint_.golden.get<float>(std::string("logits.") + GetParam().name);
  }

  Checkpoint checkpoint_{GetParam().model};
  std::span<const float> expected_;
};

TEST_P(RopeVariants, LogitsAreTheGoldenOnesInBothStyles) {
  const auto newer = logits(checkpoint_.directory(), checkpoint_.tokens());
  EXPECT_LT(relative_error(newer, expected_), kTolerance);
  EXPECT_GT(relative_error(newer, checkpoint_.golden.get<float>("logits")), 0.01);
  checkpoint_.config = in_older_style(checkpoint_.config);
  EXPECT_TRUE(same_bits(logits(checkpoint_.directory(), checkpoint_.tokens()), newer));
}

TEST_P(RopeVariants, GgufGivesTheSameLogits) {
  if (checkpoint_.config["rope_parameters"].contains("truncate")) return;  // GGUF cannot say it
  const std::string bytes = test::converted_gguf(checkpoint_.directory()).bytes();
  const auto gguf = value_or_throw(file::Gguf::parse(as_bytes(bytes), "converted.gguf"));
  EXPECT_LT(relative_error(logits(gguf, checkpoint_.tokens()), expected_), kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Models, RopeVariants,
                         ::testing::Values(Variant{"llama", "linear"}, Variant{"llama", "yarn"},
                                           Variant{"llama", "yarn-magnitude"},
                                           Variant{"phi3", "short"}),
                         [](const auto& variant) {
                           std::string name =
                               std::string(variant.param.model) + "_" + variant.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace espalier::model
