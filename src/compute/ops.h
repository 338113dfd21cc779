// The operators that models are written in.
//
// A model is a list of rows going through operators; a row is one token of one sequence. Prefill,
// decode and several users at once differ only in which rows they list. All matrices are row-major
// and contiguous; `rows` is always the number of rows of the first argument.
//
// The small operators are pure virtual. The large ones have a default that defines them in terms of
// the small ones; a backend overrides what it fuses. Every operator gives the same bits for the
// same row, whatever other rows are there and however many threads work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compute/kv_view.h"
#include "compute/recurrent_view.h"
#include "compute/workspace.h"
#include "pack/matrix.h"

namespace espalier::compute {

// Which token a row is, of which sequence, and its position there.
struct Row {
  std::int32_t token = 0;
  std::int32_t sequence = 0;
  std::int32_t position = 0;
};

// A projection y = x·Wᵀ + bias.
struct Linear {
  pack::Matrix weight;      // [outputs, inputs]
  std::vector<float> bias;  // [outputs], or empty
  // The weight's bits in the order in which one backend's kernels read them, or null: see
  // Ops::prepare.
  std::shared_ptr<const std::byte> arranged;
};

// Projected queries, keys and values, each [rows, heads of that kind, head_dim].
struct Heads {
  float* queries = nullptr;
  float* keys = nullptr;
  float* values = nullptr;
  std::size_t query_heads = 0;  // of keys and values, there are as many as the cache has
};

// RMS norms of every query and every key, each by itself. Both weights are [head_dim], or empty
// where there is no norm.
struct HeadNorms {
  std::span<const float> queries, keys;
  float epsilon = 0;
};

// Which elements of a head rotary embedding turns together.
enum class RopePairs {
  kInterleaved,  // (0, 1), (2, 3), …: Llama as GGUF stores it
  kHalves,       // (0, d/2), (1, d/2 + 1), …: GPT-NeoX, and checkpoints of Hugging Face
};

// Rotary position embedding of the first 2·frequencies.size() elements of each head: pair i of a
// head at position p turns by the angle p·frequencies[i], and is scaled by `magnitude`.
// Source: Su et al., RoFormer (2021); magnitude from YaRN, Peng et al. (2023), section 3.4.
struct Rope {
  RopePairs pairs = RopePairs::kHalves;
  std::vector<double> frequencies;
  double magnitude = 1;
};

struct Attention {
  std::size_t heads = 0;
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;
  float scale = 1;         // of the scores, usually 1/√head_dim
  std::size_t window = 0;  // a row sees itself and window − 1 positions before it; 0: all of them
  float softcap = 0;       // scores s become softcap·tanh(s / softcap), after scale; 0: they stay
  // Per head, one more score that takes its share of the softmax and adds nothing (gpt-oss); or
  // empty. They outlive the call only.
  std::span<const float> sinks;
};

enum class Activation {
  kSilu,      // x·σ(x)
  kGeluTanh,  // x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))): Hendrycks & Gimpel (2016), Gemma
  kSigmoid,   // σ(x): gates of attention
  // gpt-oss: c·σ(1.702·c) with c = min(x, 7). What it multiplies is held within ±7, and 1 is added.
  kClampedSwiglu,
};

// How the gates and ups of a gated MLP are stored.
enum class GateUp {
  kSeparate,
  kInterleaved,  // rows of `gate` are those of gate 0, up 0, gate 1, up 1, …; `up` is empty
};

// down( activation(gate(x)) ∘ up(x) )
struct GatedMlp {
  Linear gate, up, down;
  Activation activation = Activation::kSilu;
  GateUp layout = GateUp::kSeparate;
};

// What the router's outputs become before experts are chosen.
enum class ExpertScores { kSoftmax, kSigmoid };

// Which experts a row goes to: those with the highest scores, the lower index first among equals.
struct Router {
  Linear linear;          // [experts, hidden]
  std::size_t top_k = 0;  // 1 to experts
  ExpertScores scores = ExpertScores::kSoftmax;
  std::vector<float> selection_bias;  // [experts] or empty: added to scores for the choice only
  bool renormalize = false;           // the weights of the chosen are divided by their sum
  float scale = 1;                    // of the weights, at last
};

// Σ over the chosen experts of weight · expert(x), plus what all rows share:
// sigmoid(shared_gate(x)) · shared(x). Shazeer et al. (2017); shared experts: DeepSeekMoE (2024).
struct MixtureOfExperts {
  Router router;
  std::vector<GatedMlp> experts;
  std::optional<GatedMlp> shared;
  std::optional<Linear> shared_gate;  // [1, hidden]; without one, shared(x) counts in full
};

// A convolution along a sequence, each channel by itself, then SiLU:
// y[t] = silu(Σ_j weight[j] · x[t − kernel + 1 + j]), with zeros before the sequence.
struct CausalConvolution {
  // In RecurrentView::convolution: [kernel − 1, channels], the oldest input first.
  [[nodiscard]] std::size_t state_size() const { return (kernel - 1) * channels; }

