#include "run/generate.h"

#include <algorithm>

#include "base/timer.h"

namespace espalier::run {

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kEndToken:
      return "end_token";
    case StopReason::kTokenLimit:
      return "token_limit";
    case StopReason::kContextFull:
      return "context_full";
    case StopReason::kInterrupted:
      return "interrupted";
  }
  return "";
}

void forward_sequence(const Session& session, std::span<const TokenId> tokens, std::size_t first,
                      Wanted wanted, float* logits) {
  compute::Workspace& workspace = session.ops.workspace();
  const compute::Workspace::Frame frame(workspace);
  const std::size_t count = tokens.size();
  auto* rows = workspace.take<compute::Row>(count);
  auto* wanted_rows = workspace.take<std::size_t>(count);
  for (std::size_t i = 0; i < count; ++i) {
    rows[i] = {.token = tokens[i], .sequence = 0, .position = static_cast<std::int32_t>(first + i)};
    wanted_rows[i] = i;
  }
  const std::size_t skipped = wanted == Wanted::kAllLogits ? 0 : count - 1;
  session.model.forward(session.ops, {rows, count}, session.cache.layers(),
                        {wanted_rows + skipped, count - skipped}, logits);
}

Status check_tokens(const model::ModelInfo& model, std::span<const TokenId> tokens,
                    std::size_t context) {
  if (tokens.empty()) return input_error("the prompt is empty: it has no token to start from");
  if (tokens.size() > context) {
    return input_error("the prompt has {} tokens, but the context holds {}; see --ctx",
                       tokens.size(), context);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || static_cast<std::size_t>(tokens[i]) >= model.vocab_size) {
      return input_error("token {} is {}, expected 0 to {}, the vocabulary of {}", i, tokens[i],
                         model.vocab_size - 1, model.source);
    }
  }
  return {};
}

Result<Generation> generate(const Session& session, const text::Tokenizer& tokenizer,
                            std::span<const TokenId> prompt, const GenerateOptions& options,
                            const std::atomic<bool>& interrupted,
                            const std::function<void(TokenId)>& on_token) {
  ESPALIER_CHECK(check_tokens(session.model.info(), prompt, session.cache.capacity()));
  Generation result;
  result.in_cache = std::min(options.cached, prompt.size() - 1);
  std::vector<float> logits(session.model.info().vocab_size);

  const Timer prompt_timer;
  while (result.in_cache < prompt.size() && !interrupted) {
    const auto batch =
        prompt.subspan(result.in_cache, std::min(kPrefillRows, prompt.size() - result.in_cache));
    forward_sequence(session, batch, result.in_cache, Wanted::kLastLogits, logits.data());
    result.in_cache += batch.size();
    result.prompt_done += batch.size();
  }
  result.prompt_seconds = prompt_timer.seconds();

  const Timer decode_timer;
  Sampler sampler(options.sampler);
  std::vector<TokenId> sequence(prompt.begin(), prompt.end());
  while (true) {
    if (interrupted) {
      result.stop = StopReason::kInterrupted;
      break;
    }
    if (result.tokens.size() == options.max_tokens) {
      result.stop = StopReason::kTokenLimit;
      break;
    }
    const TokenId next = sampler.sample(logits, sequence);
    if (tokenizer.ends_generation(next)) {
      result.stop = StopReason::kEndToken;
      break;
    }
    result.tokens.push_back(next);
    sequence.push_back(next);
    on_token(next);
    if (sequence.size() > session.cache.capacity()) {
      result.stop = StopReason::kContextFull;
      break;
    }
    if (result.tokens.size() < options.max_tokens) {
      forward_sequence(session, {&next, 1}, sequence.size() - 1, Wanted::kLastLogits,
                       logits.data());
      result.in_cache = sequence.size();
    }
  }
  result.decode_seconds = decode_timer.seconds();
  return result;
}

}  // namespace espalier::run
