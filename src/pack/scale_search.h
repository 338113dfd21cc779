// What the searching encoders share: they look for the scales and codes of least squared error.
//
// At a scale t, the values x of a group become t·l with levels l of the format, whichever come
// closest. Σ(x − t·l)² = Σx² − t·(2·Σx·l − t·Σl²), so two sums say how good a choice of levels is
// at any scale, and which scale would serve it best: Σx·l / Σl². Choosing levels for a scale and
// the scale for those levels in turn can only lower the error; the searches do that from many
// starts.
//
// Two-level formats store one half-precision scale per super-block and a small integer per group.
// ideal_scale() finds what each group would want, search_scales() the best way to express it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/half.h"

namespace espalier::pack {

inline constexpr std::uint16_t kInfiniteHalf = 0x7c00;

// Super-blocks whose largest magnitude lies outside these bounds need no search: below, every
// format's smallest step rounds them to zero; above, no half-precision scale can hold them.
inline constexpr float kNegligible = 0x1p-40f;
inline constexpr float kTooLarge = 1e9f;

inline float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

// The integer nearest to a value of magnitude below 2^22, ties to even: adding 1.5 · 2^23 leaves no
// bits for a fraction.
inline float round_to_integer(float value) { return (value + 0x1.8p23f) - 0x1.8p23f; }

// Σx·l and Σl² of a choice of levels.
struct Fit {
  float xl = 0;
  float ll = 0;

