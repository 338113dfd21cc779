// The table of formats: adding one is an entry here and a struct in a pair of files beside this
// one.
#include <array>

#include "pack/exl3.h"
#include "pack/grouped_int4.h"
#include "pack/iq_quants.h"
#include "pack/k_quants.h"
#include "pack/legacy_quants.h"
#include "pack/low_bit_quants.h"
#include "pack/matrix.h"
#include "pack/micro_scaling.h"
#include "pack/mlx.h"
#include "pack/plain.h"
#include "pack/transposed.h"

namespace espalier::pack {
namespace {

template <typename Block>
constexpr Format gguf_block(std::string_view name, std::uint32_t ggml_type) {
  return {.name = name,
          .family = Family::kGguf,
          .ggml_type = ggml_type,
          .block_values = Block::kValues,
          .block_bytes = sizeof(Block),
          .bits_per_weight = 8.0 * sizeof(Block) / Block::kValues,
          .decode_rows = decode_block_rows<Block>,
          .encode = encode_block_rows<Block>};
}

// clang-format off
constexpr auto kFormats = std::to_array<Format>({
    gguf_block<PlainF32>("F32", 0),
    gguf_block<PlainF16>("F16", 1),
    gguf_block<PlainBF16>("BF16", 30),
    gguf_block<BlockQ4_0>("Q4_0", 2),
    gguf_block<BlockQ4_1>("Q4_1", 3),
    gguf_block<BlockQ5_0>("Q5_0", 6),
    gguf_block<BlockQ5_1>("Q5_1", 7),
    gguf_block<BlockQ8_0>("Q8_0", 8),
    gguf_block<BlockQ2_K>("Q2_K", 10),
    gguf_block<BlockQ3_K>("Q3_K", 11),
    gguf_block<BlockQ4_K>("Q4_K", 12),
    gguf_block<BlockQ5_K>("Q5_K", 13),
    gguf_block<BlockQ6_K>("Q6_K", 14),
    gguf_block<BlockQ8_K>("Q8_K", 15),
    gguf_block<BlockIQ1_S>("IQ1_S", 19),
    gguf_block<BlockIQ1_M>("IQ1_M", 29),
    gguf_block<BlockIQ2_XXS>("IQ2_XXS", 16),
    gguf_block<BlockIQ2_XS>("IQ2_XS", 17),
    gguf_block<BlockIQ2_S>("IQ2_S", 22),
    gguf_block<BlockIQ3_XXS>("IQ3_XXS", 18),
    gguf_block<BlockIQ3_S>("IQ3_S", 21),
    gguf_block<BlockIQ4_NL>("IQ4_NL", 20),
    gguf_block<BlockIQ4_XS>("IQ4_XS", 23),
    gguf_block<BlockTQ1_0>("TQ1_0", 34),
    gguf_block<BlockTQ2_0>("TQ2_0", 35),
    gguf_block<BlockMXFP4>("MXFP4", 39),
    gguf_block<BlockNVFP4>("NVFP4", 40),
    gguf_block<BlockQ1_0>("Q1_0", 41),
    gguf_block<BlockQ2_0>("Q2_0", 42),

    mlx_affine("MLX-1-g32", 1, 32),
    mlx_affine("MLX-1-g64", 1, 64),
    mlx_affine("MLX-1-g128", 1, 128),
    mlx_affine("MLX-2-g32", 2, 32),
    mlx_affine("MLX-2-g64", 2, 64),
    mlx_affine("MLX-2-g128", 2, 128),
    mlx_affine("MLX-3-g32", 3, 32),
    mlx_affine("MLX-3-g64", 3, 64),
    mlx_affine("MLX-3-g128", 3, 128),
    mlx_affine("MLX-4-g32", 4, 32),
    mlx_affine("MLX-4-g64", 4, 64),
    mlx_affine("MLX-4-g128", 4, 128),
    mlx_affine("MLX-5-g32", 5, 32),
    mlx_affine("MLX-5-g64", 5, 64),
    mlx_affine("MLX-5-g128", 5, 128),
    mlx_affine("MLX-6-g32", 6, 32),
    mlx_affine("MLX-6-g64", 6, 64),
    mlx_affine("MLX-6-g128", 6, 128),
    mlx_affine("MLX-8-g32", 8, 32),
    mlx_affine("MLX-8-g64", 8, 64),
    mlx_affine("MLX-8-g128", 8, 128),
    mlx_float("MLX-MXFP4", 4, 32, decode_mxfp4_rows),
    mlx_float("MLX-MXFP8", 8, 32, decode_mxfp8_rows),
    mlx_float("MLX-NVFP4", 4, 16, decode_nvfp4_rows),

    exl3_weights_format<Codebook::k3Inst>("EXL3-3INST-1", 1),
    exl3_weights_format<Codebook::k3Inst>("EXL3-3INST-2", 2),
    exl3_weights_format<Codebook::k3Inst>("EXL3-3INST-3", 3),
    exl3_weights_format<Codebook::k3Inst>("EXL3-3INST-4", 4),
    exl3_weights_format<Codebook::k3Inst>("EXL3-3INST-5", 5),
    exl3_weights_format<Codebook::k3Inst>("EXL3-3INST-6", 6),
    exl3_weights_format<Codebook::k3Inst>("EXL3-3INST-7", 7),
    exl3_weights_format<Codebook::k3Inst>("EXL3-3INST-8", 8),
    exl3_weights_format<Codebook::kMcg>("EXL3-MCG-1", 1),
    exl3_weights_format<Codebook::kMcg>("EXL3-MCG-2", 2),
    exl3_weights_format<Codebook::kMcg>("EXL3-MCG-3", 3),
    exl3_weights_format<Codebook::kMcg>("EXL3-MCG-4", 4),
    exl3_weights_format<Codebook::kMcg>("EXL3-MCG-5", 5),
    exl3_weights_format<Codebook::kMcg>("EXL3-MCG-6", 6),
    exl3_weights_format<Codebook::kMcg>("EXL3-MCG-7", 7),
    exl3_weights_format<Codebook::kMcg>("EXL3-MCG-8", 8),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-1", 1),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-1.5", 1.5),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-2", 2),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-2.5", 2.5),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-3", 3),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-3.5", 3.5),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-4", 4),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-5", 5),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-6", 6),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-7", 7),
    exl3_weights_format<Codebook::kMul1>("EXL3-MUL1-8", 8),
    exl3_table_format("EXL3-EMB-1", 1, 256, decode_exl3_embedding_rows),
    exl3_table_format("EXL3-EMB-2", 2, 256, decode_exl3_embedding_rows),
    exl3_table_format("EXL3-EMB-3", 3, 256, decode_exl3_embedding_rows),
    exl3_table_format("EXL3-EMB-4", 4, 256, decode_exl3_embedding_rows),
    exl3_table_format("EXL3-EMB-5", 5, 256, decode_exl3_embedding_rows),
    exl3_table_format("EXL3-EMB-6", 6, 256, decode_exl3_embedding_rows),
    exl3_table_format("EXL3-EMB-7", 7, 256, decode_exl3_embedding_rows),
    exl3_table_format("EXL3-EMB-8", 8, 256, decode_exl3_embedding_rows),
    exl3_table_format("EXL3-NGRAM-1", 1, kExl3NgramDim, decode_exl3_ngram_rows),
    exl3_table_format("EXL3-NGRAM-2", 2, kExl3NgramDim, decode_exl3_ngram_rows),
    exl3_table_format("EXL3-NGRAM-3", 3, kExl3NgramDim, decode_exl3_ngram_rows),
    exl3_table_format("EXL3-NGRAM-4", 4, kExl3NgramDim, decode_exl3_ngram_rows),
    exl3_table_format("EXL3-NGRAM-5", 5, kExl3NgramDim, decode_exl3_ngram_rows),
    exl3_table_format("EXL3-NGRAM-6", 6, kExl3NgramDim, decode_exl3_ngram_rows),
    exl3_table_format("EXL3-NGRAM-7", 7, kExl3NgramDim, decode_exl3_ngram_rows),
    exl3_table_format("EXL3-NGRAM-8", 8, kExl3NgramDim, decode_exl3_ngram_rows),

    int4_format<Int4Layout::kGptqV1>("GPTQ-V1-4-g32", 32),
    int4_format<Int4Layout::kGptqV1>("GPTQ-V1-4-g64", 64),
    int4_format<Int4Layout::kGptqV1>("GPTQ-V1-4-g128", 128),
    int4_format<Int4Layout::kGptqV1>("GPTQ-V1-4-row", kWholeRow),
    int4_format<Int4Layout::kGptqV2>("GPTQ-V2-4-g32", 32),
    int4_format<Int4Layout::kGptqV2>("GPTQ-V2-4-g64", 64),
    int4_format<Int4Layout::kGptqV2>("GPTQ-V2-4-g128", 128),
    int4_format<Int4Layout::kGptqV2>("GPTQ-V2-4-row", kWholeRow),
    int4_format<Int4Layout::kAwq>("AWQ-4-g32", 32),
    int4_format<Int4Layout::kAwq>("AWQ-4-g64", 64),
    int4_format<Int4Layout::kAwq>("AWQ-4-g128", 128),
    int4_format<Int4Layout::kAwq>("AWQ-4-row", kWholeRow),
    int4_format<Int4Layout::kCtSymmetric>("CT-SYM-4-g32", 32),
    int4_format<Int4Layout::kCtSymmetric>("CT-SYM-4-g64", 64),
    int4_format<Int4Layout::kCtSymmetric>("CT-SYM-4-g128", 128),
    int4_format<Int4Layout::kCtSymmetric>("CT-SYM-4-row", kWholeRow),
    int4_format<Int4Layout::kCtAsymmetric>("CT-ASYM-4-g32", 32),
    int4_format<Int4Layout::kCtAsymmetric>("CT-ASYM-4-g64", 64),
    int4_format<Int4Layout::kCtAsymmetric>("CT-ASYM-4-g128", 128),
    int4_format<Int4Layout::kCtAsymmetric>("CT-ASYM-4-row", kWholeRow),

    transposed_format<PlainF32>("F32-T"),
    transposed_format<PlainF16>("F16-T"),
    transposed_format<PlainBF16>("BF16-T"),
});
// clang-format on

}  // namespace

