// EXL3 on the tensor cores of a real GPU, against the definition of the product.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "compute/gpu/cuda/device.h"
#include "compute/gpu/cuda/exl3_half.h"
#include "compute/gpu/cuda/project.h"
#include "compute/reference/reference.h"
#include "pack/exl3.h"

namespace espalier::gpu::cuda {
namespace {

using testing::HasSubstr;

// Bits of a layer, random but for scales of a normal size.
struct Layer {
  std::vector<std::byte> tiles, input_scale, output_scale;
  pack::Matrix matrix;
};

double difference(std::span<const float> found, std::span<const float> expected) {
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    error += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(error / size);
}

class CudaExl3 : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = use_device(0);
    ASSERT_TRUE(device) << device.error().message;
    stream_.emplace(*Stream::create());
    uploader_.emplace(*Uploader::create());
    // One for all products of a test, as it is meant.
    workspace_ = *DeviceMemory::allocate(std::size_t{8} << 20, "workspace");
    ASSERT_TRUE(fill(*stream_, workspace_.at<void>(), workspace_.size(), 0));
  }

  std::vector<float> normals(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  Layer layer(std::string_view format_name, std::uint64_t outputs, std::uint64_t inputs) {
    const pack::Format& format = *pack::find_format(format_name);
    const std::uint64_t padded_outputs = (outputs + 127) / 128 * 128;
    const std::uint64_t padded_inputs = (inputs + 127) / 128 * 128;
    Layer made;
    made.tiles.resize(padded_outputs * padded_inputs / 256 * format.block_bytes);
    for (std::byte& byte : made.tiles) byte = static_cast<std::byte>(random_());
    const auto scales = [&](std::uint64_t count) {
      std::vector<std::byte> halves(2 * count);
      for (std::uint64_t i = 0; i < count; ++i) {
        halves[2 * i] = static_cast<std::byte>(random_());
        halves[2 * i + 1] = static_cast<std::byte>(0x38 + random_() % 2 * 0x80);  // ±0.5 … 1
      }
      return halves;
    };
    made.input_scale = scales(padded_inputs);
    made.output_scale = scales(padded_outputs);
    made.matrix = *pack::exl3_matrix(format, outputs, inputs, made.tiles, made.input_scale,
                                     made.output_scale);
    return made;
  }

  DeviceMatrix upload(const pack::Matrix& matrix) {
    DeviceMatrix device = *DeviceMatrix::upload(*uploader_, matrix, "the matrix");
    EXPECT_TRUE(uploader_->finish());
    EXPECT_TRUE(device.arrange(*stream_));
    return device;
  }

  std::vector<float> product(const DeviceMatrix& weights, std::span<const float> x,
                             const std::vector<float>& bias = {}) {
    const auto rows = static_cast<std::uint32_t>(x.size() / weights.inputs());
    const DeviceMemory x_device = *DeviceMemory::allocate(x.size_bytes(), "x");
    EXPECT_TRUE(copy_to_device(*stream_, std::as_bytes(x), x_device.at<void>()));
    const DeviceMemory bias_device = *DeviceMemory::allocate(bias.size() * 4 + 4, "bias");
    EXPECT_TRUE(copy_to_device(*stream_, std::as_bytes(std::span(bias)), bias_device.at<void>()));
    std::vector<float> y(rows * weights.outputs());
    const DeviceMemory y_device = *DeviceMemory::allocate(y.size() * sizeof(float), "y");
    EXPECT_TRUE(fill(*stream_, y_device.at<void>(), y_device.size(), 0xa5));
    const auto kernel = choose_project_kernel(weights, rows);
    EXPECT_TRUE(kernel) << kernel.error().message;
    const bool is_mul1 = weights.format().name.starts_with("EXL3-MUL1-");
    EXPECT_EQ((*kernel)->name, is_mul1 ? "exl3-mul1" : "exl3-half");
    const Part part = {.weights = &weights,
                       .bias = bias.empty() ? nullptr : bias_device.at<float>(),
                       .y = y_device.at<float>()};
    EXPECT_LE(workspace_bytes(**kernel, {&part, 1}, rows), workspace_.size());
    const Status added = project(*stream_, **kernel,
                                 {.parts = {&part, 1},
                                  .x = x_device.at<float>(),
                                  .rows = rows,
                                  .workspace = workspace_.at<void>()});
    EXPECT_TRUE(added) << added.error().message;
    EXPECT_TRUE(copy_to_host(*stream_, y_device.at<void>(), std::as_writable_bytes(std::span(y))));
    return y;
  }

  // Sizes that are padded, that end within a slice, and that give few and many blocks several
  // slices; every number of rows.
  void check_format(const std::string& format) {
    struct Size {
      std::uint64_t outputs, inputs;
    };
    for (const Size& size : {Size{100, 90}, Size{640, 1152}, Size{8320, 2200}}) {
      const Layer made = layer(format, size.outputs, size.inputs);
      const DeviceMatrix weights = upload(made.matrix);
      ASSERT_TRUE(weights.arranged());
      const auto x = normals(kExl3Rows * size.inputs);
      const auto bias = normals(size.outputs);
      std::vector<float> expected(kExl3Rows * size.outputs);
      // The definition takes its time: of the large size the first rows alone.
      const std::size_t rows = size.outputs > 1000 ? 2 : kExl3Rows;
      reference::project(rows, x.data(), made.matrix, expected.data());
      const auto all = product(weights, x);
      EXPECT_LT(difference(std::span(all).first(rows * size.outputs),
                           std::span(expected).first(rows * size.outputs)),
                5e-4)
          << format << ", " << size.outputs;
      for (std::uint32_t count = 1; count < kExl3Rows; ++count) {
        // The last rows: each is another row of the product than among all.
        const std::size_t first = kExl3Rows - count;
        const auto some = product(weights, std::span(x).subspan(first * size.inputs));
        ASSERT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first * size.outputs))
            << format << ", " << count << " rows of " << size.outputs << " outputs";
      }
      const auto with_bias = product(weights, std::span(x).first(size.inputs), bias);
      for (std::size_t i = 0; i < size.outputs; ++i) {
        ASSERT_EQ(with_bias[i], all[i] + bias[i]) << i;
      }
    }
  }

  std::mt19937 random_{11};
  std::optional<Stream> stream_;
  std::optional<Uploader> uploader_;
  DeviceMemory workspace_;
};

