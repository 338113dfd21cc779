// A packed matrix in the memory of a GPU: the same bits as in its file, brought there once.
#pragma once

#include "compute/gpu/cuda/arguments.h"
#include "compute/gpu/cuda/memory.h"
#include "compute/gpu/launch.h"
#include "pack/matrix.h"

namespace espalier::gpu::cuda {

class DeviceMatrix {
 public:
  // Adds the upload to the uploader's work: kernels may read it after uploader.finish(). `name` is
  // for messages. Errors: a format without kernels, not enough memory.
  static Result<DeviceMatrix> upload(Uploader& uploader, const pack::Matrix& matrix,
                                     std::string_view name);

  [[nodiscard]] const pack::Format& format() const { return *format_; }
  [[nodiscard]] std::uint64_t outputs() const { return outputs_; }
  [[nodiscard]] std::uint64_t inputs() const { return inputs_; }
  [[nodiscard]] std::size_t bytes() const { return memory_.size(); }
  // What kernels take. EXL3: the matrix between the rotations, of the padded size.
  [[nodiscard]] const WeightShape& shape() const { return shape_; }
  [[nodiscard]] const Weights& weights() const { return weights_; }
  // EXL3: suh and svh, F16 of the padded sizes. Otherwise null.
  [[nodiscard]] const std::uint8_t* input_scale() const { return input_scale_; }
  [[nodiscard]] const std::uint8_t* output_scale() const { return output_scale_; }

 private:
  const pack::Format* format_ = nullptr;
  std::uint64_t outputs_ = 0;
  std::uint64_t inputs_ = 0;
  WeightShape shape_;
  DeviceMemory memory_;
  Weights weights_ = {};
  const std::uint8_t* input_scale_ = nullptr;
  const std::uint8_t* output_scale_ = nullptr;
};

}  // namespace espalier::gpu::cuda
