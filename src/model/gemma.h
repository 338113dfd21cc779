// What the generations of Gemma share.
#pragma once

#include "model/decoder_config.h"

namespace espalier::model {

// Where Gemma's modules are not called as others'; both generations have the same four norms.
inline constexpr ModuleName kGemmaNames[] = {
    {Module::kAttentionPostNorm, "blk.{}.post_attention_norm",
     "model.layers.{}.post_attention_layernorm"},
    {Module::kMlpNorm, "blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"},
    {Module::kMlpPostNorm, "blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"},
};

// A decoder with norms before and after, embeddings scaled by √hidden, and scores scaled by the
// size that config.json names. GGUF seldom carries it: of all published sizes only the 27B ones, of
// `large_layers` layers, do not use the head's.
[[nodiscard]] Result<DecoderConfig> read_gemma(const Settings& settings, const Weights& weights,
                                               const DecoderDefaults& defaults,
                                               std::size_t large_layers);

}  // namespace espalier::model
