// Recognizes values that a format can hold exactly, as it holds what it decoded to, and finds
// scales that give them back: so encoding decoded values loses nothing.
//
// Such values are whole multiples of a step, and of not many steps. Weights that come from training
// are not: their greatest common divisor is far too small, which a few divisions show. Products of
// a half and what the formats multiply it with have at most 24 bits, so float holds them exactly.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/half.h"
#include "pack/scale_search.h"

namespace espalier::pack {

// The greatest number of which all values are whole multiples; 0 if it is less than `least`, or if
// there are only zeros. By Euclid's algorithm, whose remainders are exact in floating point.
inline float common_divisor(std::span<const float> values, float least) {
  float divisor = 0;
  for (const float value : values) {
    float rest = std::fabs(value);
    while (rest != 0) {
      if (rest < least) return 0;
      divisor = std::exchange(rest, std::fmod(divisor, rest));
    }
  }
  return divisor;
}

// number / count, if that is a half exactly.
inline std::optional<float> exact_half(float number, float count) {
  const float half = half_to_float(float_to_half(number / count));
  return half * count == number ? std::optional(half) : std::nullopt;
}

// Whether all values are levels times t, where nearest(float) gives the level nearest to a number.
template <typename Nearest>
bool holds_levels(std::span<const float> values, float t, const Nearest& nearest) {
  return std::ranges::all_of(
      values, [&](float value) { return t == 0 ? value == 0 : t * nearest(value / t) == value; });
}

// What a format multiplies its scale with: products of a multiplier and a level.
struct Products {
  std::span<const float> multipliers;  // ascending
  float unit;                          // all products are whole multiples of this
  float largest;                       // magnitude of a product
};

// Scales with which every group holds its values exactly, if there are any: those of the largest
// scale, and of the largest multipliers. holds_at(g, t) says whether group g does so at scale t.
template <std::size_t kGroups, typename HoldsAt>
std::optional<Scales<kGroups>> exact_scales(std::span<const float> values, const Products& products,
                                            const HoldsAt& holds_at) {
  const std::span<const float> multipliers = products.multipliers;
  const auto codes_at = [&](float d) -> std::optional<Scales<kGroups>> {
    Scales<kGroups> scales;
    scales.scale = float_to_half(d);
    for (std::size_t g = 0; g < kGroups; ++g) {
      std::size_t code = multipliers.size();
      while (code > 0 && !holds_at(g, d * multipliers[code - 1])) --code;
      if (code == 0) return std::nullopt;
      scales.codes[g] = static_cast<std::uint8_t>(code - 1);
    }
    return scales;
  };
  const float least = largest_magnitude(values) / products.largest * products.unit;
  const float divisor = common_divisor(values, least);
  for (float count = 1; divisor > 0 && divisor >= least * count; ++count) {
    const std::optional<float> d = exact_half(divisor, products.unit * count);
    if (!d) continue;
    for (const float scale : {*d, -*d}) {
      if (const auto scales = codes_at(scale)) return scales;
    }
  }
  return std::nullopt;
}

// The scales of a super-block: exact ones, or else the best that a search finds, which starts with
// the `sweeps` for every group. fit_at(g, t) gives the fit of group g at scale t.
template <std::size_t kGroups, typename FitAt, typename HoldsAt>
Scales<kGroups> find_scales(std::span<const float> values, const Products& products,
                            std::span<const Sweep> sweeps, const FitAt& fit_at,
                            const HoldsAt& holds_at) {
  if (const auto exact = exact_scales<kGroups>(values, products, holds_at)) return *exact;
  const std::size_t size = values.size() / kGroups;
  std::array<float, kGroups> ideal{};
  for (std::size_t g = 0; g < kGroups; ++g) {
    ideal[g] = ideal_scale(largest_magnitude(values.subspan(g * size, size)), sweeps,
                           [&](float t) { return fit_at(g, t); });
  }
  return search_scales(products.multipliers, ideal, fit_at);
}

// ---- Formats with minima: value = scale · s · code − minimum · m.

template <std::size_t kGroups>
struct AffineScales {
  std::uint16_t scale = 0;                     // F16, infinite when none can hold the values
  std::uint16_t minimum = 0;                   // F16
  std::array<std::uint8_t, kGroups> scales{};  // s
  std::array<std::uint8_t, kGroups> minima{};  // m
};

struct AffineLimits {
  float top;      // the largest code of a value
  int scale_top;  // the largest s and m

