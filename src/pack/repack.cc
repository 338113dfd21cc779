#include "pack/repack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>

#include "base/half.h"
#include "pack/grouped_int4.h"
#include "pack/legacy_quants.h"
#include "pack/low_bit_quants.h"
#include "pack/micro_scaling.h"
#include "pack/mlx.h"
#include "pack/plain.h"
#include "pack/scales.h"
#include "pack/small_floats.h"

namespace espalier::pack {
namespace {

// What the codes of a group mean: value = scale · code + offset. Where codes are E2M1, the offset
// is 0.
struct Group {
  float scale = 0;
  float offset = 0;
};

// --- Reading groups ------------------------------------------------------------------------------

template <typename Block>
Block load_block(const Matrix& matrix, std::uint64_t row, std::uint64_t block) {
  const std::uint64_t blocks = matrix.cols / Block::kValues;
  return load<Block>(matrix.data.data() + (row * blocks + block) * sizeof(Block));
}

// Codes are offset by a constant, `kCenter`.
template <typename Block, int kCenter>
Group read_centered(const Matrix& matrix, std::uint64_t row, std::uint64_t group) {
  const float scale = half_to_float(load_block<Block>(matrix, row, group).scale);
  return {scale, -static_cast<float>(kCenter) * scale};
}

template <typename Block>
Group read_with_minimum(const Matrix& matrix, std::uint64_t row, std::uint64_t group) {
  const auto block = load_block<Block>(matrix, row, group);
  return {half_to_float(block.scale), half_to_float(block.minimum)};
}

Group read_q1_0(const Matrix& matrix, std::uint64_t row, std::uint64_t group) {
  const float scale = half_to_float(load_block<BlockQ1_0>(matrix, row, group).scale);
  return {2 * scale, -scale};
}

Group read_mxfp4(const Matrix& matrix, std::uint64_t row, std::uint64_t group) {
  return {e8m0_to_float(load_block<BlockMXFP4>(matrix, row, group).exponent), 0};
}

// Bit 7 means nothing there, and 0x7f is 0.
Group read_nvfp4(const Matrix& matrix, std::uint64_t row, std::uint64_t group) {
  const std::uint8_t code =
      load_block<BlockNVFP4>(matrix, row, group / 4).scales[group % 4] & 0x7fu;
  return {code == 0x7f ? 0 : e4m3_to_float(code), 0};
}

Group read_mlx_affine(const Matrix& matrix, std::uint64_t row, std::uint64_t group) {
  const std::uint64_t at =
      (row * (matrix.cols / matrix.format->block_values) + group) * scale_size(matrix.scale_type);
  return {load_scale(matrix.scale_type, matrix.scales.data() + at),
          load_scale(matrix.scale_type, matrix.zeros.data() + at)};
}

template <float (*kToFloat)(std::uint8_t code)>
Group read_mlx_float(const Matrix& matrix, std::uint64_t row, std::uint64_t group) {
  const std::uint64_t at = row * (matrix.cols / matrix.format->block_values) + group;
  return {kToFloat(std::to_integer<std::uint8_t>(matrix.scales[at])) * matrix.global_scale, 0};
}

Group read_int4(const Matrix& matrix, std::uint64_t row, std::uint64_t group) {
  const Int4Group found = int4_group(matrix, row, group);
  return {found.scale, -static_cast<float>(found.zero) * found.scale};
}

// --- Writing rows --------------------------------------------------------------------------------

// A row to be packed: its values, and what the codes of value `col` meant where they come from.
struct Row {
  const float* values;
  std::uint64_t cols;
  std::span<const Group> groups;
  std::uint64_t group_values;

