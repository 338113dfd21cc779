#include "compute/gpu/cuda/decoded.h"

#include <algorithm>

#include "compute/gpu/cuda/cublas_lt.h"

namespace espalier::gpu::cuda {
namespace {

// Weights that are halves already, in rows that it takes.
bool are_halves(const DeviceMatrix& weights) {
  return weights.shape().kernel == "f16" && weights.shape().cols % 8 == 0;
}

// Outputs that are decoded at a time: all, unless they take more than this much memory.
// Vocabularies do. (Parts of that size still fill a GPU many times over.)
constexpr std::size_t kMostHalfBytes = std::size_t{512} << 20;
constexpr std::size_t kPartOutputs = 256;  // parts are a multiple of this

std::uint32_t outputs_at_a_time(const DeviceMatrix& weights) {
  const std::size_t outputs = weights.outputs();
  const std::size_t output_bytes = std::size_t{2} * padded_inputs(packed_operand(weights));
  const std::size_t parts = (outputs * output_bytes + kMostHalfBytes - 1) / kMostHalfBytes;
  const std::size_t each = (outputs + parts - 1) / parts;
  const std::size_t rounded = (each + kPartOutputs - 1) / kPartOutputs * kPartOutputs;
  return static_cast<std::uint32_t>(std::min(rounded, outputs));
}

// Where things lie in the workspace.
struct DecodedPlaces {
  std::size_t x, inverses, weights, bytes;  // after cuBLASLt's own part
};
DecodedPlaces decoded_places(const DeviceMatrix& weights, std::uint32_t rows) {
  const auto aligned = [](std::size_t bytes) { return (bytes + 255) / 256 * 256; };
  const std::size_t inputs = padded_inputs(packed_operand(weights));
  DecodedPlaces places = {.x = kHalfWorkspace, .inverses = 0, .weights = 0, .bytes = 0};
  places.inverses = places.x + aligned(rows * inputs * 2);
  places.weights = places.inverses + aligned(rows * sizeof(float));
  places.bytes = places.weights;
  if (!are_halves(weights)) places.bytes += outputs_at_a_time(weights) * inputs * 2;
  return places;
}

// In either order.
Status decode(Stream& stream, const DeviceMatrix& weights, std::uint32_t first, std::uint32_t count,
              std::uint16_t* halves) {
  const PackedOperand operand = packed_operand(weights);
  if (weights.arranged() && takes_codes(weights)) {
    return codes::decode(codes_layer(weights), &weights.half_scale()->factor, first, count,
                         padded_inputs(operand), halves, stream.get());
  }
  return decode_halves(stream, operand, weights.half_scale(), first, count, halves);
}

}  // namespace

std::size_t decoded_workspace(const DeviceMatrix& weights, std::uint32_t rows) {
  return decoded_places(weights, rows).bytes;
}

bool takes_decoded(const DeviceMatrix& weights) {
  return weights.half_scale() != nullptr && has_cublas_lt();
}

Status enqueue_decoded(Stream& stream, const Product& product) {
  const Part& part = product.parts.front();
  const DeviceMatrix& weights = *part.weights;
  const PackedOperand operand = packed_operand(weights);
  const DecodedPlaces places = decoded_places(weights, product.rows);
  const auto at = [&](std::size_t place) {
    return static_cast<void*>(static_cast<std::byte*>(product.workspace) + place);
  };
  auto* const x = static_cast<std::uint16_t*>(at(places.x));
  auto* const inverses = static_cast<float*>(at(places.inverses));
  auto* const decoded = static_cast<std::uint16_t*>(at(places.weights));
  const auto outputs = static_cast<std::uint32_t>(weights.outputs());
  const auto inputs = static_cast<std::uint32_t>(weights.inputs());
  ESPALIER_CHECK(round_rows(stream, operand, product.x, product.rows, inputs, x, inverses));
  HalfProduct half = {.weights = reinterpret_cast<const std::uint16_t*>(operand.weights.data),
                      .x = x,
                      .factor = &weights.half_scale()->one,
                      .zero = &weights.half_scale()->zero,
                      .rows = product.rows,
                      .inputs = padded_inputs(operand),
                      .stride = outputs,
                      .workspace = product.workspace};
  if (!are_halves(weights)) {
    half.weights = decoded;
    half.factor = &weights.half_scale()->inverse;
  }
  const std::uint32_t each = are_halves(weights) ? outputs : outputs_at_a_time(weights);
  for (std::uint32_t first = 0; first < outputs; first += each) {
    half.outputs = std::min(each, outputs - first);
    half.y = part.y + first;
    half.bias = part.bias == nullptr ? nullptr : part.bias + first;
    if (!are_halves(weights)) {
      ESPALIER_CHECK(decode(stream, weights, first, half.outputs, decoded));
    }
    ESPALIER_CHECK(multiply_halves(stream, half));
  }
  return undo_row_factors(stream, inverses, part.bias, product.rows, outputs, part.y);
}

}  // namespace espalier::gpu::cuda
