#include "text/jinja/template.h"

#include "base/printable.h"
#include "text/jinja/parser.h"

namespace espalier::text::jinja {
namespace {

// Messages may hold what the conversation holds.
constexpr std::size_t kLongestMessage = 2000;

Error named(const std::string& name, const Error& error) {
  return {error.kind, fmt::format("{}: {}", name, printable(error.message, kLongestMessage))};
}

}  // namespace

Result<Template> Template::parse(std::string_view source, std::string name) {
  if (source.size() > kMaxTemplateBytes) {
    return input_error("{}: a template of {} bytes, at most {} are read", name, source.size(),
                       kMaxTemplateBytes);
  }
  auto body = jinja::parse(source);
  if (!body) return named(name, body.error());
  Template parsed;
  parsed.name_ = std::move(name);
  parsed.source_ = source;
  parsed.body_ = std::make_shared<const Statements>(std::move(*body));
  return parsed;
}

Result<MarkedText> Template::render(const Variables& variables, const std::tm& now,
                                    const Limits& limits) const {
  Interpreter interpreter(limits, now);
  std::vector<std::pair<std::string_view, Value>> scope(variables.begin(), variables.end());
  auto text = interpreter.render(*body_, std::move(scope));
  if (!text) return named(name_, text.error());
  return std::move(*text);
}

}  // namespace espalier::text::jinja
