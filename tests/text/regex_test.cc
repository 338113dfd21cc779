// Oniguruma's patterns run by PCRE2: matches as Oniguruma 6.9 finds them, patterns that cannot be
// used, and patterns that are meant to take long.
#include "text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::text {
namespace {

using testing::HasSubstr;

// The text with its matches in brackets.
std::string marked(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::compile(pattern);
  if (!regex) return regex.error().message;
  RegexSearch search(*regex, text);
  std::string result;
  std::size_t done = 0;
  while (const auto match = search.next()) {
    result += text.substr(done, match->begin - done);
    result.append("[").append(text.substr(match->begin, match->end - match->begin)).append("]");
    done = match->end;
  }
  return result.append(text.substr(done));
}

TEST(Regex, QuantifiersAreOnigurumas) {
  EXPECT_EQ(marked(R"(\d{1,3}+)", "1234567 12"), "[1234567] [12]");  // repeats, not possessive
  EXPECT_EQ(marked(R"((?:ab){2}+)", "ababababab"), "[abababab]ab");
  EXPECT_EQ(marked(R"(\d{3}+)", "1234567"), "[123456]7");
  EXPECT_EQ(marked("a++b", "aab"), "[aab]");
  EXPECT_EQ(marked("a{,3}", "aaaa"), "[aaa][a]");
  EXPECT_EQ(marked("a{2", "aa{2"), "a[a{2]");
  EXPECT_EQ(marked("{}", "a{}"), "a[{}]");
}

TEST(Regex, SetsNestAndIntersect) {
  EXPECT_EQ(marked("[a[bc]]+", "xabcx"), "x[abc]x");
  EXPECT_EQ(marked(R"([\p{L}&&[^ab]]+)", "xabcx"), "[x]ab[cx]");
  EXPECT_EQ(marked(R"([^\p{L}&&[^ab]]+)", "xabc.x"), "x[ab]c[.]x");
  EXPECT_EQ(marked("[]a]", "x]a"), "x[]][a]");
  EXPECT_EQ(marked("[a-]+", "x-a1"), "x[-a]1");
  EXPECT_EQ(marked(R"([\w-]+)", "x-a1 "), "[x-a1] ");
  EXPECT_EQ(marked(R"([^\S\n]+)", "a \t\nb"), "a[ \t]\nb");
  EXPECT_EQ(marked(R"([\]\\^-]+)", R"(a]\^-)"), R"(a[]\^-])");
  EXPECT_EQ(marked("[[:alpha:]_]+", "é_1"), "[é_]1");
  EXPECT_EQ(marked("[[:^alpha:]]+", "é_1"), "é[_1]");
  EXPECT_EQ(marked(R"([\u4e00-\u9fa5]+)", "x中文"), "x[中文]");
}

TEST(Regex, ClassesAreUnicodes) {
  EXPECT_EQ(marked(R"(\s+)", "a\u180e \u0085\u2028\u001cb"), "a\u180e[ \u0085\u2028]\u001cb");
  EXPECT_EQ(marked(R"(\S+)", " a\u180e "), " [a\u180e] ");
  EXPECT_EQ(marked(R"(\w+)", "a_\u0301 ⓐ ² \u203f Ⅷ \u200d"),
            "[a_\u0301] [ⓐ] ² [\u203f] [Ⅷ] \u200d");
  EXPECT_EQ(marked(R"(\d+)", "1²٣"), "[1]²[٣]");
  EXPECT_EQ(marked(R"(\h+)", "xab12"), "x[ab12]");
  EXPECT_EQ(marked(R"(\v)", "a\vb\nc"), "a[\v]b\nc");
  EXPECT_EQ(marked(R"(\bfoo\b)", "foo éfoo foo1 foo"), "[foo] éfoo foo1 [foo]");
  EXPECT_EQ(marked(R"(\p{Han}+)", "々中a"), "[々中]a");
  EXPECT_EQ(marked(R"(\p{Katakana}+)", "ーカ"), "ー[カ]");  // the script, not its extensions
  EXPECT_EQ(marked(R"(\p{Letter}+)", "ab1"), "[ab]1");
  EXPECT_EQ(marked(R"(\p{^L}+)", "ab1"), "ab[1]");
  EXPECT_EQ(marked(R"(\P{L}+)", "ab1"), "ab[1]");
  EXPECT_EQ(marked(R"([[:punct:]]+)", "a$+<=>^`|~!€"), "a[$+<=>^`|~!]€");
}

TEST(Regex, LinesAndOptions) {
  EXPECT_EQ(marked("b$", "ab\nab"), "a[b]\na[b]");
  EXPECT_EQ(marked("^a", "ab\nab"), "[a]b\n[a]b");
  EXPECT_EQ(marked(".", "a\n"), "[a]\n");
  EXPECT_EQ(marked("(?m).+", "a\nb"), "[a\nb]");
  EXPECT_EQ(marked("(?m:.)+", "a\nb"), "[a\nb]");
  EXPECT_EQ(marked("(?i:'S)", "it's"), "it['s]");
  EXPECT_EQ(marked("(?<x>a)\\k<x>", "aab"), "[aa]b");
  EXPECT_EQ(marked("(?#a comment)b", "ab"), "a[b]");
}

TEST(Regex, EmptyMatchesAreFoundButNotWhereAMatchEnded) {
  EXPECT_EQ(marked("x*", "abxc"), "[]a[]b[x]c[]");
  EXPECT_EQ(marked("(?=[A-Z])", "abCdE"), "ab[]Cd[]E");
  EXPECT_EQ(marked(R"((?<=\d)(?=\D))", "12ab3c"), "12[]ab3[]c");
  EXPECT_EQ(marked("", "中"), "[]中[]");
}

TEST(Regex, QuotedTextMatchesItself) {
  const std::string text = R"(a.b*c[d]{1}(e)^$|\&-中)";
  EXPECT_EQ(marked(Regex::quote(text), "x" + text), "x[" + text + "]");
}

TEST(Regex, WrongPatternsAreErrors) {
  for (const char* pattern : {"(", ")", "[a", "a**b(", "[z-a]", "(?<a", R"(\p{NoSuchScript})",
                              "(?~ab)", R"((?<=a*)b)", "[[[[", "*", R"(\)", "(?P<", "(?R"}) {
    const auto regex = Regex::compile(pattern);
    if (regex) continue;  // some are text for PCRE2; none may crash
    EXPECT_THAT(regex.error().message, HasSubstr("cannot be used: ")) << pattern;
    EXPECT_EQ(regex.error().message.find('\n'), std::string::npos);
  }
  EXPECT_FALSE(Regex::compile("("));
  EXPECT_FALSE(Regex::compile("[a"));
  EXPECT_FALSE(Regex::compile(R"(\p{NoSuchScript})"));
  EXPECT_THAT(Regex::compile(std::string(kMaxPatternBytes + 1, 'a')).error().message,
              HasSubstr("it has 65537 bytes, at most 65536 are read"));
  EXPECT_THAT(Regex::compile(std::string(100, '[')).error().message,
              HasSubstr("sets nest more than 32 deep"));
  EXPECT_FALSE(Regex::compile(std::string(5000, '(')));
}

std::string repeated(std::string_view unit, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

TEST(Regex, LongMatchesAreFoundWhole) {
  const std::string text = repeated("é", 1 << 20);
  const auto regex = Regex::compile(R"(\p{L}+|\s+(?!\S)|\s+)");
  RegexSearch search(*regex, text);
  const auto match = search.next();
  ASSERT_TRUE(match);
  EXPECT_EQ(match->begin, 0u);
  EXPECT_EQ(match->end, text.size());
  EXPECT_FALSE(search.next());
}

TEST(Regex, ARepeatedGroupMatchesALongWord) {
  const std::string text = repeated("a1", 1 << 13);
  const auto regex = Regex::compile("(?:[a-z][0-9])+");
  RegexSearch search(*regex, text);
  const auto match = search.next();
  ASSERT_TRUE(match);
  EXPECT_EQ(match->end, text.size());
}

// Finishing at all shows that the time is not that of trying everything.
TEST(Regex, PatternsThatBacktrackForEverAreGivenUp) {
  const std::string text = repeated("a", 1 << 16) + "!";
  for (const char* pattern :
       {"(a+)+$x", "(a|a)*b", "(?:a*)*[bc]", "a*[bc]", "a*a*a*[bc]", R"((?=(a+))\1*[bc])",
        "(a?){64}a{64}b", R"(\s*[\r\n]|a+(?=b))", "(?:a+a+)+[bc]", "(?<=a)a+?[bc]"}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_TRUE(regex) << regex.error().message;
    RegexSearch search(*regex, text);
    std::size_t matches = 0;
    while (search.next()) ++matches;
    EXPECT_EQ(matches, 0u) << pattern;
  }
}

}  // namespace
}  // namespace espalier::text
