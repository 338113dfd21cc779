#include "compute/gpu/cuda/project.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "compute/gpu/cuda/decoded.h"
#include "compute/gpu/cuda/exl3_half.h"
#include "compute/gpu/cuda/exl3_wide.h"
#include "compute/gpu/tuned.h"

namespace espalier::gpu::cuda {
namespace {

// EXL3 between its rotations, which need room for the rotated rows and for the products.
bool is_rotated(const DeviceMatrix& weights) { return weights.input_scale() != nullptr; }

// Kernels that join no parts get one.
const DeviceMatrix& only_weights(std::span<const Part> parts) { return *parts.front().weights; }
template <std::size_t (*kBytes)(const DeviceMatrix& weights, std::uint32_t rows)>
std::size_t workspace_of(std::span<const Part> parts, std::uint32_t rows) {
  return kBytes(only_weights(parts), rows);
}

std::size_t portable_workspace(const DeviceMatrix& weights, std::uint32_t rows) {
  if (!is_rotated(weights)) return 0;
  return (std::size_t{weights.shape().cols} + weights.shape().rows) * std::min(rows, kProjectRows) *
         sizeof(float);
}

Status enqueue_named(Stream& stream, const WeightShape& shape, const ProjectArguments& args) {
  ESPALIER_TRY(const KernelEntry* const kernel,
               find_kernel("project_" + std::string(shape.kernel)));
  ESPALIER_TRY(const Grid grid, project_grid(args.rows, shape));
  return enqueue(stream, *kernel, grid, args);
}

Status rotate(Stream& stream, std::string_view kernel_name, const RotateArguments& args,
              std::uint32_t rows) {
  ESPALIER_TRY(const KernelEntry* const kernel, find_kernel(kernel_name));
  ESPALIER_TRY(const Grid grid, exl3_rotate_grid(rows, args.size));
  return enqueue(stream, *kernel, grid, args);
}

Status enqueue_few_rows(Stream& stream, const Product& product) {
  const Part& part = product.parts.front();
  const DeviceMatrix& weights = *part.weights;
  const WeightShape& shape = weights.shape();
  ProjectArguments args = {.weights = weights.weights(),
                           .x = product.x,
                           .bias = part.bias,
                           .y = part.y,
                           .rows = product.rows};
  if (!is_rotated(weights)) return enqueue_named(stream, shape, args);
  args.bias = nullptr;  // comes after the rotation
  auto* const rotated = static_cast<float*>(product.workspace);
  float* const products = rotated + std::size_t{product.rows} * shape.cols;
  ESPALIER_CHECK(rotate(stream, "exl3_prepare",
                        {.x = product.x,
                         .scale = weights.input_scale(),
                         .y = rotated,
                         .size = static_cast<std::uint32_t>(weights.inputs()),
                         .padded = shape.cols},
                        product.rows));
  args.x = rotated;
  args.y = products;
  ESPALIER_CHECK(enqueue_named(stream, shape, args));
  return rotate(stream, "exl3_finish",
                {.x = products,
                 .scale = weights.output_scale(),
                 .y = part.y,
                 .size = static_cast<std::uint32_t>(weights.outputs()),
                 .padded = shape.rows,
                 .bias = part.bias},
                product.rows);
}

// Any number of rows, a few at a time.
Status enqueue_portable(Stream& stream, const Product& product) {
  Part part = product.parts.front();
  Product few = product;
  few.parts = {&part, 1};
  for (std::uint32_t first = 0; first < product.rows; first += kProjectRows) {
    few.rows = std::min(kProjectRows, product.rows - first);
    ESPALIER_CHECK(enqueue_few_rows(stream, few));
    few.x += few.rows * part.weights->inputs();
    part.y += few.rows * part.weights->outputs();
  }
  return {};
}

bool in_the_files_order(const DeviceMatrix& weights) { return !weights.arranged(); }

Exl3Layer exl3_layer(const Part& part) {
  Exl3Layer layer = exl3_layer(*part.weights);
  layer.bias = part.bias;
  return layer;
}

std::vector<Exl3Part> exl3_parts(std::span<const Part> parts) {
  std::vector<Exl3Part> layers;
  for (const Part& part : parts) layers.push_back({exl3_layer(part), part.y});
  return layers;
}

bool exl3_mul1_joins(std::span<const Part> parts) {
  return static_cast<bool>(check_exl3_mul1(exl3_parts(parts)));
}

std::size_t exl3_mul1_workspace_of(std::span<const Part> parts, std::uint32_t rows) {
  return exl3_mul1_workspace(exl3_parts(parts), rows);
}

Status enqueue_exl3_mul1(Stream& stream, const Product& product) {
  return exl3_mul1(exl3_parts(product.parts), product.x, product.rows, product.workspace,
                   stream.get());
}

std::vector<codes::Part> codes_parts(std::span<const Part> parts) {
  std::vector<codes::Part> layers;
  for (const Part& part : parts) {
    layers.push_back({codes_layer(*part.weights), part.y});
    layers.back().layer.bias = part.bias;
  }
  return layers;
}

bool codes_joins(std::span<const Part> parts) {
  return static_cast<bool>(codes::check(codes_parts(parts)));
}

std::size_t codes_workspace(const DeviceMatrix& weights, std::uint32_t rows) {
  return codes::workspace_bytes(codes_layer(weights), rows);
}

Status enqueue_codes(Stream& stream, const Product& product) {
  return codes::project(codes_parts(product.parts), product.x, product.rows, product.workspace,
                        stream.get());
}

// The name of the current GPU, or nothing. (CUDA takes a millisecond to tell it.)
std::string_view current_gpu() {
  static std::mutex mutex;
  static std::map<int, std::string> names;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {};
  const std::lock_guard lock(mutex);
  const auto [name, is_new] = names.try_emplace(device);
  cudaDeviceProp properties = {};
  if (is_new && cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
    name->second = properties.name;
  }
  return name->second;
}

constexpr std::uint32_t kAnyRows = 65536;  // more are not asked for at once

std::size_t exl3_half_workspace_of(const DeviceMatrix& weights, std::uint32_t rows) {
  return exl3_half_workspace(exl3_layer(weights), rows);
}

template <const Exl3HalfCodebook& kCodebook>
Status enqueue_exl3_half(Stream& stream, const Product& product) {
  const Part& part = product.parts.front();
  return exl3_half(exl3_layer(part), kCodebook, product.x, product.rows, part.y, product.workspace,
                   stream.get());
}

template <const Exl3HalfCodebook& kCodebook>
constexpr ProjectKernel exl3_half_kernel(std::string_view format) {
  return {.name = "exl3-half",
          .format = format,
          .most_rows = kExl3Rows,
          .takes = takes_exl3_half,
          .allowed_difference = 5e-4,
          .workspace_bytes = workspace_of<exl3_half_workspace_of>,
          .enqueue = enqueue_exl3_half<kCodebook>,
          .arranges = true};
}

bool takes_exl3_wide(const DeviceMatrix& weights) {
  return takes_exl3_mul1(weights) && check_exl3_wide(exl3_layer(weights));
}

std::size_t exl3_wide_workspace_of(const DeviceMatrix& weights, std::uint32_t rows) {
  return exl3_wide_workspace(exl3_layer(weights), rows);
}

Status enqueue_exl3_wide(Stream& stream, const Product& product) {
  const Part& part = product.parts.front();
  return exl3_wide(exl3_layer(part), product.x, product.rows, part.y, product.workspace,
                   stream.get());
}

constexpr ProjectKernel kKernels[] = {
    {.name = "exl3-mul1",
     .format = "EXL3-MUL1-",
     .most_rows = kExl3Rows,
     .takes = takes_exl3_mul1,
     .allowed_difference = 5e-4,
     .workspace_bytes = exl3_mul1_workspace_of,
     .enqueue = enqueue_exl3_mul1,
     .arranges = true,
     .joins = exl3_mul1_joins},
    {.name = "codes",
     .format = "",
     .most_rows = codes::kRows,
     .takes = takes_codes,
     .allowed_difference = 5e-4,
     .workspace_bytes = workspace_of<codes_workspace>,
     .enqueue = enqueue_codes,
     .arranges = true,
     .joins = codes_joins},
    {.name = "exl3-wide",
     .format = "EXL3-MUL1-",
     .least_rows = kDecodedRows,
     .most_rows = 2047,  // then decoding once for all rows is faster
     .takes = takes_exl3_wide,
     .allowed_difference = 1e-3,
     .workspace_bytes = workspace_of<exl3_wide_workspace_of>,
     .enqueue = enqueue_exl3_wide,
     .arranges = true},
    {.name = "decoded",
     .format = "",
     .least_rows = kDecodedRows,
     .most_rows = kAnyRows,
     .takes = takes_decoded,
     .allowed_difference = 1e-3,
     .workspace_bytes = workspace_of<decoded_workspace>,
     .enqueue = enqueue_decoded},
    exl3_half_kernel<kExl3Mcg>("EXL3-MCG-"),
    exl3_half_kernel<kExl3ThreeInst>("EXL3-3INST-"),
    {.name = "portable",
     .format = "",
     .most_rows = kAnyRows,
     .takes = in_the_files_order,
     .allowed_difference = 1e-5,
     .workspace_bytes = workspace_of<portable_workspace>,
     .enqueue = enqueue_portable},
};

}  // namespace

std::span<const ProjectKernel> project_kernels() { return kKernels; }

bool serves(const ProjectKernel& kernel, const DeviceMatrix& weights, std::uint64_t rows) {
  return weights.format().name.starts_with(kernel.format) && rows >= kernel.least_rows &&
         rows <= kernel.most_rows && (kernel.takes == nullptr || kernel.takes(weights));
}

Result<const ProjectKernel*> choose_project_kernel(const DeviceMatrix& weights, std::uint64_t rows,
                                                   std::string_view name) {
  const std::string_view format = weights.format().name;
  const std::string_view tuned = name.empty()
                                     ? tuned_kernel(tuned_kernels(), current_gpu(), format,
                                                    weights.outputs() * weights.inputs(), rows)
                                     : name;
  const ProjectKernel* first = nullptr;
  for (const ProjectKernel& kernel : kKernels) {
    if (!serves(kernel, weights, rows)) continue;
    if (kernel.name == tuned) return &kernel;
    if (first == nullptr) first = &kernel;
  }
  if (name.empty() && first != nullptr) return first;
  return input_error("project: found no{}{} kernel for {} rows of {} to {} features in {}",
                     name.empty() ? "" : " ", name, rows, weights.inputs(), weights.outputs(),
                     format);
}

std::size_t workspace_bytes(const ProjectKernel& kernel, std::span<const Part> parts,
                            std::uint32_t rows) {
  if (parts.size() > 1 && kernel.joins != nullptr && kernel.joins(parts)) {
    return kernel.workspace_bytes(parts, rows);
  }
  std::size_t most = 0;
  for (const Part& part : parts) most = std::max(most, kernel.workspace_bytes({&part, 1}, rows));
  return most;
}

Status project(Stream& stream, const ProjectKernel& kernel, const Product& product) {
  const std::span<const Part> parts = product.parts;
  if (parts.empty() || parts.size() > kMostParts) {
    return work_error("project: found {} parts, expected 1 to {}", parts.size(), kMostParts);
  }
  const DeviceMatrix& first = *parts.front().weights;
  for (const Part& part : parts) {
    const DeviceMatrix& weights = *part.weights;
    if (&weights.format() != &first.format() || weights.inputs() != first.inputs()) {
      return work_error(
          "project: found parts of {} inputs in {} and of {} in {}, expected the same",
          first.inputs(), first.format().name, weights.inputs(), weights.format().name);
    }
    if (kernel.arranges && !weights.arranged()) {
      return work_error("{}: the weights are not arranged", kernel.name);
    }
  }
  if (parts.size() > 1 && kernel.joins != nullptr && kernel.joins(parts)) {
    return kernel.enqueue(stream, product);
  }
  Product one = product;
  for (const Part& part : parts) {
    one.parts = {&part, 1};
    ESPALIER_CHECK(kernel.enqueue(stream, one));
  }
  return {};
}

}  // namespace espalier::gpu::cuda
