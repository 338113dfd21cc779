// Qwen3-Next: gated delta nets and gated attention in turn, each with a mixture of experts. Qwen
// team (2025).
#include "model/qwen_hybrid.h"

namespace espalier::model {
namespace {

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  return read_qwen_hybrid_moe(settings, weights, compute::KeyHeadOrder::kGrouped);
}

}  // namespace

const Architecture kQwen3Next = {.name = "qwen3next",
                                 .model_types = {"qwen3_next"},
                                 .configure = configure,
                                 .names = kQwenHybridNames,
                                 .hugging_face_norm_offset = 1};

}  // namespace espalier::model
