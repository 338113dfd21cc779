// Panels of GGUF's formats whose values come several at a time from tables: IQ1, IQ2 and IQ3, whose
// points have eight or four coordinates, and TQ1_0, with five digits of base 3 in a byte. A row is
// unpacked by itself, eight codes in a 64-bit number; no instruction set has a better way.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/bytes.h"
#include "base/half.h"
#include "compute/cpu/panel.h"
#include "pack/iq_grids.h"
#include "pack/iq_quants.h"
#include "pack/low_bit_quants.h"

namespace espalier::cpu {
namespace {

constexpr std::size_t kValues = 256;  // of a block, in all these formats

constexpr std::uint64_t each_byte(std::uint8_t byte) { return byte * 0x0101010101010101u; }

// One row's block: eight codes in every number, and the scales of its groups.
struct Unpacked {
  std::uint64_t codes[kValues / 8];
  float scales[kValues / 16];
};

// The coordinates of points, kBits bits each, as the lowest bytes of a number.
template <std::size_t kPoints, int kBits, int kCoordinates>
std::array<std::uint64_t, kPoints> spread_points(const std::uint16_t (&points)[kPoints],
                                                 const std::uint8_t* levels) {
  std::array<std::uint64_t, kPoints> spread = {};
  for (std::size_t p = 0; p < kPoints; ++p) {
    for (int j = 0; j < kCoordinates; ++j) {
      const int digit = points[p] >> (kBits * j) & ((1 << kBits) - 1);
      spread[p] |= std::uint64_t{levels[digit]} << (8 * j);
    }
  }
  return spread;
}

// Bytes of ones for the bits of a sign byte.
constexpr auto kSignMasks = [] {
  std::array<std::uint64_t, 256> masks = {};
  for (std::size_t signs = 0; signs < masks.size(); ++signs) {
    for (int j = 0; j < 8; ++j) {
      if ((signs >> j & 1) != 0) masks[signs] |= std::uint64_t{0xff} << (8 * j);
    }
  }
  return masks;
}();

// kZero + or − magnitudes of at most kZero: no byte carries into the next one.
template <std::uint8_t kZero>
std::uint64_t with_signs(std::uint64_t magnitudes, std::size_t signs) {
  return each_byte(kZero) + magnitudes - 2 * (magnitudes & kSignMasks[signs & 255]);
}

// The sign byte of which seven bits are stored: an even number of bits is set.
std::size_t even_signs(std::uint32_t word) {
  const std::uint32_t seven = word & 127;
  return seven | (std::popcount(seven) & 1u) << 7;
}

int nibble(const std::uint8_t* bytes, std::size_t i) { return bytes[i / 2] >> (i % 2 * 4) & 15; }

// In eighths: a coordinate −1, 0 or 1 and a shift of ±1.
constexpr std::uint8_t kIq1Levels[3] = {0, 8, 16};
constexpr std::uint8_t kIq1Zero = 9;

std::uint64_t iq1_codes(std::size_t index, bool negative_shift) {
  static const auto points = spread_points<2048, 2, 8>(pack::kIq1Grid, kIq1Levels);
  return points[index] + each_byte(negative_shift ? 0 : 2);
}

float iq1_scale(float scale, int s) { return scale * static_cast<float>(2 * s + 1) / 8; }
float iq2_scale(float scale, int s) { return scale * (0.5f + static_cast<float>(s)) * 0.25f; }

struct CodesIQ1_S {
  using Block = pack::BlockIQ1_S;
  static constexpr CodeShape kShape = {.zero = kIq1Zero};

  static void unpack(const Block& block, Unpacked& to) {
    const float scale = half_to_float(block.scale);
    for (std::size_t k = 0; k < 32; ++k) {
      const std::uint32_t word = block.high[k / 4];
      const std::size_t index = block.low[k] | (word >> (k % 4 * 3) & 7) << 8;
      to.codes[k] = iq1_codes(index, (word & 0x8000) != 0);
      to.scales[k / 4] = iq1_scale(scale, static_cast<int>(word >> 12 & 7));
    }
  }
};

struct CodesIQ1_M {
  using Block = pack::BlockIQ1_M;
  static constexpr CodeShape kShape = {.group = 16, .zero = kIq1Zero};

