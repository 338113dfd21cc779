// Rotary embeddings as checkpoints describe them: which elements of a head turn, how fast, and how
// that is stretched beyond the context that the model was first trained on.
#pragma once

#include <span>

#include "base/result.h"
#include "compute/ops.h"
#include "model/settings.h"
#include "model/weights.h"

namespace espalier::model {

enum class RopeScalingKind {
  kNone,
  kLinear,    // all positions divided by `factor`
  kYarn,      // Peng et al. (2023): low frequencies stretched, high ones kept, a ramp between
  kLlama3,    // Llama 3.1: the same idea by wavelength, without a change of magnitude
  kLongRope,  // Ding et al. (2024): a searched factor per pair, one set for short contexts and one
              // for long ones
};

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;
  double original_context = 0;       // positions the unscaled model was trained on
  double beta_fast = 32;             // YaRN: turns over original_context above which a pair is kept
  double beta_slow = 1;              // YaRN: … below which it is stretched in full
  bool whole_pairs = true;           // YaRN: the ramp's ends are rounded outwards
  double magnitude = 0;              // YaRN's attention factor; 0: 0.1·ln(factor) + 1
  double low_frequency_factor = 1;   // Llama 3: like beta_slow
  double high_frequency_factor = 4;  // Llama 3: like beta_fast
};

// Frequencies base^(−2i/dims) for the dims/2 pairs of a head, scaled. `factors`, if not empty,
// holds dims/2 divisors that the file gives (Llama 3's rope_freqs, LongRoPE).
[[nodiscard]] compute::Rope make_rope(std::size_t dims, double base, const RopeScaling& scaling,
                                      std::span<const float> factors);

// The RoPE of some layers.
struct LayerRope {
  compute::Rope rope;
  // LongRoPE, or no frequencies: what holds instead where more than `original_context` positions
  // have room. The choice is the cache's, not the position's: keys that were turned one way do not
  // fit the other.
  compute::Rope long_rope;
  std::size_t original_context = 0;

  [[nodiscard]] const compute::Rope& at(std::size_t capacity) const {
    const bool stretched = !long_rope.frequencies.empty() && capacity > original_context;
    return stretched ? long_rope : rope;
  }
};

struct RopeShape {
  std::size_t head_dim = 0;
  std::size_t context_length = 0;
  double base = 10000;           // where the file has none
  bool yarn_whole_pairs = true;  // the same
};

// The RoPE of all layers or, where sliding ones have their own, of the others.
[[nodiscard]] Result<LayerRope> read_rope(const Settings& settings, const Weights& weights,
                                          const RopeShape& shape);

// The RoPE of sliding layers that have their own (Gemma 3).
[[nodiscard]] Result<LayerRope> read_sliding_rope(const Settings& settings, const RopeShape& shape);

}  // namespace espalier::model