  // By how much this choice at scale t lowers the squared error, against all zeros.
  [[nodiscard]] float gain(float t) const { return t * (2 * xl - t * ll); }
  [[nodiscard]] float best_scale() const { return ll > 0 ? xl / ll : 0; }
  Fit& operator+=(Fit other) {
    xl += other.xl;
    ll += other.ll;
    return *this;
  }
};

// The sum over eight lanes, in one fixed order.
inline float sum_lanes(const float* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

// The fit of values, a multiple of eight of them, at scale t, where nearest(float) gives the level
// nearest to a number.
template <typename Nearest>
Fit fit_levels(std::span<const float> values, float t, const Nearest& nearest) {
  const float inverse = 1 / t;
  float xl[8] = {};
  float ll[8] = {};
  for (std::size_t i = 0; i < values.size(); i += 8) {
    for (std::size_t j = 0; j < 8; ++j) {
      const float level = nearest(values[i + j] * inverse);
      xl[j] += values[i + j] * level;
      ll[j] += level * level;
    }
  }
  return {sum_lanes(xl), sum_lanes(ll)};
}

// Levels least … greatest in steps of one.
struct IntegerLevels {
  float least;
  float greatest;
  float operator()(float value) const {
    return round_to_integer(std::min(std::max(value, least), greatest));
  }
};

// Where a search for a scale starts: so that the group's extreme value falls on level `from`, then
// on further levels up to `to`, in `steps` equal steps. Negative levels give negative scales. Of
// scales that do equally well the first one counts, so that sweeps begin with the smallest scales
// (the outermost levels), which leave the super-block's scale finer.
struct Sweep {
  float from;
  float to;
  int steps;
};

// The scale at which a group is approximated best. fit_at(t) gives its fit at scale t.
template <typename FitAt>
float ideal_scale(float extreme, std::span<const Sweep> sweeps, const FitAt& fit_at) {
  float best = 0;
  float best_gain = 0;
  if (extreme == 0) return 0;
  for (const Sweep& sweep : sweeps) {
    for (int step = 0; step <= sweep.steps; ++step) {
      const float level = sweep.from + (sweep.to - sweep.from) * static_cast<float>(step) /
                                           static_cast<float>(sweep.steps);
      const float start = extreme / level;
      float t = start;
      for (int round = 0; round < 2 && t * start > 0; ++round) {
        const Fit fit = fit_at(t);
        t = fit.best_scale();
        if (t * start > 0 && fit.gain(t) > best_gain * 1.000001f) {
          best_gain = fit.gain(t);
          best = t;
        }
      }
    }
  }
  return best;
}

template <std::size_t kGroups>
struct Scales {
  std::uint16_t scale = 0;                    // F16, infinite when none can hold the values
  std::array<std::uint8_t, kGroups> codes{};  // indices into the multipliers
};

// The super-block's scale and the groups' scale codes. A group's scale is `scale` times one of the
// `multipliers`, which ascend; ideal[g] is what group g would want, fit_at(g, t) its fit at t.
template <std::size_t kGroups, typename FitAt>
Scales<kGroups> search_scales(std::span<const float> multipliers,
                              const std::array<float, kGroups>& ideal, const FitAt& fit_at) {
  Scales<kGroups> best;
  double best_gain = -1;
  const float extreme = *std::max_element(
      ideal.begin(), ideal.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  if (extreme == 0) return best;
  // What remains if no start gives a usable half: the values are too large, or round to zero.
  best.scale = std::fabs(extreme / multipliers.back()) > 1 ? kInfiniteHalf : std::uint16_t{0};

  const auto try_from = [&](float start) {
    for (int round = 0; round < 4; ++round) {
      Scales<kGroups> trial;
      trial.scale = float_to_half(start);
      const float d = half_to_float(trial.scale);
      if (d == 0 || std::isinf(d)) return;
      double gain = 0;
      double xl = 0;
      double ll = 0;
      for (std::size_t g = 0; g < kGroups; ++g) {
        // The multiplier nearest to what the group wants, or a neighbour: the curve of errors over
        // scales is not smooth.
        const float wanted = ideal[g] / d;
        const auto above = std::lower_bound(multipliers.begin(), multipliers.end(), wanted);
        const auto middle = static_cast<int>(above - multipliers.begin());
        const int last = static_cast<int>(multipliers.size()) - 1;
        float group_gain = 0;
        Fit group_fit;
        bool found = false;
        for (int code = std::max(0, std::min(middle - 2, last)); code <= std::min(middle + 1, last);
             ++code) {
          const float t = d * multipliers[static_cast<std::size_t>(code)];
          const Fit fit = t == 0 ? Fit{} : fit_at(g, t);
          if (!found || fit.gain(t) > group_gain) {
            found = true;
            group_gain = fit.gain(t);
            group_fit = fit;
            trial.codes[g] = static_cast<std::uint8_t>(code);
          }
        }
        const double multiplier = multipliers[trial.codes[g]];
        gain += group_gain;
        xl += multiplier * group_fit.xl;
        ll += multiplier * multiplier * group_fit.ll;
      }
      if (gain > best_gain) {
        best_gain = gain;
        best = trial;
      }
      const auto next = static_cast<float>(ll > 0 ? xl / ll : 0);
      if (float_to_half(next) == trial.scale) return;
      start = next;
    }
  };
  // The extreme group takes the outermost multiplier, or one a little beyond or within.
  for (const float end : {multipliers.front(), multipliers.back()}) {
    if (end < 0 || end == multipliers.back()) {
      for (int step = -4; step <= 4; ++step) {
        try_from(extreme / (end * (1 + 0.03f * static_cast<float>(step))));
      }
    }
  }
  return best;
}

// The same, from ideal scales that it looks for first, starting with the `sweeps`, for groups of
// equal size.
template <std::size_t kGroups, typename FitAt>
Scales<kGroups> search_scales(std::span<const float> values, std::span<const float> multipliers,
                              std::span<const Sweep> sweeps, const FitAt& fit_at) {
  const std::size_t size = values.size() / kGroups;
  std::array<float, kGroups> ideal{};
  for (std::size_t g = 0; g < kGroups; ++g) {
    ideal[g] = ideal_scale(largest_magnitude(values.subspan(g * size, size)), sweeps,
                           [&](float t) { return fit_at(g, t); });
  }
  return search_scales(multipliers, ideal, fit_at);
}

}  // namespace espalier::pack
