// The encoders and everything under them on small vocabularies: merging order, words, characters
// that need care, and texts that are meant to take long.
#include "text/encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "support/vocabularies.h"
#include "text/added_tokens.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/unicode.h"

namespace espalier::text {
namespace {

using test::OwnedVocabulary;
using testing::ElementsAre;

std::string nfc(std::string_view text) { return normalized(NormalForm::kC, text); }

// An encoder with the steps before it.
struct Small {
  std::vector<std::string> pieces;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TextEncoder> encoder;

  [[nodiscard]] std::vector<TokenId> encode(std::string_view text) const {
    std::vector<TokenId> ids;
    const std::string prepared = normalize(normalizer, {std::string(text), {}}).text;
    pre_tokenizer.split(prepared, Place::kTextBegin,
                        [&](std::string_view word) { encoder->encode(word, ids); });
    return ids;
  }
  [[nodiscard]] std::string decode(const std::vector<TokenId>& ids) const {
    std::string text;
    for (const TokenId id : ids) text += pieces.at(static_cast<std::size_t>(id));
    return text;
  }
  // The pieces of a text, with | between them.
  [[nodiscard]] std::string cut(std::string_view text) const {
    std::string result;
    for (const TokenId id : encode(text)) {
      if (!result.empty()) result += '|';
      result += pieces.at(static_cast<std::size_t>(id));
    }
    return result;
  }
};

template <typename T>
T take(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

Small byte_pair(const OwnedVocabulary& vocabulary, const PreTokenizerSpec& pre) {
  Small small;
  small.pieces = take(token_pieces(vocabulary.view(), pre.spelling));
  if (pre.spelling == Spelling::kSentencePiece) {
    small.normalizer.push_back(replace(std::string(kSpaceMark), " "));
  }
  if (pre.nfc) small.normalizer.push_back(normal_form(NormalForm::kC));
  small.pre_tokenizer = take(compile(pre));
  small.encoder = take(byte_pair_encoder(vocabulary.view(), small.pieces,
                                         {.spelling = pre.spelling,
                                          .ignore_merges = pre.ignore_merges,
                                          .newline_tokens = pre.newline_tokens}));
  return small;
}

Small byte_pair(std::string_view pre = "gpt-2") {
  return byte_pair(test::small_byte_pair_vocabulary(), *find_pre_tokenizer(pre));
}

Small sentence_piece() {
  const OwnedVocabulary vocabulary = test::small_sentence_piece_vocabulary();
  Small small;
  small.pieces = take(token_pieces(vocabulary.view(), Spelling::kSentencePiece));
  small.normalizer.push_back(replace(std::string(kSpaceMark), " "));
  small.encoder = take(sentence_piece_encoder(vocabulary.view(), small.pieces));
  return small;
}

// One encoder for each entry of the table, and SentencePiece.
std::vector<std::pair<std::string, Small>> all_encoders() {
  std::vector<std::pair<std::string, Small>> all;
  for (const PreTokenizerSpec& pre : pre_tokenizers()) {
    OwnedVocabulary vocabulary = pre.spelling == Spelling::kByteLevel
                                     ? test::small_byte_pair_vocabulary()
                                     : test::small_sentence_piece_vocabulary();
    all.emplace_back(pre.names.front(), byte_pair(vocabulary, pre));
  }
  all.emplace_back("SentencePiece", sentence_piece());
  return all;
}

// Bytes that SentencePiece vocabularies and normalization do not change on the way.
bool survives(const std::string& name, std::string_view text) {
  const PreTokenizerSpec* pre = find_pre_tokenizer(name);
  const bool spaces = pre == nullptr || pre->spelling == Spelling::kSentencePiece;
  if (spaces && text.find("\u2581") != std::string_view::npos) return false;
  return pre == nullptr || !pre->nfc || nfc(text) == text;
}

TEST(BytePair, MergesTheEarliestRuleFirstAndOfEqualsTheLeftmost) {
  const Small small = byte_pair();
  EXPECT_EQ(small.cut("the the"), "the| the");
  EXPECT_EQ(small.cut("xxxxx"), "xxxx|x");
  EXPECT_EQ(small.cut("ababa"), "ab|aba");  // a b twice, then ab a
  EXPECT_EQ(small.cut("bab"), "b|ab");
  EXPECT_EQ(small.cut(""), "");
}

TEST(BytePair, StaysWithinWords) {
  const Small small = byte_pair();
  EXPECT_EQ(small.cut("b12a's"), "b|12|a|'s");
  EXPECT_EQ(small.cut("    the"), "  | | the");  // three spaces are a word, the fourth is the's
}

TEST(BytePair, TakesWholeWordsWhereMergesAreIgnored) {
  OwnedVocabulary vocabulary = test::small_byte_pair_vocabulary();
  vocabulary.add("quick");  // no merge leads there
  EXPECT_EQ(byte_pair(vocabulary, *find_pre_tokenizer("llama-bpe")).cut("quick"), "quick");
  EXPECT_EQ(byte_pair(vocabulary, *find_pre_tokenizer("gpt-2")).cut("quick"), "q|u|i|c|k");
}

TEST(BytePair, TextNeverBecomesAControlToken) {
  OwnedVocabulary vocabulary = test::small_byte_pair_vocabulary();
  vocabulary.add("qq", TokenType::kControl);
  vocabulary.merges.push_back("q q");
  EXPECT_EQ(byte_pair(vocabulary, *find_pre_tokenizer("gpt-2")).cut("qq"), "q|q");
  EXPECT_EQ(byte_pair(vocabulary, *find_pre_tokenizer("llama-bpe")).cut("qq"), "q|q");
}

TEST(BytePair, TheFirstOfTokensThatAreSpelledAlikeIsUsed) {
  OwnedVocabulary vocabulary = test::small_byte_pair_vocabulary();
  vocabulary.add("th");
  const Small small = byte_pair(vocabulary, *find_pre_tokenizer("gpt-2"));
  EXPECT_THAT(small.encode("th"), ElementsAre(256));
}

TEST(SentencePiece, MergesTheHighestScoreFirst) {
  const Small small = sentence_piece();
  EXPECT_EQ(small.cut("the the"), "the| the");
  EXPECT_EQ(small.cut("ababa"), "ab|aba");  // ab twice from the left, then aba
  EXPECT_EQ(small.cut("a▁b"), "a| |b");     // the mark is a space
}

TEST(SentencePiece, CharactersWithoutATokenBecomeBytes) {
  const Small small = sentence_piece();
  EXPECT_EQ(small.encode("中q国\xff").size(), 4u);
  EXPECT_EQ(small.decode(small.encode("中q国\xff")), "中q国\xff");
  EXPECT_EQ(small.encode("語").size(), 3u);
}

TEST(SentencePiece, BytesWithoutATokenBecomeUnknown) {
  OwnedVocabulary vocabulary;
  vocabulary.add("<unk>", TokenType::kUnknown);
  vocabulary.add("a");
  Vocabulary view = vocabulary.view();
  view.unknown = 0;
  const auto pieces = take(token_pieces(view, Spelling::kSentencePiece));
  const auto encoder = take(sentence_piece_encoder(view, pieces));
  std::vector<TokenId> ids;
  encoder->encode("aba", ids);
  EXPECT_THAT(ids, ElementsAre(1, 0, 1));
}

// What a pattern set makes of a text, with | between words.
std::string words(std::string_view pre, std::string_view text) {
  const auto pre_tokenizer = take(compile(*find_pre_tokenizer(pre)));
  std::string result;
  pre_tokenizer.split(text, Place::kTextBegin, [&](std::string_view word) {
    if (!result.empty()) result += '|';
    result += word;
  });
  return result;
}

TEST(PreTokenizer, CutsWordsAsTheModelsDo) {
  EXPECT_EQ(words("gpt-2", "I'm  12345 tons!!\n\n x"), "I|'m| | 12345| tons|!!|\n\n| x");
  EXPECT_EQ(words("llama-bpe", "I'M  12345 tons!!\n\n x"), "I|'M| | |123|45| tons|!!\n\n| x");
  EXPECT_EQ(words("qwen2", "a123"), "a|1|2|3");
  EXPECT_EQ(words("smollm", "a 12 b"), "a| |1|2| b");
  EXPECT_EQ(words("falcon", "a, 12345!"), "a|,| |123|45|!");
  EXPECT_EQ(words("tekken", "HelloWorld ABC"), "Hello|World| ABC");
  EXPECT_EQ(words("gpt-4o", "HelloWorld's"), "Hello|World's");
  EXPECT_EQ(words("kimi-k2", "hello中文World 12"), "hello|中文|World| |12");
  EXPECT_EQ(words("deepseek-v3", "1234中文 abc,x"), "123|4|中文| abc|,x");
  EXPECT_EQ(words("deepseek-llm", "ab 12 语\n  "), "ab| |12| |语|\n|  ");
  EXPECT_EQ(words("bloom", "one,two three"), "one|,|two| three");
  EXPECT_EQ(words("gemma4", "a b\n\nc"), "a b|\n\n|c");
  EXPECT_EQ(words("seed-coder", "x!!\n"), "x|!!|\n");
  EXPECT_EQ(words("jais-2", "a      b"), "a|    | | b");
}

TEST(PreTokenizer, GroupsDigitsFromTheRight) {
  EXPECT_EQ(words("superbpe", "a 1234567 b"), "a |1|234|567| b");
  EXPECT_EQ(words("afmoe", "12345"), "12|345");
  EXPECT_EQ(words("tiny_aya", "12345 x"), "12|345| x");
  EXPECT_EQ(words("tiny_aya", "12345x"), "123|45|x");  // no number by itself
}

TEST(PreTokenizer, MongolianVowelSeparatorIsNoWhiteSpace) {
  EXPECT_EQ(words("gpt-2", "\u1820\u180e!"), "\u1820|\u180e!");
  EXPECT_EQ(words("gpt-2", "a\u3000\u3000b"), "a|\u3000|\u3000|b");
}

TEST(PreTokenizer, BrokenUtf8IsAWordOfItsOwn) {
  EXPECT_EQ(words("gpt-2", "ab\xff\xfe cd\xe4\xb8"), "ab|\xff\xfe| cd|\xe4\xb8");
}

TEST(PreTokenizer, EveryNameIsListedOnce) {
  EXPECT_EQ(pre_tokenizers().front().names.front(), "default");
  for (const PreTokenizerSpec& pre : pre_tokenizers()) {
    for (const std::string_view name : pre.names) EXPECT_EQ(find_pre_tokenizer(name), &pre) << name;
  }
  EXPECT_EQ(find_pre_tokenizer("no such name"), nullptr);
}

TEST(Nfc, ComposesAndOrdersMarks) {
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("\u212b"), "\u00c5");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(nfc("plain"), "plain");
  EXPECT_EQ(nfc("\xff"
                "e\u0301\xcc"),
            "\xff\u00e9\xcc");
}

TEST(RoundTrip, EveryShortSequenceOfTellingBytes) {
  // One byte of each kind that UTF-8 tells apart: every sequence of three, valid or broken.
  const std::string kinds = "a \n\x80\xbf\xc0\xc3\xe0\xe4\xed\xef\xf0\xf4\xf5\xff";
  for (const auto& [name, small] : all_encoders()) {
    for (const char a : kinds) {
      for (const char b : kinds) {
        for (const char c : kinds) {
          const std::string text = {a, b, c};
          if (survives(name, text)) {
            ASSERT_EQ(small.decode(small.encode(text)), text) << name;
          }
        }
      }
    }
  }
}

TEST(RoundTrip, EveryPrefixOfAText) {
  const std::string text =
      "é中\U0001f600 the \u0e01\u0e33 12345 \u2028\xed\xa0\x80\xf4\x90\x80\x80 end";
  for (const auto& [name, small] : all_encoders()) {
    for (std::size_t length = 0; length <= text.size(); ++length) {
      ASSERT_EQ(small.decode(small.encode(text.substr(0, length))), text.substr(0, length)) << name;
    }
  }
}

TEST(RoundTrip, RandomBytesAndRandomCharacters) {
  std::mt19937 random(7);
  const auto character = [&](std::string& text) {
    const unsigned limits[] = {0x80, 0x800, 0x10000, 0x110000};
    unsigned code = random() % limits[random() % 4];
    if (code >= 0xd800 && code < 0xe000) code = '?';
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    } else if (code < 0x10000) {
      text += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
               static_cast<char>(0x80 | (code & 0x3f))};
    } else {
      text +=
          {static_cast<char>(0xf0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3f)),
           static_cast<char>(0x80 | (code >> 6 & 0x3f)), static_cast<char>(0x80 | (code & 0x3f))};
    }
  };
  std::vector<std::string> texts;
  for (int i = 0; i < 60; ++i) {
    std::string bytes, characters;
    for (int k = 0; k < 40; ++k) {
      bytes += static_cast<char>(random());
      character(characters);
    }
    texts.push_back(bytes);
    texts.push_back(characters);
  }
  for (const auto& [name, small] : all_encoders()) {
    for (const std::string& text : texts) {
      if (!survives(name, text)) {
        const std::string changed = find_pre_tokenizer(name) ? nfc(text) : with_spaces(text);
        ASSERT_EQ(small.decode(small.encode(text)), changed) << name;
        continue;
      }
      ASSERT_EQ(small.decode(small.encode(text)), text) << name;
    }
  }
}

