// The encoders of the IQ formats: searches for the codes of least squared error.
//
// For a vector x and a scale t, the best grid point g is the one of largest t·(2·g·x − t·|g|²): of
// all points, seen at (|g|², g·x), the one that a line of slope t/2 touches first from above. So a
// vector is compared with all points once, to find the upper convex hull of those points: a
// handful. From then on the best point at any scale is looked up among these, exactly.
#include <algorithm>
#include <bit>
#include <map>
#include <vector>

#include "pack/exact_scales.h"
#include "pack/iq_grids.h"
#include "pack/iq_quants.h"

namespace espalier::pack {
namespace {

constexpr std::size_t kMaxPoints = 2048;

// A grid, sorted by the points' norms.
struct Grid {
  struct Shell {  // the points of one norm
    float norm;   // Σ of the squared coordinates
    std::size_t end;
  };
  std::size_t dims = 0;
  std::vector<Shell> shells;
  std::vector<std::uint16_t> index;  // of the point in the format
  std::vector<float> coordinates;    // coordinate j of point p at j · points + p

  [[nodiscard]] float at(std::size_t point, std::size_t j) const {
    return coordinates[j * index.size() + point];
  }
};

// digits[d]: what digit d of the packed points means; a digit has `bits` bits.
Grid make_grid(std::span<const std::uint16_t> points, std::size_t dims, int bits,
               std::span<const float> digits) {
  const auto coordinate = [&](std::size_t point, std::size_t j) {
    const int digit = points[point] >> (bits * static_cast<int>(j)) & ((1 << bits) - 1);
    return digits[static_cast<std::size_t>(digit)];
  };
  std::map<float, std::vector<std::uint16_t>> by_norm;
  for (std::size_t p = 0; p < points.size(); ++p) {
    float norm = 0;
    for (std::size_t j = 0; j < dims; ++j) norm += coordinate(p, j) * coordinate(p, j);
    by_norm[norm].push_back(static_cast<std::uint16_t>(p));
  }
  Grid grid;
  grid.dims = dims;
  for (const auto& [norm, members] : by_norm) {
    grid.index.insert(grid.index.end(), members.begin(), members.end());
    grid.shells.push_back({norm, grid.index.size()});
  }
  for (std::size_t j = 0; j < dims; ++j) {
    for (const std::uint16_t point : grid.index) grid.coordinates.push_back(coordinate(point, j));
  }
  return grid;
}

// A point as one vector sees it.
struct Choice {
  Fit fit;                // g·x and |g|²
  std::size_t point = 0;  // its place in the grid
};

// The points that are best for a vector at some scale, in the order of their norms.
using Hull = std::vector<Choice>;

Hull hull_of(const Grid& grid, const float* dots) {
  // Whether the way from a to b is at least as steep as that from b to c.
  const auto bends_down = [](const Fit& a, const Fit& b, const Fit& c) {
    return (b.xl - a.xl) * (c.ll - b.ll) >= (c.xl - b.xl) * (b.ll - a.ll);
  };
  Hull hull;
  std::size_t p = 0;
  for (const Grid::Shell& shell : grid.shells) {
    std::size_t best = p;
    for (++p; p < shell.end; ++p) {
      if (dots[p] > dots[best]) best = p;
    }
    const Choice next{{dots[best], shell.norm}, best};
    if (!hull.empty() && next.fit.xl <= hull.back().fit.xl) continue;
    while (hull.size() > 1 && !bends_down(hull[hull.size() - 2].fit, hull.back().fit, next.fit)) {
      hull.pop_back();
    }
    hull.push_back(next);
  }
  return hull;
}

// The best point at scale t > 0.
const Choice& choose(const Hull& hull, float t) {
  std::size_t i = 0;
  while (i + 1 < hull.size() &&
         2 * (hull[i + 1].fit.xl - hull[i].fit.xl) > t * (hull[i + 1].fit.ll - hull[i].fit.ll)) {
    ++i;
  }
  return hull[i];
}

// g·x for all points g; and, if asked, the least g_j·x_j, which is half of what turning the sign of
// coordinate j would cost.
void compare(const Grid& grid, const float* x, float* dots, float* least) {
  const std::size_t points = grid.index.size();
  std::fill_n(dots, points, 0.0f);
  if (least != nullptr) std::fill_n(least, points, INFINITY);
  for (std::size_t j = 0; j < grid.dims; ++j) {
    const float* g = grid.coordinates.data() + j * points;
    for (std::size_t p = 0; p < points; ++p) dots[p] += g[p] * x[j];
    if (least == nullptr) continue;
    for (std::size_t p = 0; p < points; ++p) least[p] = std::min(least[p], g[p] * x[j]);
  }
}

// Whether a vector is the point times t.
bool holds_point(const Grid& grid, std::size_t point, float t, const float* x) {
  for (std::size_t j = 0; j < grid.dims; ++j) {
    if (t * grid.at(point, j) != x[j]) return false;
  }
  return true;
}

// ---- IQ2 and IQ3: magnitudes from a grid, signs apart.

// Whether all signs are stored, or all but one, so that their number must be even.
enum class Signs { kAll, kEven };

// Eight values: one vector of eight (IQ2) or two of four (IQ3).
template <std::size_t kParts>
struct Unit {
  std::array<float, 8> magnitudes;
  std::uint8_t signs;
  bool odd;  // one sign has to be turned
  std::array<Hull, kParts> as_is;
  std::array<Hull, kParts> turned;  // with the cheapest sign turned
};

template <std::size_t kParts>
Unit<kParts> prepare(const Grid& grid, const float* values, Signs rule) {
  Unit<kParts> unit;
  unit.signs = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    unit.magnitudes[i] = std::fabs(values[i]);
    unit.signs = static_cast<std::uint8_t>(unit.signs | (values[i] < 0 ? 1 : 0) << i);
  }
  unit.odd = rule == Signs::kEven && std::popcount(unit.signs) % 2 == 1;
  float dots[kMaxPoints];
  float least[kMaxPoints];
  for (std::size_t part = 0; part < kParts; ++part) {
    compare(grid, unit.magnitudes.data() + part * grid.dims, dots, unit.odd ? least : nullptr);
    unit.as_is[part] = hull_of(grid, dots);
    if (!unit.odd) continue;
    for (std::size_t p = 0; p < grid.index.size(); ++p) dots[p] -= 2 * least[p];
    unit.turned[part] = hull_of(grid, dots);
  }
  return unit;
}

template <std::size_t kParts>
struct UnitChoice {
  Fit fit;
  std::array<std::size_t, kParts> points{};
  std::size_t turned = kParts;  // the part with the turned sign, if any
};

template <std::size_t kParts>
UnitChoice<kParts> choose(const Unit<kParts>& unit, float t) {
  UnitChoice<kParts> choice;
  std::array<Choice, kParts> parts;
  for (std::size_t part = 0; part < kParts; ++part) parts[part] = choose(unit.as_is[part], t);
  if (unit.odd) {
    float least_loss = INFINITY;
    Choice replacement;
    for (std::size_t part = 0; part < kParts; ++part) {
      const Choice& turned = choose(unit.turned[part], t);
      const float loss = parts[part].fit.gain(t) - turned.fit.gain(t);
      if (loss < least_loss) {
        least_loss = loss;
        choice.turned = part;
        replacement = turned;
      }
    }
    parts[choice.turned] = replacement;
  }
  for (std::size_t part = 0; part < kParts; ++part) {
    choice.fit += parts[part].fit;
    choice.points[part] = parts[part].point;
  }
  return choice;
}

// Whether points times t are the values themselves.
template <std::size_t kParts>
bool holds(const Grid& grid, const Unit<kParts>& unit, float t) {
  if (unit.odd) return false;
  for (std::size_t part = 0; part < kParts; ++part) {
    const float* magnitudes = unit.magnitudes.data() + part * grid.dims;
    if (!holds_point(grid, choose(unit.as_is[part], t).point, t, magnitudes)) return false;
  }
  return true;
}

// A super-block in terms of its format: kGroups scales, an index for each vector, signs for each
// eight values.
template <std::size_t kGroups, std::size_t kParts>
struct SignedCodes {
  Scales<kGroups> scales;
  std::array<std::uint16_t, 32 * kParts> points{};
  std::array<std::uint8_t, 32> signs{};
};

template <std::size_t kGroups, std::size_t kParts>
SignedCodes<kGroups, kParts> search_signed(const float* values, const Grid& grid, Signs rule,
                                           std::span<const float> multipliers) {
  constexpr std::size_t kUnits = 32 / kGroups;  // of a group
  SignedCodes<kGroups, kParts> codes;
  const float largest = largest_magnitude({values, 256});
  if (largest > kTooLarge) codes.scales.scale = kInfiniteHalf;
  if (largest < kNegligible || largest > kTooLarge) return codes;

  std::vector<Unit<kParts>> units;
  units.reserve(32);
  for (int u = 0; u < 32; ++u) units.push_back(prepare<kParts>(grid, values + 8 * u, rule));
  const auto fit_at = [&](std::size_t g, float t) {
    Fit fit;
    for (std::size_t u = g * kUnits; u < (g + 1) * kUnits; ++u) {
      fit += choose(units[u], t).fit;
    }
    return fit;
  };
  const auto holds_at = [&](std::size_t g, float t) {
    const std::span group = std::span(units).subspan(g * kUnits, kUnits);
    return t > 0 &&
           std::ranges::all_of(group, [&](const auto& unit) { return holds(grid, unit, t); });
  };
  const float top = *std::max_element(grid.coordinates.begin(), grid.coordinates.end());
  const Sweep sweep{1.8f * top, 0.6f * top, 24};
  codes.scales =
      find_scales<kGroups>({values, 256}, {multipliers, 0.125f, multipliers.back() * top},
                           {&sweep, 1}, fit_at, holds_at);
  const float d = half_to_float(codes.scales.scale);
  for (std::size_t u = 0; u < 32; ++u) {
    const float t = d * multipliers[codes.scales.codes[u / kUnits]];
    const UnitChoice<kParts> choice = choose(units[u], t);
    codes.signs[u] = units[u].signs;
    for (std::size_t part = 0; part < kParts; ++part) {
      codes.points[u * kParts + part] = grid.index[choice.points[part]];
    }
    if (choice.turned == kParts) continue;
    std::size_t cheapest = 0;
    float cost = INFINITY;
    for (std::size_t j = 0; j < grid.dims; ++j) {
      const std::size_t i = choice.turned * grid.dims + j;
      const float product = grid.at(choice.points[choice.turned], j) * units[u].magnitudes[i];
      if (product < cost) {
        cost = product;
        cheapest = i;
      }
    }
    codes.signs[u] = static_cast<std::uint8_t>(codes.signs[u] ^ 1u << cheapest);
  }
  return codes;
}

// factor · (first + i) for i = 0 … kCount − 1: what scale codes multiply the scale with.
template <std::size_t kCount>
constexpr std::array<float, kCount> multiples(float first, float factor) {
  std::array<float, kCount> values{};
  for (std::size_t i = 0; i < kCount; ++i) values[i] = (first + static_cast<float>(i)) * factor;
  return values;
}
constexpr auto kIq2Multipliers = multiples<16>(0.5f, 0.25f);
constexpr auto kIq3XxsMultipliers = multiples<16>(0.5f, 0.5f);
constexpr auto kIq3SMultipliers = multiples<16>(0.5f, 2);
constexpr auto kIq1Multipliers = multiples<8>(0.5f, 2);
constexpr auto kIq4XsMultipliers = multiples<64>(-32, 1);

template <std::size_t kCount>
std::array<float, kCount> to_floats(const std::uint8_t (&levels)[kCount]) {
  std::array<float, kCount> values{};
  std::copy_n(levels, kCount, values.begin());
  return values;
}

Grid make_iq2_grid(std::span<const std::uint16_t> points) {
  return make_grid(points, 8, 2, to_floats(kIq2Levels));
}

// ---- IQ1: one grid, shifted up or down.

template <std::size_t kGroups>
struct ShiftedCodes {
  Scales<kGroups> scales;
  std::array<std::uint16_t, 32> points{};
  std::array<bool, 32> down{};
};

// Both shifted grids.
const std::array<Grid, 2>& iq1_grids() {
  static const std::array<Grid, 2> grids = [] {
    const auto shifted = [](float shift) {
      const float digits[] = {-1 + shift, shift, 1 + shift};
      return make_grid(kIq1Grid, 8, 2, digits);
    };
    return std::array{shifted(kIq1Shift), shifted(-kIq1Shift)};
  }();
  return grids;
}

// shift_run: how many vectors of eight share a shift.
template <std::size_t kGroups>
ShiftedCodes<kGroups> search_shifted(const float* values, std::size_t shift_run) {
  constexpr std::size_t kVectors = 32 / kGroups;  // of a group
  ShiftedCodes<kGroups> codes;
  const float largest = largest_magnitude({values, 256});
  if (largest > kTooLarge) codes.scales.scale = kInfiniteHalf;
  if (largest < kNegligible || largest > kTooLarge) return codes;

  std::array<std::vector<Hull>, 2> hulls;
  for (std::size_t shift = 0; shift < 2; ++shift) {
    for (int k = 0; k < 32; ++k) {
      float dots[kMaxPoints];
      compare(iq1_grids()[shift], values + 8 * k, dots, nullptr);
      hulls[shift].push_back(hull_of(iq1_grids()[shift], dots));
    }
  }
  const auto fit_run = [&](std::size_t first, float t, std::size_t shift) {
    Fit fit;
    for (std::size_t k = first; k < first + shift_run; ++k) {
      fit += choose(hulls[shift][k], t).fit;
    }
    return fit;
  };
  const auto fit_at = [&](std::size_t g, float t) {
    Fit fit;
    for (std::size_t k = g * kVectors; k < (g + 1) * kVectors; k += shift_run) {
      const Fit up = fit_run(k, t, 0);
      const Fit down = fit_run(k, t, 1);
      fit += up.gain(t) >= down.gain(t) ? up : down;
    }
    return fit;
  };
  // At a positive scale only: choose() needs that, and encoders make no other.
  const auto holds_run = [&](std::size_t first, float t, std::size_t shift) {
    for (std::size_t k = first; k < first + shift_run; ++k) {
      const std::size_t point = choose(hulls[shift][k], t).point;
      if (!holds_point(iq1_grids()[shift], point, t, values + 8 * k)) return false;
    }
    return true;
  };
  const auto holds_at = [&](std::size_t g, float t) {
    for (std::size_t k = g * kVectors; k < (g + 1) * kVectors; k += shift_run) {
      if (!holds_run(k, t, 0) && !holds_run(k, t, 1)) return false;
    }
    return t > 0;
  };
  const Sweep sweep{4.0f, 0.8f, 32};
  codes.scales = find_scales<kGroups>(
      {values, 256}, {kIq1Multipliers, kIq1Shift, kIq1Multipliers.back() * (1 + kIq1Shift)},
      {&sweep, 1}, fit_at, holds_at);
  const float d = half_to_float(codes.scales.scale);
  for (std::size_t k = 0; k < 32; ++k) {
    const float t = d * kIq1Multipliers[codes.scales.codes[k / kVectors]];
    const std::size_t run = k / shift_run * shift_run;
    codes.down[k] = fit_run(run, t, 0).gain(t) < fit_run(run, t, 1).gain(t);
    const std::size_t shift = codes.down[k] ? 1 : 0;
    codes.points[k] = iq1_grids()[shift].index[choose(hulls[shift][k], t).point];
  }
  return codes;
}

// ---- IQ4: unequal levels.

// The level nearest to a value. Written as a sum over the gaps between levels, so that it runs on
// many values at once.
float nearest_iq4(float value) {
  float level = kIq4Levels[0];
  for (int i = 1; i < 16; ++i) {
    const auto low = static_cast<float>(kIq4Levels[i - 1]);
    const auto high = static_cast<float>(kIq4Levels[i]);
    level += value > (low + high) / 2 ? high - low : 0.0f;
  }
  return level;
}

constexpr Sweep kIq4Sweeps[] = {{-140, -105, 35}, {122, 100, 22}};

// Of the groups of 32 values.
auto iq4_fit_at(std::span<const float> values) {
  return [=](std::size_t g, float t) {
    return fit_levels(values.subspan(32 * g, 32), t, nearest_iq4);
  };
}
auto iq4_holds_at(std::span<const float> values) {
  return [=](std::size_t g, float t) {
    return holds_levels(values.subspan(32 * g, 32), t, nearest_iq4);
  };
}

// The codes of 32 values at scale t.
void put_iq4(const float* values, float t, std::uint8_t* codes) {
  for (int i = 0; i < 32; ++i) {
    const float level = t == 0 ? 1.0f : nearest_iq4(values[i] / t);
    const auto code = std::lower_bound(kIq4Levels, kIq4Levels + 16, level) - kIq4Levels;
    codes[i % 16] = static_cast<std::uint8_t>(codes[i % 16] | code << (i / 16 * 4));
  }
}

// Adds bits to a byte or word that starts as zero.
template <typename T>
void put(T& to, std::uint32_t bits) {
  to = static_cast<T>(to | bits);
}

// The word of IQ2_XXS and IQ3_XXS: signs of four times eight values, and the scale code.
std::uint32_t signs_and_scale(const std::uint8_t* signs, std::uint32_t scale) {
  std::uint32_t word = scale << 28;
  for (int i = 0; i < 4; ++i) word |= (signs[i] & 127u) << (7 * i);
  return word;
}

}  // namespace

