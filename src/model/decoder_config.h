// The shape of a decoder-only transformer: what architectures fill in from a checkpoint's
// configuration, and what decoder.h runs.
//
// A layer is a mixer, which brings in other positions, and an MLP, both around the residual stream:
//   x += post( mixer( norm(x) ) );  x += post( mlp( norm(x) ) )
// where only some architectures have the norms called post.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "compute/ops.h"
#include "model/modules.h"
#include "model/rope.h"
#include "model/settings.h"
#include "model/weights.h"

namespace espalier::model {

// Index into DecoderConfig::ropes of layers without position embedding.
inline constexpr std::size_t kNoRope = std::numeric_limits<std::size_t>::max();

enum class HeadNorms { kNone, kQueryAndKey };
enum class Sinks { kNone, kOnePerHead };

// What multiplies the heads before the output projection.
enum class OutputGate {
  kNone,
  kSigmoid,  // of as many numbers, which the query projection makes behind each head's query
};

struct AttentionConfig {
  std::size_t heads = 0;
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;
  float scale = 0;                          // of scores
  float softcap = 0;                        // of scores; 0: none
  std::size_t window = 0;                   // see compute::Attention
  std::size_t rope = 0;                     // index into DecoderConfig::ropes
  HeadNorms head_norms = HeadNorms::kNone;  // RMS norms of every query and key, before RoPE
  Sinks sinks = Sinks::kNone;               // see compute::Attention
  OutputGate output_gate = OutputGate::kNone;
};

// A gated delta net, see compute::DeltaRule.
struct DeltaNetConfig {
  std::size_t key_heads = 0;
  std::size_t value_heads = 0;
  std::size_t key_dim = 0;
  std::size_t value_dim = 0;
  std::size_t kernel = 0;  // of the convolution
  compute::KeyHeadOrder order = compute::KeyHeadOrder::kGrouped;
};

struct MlpConfig {
  std::size_t hidden = 0;
  compute::Activation activation = compute::Activation::kSilu;
};

// How stacked experts lie in a directory.
enum class ExpertStacks {
  kUsual,   // [experts, outputs, inputs]; all gates before all ups where one tensor has both
  kGptOss,  // rows of gates and ups in turn; plain values [experts, inputs, outputs]
};

// A mixture of experts, see compute::MixtureOfExperts.
struct MixtureConfig {
  std::size_t experts = 0;
  std::size_t top_k = 0;
  std::size_t hidden = 0;  // of an expert
  bool renormalize = true;
  std::size_t shared_hidden = 0;  // of the shared expert; 0: there is none
  compute::Activation activation = compute::Activation::kSilu;
  ExpertStacks stacks = ExpertStacks::kUsual;
};

struct LayerConfig {
  std::variant<AttentionConfig, DeltaNetConfig> mixer;
  std::variant<MlpConfig, MixtureConfig> mlp;
};

enum class LayerNorms {
  kBefore,          // of mixer and MLP
  kBeforeAndAfter,  // Gemma 2 and 3
};

// Which matrix makes logits.
enum class Head {
  kIfThere,    // a head of its own or, without one, the embedding
  kEmbedding,  // the embedding, whatever else the checkpoint has
  kOwn,        // a head of its own
};

struct DecoderConfig {
  std::size_t hidden = 0;
  std::size_t vocab_size = 0;
  std::size_t context_length = 0;
  float norm_epsilon = 1e-5f;
  LayerNorms layer_norms = LayerNorms::kBefore;
  float embedding_scale = 1;
  float logit_softcap = 0;  // 0: none
  Head head = Head::kIfThere;
  std::vector<LayerRope> ropes;
  std::vector<LayerConfig> layers;
  std::size_t draft_layers = 0;  // that come after these in the file, and do not run
  bool whole_norms = false;      // the file has norms as in GGUF, see Architecture

  // Calls change(attention, layer) for each layer that has attention.
  template <typename Change>
  void for_each_attention(const Change& change) {
    for (std::size_t l = 0; l < layers.size(); ++l) {
      auto* attention = std::get_if<AttentionConfig>(&layers[l].mixer);
      if (attention != nullptr) change(*attention, l);
    }
  }
};

// An architecture: how its configuration reads, and how its checkpoints differ from others.
struct Architecture {
  std::string_view name;                 // general.architecture of GGUF
  std::string_view model_types[3] = {};  // model_type of config.json
  Result<DecoderConfig> (*configure)(const Settings& settings, const Weights& weights) = nullptr;

  std::span<const ModuleName> names = {};  // where modules are not called as in kModuleNames

  // GGUF: rows of query and key are permuted so that RoPE turns neighbours.
  compute::RopePairs gguf_rope_pairs = compute::RopePairs::kHalves;

  // Norms multiply by 1 + w. Hugging Face's checkpoints hold w, GGUF's 1 + w.
  float hugging_face_norm_offset = 0;
};

// --- What architectures share in reading their configuration -------------------------------------

// What holds where a checkpoint is silent. 0: it must say.
struct DecoderDefaults {
  std::size_t heads = 0;
  std::size_t kv_heads = 0;  // 0: as many as heads
  std::size_t head_dim = 0;  // 0: hidden / heads
  std::size_t context_length = 0;
  double rope_base = 10000;
  bool yarn_whole_pairs = true;                                 // see RopeScaling
  compute::Activation activation = compute::Activation::kSilu;  // which it may not contradict
};

// Sizes, RoPE and layers with attention to all positions and, where the file gives a size for it, a
// gated MLP. Errors: keys that are missing, of another type, out of range or contradict each other.
[[nodiscard]] Result<DecoderConfig> read_decoder(const Settings& settings, const Weights& weights,
                                                 const DecoderDefaults& defaults = {});

enum class LayerKind { kFull, kSliding, kLinear };

// The kind of each layer: by the file's list or pattern, or else every `full_every`-th attends to
// all positions and the others slide. 0: all slide.
[[nodiscard]] Result<std::vector<LayerKind>> read_layer_kinds(const Settings& settings,
                                                              std::size_t layers,
                                                              std::size_t full_every);

// The window of sliding layers; 0 where the file says that there is none, or says nothing and
// `fallback` is 0.
[[nodiscard]] Result<std::size_t> read_window(const Settings& settings, std::size_t fallback = 0);

// A bound such as Gemma 2's; 0 where the file says that there is none, or says nothing and
// `fallback` is 0.
[[nodiscard]] Result<float> read_softcap(const Settings& settings, Key key, double fallback);

// --- The architectures, each in a file of its name -----------------------------------------------

extern const Architecture kLlama, kQwen2, kQwen3, kGemma2, kGemma3, kSmolLm3, kPhi3, kQwen3Moe,
    kGptOss, kQwen3Next, kQwen3_5, kQwen3_5Moe;

// All of them.
[[nodiscard]] std::span<const Architecture* const> architectures();

}  // namespace espalier::model
