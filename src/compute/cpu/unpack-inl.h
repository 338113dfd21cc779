// From the blocks of a format to panels: what the formats' structs are written with, and the loop
// over blocks. See panel.h.
#if defined(ESPALIER_CPU_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ESPALIER_CPU_UNPACK_INL_H_
#undef ESPALIER_CPU_UNPACK_INL_H_
#else
#define ESPALIER_CPU_UNPACK_INL_H_
#endif

#include <bit>

#include "compute/cpu/group_product-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace espalier::cpu::HWY_NAMESPACE {

// What a format unpacks a block into.
struct BlockWriter {
  std::uint8_t* to_codes;
  float* to_scales;
  float* to_minimums;

  // Codes of inputs 4·quad … 4·quad + 3 of the block.
  HWY_INLINE void codes(std::size_t quad, VU four) const {
    hn::Store(four, DU(), reinterpret_cast<std::uint32_t*>(to_codes) + quad * kLanes);
  }
  // All codes of a group.
  template <std::size_t kQuads>
  HWY_INLINE void group(std::size_t group, const VU (&quads)[kQuads]) const {
    ESPALIER_UNROLL
    for (std::size_t q = 0; q < kQuads; ++q) codes(group * kQuads + q, quads[q]);
  }
  HWY_INLINE void scale(std::size_t group, VF scale) const {
    hn::Store(scale, DF(), to_scales + group * kLanes);
  }
  HWY_INLINE void minimum(std::size_t group, VF minimum) const {
    hn::Store(minimum, DF(), to_minimums + group * kLanes);
  }
};

// Asks for the bytes of a block, `ahead` bytes further on in every row. Rows are as many streams as
// there are lanes, more than processors follow by themselves.
template <typename Block>
HWY_INLINE void prefetch(const RowLanes& rows, std::size_t at, std::size_t ahead) {
  constexpr std::size_t kLine = 64;
  for (std::size_t line = (at + kLine - 1) / kLine * kLine; line < at + sizeof(Block);
       line += kLine) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      hwy::Prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(rows.row[l]) +
                                                  line + ahead));
    }
  }
}

// CodeKernel::unpack of a format whose rows are blocks back to back. Members of Codes: Block, the
// layout; kShape; unpack(rows, at, to), for the blocks at byte `at` of all rows: calls to.scale()
// and to.minimum() of all groups, then to.group() for one after the other.
template <typename Codes>
void unpack_blocks(const pack::Matrix& w, std::size_t row, std::size_t first, std::size_t inputs,
                   Panel& panel) {
  using Block = typename Codes::Block;
  const std::size_t row_bytes = w.cols / Block::kValues * sizeof(Block);
  const std::size_t first_byte = first / Block::kValues * sizeof(Block);
  const auto* data = reinterpret_cast<const std::uint8_t*>(w.data.data());
  RowLanes rows;
  for (std::size_t l = 0; l < kLanes; ++l) {
    const std::size_t r = HWY_MIN(row + l, w.rows - 1);
    rows.row[l] = data + r * row_bytes + first_byte;
    rows.offset[l] = static_cast<std::int32_t>((r - row) * row_bytes);
  }

  // What comes next: the next inputs of these rows, or the first inputs of the next rows.
  const std::size_t blocks = inputs / Block::kValues;
  const std::size_t ahead =
      first + inputs < w.cols ? blocks * sizeof(Block) : kLanes * row_bytes - first_byte;
  for (std::size_t b = 0; b < blocks; ++b) {
    prefetch<Block>(rows, b * sizeof(Block), ahead);
    const std::size_t groups = b * (Block::kValues / Codes::kShape.group);
    const BlockWriter to = {.to_codes = panel.codes + b * Block::kValues * kLanes,
                            .to_scales = panel.scales + groups * kLanes,
                            .to_minimums = panel.minimums + groups * kLanes};
    Codes::unpack(rows, b * sizeof(Block), to);
  }
}

// CodeKernel::unpack_arranged of such a format.
template <typename Codes>
void unpack_arranged(const std::byte* rows, std::size_t first, std::size_t inputs, Panel& panel) {
  using Block = typename Codes::Block;
  constexpr std::size_t kBytes = sizeof(Block) * kLanes;
  // Further than the processor's own prefetching looks ahead.
  constexpr std::size_t kAhead = 4096;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(rows) + first / Block::kValues * kBytes;
  for (std::size_t b = 0; b < inputs / Block::kValues; ++b, bytes += kBytes) {
    for (std::size_t at = kAhead; at < kAhead + kBytes; at += 64) __builtin_prefetch(bytes + at);
    const std::size_t groups = b * (Block::kValues / Codes::kShape.group);
    const BlockWriter to = {.to_codes = panel.codes + b * Block::kValues * kLanes,
                            .to_scales = panel.scales + groups * kLanes,
                            .to_minimums = panel.minimums + groups * kLanes};
    Codes::unpack(SideBySide{bytes}, 0, to);
  }
}

// What takes the place of a BlockWriter where a tile of few rows is to be multiplied: each group as
// soon as it is unpacked, in registers.
template <typename Codes, std::size_t kRows>
struct BlockProduct {
  static constexpr CodeShape kShape = Codes::kShape;
  static constexpr std::size_t kGroups = Codes::Block::kValues / kShape.group;
  using Type = Shape<kShape.group, kShape.minimums, kShape.bits>;

  VF total[kRows];
  VF scales[kGroups];
  VF minimums[kGroups];
  const CodedGroup* x;
  std::size_t tile;  // rows of the tile that these belong to
  Ahead ahead;

