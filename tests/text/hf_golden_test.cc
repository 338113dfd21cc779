// Published tokenizer.json files against what Hugging Face's own library makes of them. The data
// are described in tests/data/tokenizers/README.md.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/base64.h"
#include "support/zstd.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

using nlohmann::json;

// `text` with one U+FFFD for each run of bytes that are not UTF-8, and of U+FFFD. Implementations
// differ in how many they write; here, decoding gives the bytes themselves.
std::string readable(std::string_view text) {
  constexpr std::string_view kReplacement = "\ufffd";
  std::string result;
  while (!text.empty()) {
    const std::size_t length = utf8_character(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(length, 1));
    const std::string_view shown = length > 0 ? character : kReplacement;
    if (shown != kReplacement || !result.ends_with(kReplacement)) result += shown;
    text.remove_prefix(character.size());
  }
  return result;
}

struct HfGolden {
  const char* name;
  std::size_t cases;
};

void PrintTo(const HfGolden& golden, std::ostream* out) { *out << golden.name; }

class HfGoldenTokenizer : public testing::TestWithParam<HfGolden> {};

TEST_P(HfGoldenTokenizer, EncodesAndDecodesAsTheLibraryDoes) {
  const std::string path = std::string("tokenizers/hf-") + GetParam().name;
  const std::string file = test::read_zstd_data(path + ".json.zst");
  const auto tokenizer = tokenizer_from_json(as_bytes(file), path);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  std::istringstream lines(test::read_zstd_data(path + ".jsonl.zst"));
  std::size_t cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const json golden = json::parse(line);
    const std::vector<TokenId> ids = golden["ids"];
    const auto bytes = [&](const char* key) {
      return base64_decode(golden[key].get_ref<const std::string&>()).value();
    };
    if (golden.contains("text_b64")) {
      EXPECT_EQ((*tokenizer)
                    ->encode(bytes("text_b64"),
                             golden["add_special"] ? AddSpecial::kYes : AddSpecial::kNo,
                             golden["parse_special"] ? ParseSpecial::kYes : ParseSpecial::kNo),
                ids)
          << golden["cat"] << " " << golden["text_b64"];
    }
    EXPECT_EQ(readable((*tokenizer)->detokenize(ids, ControlTokens::kPrint).operator*()),
              readable(bytes("decoded_b64")))
        << line;
    EXPECT_EQ(readable((*tokenizer)->detokenize(ids, ControlTokens::kSkip).operator*()),
              readable(bytes("decoded_skip_b64")))
        << line;
  }
  EXPECT_EQ(cases, GetParam().cases);
}

INSTANTIATE_TEST_SUITE_P(All, HfGoldenTokenizer,
                         testing::Values(HfGolden{"phi-3", 1057}, HfGolden{"smollm2", 1067},
                                         HfGolden{"unigram", 867}),
                         [](const auto& golden) {
                           std::string name = golden.param.name;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace espalier::text
