#include "model/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "compute/reference/reference.h"
#include "run/kv_cache.h"

namespace espalier::model {
namespace {

using ::testing::HasSubstr;

// A decoder of random float weights by GGUF's names, in memory.
class RandomWeights final : public Weights {
 public:
  explicit RandomWeights(const DecoderConfig& c) {
    const auto& attention = std::get<AttentionConfig>(c.layers[0].mixer);
    const std::size_t mlp_hidden = std::get<MlpConfig>(c.layers[0].mlp).hidden;
    const std::size_t q = attention.heads * attention.head_dim;
    const std::size_t kv = attention.kv_heads * attention.head_dim;
    add("token_embd", c.vocab_size, c.hidden);
    add("output", c.vocab_size, c.hidden);
    add_vector("output_norm.weight", c.hidden);
    for (std::size_t l = 0; l < c.layers.size(); ++l) {
      const std::string layer = fmt::format("blk.{}.", l);
      add_vector(layer + "attn_norm.weight", c.hidden);
      add_vector(layer + "ffn_norm.weight", c.hidden);
      add(layer + "attn_q", q, c.hidden);
      add(layer + "attn_k", kv, c.hidden);
      add(layer + "attn_v", kv, c.hidden);
      add(layer + "attn_output", c.hidden, q);
      add(layer + "ffn_gate", mlp_hidden, c.hidden);
      add(layer + "ffn_up", mlp_hidden, c.hidden);
      add(layer + "ffn_down", c.hidden, mlp_hidden);
    }
  }

  void add(const std::string& name, std::size_t rows, std::size_t cols) {
    std::vector<float>& values = storage_[name] = random(rows * cols, 1 / std::sqrt(float(cols)));
    matrices[name] = *pack::block_matrix(*pack::find_format("F32"), rows, cols,
                                         std::as_bytes(std::span(values)));
  }
  void add_vector(const std::string& name, std::size_t size) { vectors[name] = random(size, 1); }

  // Puts the rows of several matrices below each other.
  void fuse(const std::vector<std::string>& parts, const std::string& name) {
    std::vector<float> values;
    const std::size_t cols = matrices.at(parts[0]).cols;
    for (const std::string& part : parts) {
      values.insert(values.end(), storage_.at(part).begin(), storage_.at(part).end());
      matrices.erase(part);
    }
    storage_[name] = std::move(values);
    matrices[name] = *pack::block_matrix(*pack::find_format("F32"), storage_[name].size() / cols,
                                         cols, std::as_bytes(std::span(storage_[name])));
  }

  const std::string& source() const override { return source_; }
  Result<std::optional<pack::Matrix>> find_matrix(std::string_view name) const override {
    const auto found = matrices.find(std::string(name));
    return found == matrices.end() ? std::nullopt : std::optional(found->second);
  }
  Result<std::optional<std::vector<float>>> find_vector(std::string_view name) const override {
    const auto found = vectors.find(std::string(name));
    return found == vectors.end() ? std::nullopt : std::optional(found->second);
  }

  std::map<std::string, pack::Matrix> matrices;
  std::map<std::string, std::vector<float>> vectors;

 private:
  std::vector<float> random(std::size_t count, float spread) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> values(count);
    for (float& value : values) value = normal(generator_);
    return values;
  }

