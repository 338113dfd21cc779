// Mixtures of experts and hybrid models: directories and the same as GGUF against float64 logits
// (tests/data/make_mixture_fixtures.py), on both backends, in batches of every size; and what is
// said of checkpoints that contradict themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "compute/cpu/cpu_ops.h"
#include "compute/reference/reference.h"
#include "model/model.h"
#include "run/generate.h"
#include "support/files.h"
#include "support/fixture.h"
#include "support/mixture_gguf.h"

namespace espalier::model {
namespace {

using ::testing::HasSubstr;

file::HfDirectory open_fixture(const std::string& name) {
  auto directory = file::HfDirectory::open(test::data_path("models/" + name));
  if (!directory) throw std::runtime_error(directory.error().message);
  return std::move(*directory);
}

std::vector<float> logits_in_chunks(const Model& model, compute::Ops& ops, compute::KvType type,
                                    std::span<const std::int32_t> tokens, std::size_t chunk) {
  auto cache = run::KvCache::create(model.info(), 1, tokens.size(), type);
  if (!cache) throw std::runtime_error(cache.error().message);
  const std::size_t vocab = model.info().vocab_size;
  std::vector<float> logits(tokens.size() * vocab);
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    run::forward_sequence({model, ops, *cache},
                          tokens.subspan(first, std::min(chunk, tokens.size() - first)), first,
                          run::Wanted::kAllLogits, logits.data() + first * vocab);
  }
  return logits;
}

// The largest difference, relative to the standard deviation of the expected.
double difference(std::span<const float> found, std::span<const float> expected) {
  double sum = 0;
  double squares = 0;
  double largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    sum += expected[i];
    squares += static_cast<double>(expected[i]) * expected[i];
    largest = std::max(largest, std::abs(static_cast<double>(found[i]) - expected[i]));
  }
  const auto count = static_cast<double>(expected.size());
  return largest / std::sqrt(squares / count - sum / count * (sum / count));
}

class MixtureModels : public ::testing::TestWithParam<const char*> {
 protected:
  MixtureModels() {
    auto loaded = load_model(directory_);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    model_ = std::move(*loaded);
  }

  file::HfDirectory directory_ = open_fixture(GetParam());
  std::unique_ptr<Model> model_;
  test::Fixture golden_{std::string("models/") + GetParam() + "/golden.st"};
  std::span<const std::int32_t> tokens_ = golden_.get<std::int32_t>("tokens");
  std::span<const float> expected_ = golden_.get<float>("logits");
};

TEST_P(MixtureModels, ReferenceLogitsAreTheGoldenOnesInBatchesOfEverySize) {
  const auto ops = reference::make_ops();
  const auto logits =
      logits_in_chunks(*model_, *ops, compute::KvType::kF32, tokens_, tokens_.size());
  EXPECT_LT(difference(logits, expected_), 1e-4);
  for (const std::size_t chunk : {1, 7}) {
    EXPECT_EQ(logits_in_chunks(*model_, *ops, compute::KvType::kF32, tokens_, chunk), logits);
  }
}

TEST_P(MixtureModels, CpuLogitsAreNearAndTheSameInBatchesOfEverySize) {
  const auto ops = cpu::make_ops(2);
  const auto logits =
      logits_in_chunks(*model_, *ops, compute::KvType::kF16, tokens_, tokens_.size());
  EXPECT_LT(difference(logits, expected_), 1e-2);
  for (const std::size_t chunk : {1, 7}) {
    EXPECT_EQ(logits_in_chunks(*model_, *ops, compute::KvType::kF16, tokens_, chunk), logits);
  }
}

using MixtureModelsAsGguf = MixtureModels;

