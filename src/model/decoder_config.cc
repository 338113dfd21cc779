#include "model/decoder_config.h"

#include <cmath>

#include "base/printable.h"

namespace espalier::model {
namespace {

constexpr Key kLayers = {"block_count", "num_hidden_layers"};
constexpr Key kHidden = {"embedding_length", "hidden_size"};
constexpr Key kMlpHidden = {"feed_forward_length", "intermediate_size"};
constexpr Key kContextLength = {"context_length", "max_position_embeddings"};
constexpr Key kVocabSize = {"vocab_size", "vocab_size"};
constexpr Key kHeads = {"attention.head_count", "num_attention_heads"};
constexpr Key kKvHeads = {"attention.head_count_kv", "num_key_value_heads"};
constexpr Key kHeadDim = {"attention.key_length", "head_dim"};
constexpr Key kValueDim = {"attention.value_length", ""};
constexpr Key kNormEpsilon = {"attention.layer_norm_rms_epsilon", "rms_norm_eps"};
constexpr Key kActivation = {"", "hidden_activation"};
constexpr Key kOlderActivation = {"", "hidden_act"};
constexpr Key kTied = {"", "tie_word_embeddings"};
constexpr Key kScale = {"attention.scale", ""};
constexpr Key kWindow = {"attention.sliding_window", "sliding_window"};
constexpr Key kWindowPattern = {"attention.sliding_window_pattern", "sliding_window_pattern"};
constexpr Key kOtherWindowPattern = {"", "_sliding_window_pattern"};
constexpr Key kLayerTypes = {"", "layer_types"};

Status read_heads(const Settings& settings, const DecoderDefaults& defaults, std::size_t hidden,
                  AttentionConfig& attention) {
  ESPALIER_TRY(attention.heads, settings.count(kHeads, kMaxHeads, defaults.heads));
  ESPALIER_TRY(attention.kv_heads,
               settings.count(kKvHeads, kMaxHeads,
                              defaults.kv_heads != 0 ? defaults.kv_heads : attention.heads));
  if (attention.heads % attention.kv_heads != 0) {
    return input_error("{}: found {}, which does not divide the {} heads", settings.place(kKvHeads),
                       attention.kv_heads, attention.heads);
  }
  const std::size_t usual_dim =
      defaults.head_dim != 0 ? defaults.head_dim : hidden / attention.heads;
  ESPALIER_TRY(attention.head_dim, settings.count(kHeadDim, kMaxHeads, usual_dim));
  if (settings.convention() == Convention::kGguf) {
    ESPALIER_TRY(const std::size_t value_dim, settings.count(kValueDim, kMaxHeads, usual_dim));
    if (value_dim != attention.head_dim) {
      return input_error("{}: found {}, expected the key length {}", settings.place(kValueDim),
                         value_dim, attention.head_dim);
    }
  }
  if (attention.head_dim % 2 != 0) {
    return input_error("{}: found {}, expected an even number", settings.place(kHeadDim),
                       attention.head_dim);
  }
  ESPALIER_TRY(const double scale,
               settings.positive(kScale, 1 / std::sqrt(static_cast<double>(attention.head_dim))));
  attention.scale = static_cast<float>(scale);
  return {};
}

Status check_activation(const Settings& settings, compute::Activation expected) {
  Key key = kActivation;
  ESPALIER_TRY(auto found, settings.string(key));
  if (!found) {
    key = kOlderActivation;
    ESPALIER_TRY(found, settings.string(key));
  }
  const std::string_view name =
      expected == compute::Activation::kGeluTanh ? "gelu_pytorch_tanh" : "silu";
  if (found && *found != name) {
    return input_error("{}: found '{}', expected {}", settings.place(key), printable(*found), name);
  }
  return {};
}

Result<std::size_t> read_vocab_size(const Settings& settings, const Weights& weights) {
  const std::string name = module_name({}, settings.convention(), Module::kEmbedding, 0);
  ESPALIER_TRY(const auto embedding, weights.find_matrix(name));
  if (!embedding) {
    return input_error("{}: the weight of '{}' is missing", weights.source(),
                       weights.stored_name(name));
  }
  return settings.count(kVocabSize, kMaxTokens, embedding->rows);
}

LayerKind kind_in_pattern(std::size_t layer, std::size_t full_every) {
  return full_every != 0 && (layer + 1) % full_every == 0 ? LayerKind::kFull : LayerKind::kSliding;
}

Result<std::vector<LayerKind>> read_layer_types(const Settings& settings,
                                                const std::vector<std::string>& types) {
  struct Name {
    std::string_view name;
    LayerKind kind;
  };
  static constexpr Name kNames[] = {{"full_attention", LayerKind::kFull},
                                    {"sliding_attention", LayerKind::kSliding},
                                    {"linear_attention", LayerKind::kLinear}};
  std::vector<LayerKind> kinds;
  for (const std::string& type : types) {
    const std::size_t before = kinds.size();
    for (const Name& known : kNames) {
      if (known.name == type) kinds.push_back(known.kind);
    }
    if (kinds.size() == before) {
      return input_error(
          "{}: found '{}', expected full_attention, sliding_attention or linear_attention",
          settings.place(kLayerTypes), printable(type));
    }
  }
  return kinds;
}

Status check_layer_count(const Settings& settings, Key key, std::size_t found, std::size_t layers) {
  if (found == layers) return {};
  return input_error(
      "{} lists {} layers, but {} is {}", settings.place(key), found,
      settings.convention() == Convention::kGguf ? kLayers.gguf : kLayers.hugging_face, layers);
}

}  // namespace

Result<DecoderConfig> read_decoder(const Settings& settings, const Weights& weights,
                                   const DecoderDefaults& defaults) {
  DecoderConfig config;
  ESPALIER_TRY(const std::size_t layers, settings.count(kLayers, kMaxLayers));
  ESPALIER_TRY(config.hidden, settings.count(kHidden, kMaxWidth));
  ESPALIER_TRY(config.context_length,
               settings.count(kContextLength, kMaxTokens, defaults.context_length));
  LayerConfig layer;
  AttentionConfig& attention = std::get<AttentionConfig>(layer.mixer);
  ESPALIER_CHECK(read_heads(settings, defaults, config.hidden, attention));
  ESPALIER_TRY(const auto mlp_hidden, settings.unsigned_integer(kMlpHidden));
  if (mlp_hidden) {
    ESPALIER_TRY(std::get<MlpConfig>(layer.mlp).hidden, settings.count(kMlpHidden, kMaxWidth));
  }
  ESPALIER_CHECK(check_activation(settings, defaults.activation));
  std::get<MlpConfig>(layer.mlp).activation = defaults.activation;
  config.layers.assign(layers, layer);

  const bool gguf = settings.convention() == Convention::kGguf;
  ESPALIER_TRY(const double epsilon, settings.positive(kNormEpsilon, gguf ? 1e-5 : 1e-6));
  config.norm_epsilon = static_cast<float>(epsilon);
  ESPALIER_TRY(config.vocab_size, read_vocab_size(settings, weights));
  ESPALIER_TRY(const auto tied, settings.boolean(kTied));
  if (tied) config.head = *tied ? Head::kEmbedding : Head::kOwn;
  ESPALIER_TRY(LayerRope rope, read_rope(settings, weights,
                                         {.head_dim = attention.head_dim,
                                          .context_length = config.context_length,
                                          .base = defaults.rope_base,
                                          .yarn_whole_pairs = defaults.yarn_whole_pairs}));
  config.ropes.push_back(std::move(rope));
  return config;
}

Result<std::vector<LayerKind>> read_layer_kinds(const Settings& settings, std::size_t layers,
                                                std::size_t full_every) {
  std::vector<LayerKind> kinds;
  if (settings.convention() == Convention::kHuggingFace) {
    ESPALIER_TRY(const auto types, settings.strings(kLayerTypes));
    if (types) {
      ESPALIER_CHECK(check_layer_count(settings, kLayerTypes, types->size(), layers));
      return read_layer_types(settings, *types);
    }
  } else if (settings.is_array(kWindowPattern)) {
    ESPALIER_TRY(const auto listed, settings.numbers(kWindowPattern));
    const std::vector<double> slides = listed.value_or(std::vector<double>());
    ESPALIER_CHECK(check_layer_count(settings, kWindowPattern, slides.size(), layers));
    for (const double slide : slides) {
      kinds.push_back(slide != 0 ? LayerKind::kSliding : LayerKind::kFull);
    }
    return kinds;
  }
  ESPALIER_TRY(auto pattern, settings.unsigned_integer(kWindowPattern));
  if (!pattern && settings.convention() == Convention::kHuggingFace) {
    ESPALIER_TRY(pattern, settings.unsigned_integer(kOtherWindowPattern));
  }
  for (std::size_t l = 0; l < layers; ++l) {
    kinds.push_back(kind_in_pattern(l, pattern.value_or(full_every)));
  }
  return kinds;
}

Result<std::size_t> read_window(const Settings& settings, std::size_t fallback) {
  if (settings.is_null(kWindow)) return std::size_t{0};
  ESPALIER_TRY(const auto window, settings.unsigned_integer(kWindow));
  if (window.value_or(0) > kMaxTokens) {
    return input_error("{}: found {}, expected at most {}", settings.place(kWindow), *window,
                       kMaxTokens);
  }
  return window.value_or(fallback);
}

Result<float> read_softcap(const Settings& settings, Key key, double fallback) {
  if (settings.is_null(key)) return 0.0f;
  ESPALIER_TRY(const auto found, settings.number(key));
  if (!found) return static_cast<float>(fallback);
  ESPALIER_TRY(const double cap, settings.positive(key, fallback));
  return static_cast<float>(cap);
}

std::span<const Architecture* const> architectures() {
  static constexpr const Architecture* kAll[] = {&kLlama,  &kQwen2,     &kQwen3,   &kGemma2,
                                                 &kGemma3, &kSmolLm3,   &kPhi3,    &kQwen3Moe,
                                                 &kGptOss, &kQwen3Next, &kQwen3_5, &kQwen3_5Moe};
  return kAll;
}

}  // namespace espalier::model
