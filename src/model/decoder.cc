#include "model/decoder.h"

#include <cstring>

#include "base/interrupt.h"
#include "base/progress.h"
#include "model/attention_block.h"
#include "model/delta_net_block.h"
#include "model/mixture_block.h"
#include "model/mlp_block.h"

namespace espalier::model {
namespace {

using compute::LayerState;
using compute::Ops;
using compute::Row;
using compute::Workspace;

struct Layer {
  std::vector<float> mixer_norm, mixer_post_norm;  // the latter may be empty
  std::variant<AttentionBlock, DeltaNetBlock> mixer;
  std::vector<float> mlp_norm, mlp_post_norm;
  std::variant<MlpBlock, MixtureBlock> mlp;
};

class Decoder final : public Model {
 public:
  Decoder(std::string_view architecture, DecoderConfig config, std::string source)
      : config_(std::move(config)) {
    info_.source = std::move(source);
    info_.architecture = architecture;
    info_.vocab_size = config_.vocab_size;
    info_.context_length = config_.context_length;
  }

  Status bind(const Modules& modules, float norm_offset);

  void prepare(Ops& ops) override;
  void forward(Ops& ops, std::span<const Row> rows, std::span<const LayerState> cache,
               std::span<const std::size_t> wanted, float* logits) const override;

 private:
  Result<Layer> bind_layer(const Modules& modules, float norm_offset, std::size_t l);
  Status bind_head(const Modules& modules);

  void mix(Ops& ops, std::span<const Row> rows, const AttentionBlock& attention,
           const LayerState& state, const float* x, float* y) const;
  void mix(Ops& ops, std::span<const Row> rows, const DeltaNetBlock& net, const LayerState& state,
           const float* x, float* y) const;

  DecoderConfig config_;
  pack::Matrix embedding_;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  compute::Linear head_;
};

Status Decoder::bind(const Modules& modules, float norm_offset) {
  const DecoderConfig& c = config_;
  ESPALIER_TRY(embedding_,
               modules.weights().matrix(modules.name(Module::kEmbedding), c.vocab_size, c.hidden));
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    ESPALIER_TRY(Layer layer, bind_layer(modules, norm_offset, l));
    layers_.push_back(std::move(layer));
  }
  const std::size_t layers = c.layers.size() + c.draft_layers;
  const std::string beyond = fmt::format("{}.weight", modules.name(Module::kAttentionNorm, layers));
  ESPALIER_TRY(const auto layer_beyond, modules.weights().find_vector(beyond));
  if (layer_beyond) {
    return input_error("{}: has tensor '{}', but its configuration says {} layers; it is cut short",
                       info_.source, modules.weights().stored_name(beyond), layers);
  }
  ESPALIER_TRY(final_norm_, modules.norm(Module::kFinalNorm, 0, c.hidden, norm_offset));
  return bind_head(modules);
}

Result<Layer> Decoder::bind_layer(const Modules& modules, float norm_offset, std::size_t l) {
  const DecoderConfig& c = config_;
  const LayerConfig& config = c.layers[l];
  Layer layer;
  ESPALIER_TRY(layer.mixer_norm, modules.norm(Module::kAttentionNorm, l, c.hidden, norm_offset));
  ESPALIER_TRY(layer.mlp_norm, modules.norm(Module::kMlpNorm, l, c.hidden, norm_offset));
  if (c.layer_norms == LayerNorms::kBeforeAndAfter) {
    ESPALIER_TRY(layer.mixer_post_norm,
                 modules.norm(Module::kAttentionPostNorm, l, c.hidden, norm_offset));
    ESPALIER_TRY(layer.mlp_post_norm, modules.norm(Module::kMlpPostNorm, l, c.hidden, norm_offset));
  }
  if (const auto* attention = std::get_if<AttentionConfig>(&config.mixer)) {
    ESPALIER_TRY(layer.mixer, AttentionBlock::bind(c, *attention, norm_offset, modules, l));
    info_.layers.push_back({.kv_heads = attention->kv_heads,
                            .head_dim = attention->head_dim,
                            .window = attention->window});
  } else {
    ESPALIER_TRY(DeltaNetBlock net,
                 DeltaNetBlock::bind(c, std::get<DeltaNetConfig>(config.mixer), modules, l));
    info_.layers.push_back(net.cache());
    layer.mixer = std::move(net);
  }
  if (const auto* mlp = std::get_if<MlpConfig>(&config.mlp)) {
    ESPALIER_TRY(layer.mlp, MlpBlock::bind(c, *mlp, modules, l));
  } else {
    ESPALIER_TRY(layer.mlp, MixtureBlock::bind(c, std::get<MixtureConfig>(config.mlp), modules, l));
  }
  return layer;
}

Status Decoder::bind_head(const Modules& modules) {
  ESPALIER_TRY(const auto own, modules.weights().find_matrix(modules.name(Module::kHead)));
  if (config_.head == Head::kEmbedding || (config_.head == Head::kIfThere && !own)) {
    head_.weight = embedding_;
    return {};
  }
  ESPALIER_TRY(head_, modules.linear(Module::kHead, 0, config_.vocab_size, config_.hidden));
  return {};
}

void Decoder::prepare(Ops& ops) {
  Progress progress("preparing weights", layers_.size(), "layers");
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    std::visit([&](auto& mixer) { mixer.prepare(ops); }, layers_[l].mixer);
    std::visit([&](auto& mlp) { mlp.prepare(ops); }, layers_[l].mlp);
    progress.update(l + 1);
    if (interrupt_pending()) return;
  }
  ops.prepare(head_);
}