  static void unpack(const Block& block, Unpacked& to) {
    int bits = 0;
    for (int i = 0; i < 4; ++i) bits |= (block.scales[2 * i + 1] >> 4) << (4 * i);
    const float scale = half_to_float(static_cast<std::uint16_t>(bits));
    for (std::size_t k = 0; k < 32; ++k) {
      const int top = nibble(block.high, k);
      to.codes[k] = iq1_codes(block.low[k] | static_cast<std::size_t>(top & 7) << 8, top >= 8);
      const int s = load<std::uint16_t>(block.scales + k / 8 * 2) >> (k % 8 / 2 * 3) & 7;
      to.scales[k / 2] = iq1_scale(scale, s);
    }
  }
};

constexpr std::uint8_t kIq2Zero = pack::kIq2Levels[2];

struct CodesIQ2_XXS {
  using Block = pack::BlockIQ2_XXS;
  static constexpr CodeShape kShape = {.zero = kIq2Zero};

  static void unpack(const Block& block, Unpacked& to) {
    static const auto points = spread_points<256, 2, 8>(pack::kIq2XxsGrid, pack::kIq2Levels);
    const float scale = half_to_float(block.scale);
    for (std::size_t k = 0; k < 32; ++k) {
      const std::uint8_t* group = block.codes + k / 4 * 8;
      const auto word = load<std::uint32_t>(group + 4);
      to.codes[k] = with_signs<kIq2Zero>(points[group[k % 4]], even_signs(word >> (k % 4 * 7)));
      to.scales[k / 4] = iq2_scale(scale, static_cast<int>(word >> 28));
    }
  }
};

struct CodesIQ2_XS {
  using Block = pack::BlockIQ2_XS;
  static constexpr CodeShape kShape = {.group = 16, .zero = kIq2Zero};

  static void unpack(const Block& block, Unpacked& to) {
    static const auto points = spread_points<512, 2, 8>(pack::kIq2XsGrid, pack::kIq2Levels);
    const float scale = half_to_float(block.scale);
    for (std::size_t k = 0; k < 32; ++k) {
      const std::uint32_t code = block.codes[k];
      to.codes[k] = with_signs<kIq2Zero>(points[code & 511], even_signs(code >> 9));
      to.scales[k / 2] = iq2_scale(scale, nibble(block.scales, k / 2));
    }
  }
};

struct CodesIQ2_S {
  using Block = pack::BlockIQ2_S;
  static constexpr CodeShape kShape = {.group = 16, .zero = kIq2Zero};

  static void unpack(const Block& block, Unpacked& to) {
    static const auto points = spread_points<1024, 2, 8>(pack::kIq2SGrid, pack::kIq2Levels);
    const float scale = half_to_float(block.scale);
    for (std::size_t k = 0; k < 32; ++k) {
      const std::size_t top = block.high[k / 4] >> (k % 4 * 2) & 3;
      to.codes[k] = with_signs<kIq2Zero>(points[block.low[k] | top << 8], block.signs[k]);
      to.scales[k / 2] = iq2_scale(scale, nibble(block.scales, k / 2));
    }
  }
};

struct CodesIQ3_XXS {
  using Block = pack::BlockIQ3_XXS;
  static constexpr std::uint8_t kZero = pack::kIq3XxsLevels[7];
  static constexpr CodeShape kShape = {.zero = kZero};

  static void unpack(const Block& block, Unpacked& to) {
    static const auto points = spread_points<256, 3, 4>(pack::kIq3XxsGrid, pack::kIq3XxsLevels);
    const float scale = half_to_float(block.scale);
    for (std::size_t k = 0; k < 32; ++k) {
      const auto word = load<std::uint32_t>(block.signs_scales + k / 4 * 4);
      const std::uint64_t magnitudes = points[block.codes[2 * k]] | points[block.codes[2 * k + 1]]
                                                                        << 32;
      to.codes[k] = with_signs<kZero>(magnitudes, even_signs(word >> (k % 4 * 7)));
      to.scales[k / 4] = scale * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    }
  }
};

struct CodesIQ3_S {
  using Block = pack::BlockIQ3_S;
  static constexpr std::uint8_t kZero = pack::kIq3SLevels[7];
  static constexpr CodeShape kShape = {.zero = kZero};

