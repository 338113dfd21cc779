// Products with many rows, decoded to halves, against the definition of the product: every format,
// sizes with tails, what halves cannot hold, and what cannot be.
#include "compute/gpu/cuda/decoded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "compute/gpu/cuda/packed_products.h"

namespace espalier::gpu::cuda {
namespace {

using testing::HasSubstr;

constexpr std::uint32_t kRows = 37;  // fills no tile

class CudaDecoded : public PackedProducts {
 protected:
  std::vector<float> product(const DeviceMatrix& weights, std::span<const float> x,
                             std::span<const float> bias = {}) {
    return PackedProducts::product("decoded", weights, x, bias);
  }
};

TEST_F(CudaDecoded, IsWithinItsBoundForEveryFormat) {
  for (const pack::Format& format : pack::formats()) {
    if (format.name.starts_with("EXL3-EMB") || format.name.starts_with("EXL3-NGRAM")) continue;
    const bool exl3 = format.family == pack::Family::kExl3;
    // EXL3: both sizes end within a run; others: inputs that fill no block of threads.
    const std::uint64_t outputs = exl3 ? 200 : 136;
    const std::uint64_t inputs = exl3                       ? 300
                                 : format.block_values < 16 ? 72
                                                            : 3 * format.block_values;
    SCOPED_TRACE(format.name);
    const pack::Matrix made = matrix(format, outputs, inputs);
    const DeviceMatrix weights = upload(made);
    const auto kernel = choose_project_kernel(weights, kRows);
    ASSERT_TRUE(kernel) << kernel.error().message;
    const bool is_mul1 = format.name.starts_with("EXL3-MUL1-");
    EXPECT_EQ((*kernel)->name, is_mul1 ? "exl3-wide" : "decoded") << format.name;
    const auto x = normals(kRows * inputs);
    const auto bias = normals(outputs);
    auto expected = oracle(made, x);
    const auto plain = product(weights, x);
    EXPECT_LT(difference(plain, expected), 5e-4) << format.name;
    EXPECT_EQ(plain, product(weights, x)) << format.name << ": other bits the second time";
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % outputs];
    EXPECT_LT(difference(product(weights, x, bias), expected), 5e-4) << format.name;
  }
}

TEST_F(CudaDecoded, TakesSizesOfAllKinds) {
  struct Size {
    std::uint64_t outputs, inputs;
    std::uint32_t rows;
  };
  const pack::Format& format = *pack::find_format("F32");
  for (const Size& size : {Size{1, 1, 17}, Size{3, 5, 1}, Size{7, 2051, 33}, Size{257, 4100, 129},
                           Size{1000, 65, 300}, Size{8, 8, 8}}) {
    const pack::Matrix made = matrix(format, size.outputs, size.inputs);
    const auto x = normals(size.rows * size.inputs);
    EXPECT_LT(difference(product(upload(made), x), oracle(made, x)), 5e-4)
        << size.rows << " rows of " << size.inputs << " to " << size.outputs;
  }
}

// A vocabulary: several parts, the last of which is not full.
TEST_F(CudaDecoded, DecodesLargeMatricesInParts) {
  constexpr std::uint64_t kInputs = 2048;
  constexpr std::uint64_t kOutputs = 300'001;
  const pack::Matrix part = matrix(*pack::find_format("Q8_0"), 1, kInputs);
  // All outputs have the same weights, so that the oracle need compute only one.
  std::vector<std::byte> all;
  for (std::uint64_t i = 0; i < kOutputs; ++i) {
    all.insert(all.end(), part.data.begin(), part.data.end());
  }
  const pack::Matrix made =
      *pack::block_matrix(*part.format, kOutputs, kInputs, keep(std::move(all)));
  const DeviceMatrix weights = upload(made);
  // Beside the library's own there is room for half of the matrix.
  EXPECT_LT(decoded_workspace(weights, 17), (std::size_t{600} << 20));
  const auto x = normals(17 * kInputs);
  const auto expected = oracle(part, x);
  const auto found = product(weights, x);
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i / kOutputs], 5e-3) << i;
  }
}

// Rows from subnormal to near the largest float, beside each other; weights too.
TEST_F(CudaDecoded, KeepsWhatHalvesCannotHold) {
  constexpr std::uint64_t kInputs = 520;
  constexpr std::uint64_t kOutputs = 96;
  for (const char* name : {"F32", "BF16"}) {
    for (const float weight_size : {1e-30f, 1e-9f, 1e6f, 1e20f}) {
      const pack::Matrix made = encoded(
          *pack::find_format(name), normals(kOutputs * kInputs, weight_size), kOutputs, kInputs);
      const DeviceMatrix weights = upload(made);
      std::vector<float> x;
      for (const float size : {1.0f, 1e-12f, 1e9f, 0.0f, 1e-3f, 1e5f}) {
        const auto row = normals(kInputs, size);
        x.insert(x.end(), row.begin(), row.end());
      }
      const auto expected = oracle(made, x);
      const auto found = product(weights, x);
      for (std::size_t row = 0; row < x.size() / kInputs; ++row) {
        const auto is = std::span(found).subspan(row * kOutputs, kOutputs);
        const auto should = std::span(expected).subspan(row * kOutputs, kOutputs);
        if (row == 3) {
          EXPECT_THAT(is, testing::Each(0.0f));
        } else {
          EXPECT_LT(difference(is, should), 5e-4) << name << " " << weight_size << " row " << row;
        }
      }
    }
  }
}

