#include "text/utf8.h"

#include <gtest/gtest.h>

namespace espalier::text {
namespace {

TEST(CompleteUtf8Prefix, HoldsBackAnUnfinishedCharacter) {
  EXPECT_EQ(complete_utf8_prefix(""), 0u);
  EXPECT_EQ(complete_utf8_prefix("abc"), 3u);
  EXPECT_EQ(complete_utf8_prefix("a\xc3"), 1u);
  EXPECT_EQ(complete_utf8_prefix("a\xc3\xa9"), 3u);
  EXPECT_EQ(complete_utf8_prefix("\xf0\x9f\x98"), 0u);
  EXPECT_EQ(complete_utf8_prefix("\xf0\x9f\x98\x80"), 4u);
  EXPECT_EQ(complete_utf8_prefix("\xe2\x82"), 0u);
}

TEST(CompleteUtf8Prefix, BrokenBytesAreNotHeldBack) {
  EXPECT_EQ(complete_utf8_prefix("a\xff"), 2u);
  EXPECT_EQ(complete_utf8_prefix("a\x80\x80\x80\x80"), 5u);
  EXPECT_EQ(complete_utf8_prefix("\xc0"), 1u) << "no character starts with c0";
  EXPECT_EQ(complete_utf8_prefix("\xc3\xa9\xa9"), 3u) << "a stray continuation after a character";
}

// The cases of the Unicode Standard's section 3.9, table 3-8 to 3-11, and of one byte.
TEST(Utf8Repaired, OneReplacementForTheBeginningOfACharacter) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(utf8_repaired(""), "");
  EXPECT_EQ(utf8_repaired("a\u00e9\U0001f600"), "a\u00e9\U0001f600");
  EXPECT_EQ(utf8_repaired("\xff\x80"), r + r);
  EXPECT_EQ(utf8_repaired("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(utf8_repaired("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(utf8_repaired("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(utf8_repaired("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), r + r + r + r + "A");
  EXPECT_EQ(utf8_repaired("\xe2\x82"), r);
}

TEST(WholeCharacters, GiveOutWhatIsComplete) {
  WholeCharacters characters;
  EXPECT_EQ(characters.add("a\xe2\x82"), "a");
  EXPECT_EQ(characters.add("\xac!"), "\xe2\x82\xac!");
  EXPECT_EQ(characters.finish(), "");
  EXPECT_EQ(characters.add("b\xf0\x9f"), "b");
  EXPECT_EQ(characters.finish(), "\xef\xbf\xbd");
  EXPECT_EQ(characters.add("c"), "c") << "what was cut off is gone";
}

}  // namespace
}  // namespace espalier::text
