// libFuzzer target of chat templates: any template over any context ends, within bounds and without
// a word that is marked wrongly. The input is a template, a zero byte, and the context as JSON.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace {

using namespace espalier::text::jinja;

// The context of inputs that have none.
constexpr std::string_view kContext = R"({
  "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "<|u|>"},
               {"role": "assistant", "content": null, "tool_calls": [
                 {"type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]}],
  "tools": null, "add_generation_prompt": true, "bos_token": "<s>"})";

constexpr Limits kLimits = {.steps = 200'000, .bytes = 16 << 20, .output = 1 << 20, .depth = 300};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = std::min(input.find('\0'), input.size());
  const auto parsed = Template::parse(input.substr(0, zero), "t");
  if (!parsed) {
    if (parsed.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const std::string_view json = zero < input.size() ? input.substr(zero + 1) : kContext;
  const auto context = parse_json(json, Origin::kMessage, "context");
  Variables variables;
  if (context && context->dict() != nullptr) {
    for (const auto& [name, value] : context->dict()->items) {
      variables.emplace_back(name.text()->bytes(), value);
    }
  }
  const auto text = parsed->render(variables, {}, kLimits);
  if (!text) {
    if (text.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  if (text->size() > kLimits.output) std::abort();
  std::string joined;
  for (const MarkedPart& part : text->parts()) joined += part.text;
  if (joined != text->bytes()) std::abort();
  return 0;
}