TEST_F(CudaDecoded, AddsTheBiasToRowsWithAFactor) {
  const pack::Matrix made = matrix(*pack::find_format("Q4_0"), 64, 256);
  const auto x = normals(20 * 256, 1e6f);
  const auto bias = normals(64, 1e5f);
  auto expected = oracle(made, x);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % 64];
  EXPECT_LT(difference(product(upload(made), x, bias), expected), 5e-4);
}

TEST_F(CudaDecoded, KeepsRowsApartAndSaysWhatIsNotFinite) {
  const pack::Matrix made = matrix(*pack::find_format("Q6_K"), 64, 512);
  const DeviceMatrix weights = upload(made);
  auto x = normals(20 * 512);
  const auto before = product(weights, x);
  x[3 * 512 + 5] = std::numeric_limits<float>::quiet_NaN();
  x[4 * 512 + 6] = std::numeric_limits<float>::infinity();
  const auto after = product(weights, x);
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (i / 64 == 3 || i / 64 == 4) {
      EXPECT_FALSE(std::isfinite(after[i])) << i;
    } else {
      EXPECT_EQ(after[i], before[i]) << i;
    }
  }
}

// A weight that is no number spoils its output, not the scale of the others.
TEST_F(CudaDecoded, WeightsThatAreNotFiniteStayInTheirOutput) {
  auto values = normals(32 * 64);
  values[7 * 64 + 3] = std::numeric_limits<float>::infinity();
  values[9 * 64 + 1] = std::numeric_limits<float>::quiet_NaN();
  const auto as_bytes = std::as_bytes(std::span(values));
  const pack::Matrix made = *pack::block_matrix(*pack::find_format("F32"), 32, 64,
                                                keep({as_bytes.begin(), as_bytes.end()}));
  const auto x = normals(20 * 64);
  const auto found = product(upload(made), x);
  const auto expected = oracle(made, x);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i % 32 == 7 || i % 32 == 9) {
      EXPECT_FALSE(std::isfinite(found[i])) << i;
    } else {
      EXPECT_NEAR(found[i], expected[i], 2e-2) << i;
    }
  }
}

TEST_F(CudaDecoded, ReadsExl3InTheOrderOfItsFastKernel) {
  for (const char* rate : {"1", "1.5", "2", "2.5", "3", "3.5", "4", "5", "6", "7", "8"}) {
    const pack::Matrix made =
        matrix(*pack::find_format("EXL3-MUL1-" + std::string(rate)), 384, 640);
    DeviceMatrix weights = upload(made);
    const auto x = normals(kRows * 640);
    const auto before = product(weights, x);
    ASSERT_TRUE(weights.arrange(*stream_));
    ASSERT_TRUE(weights.arranged());
    EXPECT_EQ(product(weights, x), before) << rate;
  }
}

TEST_F(CudaDecoded, RefusesWhatItDoesNotTake) {
  const pack::Format& table = *pack::find_format("EXL3-EMB-4");
  const pack::Matrix made = *pack::exl3_embedding_matrix(
      table, 4, 256, random_bytes(std::size_t{4} * table.block_bytes), halves(256));
  const DeviceMatrix embedding = upload(made);
  EXPECT_FALSE(takes_decoded(embedding));
  const auto none = choose_project_kernel(embedding, 100, "decoded");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, HasSubstr("found no decoded kernel for 100 rows"));
  const DeviceMatrix weights = upload(matrix(*pack::find_format("Q4_0"), 64, 256));
  EXPECT_EQ((*choose_project_kernel(weights, kDecodedRows))->name, "decoded");
  EXPECT_FALSE(choose_project_kernel(weights, kDecodedRows - 1, "decoded"));
  EXPECT_FALSE(choose_project_kernel(weights, 65537));
  EXPECT_FALSE(choose_project_kernel(weights, 0));
}

// The plain kernel takes many rows too, a few at a time: where there is no cuBLASLt.
TEST_F(CudaDecoded, EqualsThePortableKernelOnManyRows) {
  const pack::Matrix made = matrix(*pack::find_format("EXL3-MCG-3"), 200, 300);
  const DeviceMatrix weights = upload(made);
  const auto kernel = choose_project_kernel(weights, 21, "portable");
  ASSERT_TRUE(kernel) << kernel.error().message;
  const auto x = normals(21 * 300);
  const DeviceMemory x_device = *DeviceMemory::allocate(x.size() * 4, "x");
  ASSERT_TRUE(copy_to_device(*stream_, std::as_bytes(std::span(x)), x_device.at<void>()));
  std::vector<float> y(21 * 200);
  const DeviceMemory y_device = *DeviceMemory::allocate(y.size() * 4, "y");
  const Part part = {.weights = &weights, .y = y_device.at<float>()};
  const DeviceMemory workspace =
      *DeviceMemory::allocate(workspace_bytes(**kernel, {&part, 1}, 21), "a workspace");
  ASSERT_TRUE(project(*stream_, **kernel,
                      {.parts = {&part, 1},
                       .x = x_device.at<float>(),
                       .rows = 21,
                       .workspace = workspace.at<void>()}));
  ASSERT_TRUE(copy_to_host(*stream_, y_device.at<void>(), std::as_writable_bytes(std::span(y))));
  EXPECT_LT(difference(y, oracle(made, x)), 1e-5);
  EXPECT_LT(difference(product(weights, x), y), 5e-4);
}

}  // namespace
}  // namespace espalier::gpu::cuda
