// libFuzzer target of tokenizer.json: a document, and after a byte 0xff, which no document has, a
// text for its tokenizer. What the tokenizer gives must be ids that it can decode, and text that is
// not to be parsed must give no control token.
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "text/tokenizer.h"

namespace {

using namespace espalier;
using namespace espalier::text;

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view document = input.substr(0, input.find('\xff'));
  const auto tokenizer = tokenizer_from_json(as_bytes(document), "fuzz");
  if (!tokenizer) {
    require(tokenizer.error().message.find('\n') == std::string::npos);
    return 0;
  }
  const std::string_view tail = input.substr(std::min(size, document.size() + 1));
  const std::string_view half = tail.substr(0, tail.size() / 2);
  const TextPart parts[] = {{half, ParseSpecial::kYes},
                            {tail.substr(half.size()), ParseSpecial::kNo},
                            {"the <s>\u4e2d\xff  12345<tag> x", ParseSpecial::kYes}};
  const std::vector<TokenId> ids = (*tokenizer)->encode(parts, AddSpecial::kYes);
  require(static_cast<bool>((*tokenizer)->decode(ids, ControlTokens::kSkip)));
  require(static_cast<bool>((*tokenizer)->detokenize(ids)));
  for (const TokenId id : ids) (void)(*tokenizer)->ends_generation(id);
  return 0;
}
