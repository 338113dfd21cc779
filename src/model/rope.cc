#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/printable.h"

namespace espalier::model {
namespace {

// Keys of rope_parameters or rope_scaling in config.json, some of which also stand outside it.
constexpr Key kBase = {"rope.freq_base", "rope_theta"};
constexpr Key kSlidingBase = {"rope.freq_base_swa", "rope_local_base_freq"};
constexpr Key kRotated = {"rope.dimension_count", "partial_rotary_factor"};
constexpr Key kType = {"rope.scaling.type", "rope_type"};
constexpr Key kOlderType = {"", "type"};
constexpr Key kFactor = {"rope.scaling.factor", "factor"};
constexpr Key kOlderFactor = {"rope.scale_linear", ""};
constexpr Key kOriginalContext = {"rope.scaling.original_context_length",
                                  "original_max_position_embeddings"};
constexpr Key kBetaFast = {"rope.scaling.yarn_beta_fast", "beta_fast"};
constexpr Key kBetaSlow = {"rope.scaling.yarn_beta_slow", "beta_slow"};
constexpr Key kWholePairs = {"", "truncate"};
constexpr Key kMagnitude = {"rope.scaling.attn_factor", "attention_factor"};
constexpr Key kMscale = {"", "mscale"};
constexpr Key kMscaleAllDim = {"", "mscale_all_dim"};
constexpr Key kLowFrequency = {"", "low_freq_factor"};
constexpr Key kHighFrequency = {"", "high_freq_factor"};
constexpr Key kShortFactors = {"", "short_factor"};
constexpr Key kLongFactors = {"", "long_factor"};

struct TypeName {
  std::string_view name;
  RopeScalingKind kind;
};

// "mrope" turns the axes of an image apart; for text all its axes are the position.
constexpr TypeName kTypeNames[] = {
    {"none", RopeScalingKind::kNone},         {"default", RopeScalingKind::kNone},
    {"mrope", RopeScalingKind::kNone},        {"linear", RopeScalingKind::kLinear},
    {"yarn", RopeScalingKind::kYarn},         {"llama3", RopeScalingKind::kLlama3},
    {"longrope", RopeScalingKind::kLongRope}, {"su", RopeScalingKind::kLongRope},
};

Result<RopeScalingKind> read_kind(const Settings& settings) {
  Key key = kType;
  ESPALIER_TRY(auto type, settings.string(key));
  if (!type && settings.convention() == Convention::kHuggingFace) {
    key = kOlderType;
    ESPALIER_TRY(type, settings.string(key));
  }
  if (!type) return RopeScalingKind::kNone;
  for (const TypeName& known : kTypeNames) {
    if (known.name == *type) return known.kind;
  }
  return input_error(
      "{}: found '{}'; RoPE of the types default, linear, llama3, yarn and longrope is supported",
      settings.place(key), printable(*type));
}

double stretch_magnitude(double factor, double weight = 1) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

Status read_yarn(const Settings& settings, const RopeShape& shape, RopeScaling& scaling) {
  ESPALIER_TRY(scaling.beta_fast, settings.positive(kBetaFast, scaling.beta_fast));
  ESPALIER_TRY(scaling.beta_slow, settings.positive(kBetaSlow, scaling.beta_slow));
  ESPALIER_TRY(const auto whole_pairs, settings.boolean(kWholePairs));
  scaling.whole_pairs = whole_pairs.value_or(shape.yarn_whole_pairs);
  const double derived = stretch_magnitude(scaling.factor);
  if (settings.convention() == Convention::kGguf) {
    // GGUF's factor multiplies the one that follows from the stretch.
    ESPALIER_TRY(const double magnitude, settings.positive(kMagnitude, 1));
    scaling.magnitude = magnitude * derived;
    return {};
  }
  ESPALIER_TRY(const auto mscale, settings.number(kMscale));
  ESPALIER_TRY(const auto mscale_all_dim, settings.number(kMscaleAllDim));
  const bool both = mscale.value_or(0) != 0 && mscale_all_dim.value_or(0) != 0;
  const double weighted = both ? stretch_magnitude(scaling.factor, *mscale) /
                                     stretch_magnitude(scaling.factor, *mscale_all_dim)
                               : derived;
  ESPALIER_TRY(scaling.magnitude, settings.positive(kMagnitude, weighted));
  return {};
}

Status read_llama3(const Settings& settings, RopeScaling& scaling) {
  ESPALIER_TRY(scaling.low_frequency_factor, settings.positive(kLowFrequency, 1));
  ESPALIER_TRY(scaling.high_frequency_factor, settings.positive(kHighFrequency, 4));
  if (scaling.high_frequency_factor <= scaling.low_frequency_factor) {
    return input_error("{}: found {}, expected more than low_freq_factor {}",
                       settings.place(kHighFrequency), scaling.high_frequency_factor,
                       scaling.low_frequency_factor);
  }
  return {};
}

// The elements of a head that turn.
Result<std::size_t> read_rotated(const Settings& settings, const Settings& section,
                                 std::size_t head_dim) {
  std::size_t dims = head_dim;
  if (settings.convention() == Convention::kGguf) {
    ESPALIER_TRY(dims, settings.count(kRotated, head_dim, head_dim));
  } else {
    ESPALIER_TRY(const double outer, settings.positive(kRotated, 1));
    ESPALIER_TRY(const double share, section.positive(kRotated, outer));
    if (share > 1) {
      return input_error("{}: found {}, expected at most 1", section.place(kRotated), share);
    }
    dims = static_cast<std::size_t>(static_cast<double>(head_dim) * share);
  }
  if (dims < 2 || dims % 2 != 0) {
    return input_error("{}: {} of a head's {} elements turn, expected an even number",
                       settings.place(kRotated), dims, head_dim);
  }
  return dims;
}

// Divisors of LongRoPE: a tensor in GGUF, an array in config.json.
Result<std::vector<float>> read_factors(const Settings& section, const Weights& weights, Key key,
                                        std::string_view tensor, std::size_t pairs) {
  std::vector<float> factors;
  std::string place = section.place(key);
  if (section.convention() == Convention::kGguf) {
    place = fmt::format("{}: tensor '{}'", weights.source(), tensor);
    ESPALIER_TRY(auto found, weights.find_vector(tensor));
    if (found) factors = std::move(*found);
  } else {
    ESPALIER_TRY(const auto found, section.numbers(key));
    if (found) factors.assign(found->begin(), found->end());
  }
  if (factors.size() != pairs) {
    return input_error("{} has {} values, expected {}", place, factors.size(), pairs);
  }
  for (const float factor : factors) {
    if (!(factor > 0) || !std::isfinite(factor)) {
      return input_error("{} has the value {}, expected positive numbers", place, factor);
    }
  }
  return factors;
}

// The magnitude of LongRoPE. Ding et al. (2024), as Phi-3 has it: √(1 + ln(s)/ln(original
// context)).
Result<double> long_magnitude(const Settings& section, const RopeScaling& scaling) {
  const double derived =
      scaling.factor <= 1
          ? 1
          : std::sqrt(1 + std::log(scaling.factor) / std::log(scaling.original_context));
  return section.positive(kMagnitude, derived);
}

Result<LayerRope> read_long_rope(const Settings& section, const Weights& weights, std::size_t dims,
                                 double base, const RopeScaling& scaling) {
  ESPALIER_TRY(const auto short_factors, read_factors(section, weights, kShortFactors,
                                                      "rope_factors_short.weight", dims / 2));
  ESPALIER_TRY(const auto long_factors,
               read_factors(section, weights, kLongFactors, "rope_factors_long.weight", dims / 2));
  ESPALIER_TRY(const double magnitude, long_magnitude(section, scaling));
  LayerRope rope = {.rope = make_rope(dims, base, {}, short_factors),
                    .long_rope = make_rope(dims, base, {}, long_factors),
                    .original_context = static_cast<std::size_t>(
                        std::min(scaling.original_context, static_cast<double>(kMaxTokens)))};
  rope.rope.magnitude = magnitude;
  rope.long_rope.magnitude = magnitude;
  return rope;
}

// `section` is where config.json has what belongs to RoPE; in GGUF it is `settings` itself.
Result<LayerRope> read_scaled_rope(const Settings& settings, const Settings& section,
                                   const Weights& weights, const RopeShape& shape) {
  ESPALIER_TRY(const std::size_t dims, read_rotated(settings, section, shape.head_dim));
  ESPALIER_TRY(const double outer_base, settings.positive(kBase, shape.base));
  ESPALIER_TRY(const double base, section.positive(kBase, outer_base));
  const auto context = static_cast<double>(shape.context_length);

  RopeScaling scaling;
  ESPALIER_TRY(scaling.kind, read_kind(section));
  const bool gguf = settings.convention() == Convention::kGguf;
  if (gguf && scaling.kind == RopeScalingKind::kNone) {
    // Files older than the type's key have a linear factor, or the tensors of LongRoPE.
    ESPALIER_TRY(const auto long_factors, weights.find_vector("rope_factors_long.weight"));
    ESPALIER_TRY(scaling.factor, settings.positive(kOlderFactor, 1));
    if (scaling.factor != 1) scaling.kind = RopeScalingKind::kLinear;
    if (long_factors) scaling.kind = RopeScalingKind::kLongRope;
  }
  // As Transformers has it, the key outside goes before the one within.
  ESPALIER_TRY(const double inner_original, section.positive(kOriginalContext, context));
  ESPALIER_TRY(scaling.original_context, settings.positive(kOriginalContext, inner_original));
  const bool from_contexts = scaling.kind == RopeScalingKind::kLongRope ||
                             (scaling.kind == RopeScalingKind::kYarn && !gguf);
  const double stretch = from_contexts ? context / scaling.original_context : scaling.factor;
  ESPALIER_TRY(scaling.factor, section.positive(kFactor, stretch));

  switch (scaling.kind) {
    case RopeScalingKind::kLongRope:
      return read_long_rope(section, weights, dims, base, scaling);
    case RopeScalingKind::kYarn:
      ESPALIER_CHECK(read_yarn(section, shape, scaling));
      break;
    case RopeScalingKind::kLlama3:
      ESPALIER_CHECK(read_llama3(section, scaling));
      break;
    default:
      break;
  }
  std::vector<float> factors;
  if (gguf) {
    ESPALIER_TRY(const auto found, weights.find_vector("rope_freqs.weight"));
    if (found) {
      ESPALIER_TRY(factors, read_factors(section, weights, {}, "rope_freqs.weight", dims / 2));
    }
  }
  return LayerRope{
      .rope = make_rope(dims, base, scaling, factors), .long_rope = {}, .original_context = 0};
}

// YaRN, section 3.2 and appendix: the (fractional) pair index that turns `turns` times over the
// original context.
double yarn_pair(const RopeScaling& scaling, std::size_t dims, double base, double turns) {
  return static_cast<double>(dims) *
         std::log(scaling.original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
}

double llama3_frequency(const RopeScaling& scaling, double frequency) {
  const double turns = scaling.original_context * frequency / (2 * std::numbers::pi);
  const double kept = std::clamp((turns - scaling.low_frequency_factor) /
                                     (scaling.high_frequency_factor - scaling.low_frequency_factor),
                                 0.0, 1.0);
  return frequency * (kept + (1 - kept) / scaling.factor);
}

// Where YaRN's ramp begins and ends, in pairs.
struct Ramp {
  double begin = 0;
  double end = 0;
};

Ramp yarn_ramp(const RopeScaling& scaling, std::size_t dims, double base) {
  Ramp ramp = {yarn_pair(scaling, dims, base, scaling.beta_fast),
               yarn_pair(scaling, dims, base, scaling.beta_slow)};
  if (scaling.whole_pairs) ramp = {std::floor(ramp.begin), std::ceil(ramp.end)};
  return {std::max(ramp.begin, 0.0), std::min(ramp.end, static_cast<double>(dims) - 1)};
}

}  // namespace

compute::Rope make_rope(std::size_t dims, double base, const RopeScaling& scaling,
                        std::span<const float> factors) {
  compute::Rope rope{.frequencies = std::vector<double>(dims / 2)};
  Ramp ramp;
  if (scaling.kind == RopeScalingKind::kYarn) {
    ramp = yarn_ramp(scaling, dims, base);
    rope.magnitude = scaling.magnitude != 0 ? scaling.magnitude : stretch_magnitude(scaling.factor);
  }
  for (std::size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double pair = static_cast<double>(i);
    double frequency = std::pow(base, -2 * pair / static_cast<double>(dims));
    if (!factors.empty()) frequency /= factors[i];
    switch (scaling.kind) {
      case RopeScalingKind::kNone:
      case RopeScalingKind::kLongRope:
        break;
      case RopeScalingKind::kLinear:
        frequency /= scaling.factor;
        break;
      case RopeScalingKind::kYarn: {
        const double stretched =
            std::clamp((pair - ramp.begin) / std::max(ramp.end - ramp.begin, 0.001), 0.0, 1.0);
        frequency *= (1 - stretched) + stretched / scaling.factor;
        break;
      }
      case RopeScalingKind::kLlama3:
        frequency = llama3_frequency(scaling, frequency);
        break;
    }
    rope.frequencies[i] = frequency;
  }
  return rope;
}

Result<LayerRope> read_rope(const Settings& settings, const Weights& weights,
                            const RopeShape& shape) {
  ESPALIER_TRY(auto section, settings.section("rope_parameters"));
  if (section) {
    ESPALIER_TRY(auto of_full_layers, section->section("full_attention"));
    if (of_full_layers) section = std::move(of_full_layers);
  } else {
    ESPALIER_TRY(section, settings.section("rope_scaling"));
  }
  return read_scaled_rope(settings, section ? *section : settings, weights, shape);
}

Result<LayerRope> read_sliding_rope(const Settings& settings, const RopeShape& shape) {
  ESPALIER_TRY(double base, settings.positive(kSlidingBase, shape.base));
  ESPALIER_TRY(const auto parameters, settings.section("rope_parameters"));
  if (parameters) {
    ESPALIER_TRY(const auto section, parameters->section("sliding_attention"));
    if (section) {
      ESPALIER_TRY(base, section->positive(kBase, base));
      ESPALIER_TRY(const RopeScalingKind kind, read_kind(*section));
      if (kind != RopeScalingKind::kNone) {
        return input_error("{}: RoPE of sliding layers is scaled, expected the type default",
                           section->place(kType));
      }
    }
  }
  return LayerRope{
      .rope = make_rope(shape.head_dim, base, {}, {}), .long_rope = {}, .original_context = 0};
}

}  // namespace espalier::model
