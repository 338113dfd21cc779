// How checkpoints stretch rotary embeddings beyond the context they were trained on.
#pragma once

#include <span>

#include "base/result.h"
#include "compute/ops.h"

namespace espalier::model {

enum class RopeScalingKind {
  kNone,
  kLinear,  // all positions divided by `factor`
  kYarn,    // Peng et al. (2023): low frequencies stretched, high ones kept, a ramp between
  kLlama3,  // Llama 3.1: the same idea by wavelength, without a change of magnitude
};

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;
  double original_context = 0;       // positions the unscaled model was trained on
  double beta_fast = 32;             // YaRN: turns over original_context above which a pair is kept
  double beta_slow = 1;              // YaRN: … below which it is stretched in full
  double magnitude = 0;              // YaRN's attention factor; 0: 0.1·ln(factor) + 1
  double low_frequency_factor = 1;   // Llama 3: like beta_slow
  double high_frequency_factor = 4;  // Llama 3: like beta_fast
};

// Frequencies base^(−2i/dims) for the dims/2 pairs of a head, scaled. `factors`, if not empty,
// holds dims/2 divisors that the file gives instead of parameters (Llama 3's rope_freqs).
[[nodiscard]] compute::Rope make_rope(compute::RopePairs pairs, std::size_t dims, double base,
                                      const RopeScaling& scaling, std::span<const float> factors);

}  // namespace espalier::model