TEST_F(CudaExl3, Mul1IsWithinItsBoundAtEveryRateAndNumberOfRows) {
  for (const char* rate : {"1", "1.5", "2", "2.5", "3", "3.5", "4", "5", "6", "7", "8"}) {
    check_format("EXL3-MUL1-" + std::string(rate));
  }
}

TEST_F(CudaExl3, McgIsWithinItsBoundAtEveryRateAndNumberOfRows) {
  for (int rate = 1; rate <= 8; ++rate) check_format("EXL3-MCG-" + std::to_string(rate));
}

TEST_F(CudaExl3, ThreeInstIsWithinItsBoundAtEveryRateAndNumberOfRows) {
  for (int rate = 1; rate <= 8; ++rate) check_format("EXL3-3INST-" + std::to_string(rate));
}

class CudaExl3Rows : public CudaExl3, public testing::WithParamInterface<const char*> {};

TEST_P(CudaExl3Rows, KeepsRowsApartAndSaysWhatIsNotFinite) {
  const std::uint64_t inputs = 1300;
  const Layer made = layer(GetParam(), 256, inputs);
  const DeviceMatrix weights = upload(made.matrix);
  auto x = normals(3 * inputs);
  const auto before = product(weights, x);
  // A row of zeros, and one with an activation that dwarfs the others.
  std::fill_n(x.begin(), inputs, 0.0f);
  x[inputs + 7] = 1e6f;
  auto after = product(weights, x);
  for (std::size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(after[i], 0) << i;
    EXPECT_EQ(after[512 + i], before[512 + i]) << i;
  }
  std::vector<float> expected(256);
  for (const float large : {1e6f, 1.01e6f, 1.3e6f, 3e30f, -1e9f}) {
    x[inputs + 7] = large;
    after = product(weights, x);
    reference::project(1, x.data() + inputs, made.matrix, expected.data());
    EXPECT_LT(difference(std::span(after).subspan(256, 256), expected), 5e-4) << large;
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

INSTANTIATE_TEST_SUITE_P(Codebooks, CudaExl3Rows,
                         testing::Values("EXL3-MUL1-4", "EXL3-MCG-4", "EXL3-3INST-3"));

TEST_F(CudaExl3, CodebooksShareAWorkspace) {
  const Layer mul1 = layer("EXL3-MUL1-4", 256, 1300);
  const Layer mcg = layer("EXL3-MCG-4", 256, 1300);
  const DeviceMatrix mul1_weights = upload(mul1.matrix);
  const DeviceMatrix mcg_weights = upload(mcg.matrix);
  const auto x = normals(3 * 1300);
  const auto mul1_first = product(mul1_weights, x);
  const auto mcg_first = product(mcg_weights, x);
  EXPECT_EQ(product(mul1_weights, x), mul1_first);
  EXPECT_EQ(product(mcg_weights, x), mcg_first);
}

TEST_F(CudaExl3, RefusesWhatItDoesNotTake) {
  const Layer made = layer("EXL3-MUL1-4", 256, 128);
  const DeviceMatrix weights = upload(made.matrix);
  const auto error = [&](const Exl3Layer& layer, std::uint32_t rows) {
    const Exl3Part part = {layer, nullptr};
    const Status status = exl3_mul1({&part, 1}, nullptr, rows, nullptr, stream_->get());
    return status ? "no error" : status.error().message;
  };
  EXPECT_THAT(error(exl3_layer(weights), 0), HasSubstr("found 0 rows, expected 1 to 16"));
  EXPECT_THAT(error(exl3_layer(weights), 17), HasSubstr("found 17 rows"));
  Exl3Layer layer = exl3_layer(weights);
  layer.double_bits = 9;
  EXPECT_THAT(error(layer, 1), HasSubstr("found 4.5 bits"));
  layer = exl3_layer(weights);
  layer.padded_inputs = 100;
  EXPECT_THAT(error(layer, 1), HasSubstr("found 100 inputs"));
  layer = exl3_layer(weights);
  layer.padded_outputs = 0;
  EXPECT_THAT(error(layer, 1), HasSubstr("0 outputs"));
  // In the file's order no more: the portable kernel would read it wrongly.
  EXPECT_FALSE(choose_project_kernel(weights, 1, "portable"));
}

TEST_F(CudaExl3, HalvesRefuseWhatTheyDoNotTake) {
  const Layer made = layer("EXL3-MCG-4", 256, 128);
  const DeviceMatrix weights = upload(made.matrix);
  const auto error = [&](const Exl3Layer& layer, std::uint32_t rows) {
    const Status status =
        exl3_half(layer, kExl3Mcg, nullptr, rows, nullptr, nullptr, stream_->get());
    return status ? "no error" : status.error().message;
  };
  EXPECT_THAT(error(exl3_layer(weights), 0), HasSubstr("found 0 rows, expected 1 to 16"));
  EXPECT_THAT(error(exl3_layer(weights), 17), HasSubstr("found 17 rows"));
  Exl3Layer layer = exl3_layer(weights);
  layer.double_bits = 5;
  EXPECT_THAT(error(layer, 1), HasSubstr("found 2.5 bits"));
  layer.double_bits = 18;
  EXPECT_THAT(error(layer, 1), HasSubstr("found 9 bits"));
  layer = exl3_layer(weights);
  layer.padded_inputs = 100;
  EXPECT_THAT(error(layer, 1), HasSubstr("found 100 inputs"));
  EXPECT_FALSE(choose_project_kernel(weights, 1, "portable"));
}

}  // namespace
}  // namespace espalier::gpu::cuda
