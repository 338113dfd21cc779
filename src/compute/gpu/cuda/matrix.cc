#include "compute/gpu/cuda/matrix.h"

#include "compute/gpu/cuda/exl3_half.h"

namespace espalier::gpu::cuda {
namespace {

// One of a matrix's arrays, and where kernels get the pointer to it.
struct Part {
  Bytes bytes;
  const std::uint8_t** to;
};

std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kTo = DeviceMemory::kAlignment;
  return (bytes + kTo - 1) / kTo * kTo;
}

}  // namespace

Result<DeviceMatrix> DeviceMatrix::upload(Uploader& uploader, const pack::Matrix& matrix,
                                          std::string_view name) {
  DeviceMatrix device;
  ESPALIER_TRY(device.shape_, weight_shape(matrix));
  device.format_ = matrix.format;
  device.outputs_ = matrix.rows;
  device.inputs_ = matrix.cols;
  Weights& weights = device.weights_;
  const std::uint8_t* grid = nullptr;
  const Part parts[] = {{matrix.data, &weights.data},
                        {matrix.scales, &weights.scales},
                        {matrix.zeros, &weights.zeros},
                        {matrix.head_offsets, &weights.head_offsets},
                        {matrix.input_group, &weights.input_group},
                        {matrix.input_scale, &device.input_scale_},
                        {matrix.output_scale, &device.output_scale_},
                        {std::as_bytes(device.shape_.grid), &grid}};
  device.data_bytes_ = matrix.data.size();
  std::size_t bytes = sizeof(HalfScale);
  for (const Part& part : parts) bytes += aligned(part.bytes.size());
  ESPALIER_TRY(device.memory_, DeviceMemory::allocate(bytes, name));
  std::size_t offset = 0;
  for (const Part& part : parts) {
    if (part.bytes.empty()) continue;
    auto* const to = device.memory_.at<std::uint8_t>(offset);
    ESPALIER_CHECK(uploader.upload(part.bytes, to));
    *part.to = to;
    offset += aligned(part.bytes.size());
  }
  weights.grid = reinterpret_cast<const std::uint16_t*>(grid);
  weights.rows = device.shape_.rows;
  weights.cols = device.shape_.cols;
  weights.block_values = device.shape_.block_values;
  weights.block_bytes = device.shape_.block_bytes;
  weights.scale_type = device.shape_.scale_type;
  weights.heads = device.shape_.heads;
  weights.global_scale = device.shape_.global_scale;
  if (decodes_to_halves(device.shape_.kernel)) {
    auto* const scale = device.memory_.at<HalfScale>(offset);
    ESPALIER_CHECK(find_half_scale(uploader.stream(), packed_operand(device), scale));
    device.half_scale_ = scale;
  }
  return device;
}

Status DeviceMatrix::arrange(Stream& stream) {
  if (arranged_) return {};
  if (takes_exl3_mul1(*this) || takes_exl3_half(*this)) return arrange_exl3(stream);
  if (takes_codes(*this)) return arrange_codes(stream);
  return {};
}

Status DeviceMatrix::arrange_exl3(Stream& stream) {
  if (arranged_ || !(takes_exl3_mul1(*this) || takes_exl3_half(*this))) return {};
  ESPALIER_TRY(const DeviceMemory copy, DeviceMemory::allocate(data_bytes_, "weights in order"));
  const Exl3Layer layer = exl3_layer(*this);
  ESPALIER_CHECK(exl3_mul1_arrange(layer, layer.weights, copy.at<std::uint32_t>(), stream.get()));
  // The data comes first in the memory.
  ESPALIER_CHECK(copy_on_device(stream, copy.at<std::byte>(), data_bytes_, memory_.at<void>()));
  ESPALIER_CHECK(stream.wait());
  arranged_ = true;
  return {};
}

// All that the file has of the matrix goes into the arranged weights.
Status DeviceMatrix::arrange_codes(Stream& stream) {
  const codes::Layer layer = codes_layer(*this);
  const std::size_t bytes = aligned(codes::arranged_bytes(layer));
  ESPALIER_TRY(DeviceMemory arranged,
               DeviceMemory::allocate(bytes + sizeof(HalfScale), "weights in order"));
  ESPALIER_CHECK(codes::arrange(layer, weights_, arranged.at<std::uint8_t>(), stream.get()));
  auto* const scale = arranged.at<HalfScale>(bytes);
  ESPALIER_CHECK(copy_on_device(stream, half_scale_, sizeof(HalfScale), scale));
  ESPALIER_CHECK(stream.wait());
  memory_ = std::move(arranged);
  half_scale_ = scale;
  weights_.data = memory_.at<std::uint8_t>();
  weights_.scales = weights_.zeros = nullptr;
  arranged_ = true;
  return {};
}

bool takes_exl3_mul1(const DeviceMatrix& matrix) {
  return matrix.format().name.starts_with("EXL3-MUL1-") && matrix.input_scale() != nullptr &&
         static_cast<bool>(check_exl3_mul1(exl3_layer(matrix)));
}

PackedOperand packed_operand(const DeviceMatrix& matrix) {
  return {.kernel = matrix.shape().kernel,
          .weights = matrix.weights(),
          .arranged = matrix.arranged(),
          .input_scale = matrix.input_scale(),
          .output_scale = matrix.output_scale()};
}

bool takes_exl3_half(const DeviceMatrix& matrix) {
  const std::string_view name = matrix.format().name;
  return (name.starts_with("EXL3-MCG-") || name.starts_with("EXL3-3INST-")) &&
         matrix.input_scale() != nullptr && static_cast<bool>(check_exl3_half(exl3_layer(matrix)));
}

Exl3Layer exl3_layer(const DeviceMatrix& matrix) {
  const WeightShape& shape = matrix.shape();
  return {.weights = reinterpret_cast<const std::uint32_t*>(matrix.weights().data),
          .suh = reinterpret_cast<const std::uint16_t*>(matrix.input_scale()),
          .svh = reinterpret_cast<const std::uint16_t*>(matrix.output_scale()),
          .bias = nullptr,
          .double_bits = shape.block_bytes / 16,
          .inputs = static_cast<std::uint32_t>(matrix.inputs()),
          .outputs = static_cast<std::uint32_t>(matrix.outputs()),
          .padded_inputs = shape.cols,
          .padded_outputs = shape.rows};
}

codes::Layer codes_layer(const DeviceMatrix& matrix) {
  const WeightShape& shape = matrix.shape();
  if (matrix.weights().input_group != nullptr) return {};
  return {.kernels = codes::find_kernels(shape.kernel, shape.block_bytes * 8 / shape.block_values),
          .weights = matrix.weights().data,
          .inputs = shape.cols,
          .outputs = shape.rows,
          .scale_type = shape.scale_type,
          .group = shape.block_values};
}

bool takes_codes(const DeviceMatrix& matrix) {
  const codes::Layer layer = codes_layer(matrix);
  return layer.kernels != nullptr && static_cast<bool>(codes::check(layer));
}

}  // namespace espalier::gpu::cuda
