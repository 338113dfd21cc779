// A model directory as Hugging Face publishes them: config.json and friends, and tensors in one or
// more safetensors files. Whatever form the weights of a module are packed in, they come out as a
// pack::Matrix whose parts were checked against each other and against the configuration.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "file/json.h"
#include "file/quantization_config.h"
#include "file/safetensors.h"
#include "pack/matrix.h"

namespace espalier::file {

class HfDirectory {
 public:
  // Opens a directory. With a model.safetensors.index.json the files are those that it names (and
  // EXL3's ngram_embedding.safetensors); without, all *.safetensors. Errors: no config.json or no
  // tensors; a shard that is missing, has a path in its name or lacks a tensor that the index
  // claims; a tensor in two files; a quantization that is not supported.
  static Result<HfDirectory> open(const std::filesystem::path& path);

  // A directory of config.json and safetensors files in memory, which must outlive the result;
  // `name` stands for it in messages.
  static Result<HfDirectory> parse(Bytes config, std::span<const Bytes> files, std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }  // the path, for messages

  // config.json. The view is valid as long as this object.
  [[nodiscard]] JsonObject config() const { return {*config_, config_name_}; }
  [[nodiscard]] const QuantizationConfig& quantization() const { return quantization_; }

  // Where a file such as tokenizer.json, generation_config.json or chat_template.jinja lies;
  // nothing when there is none.
  [[nodiscard]] std::optional<std::filesystem::path> find_file(std::string_view file_name) const;

  [[nodiscard]] std::span<const Safetensors> files() const { return files_; }
  [[nodiscard]] const SafetensorsTensor* find(std::string_view tensor_name) const;

  // A tensor that is there, for messages: "model.safetensors: tensor 'lm_head.weight'".
  [[nodiscard]] std::string describe(std::string_view tensor_name) const;

  // Every module that has a matrix, sorted: "model.layers.0.mlp.down_proj". (Norms and other
  // vectors are among them, as matrices of one row.)
  [[nodiscard]] std::vector<std::string> modules() const;

  // The weights of `module` in whatever form they are stored:
  //   .weight F32, F16 or BF16                        plain; leading dimensions become rows
  //   a tensor with the very name of the module       the same (stacked experts)
  //   .weight U32, .scales, .biases                   MLX; the same (.global_scale: NVFP4)
  //   _blocks, _scales                                MXFP4 of gpt-oss; the same
  //   .trellis, .suh, .svh (.su, .sv), .mcg or .mul1  EXL3, with the padded sizes
  //   .trellis, .signs                                EXL3 embedding table, padded to 256 columns
  //   .trellis or .shard_N.trellis, .head_bias, …     EXL3 n-gram table
  //   .qweight, .qzeros, .scales, .g_idx              GPTQ or AWQ
  //   .weight_packed, .weight_scale, .weight_zero_point, .weight_shape, .weight_g_idx
  //                                                   compressed-tensors
  // Nothing when there are none.
  [[nodiscard]] Result<std::optional<pack::Matrix>> find_matrix(std::string_view module) const;

  // The values of tensor `tensor_name` (F32, F16 or BF16) as floats; nothing when there is none.
  [[nodiscard]] Result<std::optional<std::vector<float>>> find_values(
      std::string_view tensor_name) const;

 private:
  struct Place {
    std::size_t file = 0;  // index into files_
    const SafetensorsTensor* tensor = nullptr;
  };

  HfDirectory() = default;

  Status set_config(Json config);
  Status open_files(const std::filesystem::path& path);
  Status open_indexed(const std::filesystem::path& path, const std::filesystem::path& index);
  Status add_file(Result<Safetensors> opened);
  void expand_signs();

  std::string name_;
  std::string config_name_;
  std::optional<Json> config_;
  QuantizationConfig quantization_;
  std::vector<Safetensors> files_;
  std::unordered_map<std::string_view, Place> tensors_;
  // EXL3's older sign bitmaps (su, sv) as the F16 scales that matrices want, by tensor name.
  std::map<std::string, std::vector<std::byte>, std::less<>> signs_;
};

// An EXL3 matrix, stored with padding, as the rows × cols that the model has; nothing when these
// are not what padding makes the stored sizes from. Matrices of other formats only fit exactly.
[[nodiscard]] std::optional<pack::Matrix> without_padding(const pack::Matrix& matrix,
                                                          std::uint64_t rows, std::uint64_t cols);

}  // namespace espalier::file
