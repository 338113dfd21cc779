// Metadata that contradicts itself, the tensors, or what Espalier can run.
#include <gtest/gtest.h>

#include "model/model.h"
#include "support/tiny_llama.h"

namespace espalier::model {
namespace {

using test::GgufBuilder;
using test::TinyLlama;

// The error of loading `file`, or "" if it loads.
std::string load_error(const GgufBuilder& file) {
  const std::string bytes = file.bytes();
  const auto gguf = file::Gguf::parse(as_bytes(bytes), "tiny.gguf");
  if (!gguf) return gguf.error().message;
  const auto model = load_model(*gguf);
  return model ? "" : model.error().message;
}

// The error after one more metadata key.
template <typename T>
std::string error_with(const std::string& key, const T& value) {
  return load_error(test::tiny_llama().add(key, value));
}

// The error when the metadata describe another shape than the tensors have.
std::string error_with_metadata(const TinyLlama& metadata) {
  GgufBuilder file;
  add_tiny_llama_metadata(file, metadata);
  add_tiny_llama_tensors(file, {});
  return load_error(file);
}

TEST(LoadModel, TheTinyLlamaLoads) { EXPECT_EQ(load_error(test::tiny_llama()), ""); }

TEST(LoadModel, NeedsAnArchitectureItKnows) {
  EXPECT_EQ(load_error(GgufBuilder().add("a", 1)),
            "tiny.gguf: metadata key 'general.architecture' is missing");
  EXPECT_EQ(
      load_error(GgufBuilder().add("general.architecture", "lamb")),
      "tiny.gguf: architecture 'lamb' is not supported; supported: llama, qwen2, qwen3, gemma2, "
      "gemma3, smollm3, phi3, qwen3moe, gpt-oss, qwen3next, qwen35, qwen35moe");
  EXPECT_EQ(load_error(GgufBuilder().add("general.architecture", 7)),
            "tiny.gguf: metadata key 'general.architecture': found int32 7, expected a string");
}

TEST(LoadModel, CountsMustBeThereAndPositive) {
  EXPECT_EQ(load_error(GgufBuilder().add("general.architecture", "llama")),
            "tiny.gguf: metadata key 'llama.block_count' is missing");
  EXPECT_EQ(error_with_metadata({.heads = 0}),
            "tiny.gguf: metadata key 'llama.attention.head_count': found 0, expected 1 to 65536");
  EXPECT_EQ(
      error_with_metadata({.kv_heads = 0}),
      "tiny.gguf: metadata key 'llama.attention.head_count_kv': found 0, expected 1 to 65536");
  EXPECT_EQ(error_with_metadata({.layers = 0}),
            "tiny.gguf: metadata key 'llama.block_count': found 0, expected 1 to 65536");
  EXPECT_EQ(error_with_metadata({.layers = 4000000000u}),
            "tiny.gguf: metadata key 'llama.block_count': found 4000000000, expected 1 to 65536");
}

TEST(LoadModel, HeadsAreAMultipleOfKvHeads) {
  EXPECT_EQ(
      error_with_metadata({.kv_heads = 3}),
      "tiny.gguf: metadata key 'llama.attention.head_count_kv': found 3, which does not divide "
      "the 4 heads");
}

TEST(LoadModel, ShapesFollowFromTheMetadata) {
  EXPECT_EQ(error_with_metadata({.layers = 3}),
            "tiny.gguf: tensor 'blk.2.attn_norm.weight' is missing");
  EXPECT_EQ(error_with_metadata({.hidden = 64}),
            "tiny.gguf: the weight of 'token_embd' is 300 × 32, expected 300 × 64");
  EXPECT_EQ(error_with_metadata({.mlp_hidden = 65}),
            "tiny.gguf: the weight of 'blk.0.ffn_gate' is 64 × 32, expected 65 × 32");
  EXPECT_EQ(error_with_metadata({.kv_heads = 1}),
            "tiny.gguf: the weight of 'blk.0.attn_k' is 16 × 32, expected 8 × 32");
  EXPECT_EQ(error_with("llama.vocab_size", std::uint32_t{299}),
            "tiny.gguf: the weight of 'token_embd' is 300 × 32, expected 299 × 32");
  EXPECT_EQ(
      error_with("llama.attention.key_length", std::uint32_t{16}),
      "tiny.gguf: metadata key 'llama.attention.value_length': found 8, expected the key length "
      "16");
}

TEST(LoadModel, WhatItCannotRunItRefuses) {
  EXPECT_EQ(error_with("llama.expert_count", std::uint32_t{8}),
            "tiny.gguf: metadata key 'llama.expert_used_count' is missing");
  EXPECT_EQ(error_with("llama.rope.scaling.type", "spiral"),
            "tiny.gguf: metadata key 'llama.rope.scaling.type': found 'spiral'; RoPE of the types "
            "default, linear, llama3, yarn and longrope is supported");
  EXPECT_EQ(error_with("llama.rope.dimension_count", std::uint32_t{7}),
            "tiny.gguf: metadata key 'llama.rope.dimension_count': 7 of a head's 8 elements turn, "
            "expected an even number");
  EXPECT_EQ(error_with("llama.rope.dimension_count", std::uint32_t{10}),
            "tiny.gguf: metadata key 'llama.rope.dimension_count': found 10, expected 1 to 8");
  EXPECT_EQ(error_with("llama.rope.freq_base", -1.0f),
            "tiny.gguf: metadata key 'llama.rope.freq_base': found -1, expected a positive number");
}

TEST(LoadModel, RopeFactorsMatchTheHead) {
  GgufBuilder file = test::tiny_llama();
  file.tensor("rope_freqs.weight", {5}, std::vector<float>(5, 1));
  EXPECT_EQ(load_error(file), "tiny.gguf: tensor 'rope_freqs.weight' has 5 values, expected 4");
}

TEST(LoadModel, LayersBeyondTheStatedOnesAreAnError) {
  EXPECT_EQ(error_with_metadata({.layers = 1}),
            "tiny.gguf: has tensor 'blk.1.attn_norm.weight', but its configuration says 1 layers; "
            "it is cut short");
}

}  // namespace
}  // namespace espalier::model