  [[nodiscard]] const Group& group(std::uint64_t col) const { return groups[col / group_values]; }
};

// Where the parts of a packed row go, all zero before.
struct PackedRow {
  std::byte *data, *scales, *zeros;
};

// The code of `value`, at most `top`; of a value that has none, some code.
std::uint8_t code_of(float value, float scale, float offset, float top) {
  const float code = std::rint((value - offset) / scale);
  return code > 0 ? static_cast<std::uint8_t>(std::min(code, top)) : 0;
}

// Packs a row block by block with pack_block(col), which makes the block of values from `col` on.
template <typename Block, typename PackBlock>
void pack_blocks(const Row& row, std::byte* to, PackBlock pack_block) {
  for (std::uint64_t col = 0; col < row.cols; col += Block::kValues) {
    const Block block = pack_block(col);
    std::memcpy(to + col / Block::kValues * sizeof(Block), &block, sizeof(block));
  }
}

// A block of a type that has a scale and, from value to code, an offset.
template <typename Block>
Block pack_codes(const float* values, Block block, float scale, float offset, float top) {
  std::uint8_t codes[32];
  for (int i = 0; i < 32; ++i) codes[i] = code_of(values[i], scale, offset, top);
  if constexpr (requires { block.high; }) {
    store_block_codes(codes, block.codes, block.high);
  } else {
    store_block_codes(codes, block.codes, nullptr);
  }
  return block;
}

template <typename Block, int kCenter>
void pack_centered(const Row& row, const PackedRow& to) {
  pack_blocks<Block>(row, to.data, [&row](std::uint64_t col) {
    const float scale = row.group(col).scale;
    Block block{};
    block.scale = float_to_half(scale);
    return pack_codes(row.values + col, block, scale, -kCenter * scale, 2 * kCenter - 1);
  });
}

template <typename Block, int kTop>
void pack_with_minimum(const Row& row, const PackedRow& to) {
  pack_blocks<Block>(row, to.data, [&row](std::uint64_t col) {
    const auto [scale, offset] = row.group(col);
    Block block{};
    block.scale = float_to_half(scale);
    block.minimum = float_to_half(offset);
    return pack_codes(row.values + col, block, scale, offset, kTop);
  });
}

void pack_q8_0(const Row& row, const PackedRow& to) {
  pack_blocks<BlockQ8_0>(row, to.data, [&row](std::uint64_t col) {
    const float scale = row.group(col).scale;
    BlockQ8_0 block{};
    block.scale = float_to_half(scale);
    for (int i = 0; i < BlockQ8_0::kValues; ++i) {
      const int code = code_of(row.values[col + i], scale, -128 * scale, 255);
      block.codes[i] = static_cast<std::int8_t>(code - 128);
    }
    return block;
  });
}

// For types whose encoder finds a scale that fits, if there is one, by itself.
template <typename Block>
void pack_by_encoder(const Row& row, const PackedRow& to) {
  pack_blocks<Block>(row, to.data,
                     [&row](std::uint64_t col) { return Block::encode(row.values + col); });
}

std::uint8_t to_e8m0(float scale) {
  return scale > 0 ? static_cast<std::uint8_t>(std::clamp(std::ilogb(scale) + 127, 0, 254)) : 0;
}

// The E2M1 code that stands for `value`; where there is none, 0.
unsigned e2m1_of(float value, float scale) {
  for (unsigned code = 0; code < 8; ++code) {
    if (e2m1_to_float(code) * scale == std::abs(value))
      return std::signbit(value) ? code | 8 : code;
  }
  return 0;
}

// Codes of 2·half values as GGUF pairs them: value i with half + i.
void pack_e2m1(const float* values, float scale, int half, std::uint8_t* codes) {
  for (int i = 0; i < half; ++i) {
    codes[i] = static_cast<std::uint8_t>(e2m1_of(values[i], scale) |
                                         e2m1_of(values[half + i], scale) << 4);
  }
}

void pack_mxfp4(const Row& row, const PackedRow& to) {
  pack_blocks<BlockMXFP4>(row, to.data, [&row](std::uint64_t col) {
    const float scale = row.group(col).scale;
    BlockMXFP4 block{};
    block.exponent = to_e8m0(scale);
    pack_e2m1(row.values + col, scale, 16, block.codes);
    return block;
  });
}

void pack_nvfp4(const Row& row, const PackedRow& to) {
  pack_blocks<BlockNVFP4>(row, to.data, [&row](std::uint64_t col) {
    BlockNVFP4 block{};
    for (int g = 0; g < 4; ++g) {
      const float scale = row.group(col + 16 * g).scale;
      block.scales[g] = float_to_e4m3(scale);
      pack_e2m1(row.values + col + 16 * g, scale, 8, block.codes + 8 * g);
    }
    return block;
  });
}

template <std::uint32_t kBits, std::uint32_t kGroup>
void pack_mlx_affine(const Row& row, const PackedRow& to) {
  for (std::uint64_t g = 0; g < row.cols / kGroup; ++g) {
    const auto [scale, offset] = row.group(g * kGroup);
    const std::uint16_t halves[] = {float_to_half(scale), float_to_half(offset)};
    std::memcpy(to.scales + g * sizeof(halves[0]), &halves[0], sizeof(halves[0]));
    std::memcpy(to.zeros + g * sizeof(halves[1]), &halves[1], sizeof(halves[1]));
    for (std::uint64_t col = g * kGroup; col < (g + 1) * kGroup; ++col) {
      write_mlx_code(to.data, col, kBits,
                     code_of(row.values[col], scale, offset, (1u << kBits) - 1));
    }
  }
}

template <std::uint8_t (*kToCode)(float scale), std::uint32_t kGroup>
void pack_mlx_float(const Row& row, const PackedRow& to) {
  for (std::uint64_t g = 0; g < row.cols / kGroup; ++g) {
    const float scale = row.group(g * kGroup).scale;
    to.scales[g] = static_cast<std::byte>(kToCode(scale));
    for (std::uint64_t col = g * kGroup; col < (g + 1) * kGroup; ++col) {
      write_mlx_code(to.data, col, 4, e2m1_of(row.values[col], scale));
    }
  }
}

// --- The tables ----------------------------------------------------------------------------------

using Names = std::span<const std::string_view>;

constexpr std::string_view kMlx1[] = {"MLX-1-g128", "MLX-1-g64", "MLX-1-g32"};
constexpr std::string_view kMlx2[] = {"MLX-2-g128", "MLX-2-g64", "MLX-2-g32"};
constexpr std::string_view kMlx4[] = {"MLX-4-g128", "MLX-4-g64", "MLX-4-g32"};
constexpr std::string_view kMlx5[] = {"MLX-5-g128", "MLX-5-g64", "MLX-5-g32"};
constexpr std::string_view kMlx8[] = {"MLX-8-g128", "MLX-8-g64", "MLX-8-g32"};
constexpr std::string_view kMlxMxfp4[] = {"MLX-MXFP4"};
constexpr std::string_view kMlxNvfp4[] = {"MLX-NVFP4"};
constexpr std::string_view kMxfp4[] = {"MXFP4"};
constexpr std::string_view kNvfp4[] = {"NVFP4"};
constexpr std::string_view kBlocks1[] = {"Q1_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"};
constexpr std::string_view kBlocks2[] = {"TQ1_0", "TQ2_0", "Q2_0", "Q4_0",
                                         "Q4_1",  "Q5_0",  "Q5_1", "Q8_0"};
constexpr Names kBlocks4 = Names(kBlocks1).subspan(1);
constexpr Names kBlocks5 = Names(kBlocks1).subspan(3);
constexpr Names kBlocks8 = Names(kBlocks1).subspan(5);

// A format that can be read: the values of a group, what group `group` of a row means (codes need
// no reading: they follow from the decoded values), and which formats of the other family could
// hold it, by size.
struct Source {
  std::string_view name;
  std::uint64_t group_values;
  Group (*read)(const Matrix& matrix, std::uint64_t row, std::uint64_t group);
  Names candidates;
};

constexpr auto kSources = std::to_array<Source>({
    {"Q4_0", 32, read_centered<BlockQ4_0, 8>, kMlx4},
    {"Q4_1", 32, read_with_minimum<BlockQ4_1>, kMlx4},
    {"Q5_0", 32, read_centered<BlockQ5_0, 16>, kMlx5},
    {"Q5_1", 32, read_with_minimum<BlockQ5_1>, kMlx5},
    {"Q8_0", 32, read_centered<BlockQ8_0, 128>, kMlx8},
    {"TQ1_0", 256, read_centered<BlockTQ1_0, 1>, kMlx2},
    {"TQ2_0", 256, read_centered<BlockTQ2_0, 1>, kMlx2},
    {"Q1_0", 128, read_q1_0, kMlx1},
    {"Q2_0", 64, read_centered<BlockQ2_0, 1>, kMlx2},
    {"MXFP4", 32, read_mxfp4, kMlxMxfp4},
    {"NVFP4", 16, read_nvfp4, kMlxNvfp4},
    {"MLX-MXFP4", 32, read_mlx_float<e8m0_to_float>, kMxfp4},
    {"MLX-NVFP4", 16, read_mlx_float<e4m3_to_float>, kNvfp4},
});

// Candidates of MLX's affine formats, by bits.
constexpr Names kBlocksOfBits[9] = {{},       kBlocks1, kBlocks2, kBlocks4, kBlocks4,
                                    kBlocks5, kBlocks8, {},       kBlocks8};

struct Target {
  std::string_view name;
  void (*pack)(const Row& row, const PackedRow& to);
};

constexpr auto kTargets = std::to_array<Target>({
    {"F32", pack_by_encoder<PlainF32>},
    {"F16", pack_by_encoder<PlainF16>},
    {"BF16", pack_by_encoder<PlainBF16>},
    {"Q4_0", pack_centered<BlockQ4_0, 8>},
    {"Q4_1", pack_with_minimum<BlockQ4_1, 15>},
    {"Q5_0", pack_centered<BlockQ5_0, 16>},
    {"Q5_1", pack_with_minimum<BlockQ5_1, 31>},
    {"Q8_0", pack_q8_0},
    {"TQ1_0", pack_by_encoder<BlockTQ1_0>},
    {"TQ2_0", pack_by_encoder<BlockTQ2_0>},
    {"Q1_0", pack_by_encoder<BlockQ1_0>},
    {"Q2_0", pack_by_encoder<BlockQ2_0>},
    {"MXFP4", pack_mxfp4},
    {"NVFP4", pack_nvfp4},
    {"MLX-1-g32", pack_mlx_affine<1, 32>},
    {"MLX-1-g64", pack_mlx_affine<1, 64>},
    {"MLX-1-g128", pack_mlx_affine<1, 128>},
    {"MLX-2-g32", pack_mlx_affine<2, 32>},
    {"MLX-2-g64", pack_mlx_affine<2, 64>},
    {"MLX-2-g128", pack_mlx_affine<2, 128>},
    {"MLX-4-g32", pack_mlx_affine<4, 32>},
    {"MLX-4-g64", pack_mlx_affine<4, 64>},
    {"MLX-4-g128", pack_mlx_affine<4, 128>},
    {"MLX-5-g32", pack_mlx_affine<5, 32>},
    {"MLX-5-g64", pack_mlx_affine<5, 64>},
    {"MLX-5-g128", pack_mlx_affine<5, 128>},
    {"MLX-8-g32", pack_mlx_affine<8, 32>},
    {"MLX-8-g64", pack_mlx_affine<8, 64>},
    {"MLX-8-g128", pack_mlx_affine<8, 128>},
    {"MLX-MXFP4", pack_mlx_float<to_e8m0, 32>},
    {"MLX-NVFP4", pack_mlx_float<float_to_e4m3, 16>},
});

bool is_plain(const Format& format) { return format.block_values == 1; }

std::optional<Source> find_source(const Matrix& matrix) {
  const Format& format = *matrix.format;
  if (is_plain(format)) return Source{format.name, 1, nullptr, Names(&format.name, 1)};
  if (format.decode_rows == decode_mlx_affine_rows) {
    return Source{format.name, format.block_values, read_mlx_affine,
                  kBlocksOfBits[mlx_code_bits(format)]};
  }
  const bool int4 = format.family == Family::kGptq || format.family == Family::kAwq ||
                    format.family == Family::kCompressedTensors;
  if (int4 && matrix.input_group.empty()) {
    return Source{format.name, int4_group_size(matrix), read_int4, kBlocks4};
  }
  for (const Source& source : kSources) {
    if (source.name == format.name) return source;
  }
  return std::nullopt;
}

// Reads row `row`, writes it as row `index` of `packed`, and compares. Returns the first column
// that would change.
struct Difference {
  std::uint64_t col;
  float before, after;
};

class RowPacker {
 public:
  RowPacker(const Matrix& from, const Source& source, const Target& target)
      : from_(from),
        source_(source),
        target_(target),
        values_(from.cols),
        decoded_(from.cols),
        groups_(source.read == nullptr
                    ? 0
                    : (from.cols + source.group_values - 1) / source.group_values) {}