// A megabyte of one unit, with little to cut it into words: finishing at all shows that the time is
// not quadratic.
std::vector<std::string> long_texts(const std::vector<std::string>& units) {
  constexpr std::size_t kBytes = 1 << 20;
  std::vector<std::string> texts;
  for (const std::string& unit : units) {
    std::string text;
    text.reserve(kBytes + unit.size());
    while (text.size() < kBytes) text += unit;
    texts.push_back(text + "9z");
  }
  return texts;
}

TEST(LongTexts, EveryPatternSplitsAMegabyte) {
  const std::vector<std::string> texts =
      long_texts({"x", " ", "7", "中", "\U0001f600", "A", "\n", "!", "\u0301", "\xff", "'S", " a"});
  for (const PreTokenizerSpec& pre : pre_tokenizers()) {
    const auto pre_tokenizer = take(compile(pre));
    for (const std::string& text : texts) {
      std::size_t length = 0;
      pre_tokenizer.split(text, Place::kTextBegin,
                          [&](std::string_view word) { length += word.size(); });
      ASSERT_EQ(length, text.size()) << pre.names.front();
    }
  }
}

TEST(LongTexts, AMegabyteWithoutAWordBoundaryEncodes) {
  std::vector<std::string> texts = long_texts({"x", " ", "7", "中", "\U0001f600", "ab", "\xff"});
  std::mt19937 random(11);
  texts.emplace_back();
  for (int i = 0; i < 1 << 20; ++i) texts.back() += static_cast<char>(random());
  const Small encoders[] = {byte_pair("superbpe"), sentence_piece()};
  for (const Small& small : encoders) {
    for (const std::string& text : texts) ASSERT_EQ(small.decode(small.encode(text)), text);
  }
}

TEST(LongTexts, AMegabyteOfMarksIsNormalized) {
  for (const std::string& text : long_texts({"\u0301\u0323", "e\u0301", "\u1112\u1161\u11ab"})) {
    const std::string normal = nfc(text);
    EXPECT_LE(normal.size(), text.size());
    EXPECT_EQ(nfc(normal), normal);
  }
}

}  // namespace
}  // namespace espalier::text
