// What a model needs from its files: matrices and vectors by name, whatever the container.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "compute/ops.h"
#include "pack/matrix.h"

namespace espalier::model {

class Weights {
 public:
  virtual ~Weights() = default;

  // The file or directory, for messages.
  [[nodiscard]] virtual const std::string& source() const = 0;

  // What the container itself calls the module or tensor `name`, for messages.
  [[nodiscard]] virtual std::string stored_name(std::string_view name) const {
    return std::string(name);
  }

  // The matrix of module `name`, such as "blk.0.attn_q" or "model.layers.0.self_attn.q_proj", in
  // the form it is stored in; nothing when there is none. Of more than two dimensions, all but the
  // last become rows.
  [[nodiscard]] virtual Result<std::optional<pack::Matrix>> find_matrix(
      std::string_view name) const = 0;

  // The tensor `name`, such as "blk.0.attn_q.bias", as floats in the order in which it has them.
  [[nodiscard]] virtual Result<std::optional<std::vector<float>>> find_vector(
      std::string_view name) const = 0;

  // The same, present and of the expected shape, or an error.
  [[nodiscard]] Result<pack::Matrix> matrix(std::string_view name, std::uint64_t rows,
                                            std::uint64_t cols) const;
  [[nodiscard]] Result<std::vector<float>> vector(std::string_view name, std::uint64_t size) const;

  // Weight and, if there is one, bias of module `name`.
  [[nodiscard]] Result<compute::Linear> linear(std::string_view name, std::uint64_t rows,
                                               std::uint64_t cols) const;
};

}  // namespace espalier::model