std::span<const Format> formats() { return kFormats; }

const Format* find_format(std::string_view name) {
  for (const Format& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

const Format* find_ggml_format(std::uint32_t ggml_type) {
  for (const Format& format : kFormats) {
    if (format.ggml_type == ggml_type && ggml_type != kNoGgmlType) return &format;
  }
  return nullptr;
}

Result<std::uint64_t> packed_bytes(const Format& format, std::uint64_t values) {
  if (values % format.block_values != 0) {
    return input_error("{} values do not fill whole blocks of {}, which {} needs", values,
                       format.block_values, format.name);
  }
  const auto bytes = checked_mul(values / format.block_values, format.block_bytes);
  if (!bytes) return input_error("{} values of {} overflow a size", values, format.name);
  return *bytes;
}

Result<Matrix> block_matrix(const Format& format, std::uint64_t rows, std::uint64_t cols,
                            Bytes data) {
  ESPALIER_TRY(const std::uint64_t row_bytes, packed_bytes(format, cols));
  const auto bytes = checked_mul(rows, row_bytes);
  if (!bytes || *bytes > data.size()) {
    return input_error("a {} matrix of {} rows × {} columns needs {} bytes, found {}", format.name,
                       rows, cols, bytes ? fmt::to_string(*bytes) : "too many", data.size());
  }
  return Matrix{.format = &format, .rows = rows, .cols = cols, .data = data.first(*bytes)};
}

std::optional<Matrix> row_view(const Matrix& matrix, std::uint64_t first, std::uint64_t count) {
  const Family family = matrix.format->family;
  const bool by_rows = family == Family::kGguf || family == Family::kMlx ||
                       (family == Family::kCompressedTensors && matrix.zeros.empty());
  if (!by_rows) return std::nullopt;
  const auto rows_of = [&](Bytes part) {
    const std::uint64_t row_bytes = part.size() / matrix.rows;
    return part.subspan(first * row_bytes, count * row_bytes);
  };
  Matrix view = matrix;
  view.rows = count;
  view.data = rows_of(matrix.data);
  view.scales = rows_of(matrix.scales);
  view.zeros = rows_of(matrix.zeros);
  return view;
}

}  // namespace espalier::pack
