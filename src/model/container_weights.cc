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

// What multimodal checkpoints call a language model's "model.", and what comes before its head.
struct Nesting {
  std::string_view model, head;
};
constexpr Nesting kPlain = {"model.", ""};
constexpr Nesting kNestings[] = {
    {"model.language_model.", ""},
    {"language_model.model.", "language_model."},
};

class HfWeights final : public Weights {
 public:
  explicit HfWeights(const file::HfDirectory& directory) : directory_(directory) {
    const std::vector<std::string> modules = directory.modules();
    for (const Nesting& nesting : kNestings) {
      const auto first = std::lower_bound(modules.begin(), modules.end(), nesting.model);
      if (first != modules.end() && first->starts_with(nesting.model)) nesting_ = nesting;
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
    if (!name.starts_with(kPlain.model)) return fmt::format("{}{}", nesting_.head, name);
    return fmt::format("{}{}", nesting_.model, name.substr(kPlain.model.size()));
  }

  const file::HfDirectory& directory_;
  Nesting nesting_ = kPlain;
};

}  // namespace

std::unique_ptr<Weights> container_weights(const file::Gguf& gguf) {
  return std::make_unique<GgufWeights>(gguf);
}

std::unique_ptr<Weights> container_weights(const file::HfDirectory& directory) {
  return std::make_unique<HfWeights>(directory);
}

}  // namespace espalier::model
