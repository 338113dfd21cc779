// docs/formats.md against the table of formats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "pack/matrix.h"
#include "support/data.h"

namespace espalier::pack {
namespace {

std::string document() {
  std::ifstream in(test::source_path("docs/formats.md"));
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string_view family_name(Family family) {
  switch (family) {
    case Family::kGguf:
      return "GGUF";
    case Family::kMlx:
      return "MLX";
    case Family::kExl3:
      return "EXL3";
    case Family::kGptq:
      return "GPTQ";
    case Family::kAwq:
      return "AWQ";
    case Family::kCompressedTensors:
      return "compressed-tensors";
    case Family::kTransposed:
      return "transposed";
  }
  return "";
}

std::string table() {
  std::string text =
      "| format | family | GGUF type | bits per weight | values in a block | bytes | Espalier |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | --- |\n";
  for (const Format& format : formats()) {
    text += fmt::format("| {} | {} | {} | {:g} | {} | {} | {} |\n", format.name,
                        family_name(format.family),
                        format.ggml_type == kNoGgmlType ? "" : fmt::to_string(format.ggml_type),
                        format.bits_per_weight, format.block_values,
                        format.block_bytes == 0 ? "" : fmt::to_string(format.block_bytes),
                        format.encode == nullptr ? "reads" : "reads, writes");
  }
  return text;
}

TEST(FormatsDocument, BeginsWithTheTableOfFormats) {
  constexpr std::string_view kBegin = "<!-- formats: begin -->\n";
  const std::string text = document();
  const std::size_t begin = text.find(kBegin);
  const std::size_t end = text.find("<!-- formats: end -->");
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(text.substr(begin + kBegin.size(), end - begin - kBegin.size()), table())
      << "docs/formats.md should have this table between its markers:\n"
      << table();
}

TEST(FormatsDocument, DefinesEveryGgufFormat) {
  const std::string text = document();
  for (const Format& format : formats()) {
    if (format.family != Family::kGguf) continue;
    EXPECT_THAT(text, ::testing::HasSubstr(fmt::format("**{}**", format.name)));
  }
}

}  // namespace
}  // namespace espalier::pack
