// Every packed format on a GPU, emulated or (cuda/kernels_test.cc) real: decoding gives the
// format's bits, products are within their bound of the sum in double, at sizes that fill no warp.
#include "compute/gpu/kernels/project.h"

#include <gtest/gtest.h>

#include <cmath>
#include <list>
#include <random>

#include "base/half.h"
#include "compute/gpu/kernels/entries.h"
#include "compute/gpu/launch.h"
#include "compute/reference/reference.h"
#include "pack/exl3.h"
#include "pack/grouped_int4.h"
#include "pack/transposed.h"

namespace espalier::gpu::ESPALIER_DIALECT {
namespace {

struct Kernels {
  std::string_view name;
  Status (*project)(const Grid&, const ProjectArguments&);
  Status (*embed)(const Grid&, const EmbedArguments&);
};
#define ESPALIER_KERNELS(name, ...) {#name, launch::project_##name, launch::embed_##name},
constexpr Kernels kKernels[] = {
    ESPALIER_FORMATS(ESPALIER_KERNELS){"exl3_emb", nullptr, launch::embed_exl3_emb}};

const Kernels& kernels_of(const WeightShape& shape) {
  for (const Kernels& kernels : kKernels) {
    if (kernels.name == shape.kernel) return kernels;
  }
  throw std::runtime_error("no kernel " + std::string(shape.kernel));
}

// A matrix in device memory.
class DeviceMatrix {
 public:
  explicit DeviceMatrix(const pack::Matrix& m)
      : shape_(*weight_shape(m)),
        data_("data", m.data),
        scales_("scales", m.scales),
        zeros_("zeros", m.zeros),
        head_offsets_("head_offsets", m.head_offsets),
        input_group_("input_group", m.input_group),
        grid_("grid", shape_.grid),
        has_zeros_(!m.zeros.empty()),
        has_input_group_(!m.input_group.empty()) {}

  [[nodiscard]] const WeightShape& shape() const { return shape_; }
  [[nodiscard]] Weights weights() {
    return {.data = data_.at<const std::uint8_t>(),
            .scales = scales_.at<const std::uint8_t>(),
            .zeros = has_zeros_ ? zeros_.at<const std::uint8_t>() : nullptr,
            .head_offsets = head_offsets_.at<const std::uint8_t>(),
            .input_group = has_input_group_ ? input_group_.at<const std::uint8_t>() : nullptr,
            .grid = grid_.at<const std::uint16_t>(),
            .rows = shape_.rows,
            .cols = shape_.cols,
            .block_values = shape_.block_values,
            .block_bytes = shape_.block_bytes,
            .scale_type = shape_.scale_type,
            .heads = shape_.heads,
            .global_scale = shape_.global_scale};
  }

 private:
  WeightShape shape_;
  Buffer data_, scales_, zeros_, head_offsets_, input_group_, grid_;
  bool has_zeros_, has_input_group_;
};

// Random matrices of every format.
class GpuProject : public testing::Test {
 protected:
  std::vector<float> normals(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }
  std::vector<std::byte> bytes(std::size_t count) {
    std::vector<std::byte> values(count);
    for (std::byte& value : values) value = static_cast<std::byte>(random_());
    return values;
  }
  Bytes halves(std::size_t count) {
    std::vector<std::byte>& values = parts_.emplace_back(count * 2);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t half = espalier::float_to_half(normals(1)[0]);
      std::memcpy(values.data() + 2 * i, &half, 2);
    }
    return values;
  }
  Bytes keep(std::vector<std::byte> values) { return parts_.emplace_back(std::move(values)); }

  static bool is_table(const pack::Format& format) {
    return format.name.starts_with("EXL3-EMB") || format.name.starts_with("EXL3-NGRAM");
  }

