// Qwen3.5, as a dense model and as a mixture of experts: the layers of Qwen3-Next with projections
// that are not fused. Of its three-part positions, text has three times the same. Qwen team (2026).
#include "model/qwen_hybrid.h"

namespace espalier::model {
namespace {

// GGUF files have the value heads in an order of their own.
constexpr auto kGgufOrder = compute::KeyHeadOrder::kTiled;

Result<DecoderConfig> configure(const Settings& settings, const Weights& weights) {
  return read_qwen_hybrid(settings, weights, kGgufOrder);
}

Result<DecoderConfig> configure_moe(const Settings& settings, const Weights& weights) {
  return read_qwen_hybrid_moe(settings, weights, kGgufOrder);
}

}  // namespace

const Architecture kQwen3_5 = {.name = "qwen35",
                               .model_types = {"qwen3_5", "qwen3_5_text"},
                               .configure = configure,
                               .names = kQwenHybridNames,
                               .hugging_face_norm_offset = 1};

const Architecture kQwen3_5Moe = {.name = "qwen35moe",
                                  .model_types = {"qwen3_5_moe", "qwen3_5_moe_text"},
                                  .configure = configure_moe,
                                  .names = kQwenHybridNames,
                                  .hugging_face_norm_offset = 1};

}  // namespace espalier::model