  std::string source_ = "random.gguf";
  std::mt19937 generator_{11};
  std::map<std::string, std::vector<float>> storage_;
};

DecoderConfig tiny_config() {
  DecoderConfig config = {.hidden = 12, .vocab_size = 31, .context_length = 64};
  config.layers.assign(
      2, {.mixer = AttentionConfig{.heads = 4, .kv_heads = 2, .head_dim = 6, .scale = 0.4f},
          .mlp = MlpConfig{.hidden = 20}});
  config.ropes = {{.rope = make_rope(6, 10000, {}, {})}};
  return config;
}

Result<std::unique_ptr<Model>> load(const DecoderConfig& config, const Weights& weights) {
  return load_decoder(kLlama, config, weights, Convention::kGguf);
}

// Logits [rows, vocab] of `tokens` as one sequence, `chunk` rows at a time.
std::vector<float> logits_in_chunks(const Model& model, std::span<const std::int32_t> tokens,
                                    std::size_t chunk) {
  auto ops = reference::make_ops();
  auto cache = run::KvCache::create(model.info(), 1, tokens.size(), compute::KvType::kF32);
  const std::size_t vocab = model.info().vocab_size;
  std::vector<float> logits(tokens.size() * vocab);
  for (std::size_t first = 0; first < tokens.size(); first += chunk) {
    std::vector<compute::Row> rows;
    std::vector<std::size_t> wanted;
    for (std::size_t i = first; i < std::min(first + chunk, tokens.size()); ++i) {
      wanted.push_back(rows.size());
      rows.push_back({.token = tokens[i], .position = static_cast<std::int32_t>(i)});
    }
    model.forward(*ops, rows, cache->layers(), wanted, logits.data() + first * vocab);
  }
  return logits;
}

const std::vector<std::int32_t> kTokens = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};

TEST(Decoder, PrefillInOneBatchInChunksAndTokenByTokenAreEqual) {
  const RandomWeights weights(tiny_config());
  const auto model = load(tiny_config(), weights);
  ASSERT_TRUE(model) << model.error().message;
  const auto whole = logits_in_chunks(**model, kTokens, kTokens.size());
  EXPECT_EQ(whole, logits_in_chunks(**model, kTokens, 7));
  EXPECT_EQ(whole, logits_in_chunks(**model, kTokens, 1));
}

TEST(Decoder, SequencesInOneBatchDoNotSeeEachOther) {
  const RandomWeights weights(tiny_config());
  const auto model = load(tiny_config(), weights);
  ASSERT_TRUE(model) << model.error().message;
  const auto alone = logits_in_chunks(**model, kTokens, kTokens.size());

  auto ops = reference::make_ops();
  auto cache = run::KvCache::create((*model)->info(), 2, kTokens.size(), compute::KvType::kF32);
  std::vector<compute::Row> rows;
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < kTokens.size(); ++i) {
    rows.push_back({.token = 30, .sequence = 0, .position = static_cast<std::int32_t>(i)});
    wanted.push_back(rows.size());
    rows.push_back({.token = kTokens[i], .sequence = 1, .position = static_cast<std::int32_t>(i)});
  }
  std::vector<float> logits(alone.size());
  (*model)->forward(*ops, rows, cache->layers(), wanted, logits.data());
  EXPECT_EQ(logits, alone);
}

TEST(Decoder, WithoutAHeadTheEmbeddingIsTheHead) {
  RandomWeights untied(tiny_config());
  untied.matrices["output"] = untied.matrices["token_embd"];
  RandomWeights tied(tiny_config());
  tied.matrices.erase("output");
  const auto a = load(tiny_config(), untied);
  const auto b = load(tiny_config(), tied);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(logits_in_chunks(**a, kTokens, 4), logits_in_chunks(**b, kTokens, 4));
}

TEST(Decoder, BiasesCount) {
  const RandomWeights plain(tiny_config());
  const auto without = load(tiny_config(), plain);
  ASSERT_TRUE(without);
  for (const auto& [name, size] : std::map<std::string, std::size_t>{{"attn_q", 24},
                                                                     {"attn_k", 12},
                                                                     {"attn_v", 12},
                                                                     {"attn_output", 12},
                                                                     {"ffn_gate", 20},
                                                                     {"ffn_up", 20},
                                                                     {"ffn_down", 12}}) {
    RandomWeights weights(tiny_config());
    weights.add_vector("blk.1." + name + ".bias", size);
    const auto with = load(tiny_config(), weights);
    ASSERT_TRUE(with) << with.error().message;
    EXPECT_NE(logits_in_chunks(**with, kTokens, 4), logits_in_chunks(**without, kTokens, 4))
        << name;
    weights.vectors["blk.1." + name + ".bias"].push_back(0);
    const auto wrong = load(tiny_config(), weights);
    ASSERT_FALSE(wrong);
    EXPECT_THAT(wrong.error().message,
                HasSubstr(fmt::format("tensor 'blk.1.{}.bias' has {} values, expected {}", name,
                                      size + 1, size)));
  }
}

