// The chat template of a model: messages in, the text that the model continues out.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "file/container.h"
#include "text/jinja/template.h"
#include "text/tokenizer.h"

namespace espalier::text {

struct ChatMessage {
  std::string role;     // "system", "user", "assistant"
  std::string content;  // of an assistant, without its thoughts
  std::string reasoning = {};
};

// Whether a model shall think before it answers.
enum class Reasoning { kAsTheModelDoes, kOn, kOff };

// The source of the template that a container holds: metadata key tokenizer.chat_template of a GGUF
// file; chat_template.jinja, chat_template.json or tokenizer_config.json of a directory (where it
// lists several, the one named "default"). Nothing where there is none.
[[nodiscard]] Result<std::optional<std::string>> find_chat_template(
    const file::Container& container);

class ChatTemplate {
 public:
  // `name` stands for the template in messages. bos_token and eos_token of `tokenizer` become
  // variables; it may be null. Errors name the line.
  [[nodiscard]] static Result<ChatTemplate> parse(std::string_view source, std::string name,
                                                  const Tokenizer* tokenizer);

  // What the model reads before it answers `messages`. What comes from them is marked
  // Origin::kMessage. Errors: those of the template, and those that it raises.
  [[nodiscard]] Result<jinja::MarkedText> render(const std::vector<ChatMessage>& messages,
                                                 Reasoning reasoning, const std::tm& now) const;

  // The same for variables as they are given, such as messages with tool calls, tools and
  // documents; these and the tokens that are not among them are added as none.
  [[nodiscard]] Result<jinja::MarkedText> render(jinja::Variables variables,
                                                 const std::tm& now) const;

 private:
  explicit ChatTemplate(jinja::Template parsed) : template_(std::move(parsed)) {}

  jinja::Template template_;
  jinja::Variables tokens_;
};

// The ids of a rendered template. Control tokens are found in what the template itself wrote only:
// a user who types <|im_end|> gets text. Nothing is added around it, for a template writes the
// tokens that begin a sequence itself.
[[nodiscard]] std::vector<TokenId> encode_rendered(const Tokenizer& tokenizer,
                                                   const jinja::MarkedText& text);

// The local time.
[[nodiscard]] std::tm local_time();

// "2026-11-30T12:34:56". Errors: anything else, and dates that no calendar has.
[[nodiscard]] Result<std::tm> parse_time(const std::string& text);

}  // namespace espalier::text