TEST_P(MixtureModelsAsGguf, LogitsAreTheGoldenOnes) {
  const std::string bytes = test::mixture_gguf(directory_).bytes();
  const auto gguf = file::Gguf::parse(as_bytes(bytes), "mixture.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  const auto model = load_model(*gguf);
  ASSERT_TRUE(model) << model.error().message;
  const auto logits = logits_in_chunks(**model, *reference::make_ops(), compute::KvType::kF32,
                                       tokens_, tokens_.size());
  EXPECT_LT(difference(logits, expected_), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Directories, MixtureModels,
                         ::testing::Values("mixtral", "qwen3-moe", "qwen3-moe-mixed", "gpt-oss",
                                           "gpt-oss-mxfp4", "qwen3-next", "qwen3.5",
                                           "qwen3.5-moe"));

INSTANTIATE_TEST_SUITE_P(Directories, MixtureModelsAsGguf,
                         ::testing::Values("mixtral", "qwen3-moe", "qwen3-moe-mixed", "gpt-oss",
                                           "gpt-oss-mxfp4", "qwen3-next", "qwen3.5",
                                           "qwen3.5-moe"));

// The error of "qwen3-moe-mixed" as GGUF, whose second layer alone has a mixture, with one more
// key.
template <typename T>
std::string mixed_gguf_error(const std::string& key, const T& value) {
  const std::string bytes =
      test::mixture_gguf(open_fixture("qwen3-moe-mixed")).add("qwen3moe." + key, value).bytes();
  const auto gguf = file::Gguf::parse(as_bytes(bytes), "mixed.gguf");
  if (!gguf) return gguf.error().message;
  const auto model = load_model(*gguf);
  return model ? "" : model.error().message;
}

TEST(MixtureErrors, WhatGgufSaysOfLayersAndWeights) {
  EXPECT_EQ(mixed_gguf_error("leading_dense_block_count", 1u), "");
  EXPECT_EQ(mixed_gguf_error("leading_dense_block_count", 2u),
            "mixed.gguf: the weight of 'blk.1.ffn_gate' is missing");
  EXPECT_EQ(mixed_gguf_error("expert_weights_scale", 1.0f), "");
  EXPECT_EQ(mixed_gguf_error("expert_weights_scale", 2.5f),
            "mixed.gguf: metadata key 'qwen3moe.expert_weights_scale': found 2.5, expected 1");
  EXPECT_EQ(mixed_gguf_error("expert_gating_func", 1u), "");
  EXPECT_EQ(mixed_gguf_error("expert_gating_func", 2u),
            "mixed.gguf: metadata key 'qwen3moe.expert_gating_func': found 2, expected 1 "
            "(softmax)");
}

TEST(HybridModels, BeginAnewAtPositionZeroAndCannotRewind) {
  const auto directory = open_fixture("qwen3-next");
  const auto model = load_model(directory);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_FALSE((*model)->info().can_rewind());
  auto cache = run::KvCache::create((*model)->info(), 2, 8, compute::KvType::kF32);
  ASSERT_TRUE(cache);
  const auto ops = reference::make_ops();
  const std::vector<std::int32_t> tokens = {3, 1, 4, 1, 5};
  std::vector<std::vector<float>> logits;
  for (const std::int32_t sequence : {0, 1, 0}) {
    std::vector<compute::Row> rows;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      rows.push_back(
          {.token = tokens[i], .sequence = sequence, .position = static_cast<std::int32_t>(i)});
    }
    const std::vector<std::size_t> wanted = {tokens.size() - 1};
    logits.emplace_back((*model)->info().vocab_size);
    (*model)->forward(*ops, rows, cache->layers(), wanted, logits.back().data());
  }
  EXPECT_EQ(logits[1], logits[0]);
  EXPECT_EQ(logits[2], logits[0]);
}

// What MLX makes of a directory: the last axis of convolutions moved, 1 added to norms.
TEST(HybridModels, NormsOfDirectoriesByMlxHoldTheirOne) {
  const auto source = open_fixture("qwen3.5");
  std::vector<file::SafetensorsWriter::Declaration> declarations;
  std::vector<std::vector<float>> values;
  for (const auto& tensor : source.files()[0].tensors()) {
    std::vector<std::uint64_t> shape = tensor.shape;
    values.push_back(**source.find_values(tensor.name));
    if (tensor.name.ends_with("conv1d.weight")) std::swap(shape[1], shape[2]);
    if (tensor.name.ends_with("norm.weight") && !tensor.name.ends_with("linear_attn.norm.weight")) {
      for (float& value : values.back()) value += 1;
    }
    declarations.push_back({tensor.name, file::Dtype::kF32, shape});
  }
  const test::TemporaryDirectory folder;
  auto writer = file::SafetensorsWriter::create(folder / "model.safetensors", declarations);
  ASSERT_TRUE(writer) << writer.error().message;
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(writer->write(declarations[i].name, std::as_bytes(std::span(values[i]))));
  }
  ASSERT_TRUE(writer->finish());
  test::write_file(folder / "config.json", source.config().json().dump());

  const auto directory = file::HfDirectory::open(folder.path());
  ASSERT_TRUE(directory) << directory.error().message;
  const auto model = load_model(*directory);
  ASSERT_TRUE(model) << model.error().message;
  const test::Fixture golden("models/qwen3.5/golden.st");
  const auto tokens = golden.get<std::int32_t>("tokens");
  const auto logits = logits_in_chunks(**model, *reference::make_ops(), compute::KvType::kF32,
                                       tokens, tokens.size());
  EXPECT_LT(difference(logits, golden.get<float>("logits")), 1e-4);
}

