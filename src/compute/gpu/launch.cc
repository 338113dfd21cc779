#include "compute/gpu/launch.h"

#include <cmath>
#include <numbers>

#include "compute/gpu/kernels/attention.h"
#include "compute/gpu/kernels/exl3.h"
#include "compute/gpu/kernels/project.h"
#include "compute/gpu/kernels/recurrent.h"
#include "pack/exl3.h"
#include "pack/grouped_int4.h"
#include "pack/iq_grids.h"

namespace espalier::gpu {
namespace {

constexpr std::uint64_t kMostSize = 0x7fffffff;
constexpr std::uint32_t kRowThreads = 256;      // of blocks that work on a row
constexpr std::uint32_t kElementThreads = 256;  // of blocks whose threads have an element each
constexpr std::uint32_t kProjectThreads = 128;  // four outputs a block

constexpr std::string_view kExl3Table = "exl3_emb";

struct FormatKernel {
  std::string_view format;  // its name, or where that ends in '-' the start of its name
  std::string_view kernel;
  std::span<const std::uint16_t> grid = {};
};

constexpr FormatKernel kFormatKernels[] = {
    {"F32", "f32"},
    {"F16", "f16"},
    {"BF16", "bf16"},
    {"F32-T", "f32_t"},
    {"F16-T", "f16_t"},
    {"BF16-T", "bf16_t"},
    {"Q4_0", "q4_0"},
    {"Q4_1", "q4_1"},
    {"Q5_0", "q5_0"},
    {"Q5_1", "q5_1"},
    {"Q8_0", "q8_0"},
    {"Q2_K", "q2_k"},
    {"Q3_K", "q3_k"},
    {"Q4_K", "q4_k"},
    {"Q5_K", "q5_k"},
    {"Q6_K", "q6_k"},
    {"Q8_K", "q8_k"},
    {"Q1_0", "q1_0"},
    {"Q2_0", "q2_0"},
    {"TQ1_0", "tq1_0"},
    {"TQ2_0", "tq2_0"},
    {"MXFP4", "mxfp4"},
    {"NVFP4", "nvfp4"},
    {"IQ4_NL", "iq4_nl"},
    {"IQ4_XS", "iq4_xs"},
    {"IQ1_S", "iq1_s", pack::kIq1Grid},
    {"IQ1_M", "iq1_m", pack::kIq1Grid},
    {"IQ2_XXS", "iq2_xxs", pack::kIq2XxsGrid},
    {"IQ2_XS", "iq2_xs", pack::kIq2XsGrid},
    {"IQ2_S", "iq2_s", pack::kIq2SGrid},
    {"IQ3_XXS", "iq3_xxs", pack::kIq3XxsGrid},
    {"IQ3_S", "iq3_s", pack::kIq3SGrid},
    {"MLX-MXFP4", "mlx_mxfp4"},
    {"MLX-MXFP8", "mlx_mxfp8"},
    {"MLX-NVFP4", "mlx_nvfp4"},
    {"MLX-", "mlx_affine"},
    {"GPTQ-V1-", "gptq_v1"},
    {"GPTQ-V2-", "gptq_v2"},
    {"AWQ-", "awq"},
    {"CT-", "ct_int4"},
    {"EXL3-3INST-", "exl3_3inst"},
    {"EXL3-MCG-", "exl3_mcg"},
    {"EXL3-MUL1-", "exl3_mul1"},
    {"EXL3-NGRAM-", "exl3_ngram"},
    {"EXL3-EMB-", kExl3Table},
};

Status check(std::string_view kernel, std::string_view what, std::uint64_t found,
             std::uint64_t most) {
  if (found >= 1 && found <= most) return {};
  return input_error("{}: found {} {}, expected 1 to {}", kernel, found, what, most);
}

// n / size, rounded up.
std::uint32_t blocks_of(std::uint64_t n, std::uint64_t size) {
  return static_cast<std::uint32_t>((n + size - 1) / size);
}

// Rows along y and `threads` of `width` elements in each block along x.
Result<Grid> elements_by_row(std::string_view kernel, std::uint64_t rows, std::uint64_t width,
                             std::uint32_t threads) {
  ESPALIER_CHECK(check(kernel, "rows", rows, kMostBlocksY));
  ESPALIER_CHECK(check(kernel, "features", width, kMostSize));
  return Grid{blocks_of(width, threads), static_cast<std::uint32_t>(rows), threads};
}

struct ChunkKernel {
  std::size_t head_dim;
  std::string_view f32, f16;
};
constexpr ChunkKernel kChunkKernels[] = {
    {64, "attention_chunk_f32_64", "attention_chunk_f16_64"},
    {128, "attention_chunk_f32_128", "attention_chunk_f16_128"},
    {256, "attention_chunk_f32_256", "attention_chunk_f16_256"},
    {512, "attention_chunk_f32_512", "attention_chunk_f16_512"},
};

}  // namespace

Result<WeightShape> weight_shape(const pack::Matrix& matrix) {
  const pack::Format& format = *matrix.format;
  const auto serves = [&](const FormatKernel& kernel) {
    return kernel.format.ends_with('-') ? format.name.starts_with(kernel.format)
                                        : format.name == kernel.format;
  };
  for (const FormatKernel& kernel : kFormatKernels) {
    if (!serves(kernel)) continue;
    WeightShape shape = {.kernel = kernel.kernel,
                         .grid = kernel.grid,
                         .block_values = format.block_values,
                         .block_bytes = format.block_bytes,
                         .scale_type = static_cast<std::uint32_t>(matrix.scale_type),
                         .heads = static_cast<std::uint32_t>(matrix.head_offsets.size() / 8),
                         .global_scale = matrix.global_scale};
    ESPALIER_CHECK(check(format.name, "output features", matrix.rows, kMostSize - 128));
    ESPALIER_CHECK(check(format.name, "input features", matrix.cols, kMostSize - 128));
    // Of EXL3, matrices are padded and tables are not; only what is rotated has this function.
    const bool padded = format.family == pack::Family::kExl3 && format.dequantize_rows != nullptr;
    shape.rows = static_cast<std::uint32_t>(padded ? pack::exl3_padded(matrix.rows) : matrix.rows);
    shape.cols = static_cast<std::uint32_t>(padded ? pack::exl3_padded(matrix.cols) : matrix.cols);
    if (format.family == pack::Family::kGptq || format.family == pack::Family::kAwq ||
        format.family == pack::Family::kCompressedTensors) {
      shape.block_values = static_cast<std::uint32_t>(pack::int4_group_size(matrix));
    }
    return shape;
  }
  return input_error("{}: there are no GPU kernels for this format", format.name);
}

Result<Grid> project_grid(std::uint64_t rows, const WeightShape& weights) {
  ESPALIER_CHECK(check("project", "rows", rows, emulated::kProjectRows));
  if (weights.kernel == kExl3Table) {
    return input_error("project: found an embedding table of EXL3, expected a matrix");
  }
  return Grid{blocks_of(weights.rows, kProjectThreads / kWarpThreads), 1, kProjectThreads};
}

Result<Grid> embed_grid(std::uint64_t rows, const WeightShape& table) {
  static_assert(kElementThreads == emulated::kRing, "EXL3's tables need a block for each ring");
  return elements_by_row("embed", rows, table.cols, kElementThreads);
}

Result<Grid> exl3_rotate_grid(std::uint64_t rows, std::uint64_t size) {
  return elements_by_row("exl3_rotate", rows, size, emulated::kHadamardRun);
}

Result<Grid> row_grid(std::string_view kernel, std::uint64_t rows, std::uint64_t width) {
  ESPALIER_CHECK(check(kernel, "rows", rows, kMostBlocksX));
  ESPALIER_CHECK(check(kernel, "features", width, kMostSize));
  return Grid{static_cast<std::uint32_t>(rows), 1, kRowThreads};
}

Result<Grid> top_k_grid(std::uint64_t rows, std::uint64_t width, std::uint64_t count) {
  ESPALIER_CHECK(check("top_k", "places to fill", count, width));
  return row_grid("top_k", rows, width);
}

Result<Grid> route_grid(std::uint64_t rows, std::uint64_t experts, std::uint64_t top_k) {
  ESPALIER_CHECK(check("route", "rows", rows, kMostBlocksX));
  ESPALIER_CHECK(check("route", "experts", experts, kMostSize));
  ESPALIER_CHECK(check("route", "experts a row", top_k, experts));
  return Grid{static_cast<std::uint32_t>(rows), 1, kWarpThreads};
}

Result<Grid> element_grid(std::string_view kernel, std::uint64_t count) {
  ESPALIER_CHECK(check(kernel, "elements", count, kMostSize));
  return Grid{blocks_of(count, kElementThreads), 1, kElementThreads};
}

Result<Grid> rope_grid(std::uint64_t rows, std::uint64_t heads, std::uint64_t head_dim,
                       const compute::Rope& rope) {
  ESPALIER_CHECK(check("rope", "heads", heads, 65536));
  ESPALIER_CHECK(check("rope", "elements a head", head_dim, 65536));
  ESPALIER_CHECK(check("rope", "pairs", rope.frequencies.size(), head_dim / 2));
  const std::uint64_t pairs = heads * rope.frequencies.size();
  return elements_by_row("rope", rows, pairs, kElementThreads);
}

std::uint64_t rope_turns(double frequency) {
  const double turns = frequency / (2 * std::numbers::pi);
  // Below 2⁶⁴ also after rounding: a double just under 1 has 53 bits.
  return static_cast<std::uint64_t>(std::ldexp(turns - std::floor(turns), 64));
}

Result<AttentionShape> attention_shape(std::uint64_t rows, const compute::Attention& attention,
                                       const compute::KvView& cache, std::uint64_t longest) {
  const ChunkKernel* kernel = nullptr;
  for (const ChunkKernel& each : kChunkKernels) {
    if (each.head_dim == attention.head_dim) kernel = &each;
  }
  if (kernel == nullptr) {
    return input_error("attention: found a head size of {}, expected 64, 128, 256 or 512",
                       attention.head_dim);
  }
  ESPALIER_CHECK(check("attention", "heads", attention.heads, 65536));
  ESPALIER_CHECK(check("attention", "KV heads", attention.kv_heads, attention.heads));
  if (attention.heads % attention.kv_heads != 0) {
    return input_error("attention: found {} heads, expected a multiple of the {} KV heads",
                       attention.heads, attention.kv_heads);
  }
  if (cache.kv_heads != attention.kv_heads || cache.head_dim != attention.head_dim) {
    return input_error("attention: found a cache of {} KV heads of {}, expected {} of {}",
                       cache.kv_heads, cache.head_dim, attention.kv_heads, attention.head_dim);
  }
  ESPALIER_CHECK(check("attention", "positions", longest, cache.capacity));
  ESPALIER_CHECK(check("attention", "positions of the cache", cache.capacity, kMostSize));
  if (cache.type != compute::KvType::kF32 && cache.type != compute::KvType::kF16) {
    return input_error("attention: the kernels for GPUs take a cache of F32 or F16 only");
  }
  const std::uint64_t visible =
      attention.window != 0 && attention.window < longest ? attention.window : longest;
  const std::uint64_t parts = (attention.heads / attention.kv_heads + emulated::kChunkQueries - 1) /
                              emulated::kChunkQueries;
  const std::uint64_t most_rows = kMostSize / attention.heads;
  ESPALIER_CHECK(check("attention", "rows", rows, most_rows));
  AttentionShape shape;
  shape.chunks = blocks_of(visible, emulated::kChunkPositions);
  ESPALIER_CHECK(check("attention", "chunks of positions", shape.chunks, kMostBlocksY));
  shape.chunk_kernel = cache.type == compute::KvType::kF32 ? kernel->f32 : kernel->f16;
  shape.chunk = {static_cast<std::uint32_t>(rows * attention.kv_heads * parts), shape.chunks,
                 emulated::kChunkThreads};
  shape.merge = {static_cast<std::uint32_t>(rows * attention.heads), 1, kWarpThreads * 4};
  shape.partial_floats = rows * attention.heads * shape.chunks * (attention.head_dim + 2);
  return shape;
}

Result<Grid> convolution_grid(std::uint64_t rows, const compute::CausalConvolution& convolution) {
  ESPALIER_CHECK(check("causal_convolution", "elements of the kernel", convolution.kernel, 65536));
  return elements_by_row("causal_convolution", rows, convolution.channels, kElementThreads);
}

Result<Grid> delta_grid(std::uint64_t rows, const compute::DeltaRule& rule) {
  ESPALIER_CHECK(check("delta_step", "rows", rows, kMostBlocksY));
  ESPALIER_CHECK(check("delta_step", "value heads", rule.value_heads, 65536));
  ESPALIER_CHECK(check("delta_step", "key heads", rule.key_heads, rule.value_heads));
  ESPALIER_CHECK(check("delta_step", "elements of a key", rule.key_dim, 65536));
  ESPALIER_CHECK(check("delta_step", "elements of a value", rule.value_dim, 65536));
  if (rule.value_heads % rule.key_heads != 0) {
    return input_error("delta_step: found {} value heads, expected a multiple of the {} key heads",
                       rule.value_heads, rule.key_heads);
  }
  ESPALIER_CHECK(check("delta_step", "elements of a memory", rule.memory_size(), kMostSize));
  return Grid{static_cast<std::uint32_t>(rule.value_heads * rule.tiles()),
              static_cast<std::uint32_t>(rows), emulated::kDeltaThreads};
}

}  // namespace espalier::gpu
