#include "compute/gpu/tuned.h"

#include <vector>

namespace espalier::gpu {

std::span<const TunedKernel> tuned_kernels() {
  static const std::vector<TunedKernel> table = {
#include "compute/gpu/tuned_kernels.inc"
  };
  return table;
}

std::string_view tuned_kernel(std::span<const TunedKernel> table, std::string_view gpu,
                              std::string_view format, std::uint64_t weights, std::uint64_t rows) {
  for (const TunedKernel& each : table) {
    if (each.gpu == gpu && each.format == format && each.most_rows == class_of(kRowClasses, rows) &&
        each.most_weights == class_of(kWeightClasses, weights)) {
      return each.kernel;
    }
  }
  return {};
}

}  // namespace espalier::gpu