  pack::Matrix matrix(const pack::Format& format, std::uint64_t rows, std::uint64_t cols) {
    if (format.encode != nullptr) {
      auto packed = format.encode(format, normals(rows * cols), rows, cols);
      encoded_.push_back(std::move(*packed));
      return encoded_.back().view;
    }
    if (format.family == pack::Family::kTransposed) {
      const std::string_view plain = format.name.substr(0, format.name.size() - 2);
      return *pack::transposed(matrix(*pack::find_format(plain), cols, rows));
    }
    if (format.family == pack::Family::kExl3) {
      const std::uint64_t stored = pack::exl3_padded(rows) * pack::exl3_padded(cols) / 256;
      return *pack::exl3_matrix(format, rows, cols, keep(bytes(stored * format.block_bytes)),
                                halves(pack::exl3_padded(cols)), halves(pack::exl3_padded(rows)));
    }
    const bool whole_row = format.block_values == 8;
    const std::uint64_t groups = whole_row ? 1 : cols / format.block_values;
    const bool symmetric = format.name.starts_with("CT-SYM");
    return *pack::int4_matrix(format, rows, cols, keep(bytes(rows * cols / 2)),
                              halves(rows * groups), pack::ScaleType::kF16,
                              keep(bytes(symmetric ? 0 : (rows + 7) / 8 * groups * 4)), {});
  }

  // Rows 0, 1, … of `m` by its embed kernel, bit for bit those of the format's definition.
  void expect_exact(const pack::Matrix& m) {
    DeviceMatrix device(m);
    std::vector<std::int32_t> tokens(m.rows);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
    Buffer tokens_buffer("tokens", tokens);
    Buffer y("y", m.rows * m.cols * sizeof(float));
    const Status status =
        kernels_of(device.shape())
            .embed(*embed_grid(m.rows, device.shape()),
                   {device.weights(), tokens_buffer.at<const std::int32_t>(), y.at<float>()});
    ASSERT_TRUE(status) << status.error().message;
    ASSERT_EQ(y.first_unwritten(), std::nullopt);
    std::vector<float> expected(m.rows * m.cols);
    pack::decode_rows(m, 0, m.rows, expected.data());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const float found = y.values<float>()[i];
      const bool same = found == expected[i] || (std::isnan(found) && std::isnan(expected[i]));
      ASSERT_TRUE(same) << m.format->name << " row " << i / m.cols << " value " << i % m.cols
                        << ": " << found << ", expected " << expected[i];
    }
  }

  std::vector<float> product(DeviceMatrix& device, const std::vector<float>& x, std::size_t rows) {
    Buffer x_buffer("x", x);
    Buffer y("y", rows * device.shape().rows * sizeof(float));
    const Status status = kernels_of(device.shape())
                              .project(*project_grid(rows, device.shape()),
                                       {.weights = device.weights(),
                                        .x = x_buffer.at<const float>(),
                                        .y = y.at<float>(),
                                        .rows = static_cast<std::uint32_t>(rows)});
    EXPECT_TRUE(status) << status.error().message;
    EXPECT_EQ(y.first_unwritten(), std::nullopt);
    const auto values = y.values<float>();
    return {values.begin(), values.end()};
  }

  std::mt19937 random_{7};
  std::vector<pack::PackedMatrix> encoded_;
  std::list<std::vector<std::byte>> parts_;
};

TEST_F(GpuProject, DecodesEveryFormatExactly) {
  for (const pack::Format& format : pack::formats()) {
    if (is_table(format)) continue;
    const bool exl3 = format.family == pack::Family::kExl3;
    const std::uint64_t cols = exl3 ? 128 : format.block_values < 16 ? 72 : 3 * format.block_values;
    const pack::Matrix m = matrix(format, exl3 ? 128 : 8, cols);
    expect_exact(exl3 ? pack::exl3_inner(m) : m);
  }
}

TEST_F(GpuProject, DecodesAnyBytesOfBlockFormatsExactly) {
  for (const pack::Format& format : pack::formats()) {
    if (format.family != pack::Family::kGguf) continue;
    const std::uint64_t cols = std::uint64_t{4} * format.block_values;
    expect_exact(*pack::block_matrix(format, 3, cols, keep(bytes(12 * format.block_bytes))));
  }
}

TEST_F(GpuProject, DecodesTablesOfExl3Exactly) {
  const std::int64_t begins[] = {0, 3, 3};
  const auto offsets = std::as_bytes(std::span(begins));
  for (const pack::Format& format : pack::formats()) {
    if (!is_table(format)) continue;
    if (format.name.starts_with("EXL3-NGRAM")) {
      const auto rings = keep(bytes(5 * format.block_bytes));
      expect_exact(*pack::exl3_ngram_matrix(format, 5, rings, halves(3 * 160), offsets));
      expect_exact(*pack::exl3_ngram_matrix(format, 5, rings, {}, {}));
    } else {
      expect_exact(*pack::exl3_embedding_matrix(format, 3, 300, keep(bytes(6 * format.block_bytes)),
                                                halves(512)));
    }
  }
}

