#include "support/tiny_llama.h"

#include <fmt/format.h>

#include <cmath>
#include <random>

namespace espalier::test {
namespace {

// GPT-2's spelling of a byte as a printable character, in UTF-8.
std::string byte_symbol(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

}  // namespace

void add_tiny_llama_metadata(GgufBuilder& file, const TinyLlama& shape) {
  file.add("general.architecture", "llama")
      .add("llama.block_count", shape.layers)
      .add("llama.context_length", shape.context)
      .add("llama.embedding_length", shape.hidden)
      .add("llama.feed_forward_length", shape.mlp_hidden)
      .add("llama.attention.head_count", shape.heads)
      .add("llama.attention.head_count_kv", shape.kv_heads)
      .add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

void add_tiny_llama_vocabulary(GgufBuilder& file, const TinyLlama& shape) {
  std::vector<std::string> tokens, merges;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(byte_symbol(byte));
  for (const char* pair : {"t h", "a n", "i n", "e r"}) {
    merges.emplace_back(pair);
    tokens.push_back({pair[0], pair[2]});
  }
  std::vector<std::int32_t> types(tokens.size(), 1);  // normal
  while (tokens.size() < shape.tokens) {
    tokens.push_back(fmt::format("<|control_{}|>", tokens.size()));
    types.push_back(3);  // control
  }
  file.add("tokenizer.ggml.model", "gpt2")
      .add("tokenizer.ggml.pre", shape.pre)
      .add("tokenizer.ggml.tokens", tokens)
      .add("tokenizer.ggml.token_type", types)
      .add("tokenizer.ggml.merges", merges)
      .add("tokenizer.ggml.eos_token_id", std::uint32_t{260});
}

void add_tiny_llama_tensors(GgufBuilder& file, const TinyLlama& shape) {
  std::mt19937 random(5);
  const auto values = [&random](std::uint64_t count, double spread) {
    std::normal_distribution<float> normal(0, static_cast<float>(spread));
    std::vector<float> drawn(count);
    for (float& value : drawn) value = normal(random);
    return drawn;
  };
  std::size_t next_format = 0;
  const auto matrix = [&](const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    const std::string format =
        shape.formats.empty() ? "F32" : shape.formats[next_format++ % shape.formats.size()];
    file.tensor(name, {cols, rows}, format,
                values(rows * cols, 1 / std::sqrt(static_cast<double>(cols))));
  };
  const auto vector = [&](const std::string& name, std::uint64_t size) {
    file.tensor(name, {size}, values(size, 1));
  };
  const std::uint64_t kv_size = std::uint64_t{shape.hidden} / shape.heads * shape.kv_heads;
  matrix("token_embd.weight", shape.rows, shape.hidden);
  vector("output_norm.weight", shape.hidden);
  for (std::uint32_t l = 0; l < shape.layers; ++l) {
    const std::string layer = fmt::format("blk.{}.", l);
    vector(layer + "attn_norm.weight", shape.hidden);
    vector(layer + "ffn_norm.weight", shape.hidden);
    matrix(layer + "attn_q.weight", shape.hidden, shape.hidden);
    matrix(layer + "attn_k.weight", kv_size, shape.hidden);
    matrix(layer + "attn_v.weight", kv_size, shape.hidden);
    matrix(layer + "attn_output.weight", shape.hidden, shape.hidden);
    matrix(layer + "ffn_gate.weight", shape.mlp_hidden, shape.hidden);
    matrix(layer + "ffn_up.weight", shape.mlp_hidden, shape.hidden);
    matrix(layer + "ffn_down.weight", shape.hidden, shape.mlp_hidden);
  }
}

GgufBuilder tiny_llama(const TinyLlama& shape) {
  GgufBuilder file;
  add_tiny_llama_metadata(file, shape);
  add_tiny_llama_vocabulary(file, shape);
  add_tiny_llama_tensors(file, shape);
  return file;
}

}  // namespace espalier::test