void Decoder::mix(Ops& ops, std::span<const Row> rows, const AttentionBlock& attention,
                  const LayerState& state, const float* x, float* y) const {
  const std::size_t rope = attention.config().rope;
  const compute::KvView& cache = state.kv;
  attention.forward(ops, rows, rope == kNoRope ? nullptr : &config_.ropes[rope].at(cache.capacity),
                    cache, x, y);
}

void Decoder::mix(Ops& ops, std::span<const Row> rows, const DeltaNetBlock& net,
                  const LayerState& state, const float* x, float* y) const {
  net.forward(ops, rows, state.recurrent, x, y);
}

void Decoder::forward(Ops& ops, std::span<const Row> rows, std::span<const LayerState> cache,
                      std::span<const std::size_t> wanted, float* logits) const {
  const DecoderConfig& c = config_;
  const std::size_t n = rows.size();
  const Workspace::Frame frame(ops.workspace());
  float* x = ops.workspace().floats(n * c.hidden);
  float* normed = ops.workspace().floats(n * c.hidden);
  float* y = ops.workspace().floats(n * c.hidden);
  // x += post(y), where y is what a block made of the normed x; then x is normed for the next.
  const auto add = [&](const std::vector<float>& post, const std::vector<float>& norm) {
    ops.add_rms_norm(n, y, post, norm, c.norm_epsilon, x, normed);
  };

  ops.embed(rows, embedding_, x);
  if (c.embedding_scale != 1) ops.scale(n * c.hidden, c.embedding_scale, x);
  ops.rms_norm(n, x, layers_.front().mixer_norm, c.norm_epsilon, normed);
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    std::visit([&](const auto& mixer) { mix(ops, rows, mixer, cache[l], normed, y); }, layer.mixer);
    add(layer.mixer_post_norm, layer.mlp_norm);
    std::visit([&](const auto& mlp) { mlp.forward(ops, n, normed, y); }, layer.mlp);
    if (l + 1 < layers_.size()) add(layer.mlp_post_norm, layers_[l + 1].mixer_norm);
  }

  // The head sees only the rows whose logits are wanted.
  const auto take_wanted = [&](const float* from, float* to) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      std::memcpy(to + i * c.hidden, from + wanted[i] * c.hidden, c.hidden * sizeof(float));
    }
  };
  float* wanted_x = normed;
  float* wanted_y = x;
  float* wanted_normed = y;
  take_wanted(x, wanted_x);
  take_wanted(y, wanted_y);
  ops.add_rms_norm(wanted.size(), wanted_y, layers_.back().mlp_post_norm, final_norm_,
                   c.norm_epsilon, wanted_x, wanted_normed);
  ops.project(wanted.size(), wanted_normed, head_, logits);
  if (c.logit_softcap != 0) ops.softcap(wanted.size() * c.vocab_size, c.logit_softcap, logits);
}

}  // namespace

Result<std::unique_ptr<Model>> load_decoder(const Architecture& architecture, DecoderConfig config,
                                            const Weights& weights, Convention convention) {
  const bool gguf = convention == Convention::kGguf;
  const auto pairs = gguf ? architecture.gguf_rope_pairs : compute::RopePairs::kHalves;
  for (LayerRope& rope : config.ropes) {
    rope.rope.pairs = pairs;
    rope.long_rope.pairs = pairs;
  }
  const bool whole_norms = gguf || config.whole_norms;
  auto decoder = std::make_unique<Decoder>(architecture.name, std::move(config), weights.source());
  const Modules modules(weights, convention, architecture.names);
  ESPALIER_CHECK(decoder->bind(modules, whole_norms ? 0 : architecture.hugging_face_norm_offset));
  return std::unique_ptr<Model>(std::move(decoder));
}

}  // namespace espalier::model