  static void unpack(const Block& block, Unpacked& to) {
    static const auto points = spread_points<512, 3, 4>(pack::kIq3SGrid, pack::kIq3SLevels);
    const float scale = half_to_float(block.scale);
    const auto point = [&](std::size_t k) {
      const std::size_t top = block.high[k / 8] >> (k % 8) & 1;
      return points[block.low[k] | top << 8];
    };
    for (std::size_t k = 0; k < 32; ++k) {
      to.codes[k] = with_signs<kZero>(point(2 * k) | point(2 * k + 1) << 32, block.signs[k]);
      to.scales[k / 4] = scale * static_cast<float>(2 * nibble(block.scales, k / 4) + 1);
    }
  }
};

struct CodesTQ1_0 {
  using Block = pack::BlockTQ1_0;
  static constexpr CodeShape kShape = {.zero = 1};

  static void unpack(const Block& block, Unpacked& to) {
    std::uint8_t codes[kValues];
    std::uint8_t* next = codes;
    // Runs of bytes whose first digits come first, then the second, and so on.
    const auto put = [&](std::size_t first, std::size_t bytes, int digits) {
      unsigned power = 1;
      for (int n = 0; n < digits; ++n, power *= 3) {
        for (std::size_t b = first; b < first + bytes; ++b) {
          *next++ = static_cast<std::uint8_t>((block.codes[b] * power & 255) * 3 >> 8);
        }
      }
    };
    put(0, 32, 5);
    put(32, 16, 5);
    put(48, 4, 4);
    std::memcpy(to.codes, codes, sizeof(codes));
    for (float& scale : to.scales) scale = half_to_float(block.scale);
  }
};

// CodeKernel::unpack of such a format.
template <typename Codes>
void unpack_rows(const pack::Matrix& w, std::size_t row, std::size_t first, std::size_t inputs,
                 Panel& panel) {
  using Block = typename Codes::Block;
  constexpr std::size_t kGroups = kValues / Codes::kShape.group;
  const std::size_t lanes = code_kernels().lanes;
  const std::size_t row_bytes = w.cols / kValues * sizeof(Block);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::size_t r = std::min<std::size_t>(row + lane, w.rows - 1);
    const std::byte* from = w.data.data() + r * row_bytes + first / kValues * sizeof(Block);
    std::uint8_t* codes = panel.codes + 4 * lane;
    float* scales = panel.scales + lane;
    for (std::size_t done = 0; done < inputs; done += kValues, from += sizeof(Block)) {
      Unpacked unpacked;
      Codes::unpack(load<Block>(from), unpacked);
      for (std::size_t k = 0; k < kValues / 8; ++k, codes += 8 * lanes) {
        const auto low = static_cast<std::uint32_t>(unpacked.codes[k]);
        const auto high = static_cast<std::uint32_t>(unpacked.codes[k] >> 32);
        std::memcpy(codes, &low, sizeof(low));
        std::memcpy(codes + 4 * lanes, &high, sizeof(high));
      }
      for (std::size_t g = 0; g < kGroups; ++g, scales += lanes) *scales = unpacked.scales[g];
    }
  }
}

template <typename Codes>
constexpr CodeKernel grid_kernel(std::string_view format) {
  return {.format = format, .block = kValues, .shape = Codes::kShape, .unpack = unpack_rows<Codes>};
}

constexpr CodeKernel kKernels[] = {
    grid_kernel<CodesIQ1_S>("IQ1_S"),     grid_kernel<CodesIQ1_M>("IQ1_M"),
    grid_kernel<CodesIQ2_XXS>("IQ2_XXS"), grid_kernel<CodesIQ2_XS>("IQ2_XS"),
    grid_kernel<CodesIQ2_S>("IQ2_S"),     grid_kernel<CodesIQ3_XXS>("IQ3_XXS"),
    grid_kernel<CodesIQ3_S>("IQ3_S"),     grid_kernel<CodesTQ1_0>("TQ1_0"),
};

}  // namespace

std::span<const CodeKernel> grid_code_kernels() { return kKernels; }

}  // namespace espalier::cpu
