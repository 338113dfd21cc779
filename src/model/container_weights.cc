#include "model/container_weights.h"

#include <algorithm>

namespace espalier::model {
namespace {

class GgufWeights final : public Weights {
 public:
  explicit GgufWeights(const file::Gguf& gguf) : gguf_(gguf) {}

  const std::string& source() const override { return gguf_.name(); }

  Result<std::optional<pack::Matrix>> find_matrix(std::string_view name) const override {
    const std::string tensor_name = fmt::format("{}.weight", name);
    const file::GgufTensor* tensor = gguf_.find_tensor(tensor_name);
    if (tensor == nullptr) return std::optional<pack::Matrix>();
    return std::optional(tensor->matrix());
  }

  Result<std::optional<std::vector<float>>> find_vector(std::string_view name) const override {
    const file::GgufTensor* tensor = gguf_.find_tensor(name);
    if (tensor == nullptr) return std::optional<std::vector<float>>();
    const pack::Matrix matrix = tensor->matrix();
    std::vector<float> values(matrix.rows * matrix.cols);
    pack::decode_rows(matrix, 0, matrix.rows, values.data());
    return std::optional(std::move(values));
  }

 private:
  const file::Gguf& gguf_;
};

// Multimodal checkpoints have the language model's names within one of these, in place of "model.".
constexpr std::string_view kLanguageModels[] = {"model.language_model.", "language_model.model."};

class HfWeights final : public Weights {
 public:
  explicit HfWeights(const file::HfDirectory& directory) : directory_(directory) {
    const std::vector<std::string> modules = directory.modules();
    for (const std::string_view prefix : kLanguageModels) {
      const auto first = std::lower_bound(modules.begin(), modules.end(), prefix);
      if (first != modules.end() && first->starts_with(prefix)) prefix_ = prefix;
    }
  }

  const std::string& source() const override { return directory_.name(); }

  Result<std::optional<pack::Matrix>> find_matrix(std::string_view name) const override {
    return directory_.find_matrix(full_name(name));
  }

  Result<std::optional<std::vector<float>>> find_vector(std::string_view name) const override {
    return directory_.find_values(full_name(name));
  }

 private:
  [[nodiscard]] std::string full_name(std::string_view name) const {
    constexpr std::string_view kModel = "model.";
    if (!name.starts_with(kModel)) return std::string(name);
    return fmt::format("{}{}", prefix_, name.substr(kModel.size()));
  }

  const file::HfDirectory& directory_;
  std::string_view prefix_ = "model.";
};

}  // namespace

std::unique_ptr<Weights> container_weights(const file::Gguf& gguf) {
  return std::make_unique<GgufWeights>(gguf);
}

std::unique_ptr<Weights> container_weights(const file::HfDirectory& directory) {
  return std::make_unique<HfWeights>(directory);
}

}  // namespace espalier::model