// A kernel that finds nothing but NaN chooses kNowhere, and no host looks at it in between.
TEST_F(GpuProject, EmbedsTokensThatATableHasNotAsNaN) {
  const pack::Format& rings = *pack::find_format("EXL3-EMB-4");
  for (const pack::Matrix& m :
       {matrix(*pack::find_format("Q4_0"), 3, 64), matrix(*pack::find_format("F16-T"), 3, 64),
        *pack::exl3_embedding_matrix(rings, 3, 64, keep(bytes(3 * rings.block_bytes)),
                                     halves(256))}) {
    DeviceMatrix device(m);
    const std::vector<std::int32_t> tokens = {2, 3, -1, INT32_MIN, INT32_MAX};
    Buffer tokens_buffer("tokens", tokens);
    Buffer y("y", tokens.size() * 64 * sizeof(float));
    ASSERT_TRUE(
        kernels_of(device.shape())
            .embed(*embed_grid(tokens.size(), device.shape()),
                   {device.weights(), tokens_buffer.at<const std::int32_t>(), y.at<float>()}));
    for (std::size_t i = 0; i < tokens.size() * 64; ++i) {
      ASSERT_EQ(std::isnan(y.values<float>()[i]), i >= 64) << m.format->name << " value " << i;
    }
  }
}

TEST_F(GpuProject, FollowsTheOrderOfActivationsAndTheTypeOfScales) {
  const pack::Format& format = *pack::find_format("GPTQ-V1-4-g32");
  std::vector<std::byte> group(96 * 4);
  for (std::uint32_t c = 0; c < 96; ++c) {
    const std::uint32_t g = c * 7 % 3;
    std::memcpy(group.data() + 4 * c, &g, 4);
  }
  std::vector<std::byte> scales(16 * 3 * 2);
  for (std::size_t i = 0; i < 48; ++i) {
    const std::uint16_t bits = float_to_bfloat(normals(1)[0]);
    std::memcpy(scales.data() + 2 * i, &bits, 2);
  }
  expect_exact(*pack::int4_matrix(format, 16, 96, keep(bytes(16 * 96 / 2)), keep(scales),
                                  pack::ScaleType::kBF16, keep(bytes(2 * 3 * 4)), keep(group)));
}

// A sum of n products in float, one after the other in each of 32 lanes, then five pairs, is off by
// at most (n/32 + 6) · 2⁻²⁴ of Σ |w·x|.
TEST_F(GpuProject, IsWithinItsBoundForEveryFormat) {
  for (const pack::Format& format : pack::formats()) {
    if (is_table(format)) continue;
    const bool exl3 = format.family == pack::Family::kExl3;
    for (const std::uint64_t blocks : {1, 3}) {
      if (exl3 && blocks > 1) continue;  // 128 outputs at the least: enough
      const std::uint64_t values = format.block_values;
      const std::uint64_t cols = (exl3 ? 128 : values == 1 ? 37 : values) * blocks;
      const bool words =
          format.family == pack::Family::kGptq || format.family == pack::Family::kAwq;
      pack::Matrix m = matrix(format, exl3 ? 128 : words ? 8 : 5, cols);
      if (exl3) m = pack::exl3_inner(m);
      std::vector<float> weights(m.rows * m.cols);
      pack::decode_rows(m, 0, m.rows, weights.data());
      DeviceMatrix device(m);
      const std::size_t rows = exl3 ? 1 : blocks == 1 ? 2 : 8;
      const auto x = normals(rows * m.cols);
      const auto y = product(device, x, rows);
      for (std::size_t i = 0; i < y.size(); ++i) {
        double sum = 0;
        double magnitude = 0;
        for (std::size_t c = 0; c < m.cols; ++c) {
          const double term =
              static_cast<double>(x[i / m.rows * m.cols + c]) * weights[i % m.rows * m.cols + c];
          sum += term;
          magnitude += std::abs(term);
        }
        const double bound = (static_cast<double>(m.cols) / 32 + 6) * 0x1p-24 * magnitude;
        ASSERT_NEAR(y[i], sum, bound) << format.name << " output " << i;
      }
      // A row has the same bits alone.
      const std::vector<float> last(x.end() - static_cast<std::ptrdiff_t>(m.cols), x.end());
      const auto alone = product(device, last, 1);
      EXPECT_TRUE(
          std::equal(alone.begin(), alone.end(), y.end() - static_cast<std::ptrdiff_t>(m.rows)))
          << format.name;
    }
  }
}