BlockIQ1_S BlockIQ1_S::search(const float* values) {
  const ShiftedCodes<8> found = search_shifted<8>(values, 4);
  BlockIQ1_S block{};
  block.scale = found.scales.scale;
  for (std::size_t k = 0; k < 32; ++k) {
    block.low[k] = static_cast<std::uint8_t>(found.points[k]);
    put(block.high[k / 4], static_cast<std::uint32_t>(found.points[k]) >> 8 << (k % 4 * 3));
  }
  for (std::size_t g = 0; g < 8; ++g) {
    put(block.high[g], found.scales.codes[g] * 0x1000u);
    if (found.down[4 * g]) put(block.high[g], 0x8000u);
  }
  return block;
}

BlockIQ1_M BlockIQ1_M::search(const float* values) {
  const ShiftedCodes<16> found = search_shifted<16>(values, 1);
  BlockIQ1_M block{};
  for (std::size_t k = 0; k < 32; ++k) {
    block.low[k] = static_cast<std::uint8_t>(found.points[k]);
    const std::uint32_t top = found.points[k] >> 8 | (found.down[k] ? 8u : 0u);
    put(block.high[k / 2], top << (k % 2 * 4));
  }
  for (std::size_t i = 0; i < 4; ++i) {
    std::uint32_t word = (found.scales.scale >> (4 * i) & 15u) << 12;
    for (std::size_t j = 0; j < 4; ++j) {
      word |= static_cast<std::uint32_t>(found.scales.codes[4 * i + j]) << (3 * j);
    }
    block.scales[2 * i] = static_cast<std::uint8_t>(word);
    block.scales[2 * i + 1] = static_cast<std::uint8_t>(word >> 8);
  }
  return block;
}

