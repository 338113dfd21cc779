#include "pack/transposed.h"

namespace espalier::pack {

Result<Matrix> transposed(const Matrix& matrix) {
  const Format* format = find_format(fmt::format("{}-T", matrix.format->name));
  if (format == nullptr) {
    return input_error("a matrix in {} has no transpose, expected F32, F16 or BF16",
                       matrix.format->name);
  }
  Matrix result = matrix;
  result.format = format;
  result.rows = matrix.cols;
  result.cols = matrix.rows;
  return result;
}

}  // namespace espalier::pack
