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
#include <span>
#include <vector>

#include "compute/kv_view.h"
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
};

// down( activation(gate(x)) ∘ up(x) )
struct GatedMlp {
  Linear gate, up, down;
  Activation activation = Activation::kSilu;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // y[r] = row rows[r].token of `table`, decoded.
  virtual void embed(std::span<const Row> rows, const pack::Matrix& table, float* y) = 0;

  // y [rows, outputs] = x [rows, inputs] · Wᵀ + bias. EXL3 weights include their rotations.
  virtual void project(std::size_t rows, const float* x, const Linear& linear, float* y) = 0;

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

  // x ·= factor, `count` elements.
  virtual void scale(std::size_t count, float factor, float* x) = 0;

  // x = cap·tanh(x / cap), `count` elements: Gemma 2's bound on logits.
  virtual void softcap(std::size_t count, float cap, float* x) = 0;

  // y [rows, outputs of down] = mlp(x [rows, inputs]).
  virtual void gated_mlp(std::size_t rows, const float* x, const GatedMlp& mlp, float* y);

  Workspace& workspace() { return workspace_; }

 private:
  Workspace workspace_;
};

}  // namespace espalier::compute