  std::optional<Difference> pack(std::uint64_t row, PackedMatrix& packed, std::uint64_t index) {
    decode_rows(from_, row, 1, values_.data());
    for (std::uint64_t g = 0; g < groups_.size(); ++g) groups_[g] = source_.read(from_, row, g);
    const auto part = [&](std::vector<std::byte>& bytes) {
      return bytes.data() + bytes.size() / packed.view.rows * index;
    };
    target_.pack({values_.data(), from_.cols, groups_, source_.group_values},
                 {part(packed.data), part(packed.scales), part(packed.zeros)});
    decode_rows(packed.view, index, 1, decoded_.data());
    for (std::uint64_t c = 0; c < from_.cols; ++c) {
      if (!(decoded_[c] == values_[c])) return Difference{c, values_[c], decoded_[c]};
    }
    return std::nullopt;
  }

 private:
  const Matrix& from_;
  const Source& source_;
  const Target& target_;
  std::vector<float> values_, decoded_;
  std::vector<Group> groups_;
};

// Memory for `rows` rows in a format, and the view of it.
Result<PackedMatrix> make_packed(const Format& format, std::uint64_t rows, std::uint64_t cols) {
  PackedMatrix packed;
  ESPALIER_TRY(const std::uint64_t row_bytes, packed_bytes(format, cols));
  packed.data.resize(rows * row_bytes);
  if (format.family != Family::kMlx) {
    ESPALIER_TRY(packed.view, block_matrix(format, rows, cols, packed.data));
    return packed;
  }
  const std::uint64_t groups = rows * (cols / format.block_values);
  const bool affine = format.decode_rows == decode_mlx_affine_rows;
  packed.scales.resize(groups * (affine ? scale_size(ScaleType::kF16) : 1));
  packed.zeros.resize(affine ? packed.scales.size() : 0);
  ESPALIER_TRY(packed.view, mlx_matrix(format, rows, cols, packed.data, packed.scales, packed.zeros,
                                       ScaleType::kF16));
  return packed;
}

// A failure to repack, and the row in which it showed.
struct Refusal {
  std::uint64_t row = 0;
  std::string message;
};

// As repack_rows; `refusal` gets the place of a weight that would change.
Result<PackedMatrix> repack(const Matrix& matrix, const Source& source,
                            std::span<const std::uint64_t> rows, const Format& to,
                            ThreadPool& threads, Refusal& refusal) {
  const auto target = std::find_if(kTargets.begin(), kTargets.end(),
                                   [&to](const Target& known) { return known.name == to.name; });
  if (target == kTargets.end()) {
    return input_error("{} cannot be written as {}", matrix.format->name, to.name);
  }
  ESPALIER_TRY(PackedMatrix packed, make_packed(to, rows.size(), matrix.cols));
  std::mutex mutex;
  std::optional<std::pair<std::uint64_t, Difference>> first;  // by index, whatever the threads
  threads.parallel_for(rows.size(), [&](std::size_t begin, std::size_t end, std::size_t) {
    RowPacker packer(matrix, source, *target);
    for (std::size_t i = begin; i < end; ++i) {
      const auto difference = packer.pack(rows[i], packed, i);
      if (!difference) continue;
      const std::lock_guard lock(mutex);
      if (!first || i < first->first) first = {i, *difference};
      return;
    }
  });
  if (!first) return packed;
  const auto& [index, difference] = *first;
  refusal = {rows[index],
             fmt::format("{} cannot become {}: the weight in row {}, column {} would change from "
                         "{} to {}",
                         matrix.format->name, to.name, rows[index], difference.col,
                         difference.before, difference.after)};
  return input_error("{}", refusal.message);
}

// Values that are repacked at a time while looking for a format.
constexpr std::uint64_t kChunkValues = 1 << 22;

}  // namespace

Result<PackedMatrix> repack_rows(const Matrix& matrix, std::span<const std::uint64_t> rows,
                                 const Format& to, ThreadPool& threads) {
  if (matrix.format == &to && to.family == Family::kGguf) {
    ESPALIER_TRY(PackedMatrix packed, make_packed(to, rows.size(), matrix.cols));
    const std::uint64_t row_bytes = packed.data.size() / std::max<std::size_t>(rows.size(), 1);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(packed.data.data() + i * row_bytes, matrix.data.data() + rows[i] * row_bytes,
                  row_bytes);
    }
    return packed;
  }
  const std::optional<Source> source = find_source(matrix);
  if (!source) return input_error("{} cannot be repacked", matrix.format->name);
  Refusal refusal;
  return repack(matrix, *source, rows, to, threads, refusal);
}

