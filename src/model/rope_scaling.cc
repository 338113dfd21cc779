#include "model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace espalier::model {
namespace {

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

}  // namespace

compute::Rope make_rope(compute::RopePairs pairs, std::size_t dims, double base,
                        const RopeScaling& scaling, std::span<const float> factors) {
  compute::Rope rope{.pairs = pairs, .frequencies = std::vector<double>(dims / 2), .magnitude = 1};
  double ramp_begin = 0;
  double ramp_end = 0;
  if (scaling.kind == RopeScalingKind::kYarn) {
    const double last = static_cast<double>(dims) - 1;
    ramp_begin = std::max(std::floor(yarn_pair(scaling, dims, base, scaling.beta_fast)), 0.0);
    ramp_end = std::min(std::ceil(yarn_pair(scaling, dims, base, scaling.beta_slow)), last);
    rope.magnitude =
        scaling.magnitude != 0 ? scaling.magnitude : 0.1 * std::log(scaling.factor) + 1;
  }
  for (std::size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double pair = static_cast<double>(i);
    double frequency = std::pow(base, -2 * pair / static_cast<double>(dims));
    if (!factors.empty()) frequency /= factors[i];
    switch (scaling.kind) {
      case RopeScalingKind::kNone:
        break;
      case RopeScalingKind::kLinear:
        frequency /= scaling.factor;
        break;
      case RopeScalingKind::kYarn: {
        const double stretched =
            std::clamp((pair - ramp_begin) / std::max(ramp_end - ramp_begin, 0.001), 0.0, 1.0);
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

}  // namespace espalier::model
