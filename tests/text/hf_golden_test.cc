// Published tokenizer.json files against what Hugging Face's own library makes of them. The data
// are described in tests/data/tokenizers/README.md.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/base64.h"
#include "support/zstd.h"
#include "text/tokenizer.h"

namespace espalier::text {
namespace {

using nlohmann::json;

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
    EXPECT_EQ(*(*tokenizer)->detokenize(ids, ControlTokens::kPrint), bytes("decoded_b64")) << line;
    EXPECT_EQ(*(*tokenizer)->detokenize(ids, ControlTokens::kSkip), bytes("decoded_skip_b64"))
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