Result<const Format*> find_repacking(const Matrix& matrix, Family family, ThreadPool& threads) {
  if (is_plain(*matrix.format) || matrix.format->family == family) return matrix.format;
  const std::optional<Source> source = find_source(matrix);
  if (!source || source->candidates.empty()) {
    return input_error("{}{} has no counterpart", matrix.format->name,
                       matrix.input_group.empty() ? "" : " in act-order");
  }
  // The refusal that came last in the matrix is the most telling: that format held the longest.
  Refusal last;
  for (const std::string_view name : source->candidates) {
    const Format& candidate = *find_format(name);
    if (matrix.cols % candidate.block_values != 0) continue;
    Refusal refusal;
    const std::uint64_t step = std::max<std::uint64_t>(kChunkValues / matrix.cols, 1);
    for (std::uint64_t row = 0; row < matrix.rows && refusal.message.empty(); row += step) {
      std::vector<std::uint64_t> rows(std::min(step, matrix.rows - row));
      std::iota(rows.begin(), rows.end(), row);
      (void)repack(matrix, *source, rows, candidate, threads, refusal);
    }
    if (refusal.message.empty()) return &candidate;
    if (last.message.empty() || refusal.row >= last.row) last = std::move(refusal);
  }
  if (last.message.empty()) {
    return input_error("{} rows of {} columns do not fill the other's blocks", matrix.format->name,
                       matrix.cols);
  }
  return input_error("{}", last.message);
}

}  // namespace espalier::pack
