#include "model/weights.h"

#include "file/hf_directory.h"

namespace espalier::model {

Result<pack::Matrix> Weights::matrix(std::string_view name, std::uint64_t rows,
                                     std::uint64_t cols) const {
  ESPALIER_TRY(const auto found, find_matrix(name));
  if (!found) return input_error("{}: the weight of '{}' is missing", source(), stored_name(name));
  const std::optional<pack::Matrix> fitting = file::without_padding(*found, rows, cols);
  if (!fitting) {
    return input_error("{}: the weight of '{}' is {} × {}, expected {} × {}", source(),
                       stored_name(name), found->rows, found->cols, rows, cols);
  }
  return *fitting;
}

Result<std::vector<float>> Weights::vector(std::string_view name, std::uint64_t size) const {
  ESPALIER_TRY(auto found, find_vector(name));
  if (!found) return input_error("{}: tensor '{}' is missing", source(), stored_name(name));
  if (found->size() != size) {
    return input_error("{}: tensor '{}' has {} values, expected {}", source(), stored_name(name),
                       found->size(), size);
  }
  return std::move(*found);
}

Result<compute::Linear> Weights::linear(std::string_view name, std::uint64_t rows,
                                        std::uint64_t cols) const {
  compute::Linear linear;
  ESPALIER_TRY(linear.weight, matrix(name, rows, cols));
  const std::string bias_name = fmt::format("{}.bias", name);
  ESPALIER_TRY(auto bias, find_vector(bias_name));
  if (bias && bias->size() != rows) {
    return input_error("{}: tensor '{}' has {} values, expected {}", source(),
                       stored_name(bias_name), bias->size(), rows);
  }
  if (bias) linear.bias = std::move(*bias);
  return linear;
}

}  // namespace espalier::model
