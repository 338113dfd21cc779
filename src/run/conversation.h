// A conversation with a model: what was said so far, and the cache of it, of which each turn reuses
// all that did not change.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "run/generate.h"
#include "text/chat_template.h"
#include "text/thoughts.h"
#include "text/tokenizer.h"

namespace espalier::run {

struct Answer {
  std::string text;
  std::string reasoning;          // what the model thought before
  std::size_t prompt_tokens = 0;  // of the whole conversation before the answer
  std::size_t cached_tokens = 0;  // of these, what the cache held from earlier turns
  Generation generation;          // its prompt_done counts what was not cached
};

class Conversation {
 public:
  // All references outlive it. The cache is the conversation's own.
  Conversation(const Session& session, const text::Tokenizer& tokenizer,
               const text::ChatTemplate& chat_template, text::Reasoning reasoning)
      : session_(session), tokenizer_(tokenizer), template_(chat_template), reasoning_(reasoning) {}

  using OnPart = std::function<void(const text::OutputPart&)>;

  // Asks `question` and gives the answer, calling on_part with its text as it comes, in whole UTF-8
  // characters. Question and answer become part of the conversation, an interrupted answer as far
  // as it goes. On errors the conversation stays as it was. Errors: those of the template; a
  // conversation that does not fit in the cache.
  [[nodiscard]] Result<Answer> ask(const std::string& question, const GenerateOptions& options,
                                   const std::atomic<bool>& interrupted, const OnPart& on_part);

  // Answers the last question again. Without one, an error.
  [[nodiscard]] Result<Answer> ask_again(const GenerateOptions& options,
                                         const std::atomic<bool>& interrupted,
                                         const OnPart& on_part);

  // Forgets all but the system message.
  void reset();

  // The system message, none if empty. Changing it resets the conversation.
  void set_system(const std::string& text);

  [[nodiscard]] const std::vector<text::ChatMessage>& messages() const { return messages_; }
  [[nodiscard]] std::size_t tokens_in_cache() const { return cached_.size(); }

 private:
  Result<Answer> answer(const GenerateOptions& options, const std::atomic<bool>& interrupted,
                        const OnPart& on_part);

  Session session_;
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate& template_;
  text::Reasoning reasoning_;
  std::vector<text::ChatMessage> messages_;
  std::vector<TokenId> cached_;  // the tokens of the positions that the cache holds
};

}  // namespace espalier::run
