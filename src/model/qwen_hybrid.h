// What Qwen3-Next and Qwen3.5 share: three layers of gated delta nets and one of gated attention in
// turn.
#pragma once

#include "model/decoder_config.h"

namespace espalier::model {

// Names where these models' modules are not called as others'.
inline constexpr ModuleName kQwenHybridNames[] = {
    {Module::kMlpNorm, "blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"},
};

// A hybrid decoder with gated MLPs of the size that the file gives. `gguf_order` says which key
// head goes with a value head in GGUF.
[[nodiscard]] Result<DecoderConfig> read_qwen_hybrid(const Settings& settings,
                                                     const Weights& weights,
                                                     compute::KeyHeadOrder gguf_order);

// The same with a mixture of experts and a shared expert in every layer.
[[nodiscard]] Result<DecoderConfig> read_qwen_hybrid_moe(const Settings& settings,
                                                         const Weights& weights,
                                                         compute::KeyHeadOrder gguf_order);

}  // namespace espalier::model
