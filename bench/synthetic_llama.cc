// Writes a Llama of random weights as a GGUF file, to time a format on a model of realistic shape.
//
//   synthetic_llama FORMAT OUT.gguf
//
// 254 million parameters: 16 layers, 1024 wide, 16 heads over 8, MLP 2816 wide, 32,000 tokens. All
// matrices have the format; a matrix repeats one random row. The text it makes is noise.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "file/gguf_writer.h"
#include "measure/bench.h"

namespace espalier {
namespace {

constexpr std::uint32_t kLayers = 16, kHidden = 1024, kMlp = 2816, kHeads = 16, kKvHeads = 8;
constexpr std::uint32_t kVocabulary = 32000;
constexpr std::uint32_t kKvSize = kHidden / kHeads * kKvHeads;

file::GgufMetadata metadata() {
  file::GgufMetadata m;
  m.set("general.architecture", std::string("llama"));
  m.set("general.name", std::string("synthetic"));
  m.set("llama.block_count", kLayers);
  m.set("llama.context_length", std::uint32_t{32768});
  m.set("llama.embedding_length", kHidden);
  m.set("llama.feed_forward_length", kMlp);
  m.set("llama.attention.head_count", kHeads);
  m.set("llama.attention.head_count_kv", kKvHeads);
  m.set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  m.set("llama.rope.dimension_count", kHidden / kHeads);
  // A vocabulary in the style of SentencePiece: three special tokens, all bytes, and words.
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<float> scores(kVocabulary, 0);
  std::vector<std::int32_t> types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    types.push_back(6);
  }
  while (tokens.size() < kVocabulary) {
    scores[tokens.size()] = -static_cast<float>(tokens.size());
    tokens.push_back(fmt::format("w{}", tokens.size()));
    types.push_back(1);
  }
  m.set("tokenizer.ggml.model", std::string("llama"));
  m.set("tokenizer.ggml.tokens", tokens);
  m.set("tokenizer.ggml.scores", scores);
  m.set("tokenizer.ggml.token_type", types);
  m.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  m.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  return m;
}

Status write(const std::string& format_name, const std::string& path) {
  const pack::Format* format = pack::find_format(format_name);
  if (format == nullptr) return input_error("{}: no such format", format_name);
  const pack::Format* f32 = pack::find_format("F32");

  std::vector<file::GgufDeclaration> tensors;
  const auto matrix = [&](std::string name, std::uint64_t rows, std::uint64_t cols) {
    tensors.push_back({std::move(name), format, {cols, rows}});
  };
  const auto norm = [&](std::string name) { tensors.push_back({std::move(name), f32, {kHidden}}); };
  matrix("token_embd.weight", kVocabulary, kHidden);
  matrix("output.weight", kVocabulary, kHidden);
  norm("output_norm.weight");
  for (std::uint32_t l = 0; l < kLayers; ++l) {
    const std::string layer = fmt::format("blk.{}.", l);
    norm(layer + "attn_norm.weight");
    norm(layer + "ffn_norm.weight");
    matrix(layer + "attn_q.weight", kHidden, kHidden);
    matrix(layer + "attn_k.weight", kKvSize, kHidden);
    matrix(layer + "attn_v.weight", kKvSize, kHidden);
    matrix(layer + "attn_output.weight", kHidden, kHidden);
    matrix(layer + "ffn_gate.weight", kMlp, kHidden);
    matrix(layer + "ffn_up.weight", kMlp, kHidden);
    matrix(layer + "ffn_down.weight", kHidden, kMlp);
  }
  ESPALIER_TRY(file::TensorFile file, file::create_gguf(path, metadata(), tensors));
  for (const file::GgufDeclaration& tensor : tensors) {
    if (tensor.dims.size() == 1) {
      const std::vector<float> ones(kHidden, 1);
      ESPALIER_CHECK(file.write(tensor.name, std::as_bytes(std::span(ones))));
      continue;
    }
    ESPALIER_TRY(const pack::PackedMatrix packed,
                 measure::random_matrix(*format, tensor.dims[1], tensor.dims[0]));
    ESPALIER_CHECK(file.write(tensor.name, packed.data));
  }
  return file.finish();
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: synthetic_llama FORMAT OUT.gguf\n");
    return 2;
  }
  if (const espalier::Status status = espalier::write(argv[1], argv[2]); !status) {
    fmt::print(stderr, "error: {}\n", status.error().message);
    return static_cast<int>(status.error().kind);
  }
  return 0;
}