  std::size_t channels = 0;
  std::size_t kernel = 0;
  std::vector<float> weight;  // [kernel, channels]
};

// Which key head a value head goes with, where there are more of these.
enum class KeyHeadOrder {
  kGrouped,  // h / (value_heads / key_heads)
  kTiled,    // h % key_heads
};

// The gated delta rule: Yang et al., Gated Delta Networks (2024), equation 10. A value head has a
// matrix S [key_dim, value_dim] that a row with query q, key k, value v and numbers a and b turns
// into S' and reads:
//   S' = e^(rate · softplus(a + dt_bias)) · S;  S' += k (sigmoid(b) · (v − kᵀS'));  y = qᵀS' ·
//   scale
//
// In RecurrentView::memory each value head has S as [value_dim / 16, rounded up][key_dim][16], so
// that what vectors work on is contiguous; after all of them, each has a Chunk. A backend that
// walks the recurrence leaves the chunks alone; one that computes in chunks has in S what it was
// before the chunk. So one backend cannot continue from another's memory.
struct DeltaRule {
  static constexpr std::size_t kTile = 16;
  static constexpr std::size_t kChunk = 16;

  // The rows of a value head since the last position that is a multiple of kChunk.
  struct Chunk {
    float* keys;          // [key_dim][kChunk]
    float* changes;       // [tiles()][kChunk][kTile]: what each row's key writes to S
    float* decays;        // [kChunk]: what is left of that by now
    float* matrix_decay;  // the same of S
  };

  [[nodiscard]] std::size_t key_head(std::size_t value_head) const {
    return order == KeyHeadOrder::kTiled ? value_head % key_heads
                                         : value_head / (value_heads / key_heads);
  }
  [[nodiscard]] std::size_t tiles() const { return (value_dim + kTile - 1) / kTile; }
  [[nodiscard]] std::size_t matrix_size() const { return tiles() * key_dim * kTile; }
  [[nodiscard]] std::size_t matrices_size() const { return value_heads * matrix_size(); }
  [[nodiscard]] std::size_t chunk_size() const { return kChunk * (key_dim + tiles() * kTile + 2); }
  [[nodiscard]] std::size_t memory_size() const {
    return matrices_size() + value_heads * chunk_size();
  }
  [[nodiscard]] Chunk chunk(float* memory, std::size_t value_head) const {
    float* keys = memory + matrices_size() + value_head * chunk_size();
    float* changes = keys + kChunk * key_dim;
    float* decays = changes + kChunk * tiles() * kTile;
    return {keys, changes, decays, decays + kChunk};
  }

  std::size_t key_heads = 0;
  std::size_t value_heads = 0;
  std::size_t key_dim = 0;
  std::size_t value_dim = 0;
  KeyHeadOrder order = KeyHeadOrder::kGrouped;
  float scale = 1;             // usually 1/√key_dim
  std::vector<float> rate;     // [value_heads], negative
  std::vector<float> dt_bias;  // [value_heads]
};

// A layer of that rule as Qwen3-Next has it: queries, keys and values through the convolution,
// queries and keys to length 1, the rule, then output(norm(y) ∘ silu(z)).
struct GatedDeltaNet {
  DeltaRule rule;
  Linear qkv;   // [2·key_heads·key_dim + value_heads·value_dim, hidden]: queries, keys, values
  Linear z;     // [value_heads·value_dim, hidden]
  Linear b, a;  // [value_heads, hidden]
  // Fused instead of those, where the format of the weight is set. For each key head in turn: its
  // query, its key, the values of its value heads, their z …
  Linear qkvz;
  Linear ba;                      // … and their b, their a.
  CausalConvolution convolution;  // of the channels of qkv
  std::vector<float> norm;        // [value_dim]
  float norm_epsilon = 1e-6f;
  Linear output;  // [hidden, value_heads·value_dim]
};

// A projection and where its result goes: see Ops::project_all.
struct Projection {
  const Linear* linear = nullptr;
  float* y = nullptr;
};

// One of the parts that a row is split into: see Ops::split.
struct SplitPart {
  std::size_t width = 0;
  float* to = nullptr;
  std::size_t stride = 0;  // from a row of `to` to the next
};

class Ops {
 public:
  virtual ~Ops() = default;

  // May set linear.arranged, for this backend alone: products become faster by it, with the same
  // bits, and take memory of the weight's size.
  virtual void prepare(Linear& /*linear*/) {}
  void prepare(GatedMlp& mlp);
  void prepare(MixtureOfExperts& mixture);
  void prepare(GatedDeltaNet& net);

  // y[r] = row rows[r].token of `table`, decoded.
  virtual void embed(std::span<const Row> rows, const pack::Matrix& table, float* y) = 0;

  // y [rows, outputs] = x [rows, inputs] · Wᵀ + bias. EXL3 weights include their rotations.
  virtual void project(std::size_t rows, const float* x, const Linear& linear, float* y) = 0;