// Query, key and value as one matrix, and gate and up as another, of a format whose rows can be
// viewed by themselves and of one whose rows cannot.
TEST(Decoder, FusedMatricesAreTheirParts) {
  const RandomWeights separate(tiny_config());
  const auto expected = load(tiny_config(), separate);
  ASSERT_TRUE(expected) << expected.error().message;
  pack::Format whole = *pack::find_format("F32");
  whole.family = pack::Family::kGptq;
  const pack::Format* const formats[] = {pack::find_format("F32"), &whole};
  for (const pack::Format* format : formats) {
    RandomWeights fused(tiny_config());
    for (int l = 0; l < 2; ++l) {
      const std::string layer = fmt::format("blk.{}.", l);
      fused.fuse({layer + "attn_q", layer + "attn_k", layer + "attn_v"}, layer + "attn_qkv");
      fused.fuse({layer + "ffn_gate", layer + "ffn_up"}, layer + "ffn_up");
      for (const char* name : {"attn_qkv", "ffn_up"}) fused.matrices[layer + name].format = format;
    }
    const auto model = load(tiny_config(), fused);
    ASSERT_TRUE(model) << model.error().message;
    EXPECT_EQ(logits_in_chunks(**model, kTokens, 4), logits_in_chunks(**expected, kTokens, 4));
  }
}

// A bias of the fused matrix is those of its parts.
TEST(Decoder, FusedBiasesAreTheirParts) {
  RandomWeights separate(tiny_config());
  separate.vectors["blk.0.attn_q.bias"] = std::vector<float>(24, 0.5f);
  separate.vectors["blk.0.attn_k.bias"] = std::vector<float>(12, -1.0f);
  separate.vectors["blk.0.attn_v.bias"] = std::vector<float>(12, 2.0f);
  RandomWeights fused(tiny_config());
  fused.fuse({"blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v"}, "blk.0.attn_qkv");
  std::vector<float>& bias = fused.vectors["blk.0.attn_qkv.bias"];
  bias.assign(24, 0.5f);
  bias.resize(36, -1.0f);
  bias.resize(48, 2.0f);
  const auto a = load(tiny_config(), separate);
  const auto b = load(tiny_config(), fused);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(logits_in_chunks(**a, kTokens, 4), logits_in_chunks(**b, kTokens, 4));
}

TEST(Decoder, MissingAndMisshapenTensorsAreNamed) {
  const RandomWeights complete(tiny_config());
  for (const auto& [name, matrix] : complete.matrices) {
    if (name == "output") continue;
    RandomWeights weights(tiny_config());
    weights.matrices[name].rows -= 1;
    auto model = load(tiny_config(), weights);
    ASSERT_FALSE(model) << name;
    EXPECT_EQ(model.error().message,
              fmt::format("random.gguf: the weight of '{}' is {} × {}, expected {} × {}", name,
                          matrix.rows - 1, matrix.cols, matrix.rows, matrix.cols));
    weights.matrices.erase(name);
    model = load(tiny_config(), weights);
    ASSERT_FALSE(model) << name;
    EXPECT_EQ(model.error().message,
              fmt::format("random.gguf: the weight of '{}' is missing", name));
  }
  for (const auto& [name, values] : complete.vectors) {
    RandomWeights weights(tiny_config());
    weights.vectors.erase(name);
    const auto model = load(tiny_config(), weights);
    ASSERT_FALSE(model) << name;
    EXPECT_EQ(model.error().message, fmt::format("random.gguf: tensor '{}' is missing", name));
  }
}

}  // namespace
}  // namespace espalier::model