// --- Checkpoints that contradict themselves
// -------------------------------------------------------

// A fixture of which config.json was changed.
class ChangedDirectory {
 public:
  explicit ChangedDirectory(const std::string& name) : name_(name) {
    config_ = *file::read_json(test::data_path("models/" + name) / "config.json");
  }

  template <typename T>
  ChangedDirectory& set(const char* key, const T& value) {
    config_[key] = value;
    return *this;
  }

  // Leaves out the tensors whose name contains `part`.
  ChangedDirectory& without(const std::string& part) {
    without_ = part;
    return *this;
  }

  // The error of loading it, or "".
  std::string error() {
    const auto source = open_fixture(name_);
    std::vector<file::SafetensorsWriter::Declaration> declarations;
    for (const auto& tensor : source.files()[0].tensors()) {
      if (!without_.empty() && tensor.name.find(without_) != std::string::npos) continue;
      declarations.push_back({tensor.name, tensor.dtype, tensor.shape});
    }
    auto writer = file::SafetensorsWriter::create(folder_ / "model.safetensors", declarations);
    for (const auto& tensor : declarations) {
      EXPECT_TRUE(writer->write(tensor.name, source.find(tensor.name)->data));
    }
    EXPECT_TRUE(writer->finish());
    test::write_file(folder_ / "config.json", config_.dump());
    const auto directory = file::HfDirectory::open(folder_.path());
    if (!directory) return directory.error().message;
    const auto model = load_model(*directory);
    if (model) return "";
    EXPECT_EQ(model.error().kind, ErrorKind::kInput);
    EXPECT_EQ(model.error().message.find('\n'), std::string::npos);
    return model.error().message;
  }

 private:
  std::string name_, without_;
  file::Json config_;
  test::TemporaryDirectory folder_;
};

