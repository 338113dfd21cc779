// The generation loop: a prompt in, tokens out, as they come.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "run/kv_cache.h"
#include "run/sampler.h"
#include "text/tokenizer.h"

namespace espalier::run {

using text::TokenId;

// Rows that go through a model at once in prefill: enough to share each decoded weight among many
// rows, few enough that their activations stay in the cache.
inline constexpr std::size_t kPrefillRows = 256;

enum class StopReason { kEndToken, kTokenLimit, kContextFull, kInterrupted };

[[nodiscard]] std::string_view stop_reason_name(StopReason reason);

struct GenerateOptions {
  std::size_t max_tokens = 128;
  SamplerOptions sampler;
  // The first tokens of the prompt that the cache holds already; fewer than all of them.
  std::size_t cached = 0;
};

struct Generation {
  std::vector<TokenId> tokens;  // without the end token
  StopReason stop = StopReason::kTokenLimit;
  std::size_t prompt_done = 0;  // prompt tokens that went through the model, without the cached
  std::size_t in_cache = 0;     // of prompt and tokens, the first that the cache holds now
  double prompt_seconds = 0;
  double decode_seconds = 0;
};

// Everything that a sequence of forward passes needs. All references outlive it.
struct Session {
  const model::Model& model;
  compute::Ops& ops;
  KvCache& cache;
};

// Which rows' logits a forward pass gives.
enum class Wanted { kLastLogits, kAllLogits };

// Runs `tokens` through the model as positions first, first + 1, … of sequence 0. `logits` gets
// [1 or tokens.size(), vocab_size]. Tokens must be in the vocabulary, earlier positions and room
// for these in the cache.
void forward_sequence(const Session& session, std::span<const TokenId> tokens, std::size_t first,
                      Wanted wanted, float* logits);

// Checks that `tokens` are in the model's vocabulary and fit in `context` positions.
[[nodiscard]] Status check_tokens(const model::ModelInfo& model, std::span<const TokenId> tokens,
                                  std::size_t context);

// Continues `prompt` in a cache that holds options.cached of it, calling on_token for each new
// token. Stops at a token that ends a generation, at max_tokens, at the cache's end, or soon after
// `interrupted` becomes true. Errors: an empty prompt, a token outside the vocabulary, a prompt
// longer than the cache.
[[nodiscard]] Result<Generation> generate(const Session& session, const text::Tokenizer& tokenizer,
                                          std::span<const TokenId> prompt,
                                          const GenerateOptions& options,
                                          const std::atomic<bool>& interrupted,
                                          const std::function<void(TokenId)>& on_token);

}  // namespace espalier::run
