// Which kernel of project is the fastest for a format, number of rows and size of the matrix, as
// measured on a GPU: one table, which `espalier bench --device cuda --op project --tune` writes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace espalier::gpu {

struct TunedKernel {
  std::string_view gpu;        // its name, as CUDA gives it
  std::string_view format;     // of the weights
  std::uint32_t most_rows;     // classes up to here, one of kRowClasses
  std::uint64_t most_weights;  // the same, of kWeightClasses
  std::string_view kernel;
};

// Up to 16 rows are one class: there a row's bits must not depend on the number of rows, so one
// kernel serves them all.
inline constexpr std::uint32_t kRowClasses[] = {16, 32, 128, 0xffffffff};
// 4096 × 4096 and less are launches and tails above all, 4096 × 14336 and more are memory.
inline constexpr std::uint64_t kWeightClasses[] = {std::uint64_t{1} << 25, ~std::uint64_t{0}};

// The table in tuned_kernels.inc.
[[nodiscard]] std::span<const TunedKernel> tuned_kernels();

// The kernel that a table names, or nothing: then the order of the kernels decides.
[[nodiscard]] std::string_view tuned_kernel(std::span<const TunedKernel> table,
                                            std::string_view gpu, std::string_view format,
                                            std::uint64_t weights, std::uint64_t rows);

// The class of a number: the first of `classes` that is not below it; the last holds all.
template <typename T, std::size_t kCount>
[[nodiscard]] constexpr T class_of(const T (&classes)[kCount], std::uint64_t number) {
  for (const T each : classes) {
    if (number <= each) return each;
  }
  return classes[kCount - 1];
}

}  // namespace espalier::gpu
