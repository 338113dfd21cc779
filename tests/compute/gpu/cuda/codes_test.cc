// Formats of integer codes on tensor cores, against the definition of the product.
#include "compute/gpu/cuda/codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "compute/gpu/cuda/packed_products.h"

namespace espalier::gpu::cuda {
namespace {

using testing::HasSubstr;

class CudaCodes : public PackedProducts {
 protected:
  std::vector<float> product(const DeviceMatrix& weights, std::span<const float> x,
                             std::span<const float> bias = {}) {
    return PackedProducts::product("codes", weights, x, bias);
  }

  // Rows 1 to 15, the last of all: each is another row of the product than among all.
  void expect_the_same_bits(const DeviceMatrix& weights, std::span<const float> x,
                            std::span<const float> all) {
    for (std::size_t count = 1; count < codes::kRows; ++count) {
      const std::size_t first = codes::kRows - count;
      const auto some = product(weights, x.subspan(first * weights.inputs()));
      ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * weights.outputs()))
          << count << " rows";
    }
  }
};

// Outputs that fill no tile, inputs that fill no stage; blocks that have a whole tile, and tiles of
// several blocks.
TEST_F(CudaCodes, IsWithinItsBoundForEveryFormatAndNumberOfRows) {
  std::size_t formats = 0;
  for (const pack::Format& format : pack::formats()) {
    SCOPED_TRACE(format.name);
    const std::uint64_t block = std::max<std::uint64_t>(format.block_values, 32);
    for (const std::uint64_t outputs : {std::uint64_t{136}, std::uint64_t{2200}}) {
      const std::uint64_t inputs = outputs == 136 ? 3 * block : 2048;
      if (format.name.starts_with("EXL3-") || inputs % format.block_values != 0) continue;
      const pack::Matrix made = matrix(format, outputs, inputs);
      DeviceMatrix weights = upload(made);
      if (!takes_codes(weights)) continue;
      ++formats;
      ASSERT_TRUE(weights.arrange(*stream_));
      const auto kernel = choose_project_kernel(weights, codes::kRows);
      ASSERT_TRUE(kernel) << kernel.error().message;
      EXPECT_EQ((*kernel)->name, "codes");
      const auto x = normals(codes::kRows * inputs);
      const auto all = product(weights, x);
      EXPECT_LT(difference(all, oracle(made, x)), 5e-4) << outputs << " outputs";
      EXPECT_EQ(all, product(weights, x)) << "other bits the second time";
      expect_the_same_bits(weights, x, all);
      const auto bias = normals(outputs);
      const auto with_bias = product(weights, std::span(x).first(inputs), bias);
      for (std::size_t i = 0; i < outputs; ++i) ASSERT_EQ(with_bias[i], all[i] + bias[i]) << i;
      const auto many = normals(20 * inputs);
      EXPECT_LT(difference(PackedProducts::product("decoded", weights, many), oracle(made, many)),
                1e-3)
          << "decoded from the arranged weights";
    }
  }
  EXPECT_GT(formats, 100u);
}

TEST_F(CudaCodes, KeepsRowsApartAndSaysWhatIsNotFinite) {
  const std::uint64_t inputs = 1280;
  const pack::Matrix made = matrix(*pack::find_format("Q4_K"), 256, inputs);
  DeviceMatrix weights = upload(made);
  ASSERT_TRUE(weights.arrange(*stream_));
  auto x = normals(3 * inputs);
  const auto before = product(weights, x);
  // A row of zeros, and one with an activation that dwarfs the others.
  std::fill_n(x.begin(), inputs, 0.0f);
  x[inputs + 7] = 1e6f;
  auto after = product(weights, x);
  const auto expected = oracle(made, std::span(x).subspan(inputs, inputs));
  EXPECT_LT(difference(std::span(after).subspan(256, 256), expected), 1e-3);
  for (std::size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(after[i], 0) << i;
    EXPECT_EQ(after[512 + i], before[512 + i]) << i;
  }
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    x[5] = bad;
    after = product(weights, x);
    for (std::size_t i = 0; i < 256; ++i) {
      EXPECT_TRUE(std::isnan(after[i])) << i;
      EXPECT_EQ(after[512 + i], before[512 + i]) << i;
    }
  }
}

TEST_F(CudaCodes, RefusesWhatItDoesNotTake) {
  const pack::Matrix made = matrix(*pack::find_format("GPTQ-V1-4-g128"), 128, 256);
  DeviceMatrix weights = upload(made);
  const auto error = [&](const codes::Layer& layer, std::uint32_t rows) {
    const codes::Part part = {layer, nullptr};
    const Status status = codes::project({&part, 1}, nullptr, rows, nullptr, stream_->get());
    return status ? "no error" : status.error().message;
  };
  EXPECT_THAT(error(codes_layer(weights), 0), HasSubstr("found 0 rows, expected 1 to 16"));
  EXPECT_THAT(error(codes_layer(weights), 17), HasSubstr("found 17 rows"));
  codes::Layer layer = codes_layer(weights);
  layer.group = 48;
  EXPECT_THAT(error(layer, 1), HasSubstr("found groups of 48"));
  layer = codes_layer(weights);
  layer.scale_type = 2;
  EXPECT_THAT(error(layer, 1), HasSubstr("scales of type 2"));
  layer = codes_layer(weights);
  layer.outputs = 0;
  EXPECT_THAT(error(layer, 1), HasSubstr("and 0 outputs"));
  // In the file's order it is the portable kernel's, arranged no more.
  ASSERT_TRUE(choose_project_kernel(weights, 1, "portable"));
  ASSERT_TRUE(weights.arrange(*stream_));
  EXPECT_FALSE(choose_project_kernel(weights, 1, "portable"));
}

}  // namespace
}  // namespace espalier::gpu::cuda