  [[nodiscard]] float steps() const { return top * static_cast<float>(scale_top); }
};

// A group's values: the least of them, and what each is above that.
struct AffineGroup {
  float least;
  std::span<const float> above;
};

// An s of a group, and a minimum with which it holds its values exactly.
struct ExactGroup {
  int s;
  float minimum;
};

// All of these, at scale d ≥ 0, by their minima, none of which is negative; or just one without a
// minimum, if there is one, as that fits any super-block.
inline std::vector<ExactGroup> exact_groups(const AffineGroup& group, float d,
                                            AffineLimits limits) {
  std::vector<ExactGroup> found;
  const float range = *std::max_element(group.above.begin(), group.above.end());
  for (int s = 0; s <= (d > 0 ? limits.scale_top : 0); ++s) {
    const float t = d * static_cast<float>(s);
    if (range > t * limits.top) continue;
    if (!holds_levels(group.above, t, round_to_integer)) continue;
    for (float code = 0; code == 0 || (t > 0 && range + t * code <= t * limits.top); ++code) {
      const float minimum = t * code - group.least;
      if (minimum == 0) return {{s, 0}};
      if (minimum > 0) found.push_back({s, minimum});
    }
  }
  std::ranges::stable_sort(found, {}, &ExactGroup::minimum);
  const auto same = [](ExactGroup a, ExactGroup b) { return a.minimum == b.minimum; };
  found.erase(std::unique(found.begin(), found.end(), same), found.end());
  return found;
}

// The scales with which the groups hold their values exactly, given choices for each: one that is
// some m ≤ scale_top times the super-block's minimum.
template <std::size_t kGroups>
std::optional<AffineScales<kGroups>> exact_minima(
    float d, float minimum, const std::array<std::vector<ExactGroup>, kGroups>& choices,
    int scale_top) {
  AffineScales<kGroups> scales;
  scales.scale = float_to_half(d);
  scales.minimum = float_to_half(minimum);
  for (std::size_t g = 0; g < kGroups; ++g) {
    const bool free = choices[g].front().minimum == 0;
    int m = free ? 0 : 1;
    auto choice = choices[g].begin();
    for (; !free && m <= scale_top; ++m) {
      const float wanted = static_cast<float>(m) * minimum;
      choice = std::ranges::lower_bound(choice, choices[g].end(), wanted, {}, &ExactGroup::minimum);
      if (choice == choices[g].end()) return std::nullopt;
      if (choice->minimum == wanted) break;
    }
    if (m > scale_top) return std::nullopt;
    scales.scales[g] = static_cast<std::uint8_t>(choice->s);
    scales.minima[g] = static_cast<std::uint8_t>(m);
  }
  return scales;
}

// The same, given the scale. The group with the fewest choices tells what the minimum can be.
template <std::size_t kGroups>
std::optional<AffineScales<kGroups>> exact_affine_at(float d,
                                                     std::span<const AffineGroup, kGroups> groups,
                                                     AffineLimits limits) {
  std::array<std::vector<ExactGroup>, kGroups> choices;
  const std::vector<ExactGroup>* fewest = nullptr;
  float needed = 0;  // of the minimum times scale_top
  for (std::size_t g = 0; g < kGroups; ++g) {
    choices[g] = exact_groups(groups[g], d, limits);
    if (choices[g].empty()) return std::nullopt;
    needed = std::max(needed, choices[g].front().minimum);
    const bool free = choices[g].front().minimum == 0;
    if (!free && (fewest == nullptr || choices[g].size() < fewest->size())) fewest = &choices[g];
  }
  if (fewest == nullptr) return exact_minima(d, 0, choices, limits.scale_top);
  for (const ExactGroup& choice : *fewest) {
    for (int m = 1; m <= limits.scale_top; ++m) {
      const auto share = static_cast<float>(m);
      if (choice.minimum * static_cast<float>(limits.scale_top) < needed * share) break;
      const std::optional<float> minimum = exact_half(choice.minimum, share);
      if (!minimum) continue;
      if (auto scales = exact_minima(d, *minimum, choices, limits.scale_top)) return scales;
    }
  }
  return std::nullopt;
}

// The same, given multiples of the scale.
template <std::size_t kGroups>
std::optional<AffineScales<kGroups>> exact_affine_dividing(
    std::span<const float> multiples, std::span<const AffineGroup, kGroups> groups,
    AffineLimits limits) {
  const float least = largest_magnitude(multiples) / limits.steps();
  const float divisor = common_divisor(multiples, least);
  for (float count = 1; divisor > 0 && divisor >= least * count; ++count) {
    const std::optional<float> d = exact_half(divisor, count);
    if (!d) continue;
    if (auto scales = exact_affine_at<kGroups>(*d, groups, limits)) return scales;
  }
  return std::nullopt;
}

// Scales with which every group holds its values exactly; to the last place, where the differences
// within a group have more bits than a float. They are found if there are any, provided that
// decoding with them does not round, and that, where all groups are constant, a positive one has no
// minimum or none has a scale. The tens of milliseconds that it can take, it takes only where all
// groups are constant and some negative.
template <std::size_t kGroups>
std::optional<AffineScales<kGroups>> exact_affine(std::span<const float, 256> values,
                                                  AffineLimits limits) {
  constexpr std::size_t kSize = 256 / kGroups;
  std::array<float, 256> above{};
  std::array<AffineGroup, kGroups> groups{};
  for (std::size_t g = 0; g < kGroups; ++g) {
    const auto group = values.subspan(g * kSize, kSize);
    const float least = *std::min_element(group.begin(), group.end());
    for (std::size_t i = 0; i < kSize; ++i) above[g * kSize + i] = group[i] - least;
    groups[g] = {least, std::span(above).subspan(g * kSize, kSize)};
  }
  // Minima do not matter to differences within a group.
  if (largest_magnitude(above) > 0) {
    return exact_affine_dividing<kGroups>(above, groups, limits);
  }
  // Of constant groups, one of the greatest ones is likely not to need a minimum.
  std::array<float, kGroups> constants{};
  std::ranges::transform(groups, constants.begin(), &AffineGroup::least);
  std::ranges::sort(constants, std::greater<>());
  for (const float& constant : constants) {
    if (constant <= 0) break;
    if (auto scales = exact_affine_dividing<kGroups>({&constant, 1}, groups, limits)) return scales;
  }
  return exact_affine_at<kGroups>(0, groups, limits);
}

}  // namespace espalier::pack
