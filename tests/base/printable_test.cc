#include "base/printable.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(Printable, KeepsTextOfAnyScript) {
  EXPECT_EQ(printable("Qwen3 – 日本語 é 🌱"), "Qwen3 – 日本語 é 🌱");
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, EscapesWhatATerminalWouldActOn) {
  EXPECT_EQ(printable("a\nb\tc\rd\\e"), "a\\nb\\tc\\rd\\\\e");
  EXPECT_EQ(printable(std::string("\x1b[31m\0\x7f", 7)), "\\x1b[31m\\x00\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\u{9b}");      // the one-character form of ESC [
  EXPECT_EQ(printable("a\u202eb"), "a\\u{202e}b");  // right-to-left override
  EXPECT_EQ(printable("\u2028\u2066"), "\\u{2028}\\u{2066}");
}

TEST(Printable, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(printable("\xff\xc0\x80"), "\\xff\\xc0\\x80");           // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
  EXPECT_EQ(printable("a\xe2\x82"), "a\\xe2\\x82");                  // cut short
}

TEST(Printable, AbbreviatesWithoutCuttingACharacter) {
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdef", 5), "abcde…");
  EXPECT_EQ(printable("aé", 2), "a…");
  EXPECT_EQ(printable("aé", 3), "aé");
}

}  // namespace
}  // namespace espalier