TEST(MixtureErrors, ExpertsThatAreNotThere) {
  EXPECT_EQ(ChangedDirectory("qwen3-moe").error(), "");
  EXPECT_THAT(ChangedDirectory("qwen3-moe").without("layers.1.mlp.experts.3.up_proj").error(),
              HasSubstr("the weight of 'model.layers.1.mlp.experts.3.up_proj' is missing"));
  EXPECT_THAT(ChangedDirectory("qwen3-moe").without("layers.1.mlp.experts").error(),
              HasSubstr("the weight of 'model.layers.1.mlp.experts.0.down_proj' is missing"));
  EXPECT_THAT(ChangedDirectory("mixtral").without("layers.0.block_sparse_moe.gate").error(),
              HasSubstr("the weight of 'model.layers.0.block_sparse_moe.gate' is missing"));
  EXPECT_THAT(ChangedDirectory("gpt-oss").without("layers.1.mlp.experts.down_proj").error(),
              HasSubstr("the weight of 'model.layers.1.mlp.experts.down_proj' is missing"));
  EXPECT_THAT(ChangedDirectory("gpt-oss").without("layers.1.self_attn.sinks").error(),
              HasSubstr("tensor 'model.layers.1.self_attn.sinks' is missing"));
  EXPECT_THAT(ChangedDirectory("qwen3.5-moe").without("layers.0.mlp.shared_expert_gate").error(),
              HasSubstr("the weight of 'model.layers.0.mlp.shared_expert_gate' is missing"));
}

TEST(MixtureErrors, CountsThatContradictTheTensors) {
  EXPECT_THAT(ChangedDirectory("qwen3-moe").set("num_experts", 6).error(),
              HasSubstr("the weight of 'model.layers.0.mlp.gate' is 5 × 64, expected 6 × 64"));
  EXPECT_THAT(ChangedDirectory("qwen3-moe").set("num_experts_per_tok", 6).error(),
              HasSubstr("key 'num_experts_per_tok': found 6, expected 1 to 5"));
  EXPECT_THAT(ChangedDirectory("qwen3-moe").set("num_experts", 0).error(),
              HasSubstr("key 'num_experts': found 0, expected 1 to 65536"));
  EXPECT_THAT(ChangedDirectory("qwen3-moe").set("moe_intermediate_size", 16).error(),
              HasSubstr("experts.0.down_proj' is 64 × 32, expected 64 × 16"));
  EXPECT_THAT(ChangedDirectory("gpt-oss-mxfp4").set("intermediate_size", 64).error(),
              HasSubstr("experts.down_proj' is 256 × 32, expected 256 × 64"));
  EXPECT_THAT(ChangedDirectory("qwen3.5-moe").set("moe_intermediate_size", 16).error(),
              HasSubstr("experts.down_proj' is 256 × 32, expected 256 × 16"));
  EXPECT_THAT(ChangedDirectory("gpt-oss").set("swiglu_limit", 8).error(),
              HasSubstr("key 'swiglu_limit': found 8, expected 7"));
}

TEST(HybridErrors, ShapesThatContradictTheTensors) {
  EXPECT_EQ(ChangedDirectory("qwen3.5").error(), "");
  EXPECT_THAT(ChangedDirectory("qwen3.5").set("linear_num_value_heads", 5).error(),
              HasSubstr("key 'linear_num_value_heads': found 5, expected a multiple of the 2 key "
                        "heads"));
  EXPECT_THAT(ChangedDirectory("qwen3.5").set("linear_key_head_dim", 8).error(),
              HasSubstr("linear_attn.in_proj_qkv' is 160 × 64, expected 128 × 64"));
  EXPECT_THAT(ChangedDirectory("qwen3.5").set("linear_conv_kernel_dim", 3).error(),
              HasSubstr("linear_attn.conv1d.weight' has 640 values, expected 480"));
  EXPECT_THAT(ChangedDirectory("qwen3.5").set("linear_key_head_dim", 100000).error(),
              HasSubstr("key 'linear_key_head_dim': found 100000, expected 1 to 1024"));
  EXPECT_THAT(ChangedDirectory("qwen3.5").without("linear_attn.A_log").error(),
              HasSubstr("tensor 'model.layers.0.linear_attn.A_log' is missing"));
  EXPECT_THAT(
      ChangedDirectory("qwen3.5").set("layer_types", std::vector<std::string>{"x", "y"}).error(),
      HasSubstr("found 'x', expected full_attention, sliding_attention or linear_attention"));
}

}  // namespace
}  // namespace espalier::model
