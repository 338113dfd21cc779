#include "compute/gpu/cuda/matrix.h"

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
  std::size_t bytes = 0;
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
  return device;
}

}  // namespace espalier::gpu::cuda