TEST_F(GpuProject, AddsTheBias) {
  const pack::Matrix m = matrix(*pack::find_format("Q8_0"), 5, 32);
  DeviceMatrix device(m);
  Buffer x("x", std::vector<float>(64));
  Buffer bias("bias", std::vector<float>{1, 2, 3, 4, 5});
  Buffer y("y", 10 * sizeof(float));
  ASSERT_TRUE(launch::project_q8_0(
      *project_grid(2, device.shape()),
      {device.weights(), x.at<const float>(), bias.at<const float>(), y.at<float>(), 2}));
  const auto values = y.values<float>();
  EXPECT_EQ(std::vector<float>(values.begin(), values.end()),
            (std::vector<float>{1, 2, 3, 4, 5, 1, 2, 3, 4, 5}));
}

// Rotations are exact; the whole is compared with the definition of the product.
TEST_F(GpuProject, ComputesExl3LayersWithPadding) {
  for (const auto& [rows, cols] : {std::pair{200, 130}, std::pair{128, 256}, std::pair{24, 72}}) {
    const auto outputs = static_cast<std::uint64_t>(rows);
    const auto inputs = static_cast<std::uint64_t>(cols);
    const pack::Matrix m = matrix(*pack::find_format("EXL3-MUL1-2.5"), outputs, inputs);
    const pack::Matrix inner = pack::exl3_inner(m);
    const auto x = normals(2 * inputs);
    DeviceMatrix device(m);
    Buffer x_buffer("x", x);
    Buffer suh("suh", m.input_scale);
    Buffer svh("svh", m.output_scale);
    Buffer rotated("rotated", 2 * inner.cols * sizeof(float));
    Buffer products("products", 2 * inner.rows * sizeof(float));
    const auto bias = normals(outputs);
    Buffer bias_buffer("bias", bias);
    Buffer y("y", 2 * outputs * sizeof(float));
    ASSERT_TRUE(launch::exl3_prepare(
        *exl3_rotate_grid(2, inputs),
        {x_buffer.at<const float>(), suh.at<const std::uint8_t>(), rotated.at<float>(),
         static_cast<std::uint32_t>(inputs), static_cast<std::uint32_t>(inner.cols)}));
    std::vector<float> expected(inner.cols);
    for (std::size_t r = 0; r < 2; ++r) {
      pack::exl3_rotate_input(m, x.data() + r * inputs, expected.data());
      const auto found = rotated.values<float>().subspan(r * inner.cols, inner.cols);
      EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin()));
    }
    ASSERT_TRUE(
        launch::project_exl3_mul1(*project_grid(2, device.shape()), {.weights = device.weights(),
                                                                     .x = rotated.at<const float>(),
                                                                     .y = products.at<float>(),
                                                                     .rows = 2}));
    ASSERT_TRUE(launch::exl3_finish(
        *exl3_rotate_grid(2, outputs),
        {products.at<const float>(), svh.at<const std::uint8_t>(), y.at<float>(),
         static_cast<std::uint32_t>(outputs), static_cast<std::uint32_t>(inner.rows),
         bias_buffer.at<const float>()}));
    ASSERT_EQ(y.first_unwritten(), std::nullopt);
    std::vector<float> whole(2 * outputs);
    reference::project(2, x.data(), m, whole.data());
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i] += bias[i % outputs];
    double error = 0;
    double size = 0;
    for (std::size_t i = 0; i < whole.size(); ++i) {
      error += std::pow(static_cast<double>(y.values<float>()[i]) - whole[i], 2);
      size += std::pow(static_cast<double>(whole[i]), 2);
    }
    EXPECT_LT(std::sqrt(error / size), 1e-6);
  }
}

}  // namespace
}  // namespace espalier::gpu::ESPALIER_DIALECT
