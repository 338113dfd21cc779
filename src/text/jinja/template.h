// A chat template: source text in Jinja, as models carry it, that turns messages into a prompt.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/marked_text.h"
#include "text/jinja/value.h"

namespace espalier::text::jinja {

// Sources longer than this are refused.
inline constexpr std::size_t kMaxTemplateBytes = 4 << 20;

using Variables = std::vector<std::pair<std::string, Value>>;

class Template {
 public:
  // `name` stands for the template in messages. Errors name the line.
  [[nodiscard]] static Result<Template> parse(std::string_view source, std::string name);

  // The text with these variables; `now` is the time that the template may ask for. Parts that were
  // text in the template are marked so, everything else as the variables are. Errors: what the
  // template raises, what it does wrong, and more work than `limits` allow.
  [[nodiscard]] Result<MarkedText> render(const Variables& variables, const std::tm& now,
                                          const Limits& limits = {}) const;

  // The source, for questions such as whether a variable appears in it.
  [[nodiscard]] const std::string& source() const { return source_; }

 private:
  std::string name_, source_;
  std::shared_ptr<const Statements> body_;
};

}  // namespace espalier::text::jinja
