// Formats as the kernel for integer codes arranges them for NVIDIA GPUs: decoded again from that
// order, on the host, they are what the format's definition gives.
#define __CUDACC__
#include "compute/gpu/cuda/codes_arrange.cuh"
#undef __CUDACC__

#include <gtest/gtest.h>

#include "compute/gpu/launch.h"
#include "measure/bench.h"

namespace espalier::gpu::cuda::codes {
namespace {

constexpr float kFactor = 64;

const std::uint8_t* start_of(Bytes bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

Weights weights_of(const pack::Matrix& matrix, const WeightShape& shape) {
  Weights weights = {};
  weights.data = start_of(matrix.data);
  weights.scales = start_of(matrix.scales);
  weights.zeros = matrix.zeros.empty() ? nullptr : start_of(matrix.zeros);
  weights.rows = shape.rows;
  weights.cols = shape.cols;
  weights.block_values = shape.block_values;
  weights.block_bytes = shape.block_bytes;
  weights.scale_type = shape.scale_type;
  weights.global_scale = shape.global_scale;
  return weights;
}

// The matrix as halves [outputs, stride], times kFactor, by way of the arranged order.
template <typename Format>
std::vector<std::uint16_t> arranged_and_decoded(const pack::Matrix& matrix,
                                                const WeightShape& shape, bool grouped,
                                                int stride) {
  const int stage_inputs = Format::kUnits * kUnit;
  const int stages = static_cast<int>(matrix.cols + stage_inputs - 1) / stage_inputs;
  const int tiles = static_cast<int>(matrix.rows + kTileOutputs - 1) / kTileOutputs;
  const FormatArguments format =
      format_arguments(Format::kUnits, shape.scale_type, grouped ? shape.block_values : 0);
  const long long warps = static_cast<long long>(tiles) * stages * kWarps;
  // Aligned as device memory is.
  std::vector<uint4> arranged(warps * tile_bytes_of<Format>(format) / sizeof(uint4));
  auto* const bytes = reinterpret_cast<std::uint8_t*>(arranged.data());
  std::memset(bytes, 0xcd, arranged.size() * sizeof(uint4));
  const long long parts = Format::kUnits * kUnit * kTileRows * Format::Bits::kBits / 32 + kTileRows;
  blockDim = {1};
  threadIdx = {};
  for (long long i = 0; i < warps * parts + 1; ++i) {  // and one thread too many
    blockIdx = {static_cast<unsigned>(i)};
    arrange_kernel<Format>(weights_of(matrix, shape), format, bytes, stages, warps);
  }
  std::vector<std::uint16_t> halves(matrix.rows * stride, 0x7e00);
  const HalfRows to = {&kFactor, reinterpret_cast<__half*>(halves.data()), 0,
                       static_cast<int>(matrix.rows), stride};
  for (int tile = 0; tile < tiles; ++tile) {
    for (int stage = 0; stage < stages; ++stage) {
      blockIdx = {static_cast<unsigned>(stage), static_cast<unsigned>(tile)};
      for (threadIdx = {}; threadIdx.x < kWarps * 32; ++threadIdx.x) {
        decode_kernel<Format>(bytes, format, stages, to);
      }
    }
  }
  return halves;
}

template <typename Format>
void expect_its_values(const pack::Format& format, bool grouped, std::uint64_t outputs,
                       std::uint64_t inputs) {
  SCOPED_TRACE(std::string(format.name) + ", " + std::to_string(inputs) + " inputs");
  const auto packed = measure::random_matrix(format, outputs, inputs);
  ASSERT_TRUE(packed) << packed.error().message;
  const pack::Matrix& matrix = packed->view;
  const WeightShape shape = *weight_shape(matrix);
  const int stride = static_cast<int>(inputs + 7) / 8 * 8;
  const auto halves = arranged_and_decoded<Format>(matrix, shape, grouped, stride);
  std::vector<float> row(inputs);
  for (std::uint64_t output = 0; output < outputs; ++output) {
    pack::decode_rows(matrix, output, 1, row.data());
    float largest = 0;
    for (const float value : row) largest = std::max(largest, std::fabs(value));
    for (std::uint64_t k = 0; k < inputs; ++k) {
      // Half an ulp of a half, and what a float of the scale times the code rounds.
      ASSERT_NEAR(espalier::half_to_float(halves[output * stride + k]) / kFactor, row[k],
                  std::fabs(row[k]) * 4.9e-4f + largest * 1e-6f)
          << "output " << output << ", input " << k;
    }
    for (int k = static_cast<int>(inputs); k < stride; ++k) {
      ASSERT_EQ(halves[output * stride + k] & 0x7fff, 0) << "beyond the last input";
    }
  }
}

// All formats of these kernels. Sizes: outputs that end within a tile, inputs within a stage.
template <typename Format>
int expect_values_of(std::string_view kernel, std::uint32_t bits) {
  int formats = 0;
  for (const pack::Format& format : pack::formats()) {
    if (!measure::can_make_weights(format)) continue;
    const std::uint64_t inputs = std::max<std::uint64_t>(3 * format.block_values, 96);
    const auto packed = measure::random_matrix(format, 8, inputs);
    if (!packed) continue;
    const auto shape = weight_shape(packed->view);
    if (!shape || shape->kernel != kernel) continue;
    if (bits != 0 && format.family == pack::Family::kMlx &&
        format.block_bytes * 8 / format.block_values != bits) {
      continue;
    }
    ++formats;
    expect_its_values<Format>(format, bits != 0, 136, 512);
    // A group of the whole row has to fill stages.
    if (shape->block_values <= 256 && 256 % shape->block_values == 0) {
      expect_its_values<Format>(format, bits != 0, 16, inputs);
    }
  }
  return formats;
}

#define ESPALIER_TEST_FORMAT(name, bits, ...) \
  TEST(CodesFormats, name##_##bits) { EXPECT_GE((expect_values_of<__VA_ARGS__>(#name, bits)), 1); }
ESPALIER_CODES_FORMATS(ESPALIER_TEST_FORMAT)

}  // namespace
}  // namespace espalier::gpu::cuda::codes