BlockIQ2_XXS BlockIQ2_XXS::search(const float* values) {
  static const Grid grid = make_iq2_grid(kIq2XxsGrid);
  const auto found = search_signed<8, 1>(values, grid, Signs::kEven, kIq2Multipliers);
  BlockIQ2_XXS block{};
  block.scale = found.scales.scale;
  for (std::size_t g = 0; g < 8; ++g) {
    for (std::size_t i = 0; i < 4; ++i) {
      block.codes[8 * g + i] = static_cast<std::uint8_t>(found.points[4 * g + i]);
    }
    const std::uint32_t word = signs_and_scale(found.signs.data() + 4 * g, found.scales.codes[g]);
    std::memcpy(block.codes + 8 * g + 4, &word, 4);
  }
  return block;
}

BlockIQ2_XS BlockIQ2_XS::search(const float* values) {
  static const Grid grid = make_iq2_grid(kIq2XsGrid);
  const auto found = search_signed<16, 1>(values, grid, Signs::kEven, kIq2Multipliers);
  BlockIQ2_XS block{};
  block.scale = found.scales.scale;
  for (std::size_t k = 0; k < 32; ++k) {
    block.codes[k] = static_cast<std::uint16_t>(found.points[k] | (found.signs[k] & 127u) << 9);
  }
  for (std::size_t g = 0; g < 16; ++g) {
    put(block.scales[g / 2], static_cast<std::uint32_t>(found.scales.codes[g]) << (g % 2 * 4));
  }
  return block;
}