  HWY_INLINE void scale(std::size_t group, VF scale) { scales[group] = scale; }
  HWY_INLINE void minimum(std::size_t group, VF minimum) { minimums[group] = minimum; }
  HWY_INLINE void group(std::size_t group, const VU (&codes)[Type::kQuads]) {
    if (group % Type::kParts == 0) ahead.ask();
    VF minimum = hn::Zero(DF());
    if constexpr (kShape.minimums) minimum = minimums[group];
    add_group<Type>(codes, scales[group], minimum, x + group / Type::kParts * tile,
                    group % Type::kParts, total);
  }
};

template <typename Codes, std::size_t kRows>
HWY_NOINLINE void multiply_blocks(const std::uint8_t* bytes, std::size_t blocks,
                                  const CodedGroup* x, std::size_t tile, Ahead& ahead,
                                  float* sums) {
  using Block = typename Codes::Block;
  constexpr std::size_t kBytes = sizeof(Block) * kLanes;
  constexpr std::size_t kCodedGroups = Block::kValues / kCodedGroup;
  BlockProduct<Codes, kRows> product;
  product.tile = tile;
  product.ahead = ahead;
  product.ahead.bytes = kBytes / kCodedGroups;  // as it is, but known to the compiler
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) product.total[r] = hn::LoadU(DF(), sums + r * kLanes);
  for (std::size_t b = 0; b < blocks; ++b, bytes += kBytes) {
    product.x = x + b * kCodedGroups * tile;
    Codes::unpack(SideBySide{bytes}, 0, product);
  }
  ESPALIER_UNROLL
  for (std::size_t r = 0; r < kRows; ++r) hn::StoreU(product.total[r], DF(), sums + r * kLanes);
  ahead = product.ahead;
}

// CodeKernel::multiply_arranged of such a format.
template <typename Codes>
void multiply_arranged(const std::byte* blocks_at, std::size_t blocks, const CodedGroup* x,
                       std::size_t tile, Ahead& ahead, float* sums) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(blocks_at);
  // What the registers hold; on old processors, code for several rows is not worth its size.
  constexpr std::size_t kMost = HWY_TARGET <= HWY_AVX3_DL ? 8 : HWY_TARGET <= HWY_AVX2 ? 4 : 1;
  constexpr decltype(&multiply_blocks<Codes, 1>) kByRows[] = {
      // 1, 2, 4, 8, or at most kMost
      multiply_blocks<Codes, 1>, multiply_blocks<Codes, HWY_MIN(2, kMost)>,
      multiply_blocks<Codes, HWY_MIN(4, kMost)>, multiply_blocks<Codes, kMost>};
  const std::size_t rows = HWY_MIN(tile, kMost);
  Ahead nothing;
  for (std::size_t r = 0; r < tile; r += rows) {
    kByRows[std::bit_width(rows) - 1](bytes, blocks, x + r, tile, r == 0 ? ahead : nothing,
                                      sums + r * kLanes);
  }
}

template <typename Codes>
constexpr CodeKernel block_kernel(std::string_view format) {
  static_assert(kPanelInputs % Codes::Block::kValues == 0);
  std::size_t odd_at = 0;
  if constexpr (requires { Codes::kOddAt; }) odd_at = Codes::kOddAt;
  return {.format = format,
          .block = Codes::Block::kValues,
          .shape = Codes::kShape,
          .unpack = unpack_blocks<Codes>,
          .unpack_arranged = unpack_arranged<Codes>,
          .multiply_arranged = multiply_arranged<Codes>,
          .block_bytes = sizeof(typename Codes::Block),
          .odd_at = odd_at};
}

// --- Bits ----------------------------------------------------------------------------------------

HWY_INLINE VU words_of(std::uint32_t word) { return hn::Set(DU(), word); }
HWY_INLINE VU bytes_of(std::uint8_t byte) { return words_of(byte * 0x01010101u); }

HWY_INLINE VU low_nibbles(VU words) { return hn::And(words, bytes_of(0x0f)); }
HWY_INLINE VU high_nibbles(VU words) { return low_nibbles(hn::ShiftRight<4>(words)); }

// `kCount` bits of every byte from bit kFrom on, moved to bit kTo.
template <int kFrom, int kCount, int kTo>
HWY_INLINE VU bits_of_bytes(VU words) {
  const VU moved = kFrom > kTo ? hn::ShiftRight<(kFrom > kTo ? kFrom - kTo : 0)>(words)
                               : hn::ShiftLeft<(kTo > kFrom ? kTo - kFrom : 0)>(words);
  return hn::And(moved, bytes_of(static_cast<std::uint8_t>(((1 << kCount) - 1) << kTo)));
}

// The entries of a table that the nibbles in `words`, one a byte, choose.
HWY_INLINE VU look_up(const std::uint8_t (&table)[16], VU nibbles) {
#if HWY_TARGET == HWY_SCALAR
  std::uint32_t word = hn::GetLane(nibbles);
  std::uint32_t found = 0;
  for (int shift = 0; shift < 32; shift += 8) {
    found |= static_cast<std::uint32_t>(table[word >> shift & 15]) << shift;
  }
  return hn::Set(DU(), found);
#else
  const hn::Repartition<std::uint8_t, DU> d8;
  const auto entries = hn::LoadDup128(d8, table);
  return hn::BitCast(DU(), hn::TableLookupBytes(entries, hn::BitCast(d8, nibbles)));
#endif
}

// Byte `b` of every lane as a number.
template <int b>
HWY_INLINE VF byte_to_float(VU words) {
  const VU byte =
      b == 3 ? hn::ShiftRight<24>(words) : hn::And(hn::ShiftRight<8 * b>(words), words_of(0xff));
  return hn::ConvertTo(DF(), hn::BitCast(DI(), byte));
}

}  // namespace espalier::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
