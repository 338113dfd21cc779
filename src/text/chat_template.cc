#include "text/chat_template.h"

#include <array>
#include <cstdio>

#include "base/printable.h"

namespace espalier::text {
namespace {

using jinja::Origin;
using jinja::Value;

Result<std::optional<std::string>> find_in_directory(const std::filesystem::path& directory) {
  ESPALIER_TRY(std::vector<NamedTemplate> templates, chat_templates(directory));
  for (NamedTemplate& candidate : templates) {
    if (candidate.name == "default") return std::optional(std::move(candidate.source));
  }
  return std::optional<std::string>();
}

bool has(const jinja::Variables& variables, std::string_view name) {
  for (const auto& [known, value] : variables) {
    if (known == name) return true;
  }
  return false;
}

// The names under which templates ask whether to think.
constexpr std::array<const char*, 3> kThinkingVariables = {"enable_thinking", "thinking",
                                                           "enable_reasoning"};

Result<Value> message_value(const ChatMessage& message) {
  std::vector<std::pair<Value, Value>> members;
  const auto add = [&](std::string_view name, std::string_view text) {
    members.emplace_back(Value::text(name), Value::text(text, Origin::kMessage));
  };
  add("role", message.role);
  add("content", message.content);
  if (!message.reasoning.empty()) add("reasoning_content", message.reasoning);
  return jinja::make_dict(std::move(members));
}

}  // namespace

Result<std::optional<std::string>> find_chat_template(const file::Container& container) {
  if (const auto* directory = std::get_if<file::HfDirectory>(&container)) {
    return find_in_directory(directory->name());
  }
  ESPALIER_TRY(const auto source,
               std::get<file::Gguf>(container).string("tokenizer.chat_template"));
  return source ? std::optional(std::string(*source)) : std::nullopt;
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string name,
                                         const Tokenizer* tokenizer) {
  ESPALIER_TRY(jinja::Template parsed, jinja::Template::parse(source, std::move(name)));
  ChatTemplate chat(std::move(parsed));
  if (tokenizer == nullptr) return chat;
  const auto add = [&](const char* variable, std::optional<TokenId> id) {
    const auto piece = id ? tokenizer->piece(*id, ControlTokens::kPrint) : Result<std::string>("");
    if (piece) chat.tokens_.emplace_back(variable, Value::text(*piece, Origin::kTemplate));
  };
  add("bos_token", tokenizer->begin_of_sequence());
  add("eos_token", tokenizer->end_of_sequence());
  return chat;
}

Result<jinja::MarkedText> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                               Reasoning reasoning, const std::tm& now) const {
  std::vector<Value> list;
  for (const ChatMessage& message : messages) {
    ESPALIER_TRY(Value value, message_value(message));
    list.push_back(std::move(value));
  }
  jinja::Variables variables;
  ESPALIER_TRY(Value values, jinja::make_sequence(jinja::SequenceKind::kList, std::move(list)));
  variables.emplace_back("messages", std::move(values));
  variables.emplace_back("add_generation_prompt", Value::boolean(true));
  if (reasoning != Reasoning::kAsTheModelDoes) {
    for (const char* name : kThinkingVariables) {
      variables.emplace_back(name, Value::boolean(reasoning == Reasoning::kOn));
    }
  }
  return render(std::move(variables), now);
}

Result<jinja::MarkedText> ChatTemplate::render(jinja::Variables variables,
                                               const std::tm& now) const {
  for (const auto& [name, value] : tokens_) {
    if (!has(variables, name)) variables.emplace_back(name, value);
  }
  for (const char* name : {"tools", "documents"}) {
    if (!has(variables, name)) variables.emplace_back(name, Value());
  }
  return template_.render(variables, now);
}

std::vector<TokenId> encode_rendered(const Tokenizer& tokenizer, const jinja::MarkedText& text) {
  std::vector<TextPart> parts;
  const std::vector<jinja::MarkedPart> marked = text.parts();
  parts.reserve(marked.size());
  for (const jinja::MarkedPart& part : marked) {
    parts.push_back(
        {part.text, part.origin == Origin::kTemplate ? ParseSpecial::kYes : ParseSpecial::kNo});
  }
  return tokenizer.encode(parts, AddSpecial::kNo);
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  return local;
}

Result<std::tm> parse_time(const std::string& text) {
  std::tm time = {};
  int length = 0;
  const int read =
      std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d%n", &time.tm_year, &time.tm_mon,
                  &time.tm_mday, &time.tm_hour, &time.tm_min, &time.tm_sec, &length);
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  std::tm normal = time;
  // What timegm() has to change is no date.
  const bool exists = read == 6 && static_cast<std::size_t>(length) == text.size() &&
                      timegm(&normal) != -1 && normal.tm_mday == time.tm_mday &&
                      normal.tm_mon == time.tm_mon && normal.tm_hour == time.tm_hour &&
                      normal.tm_min == time.tm_min && normal.tm_sec == time.tm_sec;
  if (!exists) {
    return input_error("'{}' is no time, expected one such as 2026-11-30T12:34:56",
                       printable(text));
  }
  return normal;
}

}  // namespace espalier::text