BlockIQ2_S BlockIQ2_S::search(const float* values) {
  static const Grid grid = make_iq2_grid(kIq2SGrid);
  const auto found = search_signed<16, 1>(values, grid, Signs::kAll, kIq2Multipliers);
  BlockIQ2_S block{};
  block.scale = found.scales.scale;
  for (std::size_t k = 0; k < 32; ++k) {
    block.low[k] = static_cast<std::uint8_t>(found.points[k]);
    block.signs[k] = found.signs[k];
    put(block.high[k / 4], static_cast<std::uint32_t>(found.points[k]) >> 8 << (k % 4 * 2));
  }
  for (std::size_t g = 0; g < 16; ++g) {
    put(block.scales[g / 2], static_cast<std::uint32_t>(found.scales.codes[g]) << (g % 2 * 4));
  }
  return block;
}

BlockIQ3_XXS BlockIQ3_XXS::search(const float* values) {
  static const Grid grid = make_grid(kIq3XxsGrid, 4, 3, to_floats(kIq3XxsLevels));
  const auto found = search_signed<8, 2>(values, grid, Signs::kEven, kIq3XxsMultipliers);
  BlockIQ3_XXS block{};
  block.scale = found.scales.scale;
  for (std::size_t k = 0; k < 64; ++k) {
    block.codes[k] = static_cast<std::uint8_t>(found.points[k]);
  }
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint32_t word = signs_and_scale(found.signs.data() + 4 * g, found.scales.codes[g]);
    std::memcpy(block.signs_scales + 4 * g, &word, 4);
  }
  return block;
}

