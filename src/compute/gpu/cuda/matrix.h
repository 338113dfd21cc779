// A packed matrix in the memory of a GPU: the same bits as in its file, brought there once.
#pragma once

#include "compute/gpu/cuda/arguments.h"
#include "compute/gpu/cuda/codes.h"
#include "compute/gpu/cuda/exl3_mul1.h"
#include "compute/gpu/cuda/half_operands.h"
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

  // Puts the weights' bits into the order that the format's fastest kernel reads, in place of the
  // file's; of formats that have no such order, does nothing. Waits for it. Errors: not enough
  // memory for a second copy of the bits meanwhile.
  Status arrange(Stream& stream);

  [[nodiscard]] const pack::Format& format() const { return *format_; }
  [[nodiscard]] std::uint64_t outputs() const { return outputs_; }
  [[nodiscard]] std::uint64_t inputs() const { return inputs_; }
  [[nodiscard]] std::size_t bytes() const { return memory_.size(); }
  [[nodiscard]] bool arranged() const { return arranged_; }
  // What kernels take. EXL3: the matrix between the rotations, of the padded size.
  [[nodiscard]] const WeightShape& shape() const { return shape_; }
  [[nodiscard]] const Weights& weights() const { return weights_; }
  // EXL3: suh and svh, F16 of the padded sizes. Otherwise null.
  [[nodiscard]] const std::uint8_t* input_scale() const { return input_scale_; }
  [[nodiscard]] const std::uint8_t* output_scale() const { return output_scale_; }
  // Of the weights as halves; null of embedding tables of EXL3, which have no products.
  [[nodiscard]] const HalfScale* half_scale() const { return half_scale_; }

 private:
  Status arrange_exl3(Stream& stream);
  Status arrange_codes(Stream& stream);

  const pack::Format* format_ = nullptr;
  std::uint64_t outputs_ = 0;
  std::uint64_t inputs_ = 0;
  WeightShape shape_;
  DeviceMemory memory_;
  std::size_t data_bytes_ = 0;  // of weights_.data
  bool arranged_ = false;
  Weights weights_ = {};
  const std::uint8_t* input_scale_ = nullptr;
  const std::uint8_t* output_scale_ = nullptr;
  const HalfScale* half_scale_ = nullptr;
};

// What exl3_mul1 and exl3_half take of a matrix that is arranged, without a bias. Only of their
// formats.
Exl3Layer exl3_layer(const DeviceMatrix& matrix);
// Whether they take the matrix.
bool takes_exl3_mul1(const DeviceMatrix& matrix);
bool takes_exl3_half(const DeviceMatrix& matrix);

// The same for codes::project, whose layer has no kernels where it does not take the matrix.
codes::Layer codes_layer(const DeviceMatrix& matrix);
bool takes_codes(const DeviceMatrix& matrix);

// What is decoded to halves of a matrix.
PackedOperand packed_operand(const DeviceMatrix& matrix);

}  // namespace espalier::gpu::cuda
