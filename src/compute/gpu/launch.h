// What the host decides before it launches a kernel of kernels/entry_list.h: whether the kernel
// takes these sizes, and the grid. The same for every target. All errors are found here, none by a
// GPU.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "compute/gpu/grid.h"
#include "compute/ops.h"
#include "pack/matrix.h"

namespace espalier::gpu {

// A packed matrix as kernels see it: the members of kernels/weights.h that are not pointers, the
// points that its format needs (or none), and the ending of the names of its kernels.
struct WeightShape {
  std::string_view kernel;
  std::span<const std::uint16_t> grid;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  std::uint32_t block_values = 0;
  std::uint32_t block_bytes = 0;
  std::uint32_t scale_type = 0;
  std::uint32_t heads = 0;  // of an n-gram table
  float global_scale = 1;
};

// EXL3: the matrix between the rotations. Errors: a format without kernels, sizes beyond 2³¹ − 1 or
// zero.
[[nodiscard]] Result<WeightShape> weight_shape(const pack::Matrix& matrix);

// project_…: 1 to 8 rows. EXL3's embedding tables are looked up only.
[[nodiscard]] Result<Grid> project_grid(std::uint64_t rows, const WeightShape& weights);
// embed_…
[[nodiscard]] Result<Grid> embed_grid(std::uint64_t rows, const WeightShape& table);
// exl3_prepare and exl3_finish, of `size` features.
[[nodiscard]] Result<Grid> exl3_rotate_grid(std::uint64_t rows, std::uint64_t size);

// Kernels with a block for each row: rms_norm, softmax, top_k.
[[nodiscard]] Result<Grid> row_grid(std::string_view kernel, std::uint64_t rows,
                                    std::uint64_t width);
// top_k: `count` of `width`.
[[nodiscard]] Result<Grid> top_k_grid(std::uint64_t rows, std::uint64_t width, std::uint64_t count);
// route_…: a router's top_k of `experts`.
[[nodiscard]] Result<Grid> route_grid(std::uint64_t rows, std::uint64_t experts,
                                      std::uint64_t top_k);

// Kernels with a thread for each element: gate_…, add, scale, softcap.
[[nodiscard]] Result<Grid> element_grid(std::string_view kernel, std::uint64_t count);

[[nodiscard]] Result<Grid> rope_grid(std::uint64_t rows, std::uint64_t heads,
                                     std::uint64_t head_dim, const compute::Rope& rope);
// A frequency as the rope kernel takes it: the part of a turn for each position, times 2⁶⁴.
[[nodiscard]] std::uint64_t rope_turns(double frequency);

// attention_chunk_… and attention_merge.
struct AttentionShape {
  std::string_view chunk_kernel;
  Grid chunk;
  Grid merge;
  std::uint32_t chunks = 0;
  std::uint64_t partial_floats = 0;  // what the first leaves for the second
};

// `longest` is the largest position of the rows, plus one. Errors: head sizes other than 64, 128,
// 256 and 512, heads that do not divide among KV heads, positions beyond the cache.
[[nodiscard]] Result<AttentionShape> attention_shape(std::uint64_t rows,
                                                     const compute::Attention& attention,
                                                     const compute::KvView& cache,
                                                     std::uint64_t longest);

[[nodiscard]] Result<Grid> convolution_grid(std::uint64_t rows,
                                            const compute::CausalConvolution& convolution);
[[nodiscard]] Result<Grid> delta_grid(std::uint64_t rows, const compute::DeltaRule& rule);

}  // namespace espalier::gpu
