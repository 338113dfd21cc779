// What tests of products with packed matrices on a GPU share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <optional>
#include <random>

#include "base/half.h"
#include "compute/gpu/cuda/device.h"
#include "compute/gpu/cuda/project.h"
#include "compute/reference/reference.h"
#include "pack/exl3.h"
#include "pack/grouped_int4.h"
#include "pack/transposed.h"

namespace espalier::gpu::cuda {

// Random matrices of every format, brought to the GPU and multiplied by a kernel of the table.
class PackedProducts : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = use_device(0);
    ASSERT_TRUE(device) << device.error().message;
    stream_.emplace(*Stream::create());
    uploader_.emplace(*Uploader::create());
  }

  std::vector<float> normals(std::size_t count, float size = 1) {
    std::normal_distribution<float> normal(0, size);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }
  Bytes keep(std::vector<std::byte> values) { return parts_.emplace_back(std::move(values)); }
  Bytes random_bytes(std::size_t count) {
    std::vector<std::byte> values(count);
    for (std::byte& value : values) value = static_cast<std::byte>(random_());
    return keep(std::move(values));
  }
  Bytes halves(std::size_t count) {
    std::vector<std::byte> values(count * 2);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t half = espalier::float_to_half(normals(1)[0]);
      std::memcpy(values.data() + 2 * i, &half, 2);
    }
    return keep(std::move(values));
  }

  pack::Matrix encoded(const pack::Format& format, std::span<const float> values,
                       std::uint64_t outputs, std::uint64_t inputs) {
    encoded_.push_back(std::move(*format.encode(format, values, outputs, inputs)));
    return encoded_.back().view;
  }

  // Of normal weights where the format has an encoder, otherwise of random codes.
  pack::Matrix matrix(const pack::Format& format, std::uint64_t outputs, std::uint64_t inputs) {
    if (format.encode != nullptr) {
      return encoded(format, normals(outputs * inputs, 0.05f), outputs, inputs);
    }
    if (format.family == pack::Family::kTransposed) {
      const std::string_view plain = format.name.substr(0, format.name.size() - 2);
      return *pack::transposed(matrix(*pack::find_format(plain), inputs, outputs));
    }
    if (format.family == pack::Family::kExl3) {
      const std::uint64_t tiles = pack::exl3_padded(outputs) * pack::exl3_padded(inputs) / 256;
      return *pack::exl3_matrix(format, outputs, inputs, random_bytes(tiles * format.block_bytes),
                                halves(pack::exl3_padded(inputs)),
                                halves(pack::exl3_padded(outputs)));
    }
    const std::uint64_t groups = format.block_values == 8 ? 1 : inputs / format.block_values;
    const bool symmetric = format.name.starts_with("CT-SYM");
    return *pack::int4_matrix(format, outputs, inputs, random_bytes(outputs * inputs / 2),
                              halves(outputs * groups), pack::ScaleType::kF16,
                              random_bytes(symmetric ? 0 : (outputs + 7) / 8 * groups * 4), {});
  }

  DeviceMatrix upload(const pack::Matrix& matrix) {
    auto device = DeviceMatrix::upload(*uploader_, matrix, "the matrix");
    EXPECT_TRUE(device) << device.error().message;
    EXPECT_TRUE(uploader_->finish());
    return std::move(*device);
  }

  static const ProjectKernel& kernel_named(std::string_view name, const DeviceMatrix& weights) {
    const auto kernels = project_kernels();
    return *std::find_if(kernels.begin(), kernels.end(), [&](const ProjectKernel& kernel) {
      return kernel.name == name && weights.format().name.starts_with(kernel.format);
    });
  }

  // By the kernel of that name, also with rows that the table would give to another. What it does
  // not need to find as zeros it finds as NaNs.
  std::vector<float> product(std::string_view name, const DeviceMatrix& weights,
                             std::span<const float> x, std::span<const float> bias = {}) {
    return products(name, {&weights, 1}, x, {{bias.begin(), bias.end()}}).front();
  }

  // The same of several matrices in one product.
  std::vector<std::vector<float>> products(std::string_view name,
                                           std::span<const DeviceMatrix> matrices,
                                           std::span<const float> x,
                                           const std::vector<std::vector<float>>& biases = {}) {
    const ProjectKernel& kernel = kernel_named(name, matrices.front());
    const auto rows = static_cast<std::uint32_t>(x.size() / matrices.front().inputs());
    std::list<DeviceMemory> memory;
    const auto on_device = [&](std::span<const float> values) {
      memory.push_back(*DeviceMemory::allocate(values.size_bytes() + 4, "values"));
      EXPECT_TRUE(copy_to_device(*stream_, std::as_bytes(values), memory.back().at<void>()));
      return memory.back().at<float>();
    };
    std::vector<std::vector<float>> results;
    std::vector<Part> parts;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const bool has_bias = i < biases.size() && !biases[i].empty();
      results.emplace_back(rows * matrices[i].outputs(), std::nanf(""));
      parts.push_back({.weights = &matrices[i],
                       .bias = has_bias ? on_device(biases[i]) : nullptr,
                       .y = on_device(results.back())});
    }
    const DeviceMemory workspace =
        *DeviceMemory::allocate(workspace_bytes(kernel, parts, rows), "a workspace");
    EXPECT_TRUE(fill(*stream_, workspace.at<void>(), workspace.size(), kernel.arranges ? 0 : 0xff));
    const Status added = project(
        *stream_, kernel,
        {.parts = parts, .x = on_device(x), .rows = rows, .workspace = workspace.at<void>()});
    EXPECT_TRUE(added) << added.error().message;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_TRUE(
          copy_to_host(*stream_, parts[i].y, std::as_writable_bytes(std::span(results[i]))));
    }
    return results;
  }

  static std::vector<float> oracle(const pack::Matrix& matrix, std::span<const float> x) {
    std::vector<float> y(x.size() / matrix.cols * matrix.rows);
    reference::project(x.size() / matrix.cols, x.data(), matrix, y.data());
    return y;
  }

  std::mt19937 random_{23};
  std::optional<Stream> stream_;
  std::optional<Uploader> uploader_;
  std::vector<pack::PackedMatrix> encoded_;
  std::list<std::vector<std::byte>> parts_;
};

inline double difference(std::span<const float> found, std::span<const float> expected) {
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(error / size);
}

}  // namespace espalier::gpu::cuda