  // The same of the same x for all of `projections`.
  virtual void project_all(std::size_t rows, const float* x,
                           std::span<const Projection> projections);

  // y = x / √(mean(x²) + epsilon) ∘ weight, for each row of `width` elements. y may be x.
  virtual void rms_norm(std::size_t rows, const float* x, std::span<const float> weight,
                        float epsilon, float* y) = 0;

  // Rotates x [rows, heads, head_dim] in place by the rows' positions.
  virtual void rope(std::span<const Row> rows, std::size_t heads, std::size_t head_dim,
                    const Rope& rope, float* x) = 0;

  // Writes keys and values [rows, kv_heads, head_dim] to the rows' places in the cache.
  virtual void store_kv(std::span<const Row> rows, const float* keys, const float* values,
                        const KvView& cache) = 0;

  // y [rows, heads, head_dim]: each row's queries against the cached positions up to its own,
  // within the window. Query head h reads KV head h / (heads / kv_heads).
  virtual void attention(std::span<const Row> rows, const float* queries, const KvView& cache,
                         const Attention& attention, float* y) = 0;

  // y = activation(gate) ∘ up, all of `count` elements. y may be gate or up.
  virtual void gate(std::size_t count, const float* gate, const float* up, Activation activation,
                    float* y) = 0;

  // y += x, `count` elements.
  virtual void add(std::size_t count, const float* x, float* y) = 0;

  // x [rows, repeats, Σ widths] is taken apart: of row r, piece i of part p goes to
  // p.to[r·p.stride + i·p.width].
  virtual void split(std::size_t rows, std::size_t repeats, std::span<const SplitPart> parts,
                     const float* x) = 0;

  // y[r] = x[from[r]], rows of `width` elements.
  virtual void gather_rows(std::span<const std::uint32_t> from, std::size_t width, const float* x,
                           float* y) = 0;

  // y[to[r]] += factors[r] · x[r], rows of `width` elements. No row of y is named twice.
  virtual void scatter_add_rows(std::span<const std::uint32_t> to, const float* factors,
                                std::size_t width, const float* x, float* y) = 0;

  // y = the convolution of x [rows, channels], where rows of a sequence come in order; they leave
  // their inputs in `state`. y may be x.
  virtual void causal_convolution(std::span<const Row> rows, const float* x,
                                  const CausalConvolution& convolution, const RecurrentView& state,
                                  float* y) = 0;

  // y [rows, value_heads, value_dim] of queries and keys [rows, 2, key_heads, key_dim], values
  // [rows, value_heads, value_dim], b and a [rows, value_heads], through the matrices in `state`.
  // Rows of a sequence come in order.
  virtual void delta_rule(std::span<const Row> rows, const float* queries_keys, const float* values,
                          const float* b, const float* a, const DeltaRule& rule,
                          const RecurrentView& state, float* y) = 0;

  // y = x / √(Σ x² + epsilon), for each row of `width` elements. y may be x.
  void l2_norm(std::size_t rows, std::size_t width, const float* x, float epsilon, float* y);

  // x ·= factor, `count` elements.
  virtual void scale(std::size_t count, float factor, float* x) = 0;

  // x = cap·tanh(x / cap), `count` elements: Gemma 2's bound on logits.
  virtual void softcap(std::size_t count, float cap, float* x) = 0;

  // x += y, then normed = rms_norm(x), all [rows, width]: what lies between one block of a layer
  // and the next. If `post` is not empty, it is the norm of y that is added. y is undefined after
  // that.
  virtual void add_rms_norm(std::size_t rows, float* y, std::span<const float> post,
                            std::span<const float> weight, float epsilon, float* x, float* normed);

  // What heads go through before attention: norms, then `rope` unless it is null, in place; then
  // keys and values go to the cache. Keys are undefined after that.
  virtual void norm_rope_store(std::span<const Row> rows, const Heads& heads,
                               const HeadNorms& norms, const Rope* rope, const KvView& cache);

  // y [rows, outputs] = linear(activation(gates) ∘ ups). gates [rows, inputs] are undefined after
  // that; ups are as many.
  virtual void gate_project(std::size_t rows, float* gates, const float* ups, Activation activation,
                            const Linear& linear, float* y);

  // y [rows, outputs of down] = mlp(x [rows, inputs]).
  virtual void gated_mlp(std::size_t rows, const float* x, const GatedMlp& mlp, float* y);

  // y [rows, hidden] = mixture(x [rows, hidden]); y may not be x.
  virtual void mixture_of_experts(std::size_t rows, const float* x, const MixtureOfExperts& mixture,
                                  float* y);

  // y [rows, hidden] = net(x [rows, hidden]); y may be x. Rows of a sequence come in order.
  virtual void gated_delta_net(std::span<const Row> rows, const float* x, const GatedDeltaNet& net,
                               const RecurrentView& state, float* y);

  Workspace& workspace() { return workspace_; }

 private:
  Workspace workspace_;
};

}  // namespace espalier::compute
