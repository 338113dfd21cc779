// What `espalier run` says of the work it did.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "run/generate.h"

namespace espalier::app {

[[nodiscard]] inline double per_second(std::size_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// "prompt: 11 of 11 tokens, 390.3 tokens/s; generation: 128 tokens, 94.4 tokens/s"
[[nodiscard]] inline std::string speeds(const run::Generation& generation,
                                        std::size_t prompt_tokens) {
  return fmt::format(
      "{}prompt: {} of {} tokens, {:.1f} tokens/s; generation: {} tokens, {:.1f} tokens/s",
      generation.stop == run::StopReason::kInterrupted ? "interrupted; " : "",
      generation.prompt_done, prompt_tokens,
      per_second(generation.prompt_done, generation.prompt_seconds), generation.tokens.size(),
      per_second(generation.tokens.size(), generation.decode_seconds));
}

// The object that --json prints; the caller may add to it.
[[nodiscard]] inline nlohmann::ordered_json summary(const std::string& model,
                                                    const run::Generation& generation,
                                                    std::size_t prompt_tokens,
                                                    std::string_view text) {
  const std::size_t decoded = generation.tokens.size();
  return {
      {"model", model},
      {"prompt_tokens", prompt_tokens},
      {"output_tokens", decoded},
      {"text", text},
      {"tokens", generation.tokens},
      {"stop", run::stop_reason_name(generation.stop)},
      {"timings",
       {{"prompt_seconds", generation.prompt_seconds},
        {"prompt_tokens_per_second", per_second(generation.prompt_done, generation.prompt_seconds)},
        {"decode_seconds", generation.decode_seconds},
        {"decode_tokens_per_second", per_second(decoded, generation.decode_seconds)}}}};
}

// Text can end in the middle of a character; JSON cannot.
[[nodiscard]] inline std::string dump(const nlohmann::ordered_json& value) {
  return value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace espalier::app
