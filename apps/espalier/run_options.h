// What `espalier run` was asked for.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "load.h"
#include "run/generate.h"
#include "text/chat_template.h"

namespace espalier::app {

struct RunOptions {
  std::string model;
  std::optional<std::string> prompt;  // without one: a conversation
  BackendOptions backend;
  std::size_t context = 0;
  bool json = false;
  bool raw = false;
  std::string system;
  std::string template_file;
  text::Reasoning reasoning = text::Reasoning::kAsTheModelDoes;
  std::optional<std::size_t> max_tokens;
  run::SamplerOptions sampler;
};

// Most tokens of a plain completion, which need not ever end by itself, and of an answer, which a
// small model can get lost in.
inline constexpr std::size_t kDefaultTokens = 128;
inline constexpr std::size_t kDefaultAnswerTokens = 2048;

}  // namespace espalier::app
