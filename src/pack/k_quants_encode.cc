// The encoders of the K-quants: searches for the codes of least squared error.
#include <algorithm>

#include "pack/exact_scales.h"
#include "pack/k_quants.h"

namespace espalier::pack {
namespace {

// Adds bits to a byte that starts as zero.
void put(std::uint8_t& byte, int bits) { byte = static_cast<std::uint8_t>(byte | bits); }

void put_two_bits(std::uint8_t* codes, int v, int code) {
  put(codes[v / 128 * 32 + v % 32], code << (v % 128 / 32 * 2));
}

void put_four_bits(std::uint8_t* codes, int v, int code) {
  put(codes[v / 64 * 32 + v % 32], code << (v % 64 / 32 * 4));
}

void put_high_bit(std::uint8_t* high, int v, int bit) { put(high[v % 32], bit << (v / 32)); }

// ---- Q3_K and Q6_K: 16 groups of 16 values, value = scale · multiplier · level.

struct SymmetricCodes {
  Scales<16> scales;
  std::array<std::int8_t, 256> levels{};
};

SymmetricCodes search_symmetric(const float* values, IntegerLevels levels,
                                std::span<const float> multipliers, std::span<const Sweep> sweeps) {
  SymmetricCodes codes;
  const float largest = largest_magnitude({values, 256});
  if (largest > kTooLarge) codes.scales.scale = kInfiniteHalf;
  if (largest < kNegligible || largest > kTooLarge) return codes;
  const auto group = [&](std::size_t g) { return std::span(values + 16 * g, 16); };
  codes.scales = find_scales<16>(
      {values, 256}, {multipliers, 1, multipliers[0] * levels.least}, sweeps,
      [&](std::size_t g, float t) { return fit_levels(group(g), t, levels); },
      [&](std::size_t g, float t) { return holds_levels(group(g), t, levels); });
  const float d = half_to_float(codes.scales.scale);
  for (std::size_t v = 0; v < 256; ++v) {
    const float t = d * multipliers[codes.scales.codes[v / 16]];
    if (t != 0) codes.levels[v] = static_cast<std::int8_t>(levels(values[v] / t));
  }
  return codes;
}

// Multipliers first, first + 1, …
template <std::size_t kCount>
constexpr std::array<float, kCount> consecutive(int first) {
  std::array<float, kCount> values{};
  for (std::size_t i = 0; i < kCount; ++i)
    values[i] = static_cast<float>(first + static_cast<int>(i));
  return values;
}

// ---- Q2_K, Q4_K and Q5_K: value = scale · s · code − minimum · m.

// One group at some choice of codes q: its sums, from which the best scale and minimum follow.
struct AffineFit {
  float n = 0, x = 0;           // count, Σx
  float q = 0, qq = 0, xq = 0;  // Σq, Σq², Σx·q

