#include "run/conversation.h"

#include <algorithm>

#include "text/utf8.h"

namespace espalier::run {
namespace {

// Turns tokens into parts of whole characters, and collects them.
class AnswerStream {
 public:
  AnswerStream(const text::Tokenizer& tokenizer, std::string_view prompt,
               const Conversation::OnPart& on_part, Answer& answer)
      : tokenizer_(tokenizer), splitter_(prompt), on_part_(on_part), answer_(answer) {}

  void add(TokenId id) {
    const auto piece = tokenizer_.piece(id, text::ControlTokens::kPrint);
    const auto shown = tokenizer_.piece(id, text::ControlTokens::kSkip);
    if (!piece || !shown) return;  // an embedding row beyond the vocabulary has no text
    const bool control = shown->empty() && !piece->empty();
    pass(splitter_.add(*piece, control ? text::PieceKind::kControl : text::PieceKind::kText));
  }

  void finish() {
    pass(splitter_.finish());
    flush();
  }

 private:
  void pass(const std::vector<text::OutputPart>& parts) {
    for (const text::OutputPart& part : parts) {
      if (part.kind != kind_) flush();
      kind_ = part.kind;
      give(characters_.add(part.text));
    }
  }

  void flush() { give(characters_.finish()); }

  void give(std::string text) {
    if (text.empty()) return;
    const bool thought = kind_ == text::OutputPart::Kind::kThought;
    (thought ? answer_.reasoning : answer_.text) += text;
    on_part_({kind_, std::move(text)});
  }

  const text::Tokenizer& tokenizer_;
  text::ThoughtSplitter splitter_;
  const Conversation::OnPart& on_part_;
  Answer& answer_;
  text::OutputPart::Kind kind_ = text::OutputPart::Kind::kAnswer;
  text::WholeCharacters characters_;
};

}  // namespace

Result<Answer> Conversation::answer(const GenerateOptions& options,
                                    const std::atomic<bool>& interrupted, const OnPart& on_part) {
  ESPALIER_TRY(const text::jinja::MarkedText prompt,
               template_.render(messages_, reasoning_, text::local_time()));
  std::vector<TokenId> tokens = text::encode_rendered(tokenizer_, prompt);
  ESPALIER_CHECK(check_tokens(session_.model.info(), tokens, session_.cache.capacity()));

  const auto differs =
      std::mismatch(tokens.begin(), tokens.end(), cached_.begin(), cached_.end()).first;
  const auto common = static_cast<std::size_t>(differs - tokens.begin());
  GenerateOptions turn = options;
  turn.cached = std::min(common, tokens.size() - 1);
  if (turn.cached < cached_.size() && !session_.model.info().can_rewind()) turn.cached = 0;

  Answer answer;
  answer.prompt_tokens = tokens.size();
  answer.cached_tokens = turn.cached;
  AnswerStream stream(tokenizer_, prompt.bytes(), on_part, answer);
  cached_.clear();
  ESPALIER_TRY(answer.generation, generate(session_, tokenizer_, tokens, turn, interrupted,
                                           [&](TokenId id) { stream.add(id); }));
  stream.finish();
  const std::vector<TokenId>& said = answer.generation.tokens;
  tokens.insert(tokens.end(), said.begin(), said.end());
  tokens.resize(answer.generation.in_cache);
  cached_ = std::move(tokens);
  return answer;
}

Result<Answer> Conversation::ask(const std::string& question, const GenerateOptions& options,
                                 const std::atomic<bool>& interrupted, const OnPart& on_part) {
  messages_.push_back({.role = "user", .content = question});
  auto result = answer(options, interrupted, on_part);
  if (!result) {
    messages_.pop_back();
    return result;
  }
  messages_.push_back(
      {.role = "assistant", .content = result->text, .reasoning = result->reasoning});
  return result;
}

Result<Answer> Conversation::ask_again(const GenerateOptions& options,
                                       const std::atomic<bool>& interrupted,
                                       const OnPart& on_part) {
  if (messages_.empty() || messages_.back().role != "assistant") {
    return input_error("there is no answer to give again");
  }
  const text::ChatMessage previous = messages_.back();
  messages_.pop_back();
  auto result = answer(options, interrupted, on_part);
  messages_.push_back(result ? text::ChatMessage{.role = "assistant",
                                                 .content = result->text,
                                                 .reasoning = result->reasoning}
                             : previous);
  return result;
}

void Conversation::reset() {
  const bool system = !messages_.empty() && messages_.front().role == "system";
  messages_.resize(system ? 1 : 0);
}

void Conversation::set_system(const std::string& text) {
  messages_.clear();
  if (!text.empty()) messages_.push_back({.role = "system", .content = text});
}

}  // namespace espalier::run
