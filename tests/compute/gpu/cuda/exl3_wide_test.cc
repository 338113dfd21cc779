// EXL3 at many rows on a Hopper's tensor cores, against the definition of the product.
#include "compute/gpu/cuda/exl3_wide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "compute/gpu/cuda/packed_products.h"

namespace espalier::gpu::cuda {
namespace {

using testing::HasSubstr;

class CudaExl3Wide : public PackedProducts {
 protected:
  pack::Matrix layer(std::uint64_t outputs, std::uint64_t inputs, std::string_view rate = "4") {
    return matrix(*pack::find_format("EXL3-MUL1-" + std::string(rate)), outputs, inputs);
  }
  DeviceMatrix upload(const pack::Matrix& matrix) {
    DeviceMatrix device = PackedProducts::upload(matrix);
    EXPECT_TRUE(device.arrange(*stream_));
    return device;
  }
  std::vector<float> product(const DeviceMatrix& weights, std::span<const float> x,
                             std::span<const float> bias = {}) {
    return PackedProducts::product("exl3-wide", weights, x, bias);
  }

  // Up to `checked` rows, from the first and from the last, against the definition.
  void expect_near_definition(std::uint64_t outputs, std::uint64_t inputs, std::size_t checked,
                              std::string_view rate = "4") {
    const pack::Matrix made = layer(outputs, inputs, rate);
    const DeviceMatrix weights = upload(made);
    for (const std::size_t rows : {17, 32, 33, 64, 65, 129, 300}) {
      SCOPED_TRACE(testing::Message() << rate << " bits, " << rows << " rows");
      const auto x = normals(rows * inputs);
      const auto found = product(weights, x);
      const std::size_t count = std::min(checked, rows);
      for (const std::size_t first : {std::size_t{0}, rows - count}) {
        EXPECT_LT(difference(std::span(found).subspan(first * outputs, count * outputs),
                             oracle(made, std::span(x).subspan(first * inputs, count * inputs))),
                  1e-3);
      }
      EXPECT_EQ(product(weights, x), found);
    }
  }
};

TEST_F(CudaExl3Wide, IsWithinItsBoundWithPaddedSizes) { expect_near_definition(100, 90, 300); }

TEST_F(CudaExl3Wide, IsWithinItsBoundWithTilesInParts) { expect_near_definition(640, 1152, 16); }

TEST_F(CudaExl3Wide, IsWithinItsBoundWithManyTiles) { expect_near_definition(4224, 2200, 1); }

TEST_F(CudaExl3Wide, IsWithinItsBoundAtEveryRate) {
  for (const char* rate : {"1", "1.5", "2", "2.5", "3", "3.5", "5", "6", "7", "8"}) {
    expect_near_definition(200, 1100, 8, rate);
  }
}

TEST_F(CudaExl3Wide, SharesAWorkspaceWithFewRows) {
  const DeviceMatrix weights = upload(layer(640, 1152));
  const auto x = normals(std::size_t{33} * 1152);
  const auto few = std::span(x).first(3 * 1152);
  const auto wide = product(weights, x);
  const auto narrow = PackedProducts::product("exl3-mul1", weights, few);
  const DeviceMemory x_device = *DeviceMemory::allocate(x.size() * sizeof(float), "x");
  ASSERT_TRUE(copy_to_device(*stream_, std::as_bytes(std::span(x)), x_device.at<void>()));
  const DeviceMemory y_device = *DeviceMemory::allocate(wide.size() * sizeof(float), "y");
  const Exl3Layer layer = exl3_layer(weights);
  const Exl3Part part = {.layer = layer, .y = y_device.at<float>()};
  const DeviceMemory workspace = *DeviceMemory::allocate(
      std::max(exl3_wide_workspace(layer, 33), exl3_mul1_workspace({&part, 1}, 3)), "a workspace");
  ASSERT_TRUE(fill(*stream_, workspace.at<void>(), workspace.size(), 0));
  const auto expect = [&](const std::vector<float>& expected) {
    std::vector<float> y(expected.size());
    ASSERT_TRUE(copy_to_host(*stream_, y_device.at<void>(), std::as_writable_bytes(std::span(y))));
    EXPECT_EQ(y, expected);
  };
  for (int time = 0; time < 2; ++time) {
    ASSERT_TRUE(exl3_wide(layer, x_device.at<float>(), 33, y_device.at<float>(),
                          workspace.at<void>(), stream_->get()));
    expect(wide);
    ASSERT_TRUE(
        exl3_mul1({&part, 1}, x_device.at<float>(), 3, workspace.at<void>(), stream_->get()));
    expect(narrow);
  }
}

TEST_F(CudaExl3Wide, AddsTheBias) {
  const DeviceMatrix weights = upload(layer(100, 90));
  const auto x = normals(std::size_t{33} * 90);
  const auto bias = normals(100);
  const auto without = product(weights, x);
  const auto with = product(weights, x, bias);
  for (std::size_t i = 0; i < with.size(); ++i) {
    ASSERT_NEAR(with[i], without[i] + bias[i % 100], 1e-5 * (1 + std::abs(without[i]))) << i;
  }
}

TEST_F(CudaExl3Wide, KeepsRowsApartAndSaysWhatIsNotFinite) {
  constexpr std::size_t kInputs = 1300;
  constexpr std::size_t kOutputs = 256;
  const DeviceMatrix weights = upload(layer(kOutputs, kInputs));
  for (const std::size_t rows : {17, 129, 300}) {
    SCOPED_TRACE(rows);
    auto x = normals(rows * kInputs);
    const auto before = product(weights, x);
    std::fill_n(x.begin(), kInputs, 0.0f);
    x[kInputs + 7] = std::numeric_limits<float>::infinity();
    x[2 * kInputs + 9] = std::numeric_limits<float>::quiet_NaN();
    const auto after = product(weights, x);
    for (std::size_t i = 0; i < kOutputs; ++i) {
      ASSERT_EQ(after[i], 0) << i;
      ASSERT_TRUE(std::isnan(after[kOutputs + i])) << i;
      ASSERT_TRUE(std::isnan(after[2 * kOutputs + i])) << i;
    }
    EXPECT_TRUE(
        std::equal(after.begin() + 3 * kOutputs, after.end(), before.begin() + 3 * kOutputs));
  }
}

TEST_F(CudaExl3Wide, RefusesWhatItDoesNotTake) {
  const DeviceMatrix weights = upload(layer(256, 128));
  const auto error = [&](const Exl3Layer& layer, std::uint32_t rows) {
    const Status status = exl3_wide(layer, nullptr, rows, nullptr, nullptr, stream_->get());
    return status ? "no error" : status.error().message;
  };
  EXPECT_THAT(error(exl3_layer(weights), 0), HasSubstr("found 0 rows, expected 1 to 65536"));
  EXPECT_THAT(error(exl3_layer(weights), 65537), HasSubstr("found 65537 rows"));
  Exl3Layer layer = exl3_layer(weights);
  layer.double_bits = 9;
  EXPECT_THAT(error(layer, 17), HasSubstr("found 4.5 bits"));
  layer = exl3_layer(weights);
  layer.padded_inputs = 100;
  EXPECT_THAT(error(layer, 17), HasSubstr("found 100 inputs"));
  layer = exl3_layer(weights);
  layer.padded_outputs = 0;
  EXPECT_THAT(error(layer, 17), HasSubstr("0 outputs"));
}

}  // namespace
}  // namespace espalier::gpu::cuda