  // By how much scale t and minimum m lower the squared error, against all zeros.
  [[nodiscard]] float gain(float t, float m) const {
    return t * (2 * xq - t * qq) - m * (2 * x - 2 * t * q + n * m);
  }
  [[nodiscard]] float best_minimum(float t) const { return std::max(0.0f, (t * q - x) / n); }
  [[nodiscard]] float best_scale() const {
    const float determinant = n * qq - q * q;
    const float t = determinant > 0 ? (n * xq - x * q) / determinant : 0;
    if (determinant > 0 && t * q - x > 0) return t;
    return qq > 0 ? xq / qq : 0;  // the minimum would be negative: without it
  }
};

AffineFit fit_affine(std::span<const float> values, float t, float m, float top) {
  const float inverse = t > 0 ? 1 / t : 0;
  const float offset = m * inverse;
  float x[8] = {}, q[8] = {}, qq[8] = {}, xq[8] = {};
  for (std::size_t i = 0; i < values.size(); i += 8) {
    for (std::size_t j = 0; j < 8; ++j) {
      const float value = values[i + j];
      const float code = round_to_integer(std::min(std::max(value * inverse + offset, 0.0f), top));
      x[j] += value;
      q[j] += code;
      qq[j] += code * code;
      xq[j] += value * code;
    }
  }
  return {static_cast<float>(values.size()), sum_lanes(x), sum_lanes(q), sum_lanes(qq),
          sum_lanes(xq)};
}

struct AffineIdeal {
  float scale = 0;
  float minimum = 0;
};

// What a group would want: starts from codes that span its range, or a little more or less.
AffineIdeal ideal_affine(std::span<const float> values, float top) {
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  const float low = std::min(0.0f, *least);
  AffineIdeal best;
  if (*greatest - low <= 0) return {0, -low};
  float best_gain = -INFINITY;
  for (int step = -12; step <= 12; ++step) {
    float t = (*greatest - low) / (top + 0.1f * static_cast<float>(step));
    float m = -low;
    for (int round = 0; round < 3 && t > 0; ++round) {
      const AffineFit fit = fit_affine(values, t, m, top);
      t = fit.best_scale();
      m = fit.best_minimum(t);
      if (fit.gain(t, m) > best_gain) {
        best_gain = fit.gain(t, m);
        best = {t, m};
      }
    }
  }
  return best;
}

// If all groups are likely to become constant, for they span less than a step, the one of the
// greatest value if that is positive; else kGroups. To find scales again, exact_affine() needs
// differences or such a group without a minimum.
template <std::size_t kGroups>
std::size_t greatest_if_constant(std::span<const float, 256> values, float top) {
  constexpr std::size_t kSize = 256 / kGroups;
  const auto greatest = std::max_element(values.begin(), values.end());
  if (*greatest <= 0) return kGroups;
  for (std::size_t v = 0; v < 256; v += kSize) {
    const auto [low, high] = std::minmax_element(&values[v], &values[v] + kSize);
    if ((*high - *low) * top > std::fabs(*high)) return kGroups;
  }
  return static_cast<std::size_t>(greatest - values.begin()) / kSize;
}

template <std::size_t kGroups>
AffineScales<kGroups> search_affine_scales(std::span<const float, 256> values,
                                           AffineLimits limits) {
  const float top = limits.top;
  const int scale_top = limits.scale_top;
  AffineScales<kGroups> best;
  const auto group = [&](std::size_t g) {
    return values.subspan(256 / kGroups * g, 256 / kGroups);
  };
  std::array<AffineIdeal, kGroups> ideal;
  AffineIdeal extreme;
  for (std::size_t g = 0; g < kGroups; ++g) {
    ideal[g] = ideal_affine(group(g), top);
    extreme.scale = std::max(extreme.scale, ideal[g].scale);
    extreme.minimum = std::max(extreme.minimum, ideal[g].minimum);
  }
  // Scale and minimum are multiples of a unit of which every value is less than 2^24. So decoding
  // does not round, and only that lets exact_affine() find them again.
  const float unit = std::ldexp(1.0f, std::ilogb(largest_magnitude(values)) - 22);
  const auto to_half = [&](double number) {
    const float half = half_to_float(float_to_half(static_cast<float>(number)));
    return float_to_half(half > 0 ? std::max(1.0f, std::round(half / unit)) * unit : 0.0f);
  };
  const std::size_t without_minimum = greatest_if_constant<kGroups>(values, top);
  const auto nearest_code = [&](float wanted, float step) {
    return step > 0 ? static_cast<int>(std::min(std::round(wanted / step), float(scale_top))) : 0;
  };

  double best_gain = -INFINITY;
  best.scale = kInfiniteHalf;
  const auto try_from = [&](double scale, double minimum) {
    for (int round = 0; round < 5; ++round) {
      AffineScales<kGroups> trial;
      trial.scale = to_half(scale);
      trial.minimum = to_half(minimum);
      const float d = half_to_float(trial.scale);
      const float dm = half_to_float(trial.minimum);
      if (std::isinf(d) || std::isinf(dm)) return;
      double gain = 0;
      // The normal equations of scale and minimum together, given all codes.
      double ss = 0, sm = 0, mm = 0, xs = 0, xm = 0;
      for (std::size_t g = 0; g < kGroups; ++g) {
        float group_gain = -INFINITY;
        AffineFit group_fit;
        const auto consider = [&](int s, int m) {
          const float t = d * static_cast<float>(s);
          const float offset = dm * static_cast<float>(m);
          const AffineFit fit = fit_affine(group(g), t, offset, top);
          if (fit.gain(t, offset) > group_gain) {
            group_gain = fit.gain(t, offset);
            group_fit = fit;
            trial.scales[g] = static_cast<std::uint8_t>(s);
            trial.minima[g] = static_cast<std::uint8_t>(m);
          }
          return nearest_code(fit.best_minimum(t), dm);
        };
        const int s = nearest_code(ideal[g].scale, d);
        const int minimum_top = g == without_minimum ? 0 : scale_top;
        const int m = std::min(nearest_code(ideal[g].minimum, dm), minimum_top);
        for (int near = std::max(0, s - 1); near <= std::min(scale_top, s + 1); ++near) {
          const int better = consider(near, m);
          for (int code = std::max(0, better - 1); code <= std::min(minimum_top, better + 1);
               ++code) {
            if (code != m) consider(near, code);
          }
        }
        gain += group_gain;
        const double scale_code = trial.scales[g];
        const double minimum_code = trial.minima[g];
        ss += scale_code * scale_code * group_fit.qq;
        sm += scale_code * minimum_code * group_fit.q;
        mm += minimum_code * minimum_code * group_fit.n;
        xs += scale_code * group_fit.xq;
        xm += minimum_code * group_fit.x;
      }
      if (gain > best_gain) {
        best_gain = gain;
        best = trial;
      }
      const double determinant = ss * mm - sm * sm;
      if (determinant > 1e-9 * ss * mm) {
        scale = (mm * xs - sm * xm) / determinant;
        minimum = (sm * xs - ss * xm) / determinant;
      } else {
        scale = ss > 0 ? xs / ss : 0;
        minimum = mm > 0 ? -xm / mm : 0;
      }
      if (scale < 0 || minimum < 0) return;
      if (to_half(scale) == trial.scale && to_half(minimum) == trial.minimum) return;
    }
  };
  for (const double s : {0.9, 1.0, 1.1}) {
    for (const double m : {0.9, 1.0, 1.1}) {
      try_from(extreme.scale * s / scale_top, extreme.minimum * m / scale_top);
    }
  }
  return best;
}

template <std::size_t kGroups>
struct AffineCodes {
  AffineScales<kGroups> groups;
  std::array<std::uint8_t, 256> codes{};
};

template <std::size_t kGroups>
AffineCodes<kGroups> search_affine(const float* from, AffineLimits limits) {
  const std::span<const float, 256> values(from, 256);
  AffineCodes<kGroups> found;
  const float largest = largest_magnitude(values);
  if (largest > kTooLarge) found.groups.scale = kInfiniteHalf;
  if (largest < kNegligible || largest > kTooLarge) return found;
  const auto exact = exact_affine<kGroups>(values, limits);
  found.groups = exact ? *exact : search_affine_scales<kGroups>(values, limits);
  const float d = half_to_float(found.groups.scale);
  const float dm = half_to_float(found.groups.minimum);
  for (std::size_t v = 0; v < 256 && !std::isinf(d); ++v) {
    const float t = d * static_cast<float>(found.groups.scales[v * kGroups / 256]);
    const float m = dm * static_cast<float>(found.groups.minima[v * kGroups / 256]);
    if (t > 0) {
      const float code = std::min(std::max((values[v] + m) / t, 0.0f), limits.top);
      found.codes[v] = static_cast<std::uint8_t>(std::round(code));
    }
  }
  return found;
}

// Q4_K's and Q5_K's packing of eight six-bit scales and minima.
void put_q4_groups(const AffineScales<8>& groups, std::uint8_t* scales) {
  for (std::size_t g = 0; g < 4; ++g) {
    scales[g] = static_cast<std::uint8_t>(groups.scales[g] | groups.scales[g + 4] >> 4 << 6);
    scales[g + 4] = static_cast<std::uint8_t>(groups.minima[g] | groups.minima[g + 4] >> 4 << 6);
    scales[g + 8] =
        static_cast<std::uint8_t>((groups.scales[g + 4] & 15) | (groups.minima[g + 4] & 15) << 4);
  }
}

}  // namespace

BlockQ2_K BlockQ2_K::search(const float* values) {
  const AffineCodes<16> found = search_affine<16>(values, {3, 15});
  BlockQ2_K block{};
  block.scale = found.groups.scale;
  block.minimum = found.groups.minimum;
  for (std::size_t g = 0; g < 16; ++g) {
    block.scales[g] =
        static_cast<std::uint8_t>(found.groups.scales[g] | found.groups.minima[g] << 4);
  }
  for (int v = 0; v < kValues; ++v) {
    put_two_bits(block.codes, v, found.codes[static_cast<std::size_t>(v)]);
  }
  return block;
}

BlockQ3_K BlockQ3_K::search(const float* values) {
  static constexpr auto kMultipliers = consecutive<64>(-32);
  static constexpr Sweep kSweeps[] = {{-5.0f, -2.5f, 20}, {4.5f, 2.5f, 20}};
  const SymmetricCodes found = search_symmetric(values, {-4, 3}, kMultipliers, kSweeps);
  BlockQ3_K block{};
  block.scale = found.scales.scale;
  for (int g = 0; g < 16; ++g) {
    const int s = found.scales.codes[static_cast<std::size_t>(g)];
    put(block.scales[g % 8], (s & 15) << (g / 8 * 4));
    put(block.scales[8 + g % 4], s >> 4 << (g / 4 * 2));
  }
  for (int v = 0; v < kValues; ++v) {
    const int code = found.levels[static_cast<std::size_t>(v)] + 4;
    put_two_bits(block.low, v, code & 3);
    put_high_bit(block.high, v, code >> 2);
  }
  return block;
}

BlockQ4_K BlockQ4_K::search(const float* values) {
  const AffineCodes<8> found = search_affine<8>(values, {15, 63});
  BlockQ4_K block{};
  block.scale = found.groups.scale;
  block.minimum = found.groups.minimum;
  put_q4_groups(found.groups, block.scales);
  for (int v = 0; v < kValues; ++v) {
    put_four_bits(block.codes, v, found.codes[static_cast<std::size_t>(v)]);
  }
  return block;
}

BlockQ5_K BlockQ5_K::search(const float* values) {
  const AffineCodes<8> found = search_affine<8>(values, {31, 63});
  BlockQ5_K block{};
  block.scale = found.groups.scale;
  block.minimum = found.groups.minimum;
  put_q4_groups(found.groups, block.scales);
  for (int v = 0; v < kValues; ++v) {
    const int code = found.codes[static_cast<std::size_t>(v)];
    put_four_bits(block.codes, v, code & 15);
    put_high_bit(block.high, v, code >> 4);
  }
  return block;
}

BlockQ6_K BlockQ6_K::search(const float* values) {
  static constexpr auto kMultipliers = consecutive<256>(-128);
  static constexpr Sweep kSweeps[] = {{-33.0f, -30.5f, 20}, {32.5f, 30.0f, 20}};
  const SymmetricCodes found = search_symmetric(values, {-32, 31}, kMultipliers, kSweeps);
  BlockQ6_K block{};
  block.scale = found.scales.scale;
  for (std::size_t g = 0; g < 16; ++g) {
    block.scales[g] = static_cast<std::int8_t>(found.scales.codes[g] - 128);
  }
  for (int v = 0; v < kValues; ++v) {
    const int code = found.levels[static_cast<std::size_t>(v)] + 32;
    const int quarter = v % 128 / 32;
    put(block.low[v / 128 * 64 + quarter % 2 * 32 + v % 32], (code & 15) << (quarter / 2 * 4));
    put(block.high[v / 128 * 32 + v % 32], code >> 4 << (2 * quarter));
  }
  return block;
}

}  // namespace espalier::pack