BlockIQ3_S BlockIQ3_S::search(const float* values) {
  static const Grid grid = make_grid(kIq3SGrid, 4, 3, to_floats(kIq3SLevels));
  const auto found = search_signed<8, 2>(values, grid, Signs::kAll, kIq3SMultipliers);
  BlockIQ3_S block{};
  block.scale = found.scales.scale;
  for (std::size_t k = 0; k < 64; ++k) {
    block.low[k] = static_cast<std::uint8_t>(found.points[k]);
    put(block.high[k / 8], static_cast<std::uint32_t>(found.points[k]) >> 8 << k % 8);
  }
  std::copy(found.signs.begin(), found.signs.end(), block.signs);
  for (std::size_t g = 0; g < 8; ++g) {
    put(block.scales[g / 2], static_cast<std::uint32_t>(found.scales.codes[g]) << (g % 2 * 4));
  }
  return block;
}

BlockIQ4_NL BlockIQ4_NL::search(const float* from) {
  BlockIQ4_NL block{};
  const std::span values(from, kValues);
  const float largest = largest_magnitude(values);
  if (largest < kNegligible) return block;
  block.scale = kInfiniteHalf;
  if (largest > kTooLarge) return block;
  static constexpr float kNoMultiplier[] = {1};
  if (const auto exact = exact_scales<1>(values, {kNoMultiplier, 1, 127}, iq4_holds_at(values))) {
    block.scale = exact->scale;
  } else {
    block.scale = float_to_half(ideal_scale(
        largest, kIq4Sweeps, [&](float t) { return fit_levels(values, t, nearest_iq4); }));
  }
  const float d = half_to_float(block.scale);
  if (!std::isinf(d)) put_iq4(from, d, block.codes);
  return block;
}

BlockIQ4_XS BlockIQ4_XS::search(const float* from) {
  BlockIQ4_XS block{};
  const std::span values(from, kValues);
  const float largest = largest_magnitude(values);
  if (largest < kNegligible) return block;
  block.scale = kInfiniteHalf;
  if (largest > kTooLarge) return block;
  const Scales<8> scales = find_scales<8>(values, {kIq4XsMultipliers, 1, 32 * 127}, kIq4Sweeps,
                                          iq4_fit_at(values), iq4_holds_at(values));
  block.scale = scales.scale;
  const float d = half_to_float(block.scale);
  for (std::size_t g = 0; g < 8 && !std::isinf(d); ++g) {
    const std::uint32_t s = scales.codes[g];
    put(block.scales_low[g / 2], (s & 15) << (g % 2 * 4));
    put(block.scales_high, s >> 4 << (2 * g));
    put_iq4(from + 32 * g, d * kIq4XsMultipliers[s], block.codes + 16 * g);
  }
  return block;
}

}  // namespace espalier::pack
