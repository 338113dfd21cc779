// Tokenizers from GGUF metadata: what the keys mean, and every way in which they can be wrong.
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/gguf_builder.h"
#include "support/vocabularies.h"

namespace espalier::text {
namespace {

using test::GgufBuilder;
using test::OwnedVocabulary;
using testing::ElementsAre;
using testing::HasSubstr;

using Strings = std::vector<std::string>;
using Numbers = std::vector<std::int32_t>;
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kMerges = "tokenizer.ggml.merges";

// A file with all keys of a vocabulary but the one `without`.
GgufBuilder file_of(const OwnedVocabulary& vocabulary, const std::string& model,
                    const std::string& without = "") {
  GgufBuilder file;
  const auto add = [&](const std::string& key, const auto& value) {
    if (key != without) file.add(key, value);
  };
  add("tokenizer.ggml.model", model);
  add(kTokens, vocabulary.tokens);
  Numbers types;
  for (const TokenType type : vocabulary.types) types.push_back(static_cast<int>(type));
  add(kTypes, types);
  if (model == "llama") {
    add(kScores, std::vector<float>(vocabulary.scores.begin(), vocabulary.scores.end()));
  } else {
    add("tokenizer.ggml.pre", std::string("gpt-2"));
    add(kMerges, vocabulary.merges);
  }
  return file;
}

GgufBuilder byte_pair_file(const std::string& without = "") {
  return file_of(test::small_byte_pair_vocabulary(), "gpt2", without);
}

GgufBuilder sentence_piece_file(const std::string& without = "") {
  return file_of(test::small_sentence_piece_vocabulary(), "llama", without);
}

Result<std::unique_ptr<Tokenizer>> open(const GgufBuilder& file) {
  const std::string bytes = file.bytes();
  ESPALIER_TRY(const file::Gguf gguf, file::Gguf::parse(as_bytes(bytes), "vocab.gguf"));
  return tokenizer_from_gguf(gguf);
}

std::unique_ptr<Tokenizer> opened(const GgufBuilder& file) {
  auto tokenizer = open(file);
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return std::move(*tokenizer);
}

void expect_error(const GgufBuilder& file, const std::string& message) {
  const auto tokenizer = open(file);
  ASSERT_FALSE(tokenizer) << "expected: " << message;
  EXPECT_EQ(tokenizer.error().kind, ErrorKind::kInput);
  EXPECT_EQ(tokenizer.error().message, "vocab.gguf: " + message);
}

// The pieces of a text, with | between them.
std::string cut(const Tokenizer& tokenizer, std::string_view text, AddSpecial add = AddSpecial::kNo,
                ParseSpecial parse = ParseSpecial::kNo) {
  std::string result;
  for (const TokenId id : tokenizer.encode(text, add, parse)) {
    if (!result.empty()) result += '|';
    result += *tokenizer.piece(id, ControlTokens::kPrint);
  }
  return result;
}

TEST(TokenizerFromGguf, ControlTokensAreFoundOnlyWhenAskedFor) {
  const auto tokenizer = opened(byte_pair_file());
  EXPECT_EQ(cut(*tokenizer, "a<s>b<tag>c", AddSpecial::kNo, ParseSpecial::kYes), "a|<s>|b|<tag>|c");
  EXPECT_EQ(cut(*tokenizer, "a<s>b<tag>c"), "a|<|s|>|b|<tag>|c");
}

// As cut(), for parts.
std::string cut_parts(const Tokenizer& tokenizer, const std::vector<TextPart>& parts) {
  std::string result;
  for (const TokenId id : tokenizer.encode(parts, AddSpecial::kNo)) {
    if (!result.empty()) result += '|';
    result += *tokenizer.piece(id, ControlTokens::kPrint);
  }
  return result;
}

TEST(TokenizerFromGguf, PartsSayWhereControlTokensAreFound) {
  const auto tokenizer = opened(byte_pair_file());
  constexpr auto kYes = ParseSpecial::kYes, kNo = ParseSpecial::kNo;
  EXPECT_EQ(cut_parts(*tokenizer, {{"<s>a<s>", kYes}, {"<s>b", kNo}, {"<s>", kYes}}),
            "<s>|a|<s>|<|s|>|b|<s>");
  // Spelled across a border, it is text unless both sides ask for it.
  EXPECT_EQ(cut_parts(*tokenizer, {{"<s", kYes}, {">", kNo}}), "<|s|>");
  EXPECT_EQ(cut_parts(*tokenizer, {{"<", kNo}, {"s>", kYes}}), "<|s|>");
  EXPECT_EQ(cut_parts(*tokenizer, {{"<", kYes}, {"s", kNo}, {">", kYes}}), "<|s|>");
  EXPECT_EQ(cut_parts(*tokenizer, {{"<", kYes}, {"", kNo}, {"s>", kYes}}), "<s>");
  // User-defined tokens are found in any text, across borders too.
  EXPECT_EQ(cut_parts(*tokenizer, {{"a<t", kYes}, {"ag>b", kNo}}), "a|<tag>|b");
  // Words go on across borders.
  EXPECT_EQ(cut_parts(*tokenizer, {{"<s>t", kYes}, {"h", kNo}, {"e the", kYes}}), "<s>|the| the");
  EXPECT_EQ(cut_parts(*tokenizer, {}), "");
}

TEST(TokenizerFromGguf, PartsAreEncodedAsTheTextTheyMake) {
  const auto byte_pair = opened(byte_pair_file()), sentence_piece = opened(sentence_piece_file());
  const std::string_view before = "<s>the the\n", message = " ababa 12 中the", after = "</s>ab a";
  const std::string all = std::string(before).append(message).append(after);
  for (const Tokenizer* tokenizer : {byte_pair.get(), sentence_piece.get()}) {
    const TextPart parts[] = {{before, ParseSpecial::kYes}, {message}, {after, ParseSpecial::kYes}};
    EXPECT_EQ(tokenizer->encode(parts, AddSpecial::kYes),
              tokenizer->encode(all, AddSpecial::kYes, ParseSpecial::kYes));
  }
}

TEST(TokenizerFromGguf, AddsBeginAndEndWhereTheFileSaysSo) {
  GgufBuilder file = byte_pair_file();
  const auto count = static_cast<std::uint32_t>(test::small_byte_pair_vocabulary().tokens.size());
  file.add("tokenizer.ggml.bos_token_id", count - 2).add("tokenizer.ggml.eos_token_id", count - 1);
  EXPECT_EQ(cut(*opened(file), "a", AddSpecial::kYes), "a");
  file.add("tokenizer.ggml.add_bos_token", true).add("tokenizer.ggml.add_eos_token", true);
  const auto tokenizer = opened(file);
  EXPECT_EQ(cut(*tokenizer, "a", AddSpecial::kYes), "<s>|a|</s>");
  EXPECT_EQ(cut(*tokenizer, "", AddSpecial::kYes), "<s>|</s>");
  EXPECT_EQ(cut(*tokenizer, "a"), "a");
  EXPECT_EQ(tokenizer->begin_of_sequence(), TokenId(count - 2));
  EXPECT_EQ(tokenizer->end_of_sequence(), TokenId(count - 1));
}

TEST(TokenizerFromGguf, WithoutTheTokenToAddItGoesWithout) {
  GgufBuilder file = byte_pair_file();
  file.add("tokenizer.ggml.add_bos_token", true);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto tokenizer = opened(file);
  const std::string said =
      testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("bos_token_id"));
  EXPECT_EQ(cut(*tokenizer, "a", AddSpecial::kYes), "a");
  EXPECT_EQ(tokenizer->begin_of_sequence(), std::nullopt);
}

TEST(TokenizerFromGguf, SentencePiecePutsASpaceBeforeEachText) {
  const auto tokenizer = opened(sentence_piece_file());
  EXPECT_EQ(cut(*tokenizer, "the", AddSpecial::kYes), "<s>| the");
  EXPECT_EQ(cut(*tokenizer, "<tag>the"), "<tag>| the");
  const std::vector<TokenId> ids = tokenizer->encode("the the", AddSpecial::kNo, ParseSpecial::kNo);
  EXPECT_EQ(*tokenizer->decode(ids, ControlTokens::kPrint), " the the");
  EXPECT_EQ(*tokenizer->detokenize(ids), "the the");

  GgufBuilder without = sentence_piece_file();
  without.add("tokenizer.ggml.add_space_prefix", false);
  EXPECT_EQ(cut(*opened(without), "the"), "the");
}

TEST(TokenizerFromGguf, Phi3TokensTakeTheWhiteSpaceAfterThem) {
  GgufBuilder file = sentence_piece_file();
  file.add("general.name", "Phi-3 mini");
  const auto tokenizer = opened(file);
  EXPECT_EQ(cut(*tokenizer, "<tag> \n\u00a0the", AddSpecial::kNo), "<tag>| the");
  EXPECT_EQ(cut(*tokenizer, "<s> the", AddSpecial::kNo, ParseSpecial::kYes), "<s>| | the");
}

TEST(TokenizerFromGguf, KnowsWhatEndsAGeneration) {
  OwnedVocabulary vocabulary = test::small_byte_pair_vocabulary();
  const auto first = static_cast<TokenId>(vocabulary.tokens.size());
  vocabulary.add("<|im_end|>", TokenType::kControl);      // first
  vocabulary.add("<|eot_id|>", TokenType::kUserDefined);  // + 1
  vocabulary.add("<|endoftext|>");                        // + 2: spelled so, but text
  vocabulary.add("<my end>", TokenType::kControl);        // + 3: named by the file
  vocabulary.add("<|end|>", TokenType::kControl);         // + 4
  GgufBuilder file = file_of(vocabulary, "gpt2");
  file.add("tokenizer.ggml.eot_token_id", static_cast<std::uint32_t>(first + 3));
  const auto tokenizer = opened(file);
  for (const auto& [offset, ends] : std::vector<std::pair<TokenId, bool>>{
           {-1, true}, {0, true}, {1, true}, {2, false}, {3, true}, {4, true}}) {
    EXPECT_EQ(tokenizer->ends_generation(first + offset), ends) << offset;
  }
  EXPECT_FALSE(tokenizer->ends_generation(-1));
  EXPECT_FALSE(tokenizer->ends_generation(first + 5));
  EXPECT_EQ(*tokenizer->piece(first, ControlTokens::kSkip), "");
  EXPECT_EQ(*tokenizer->piece(first, ControlTokens::kPrint), "<|im_end|>");

  // Where messages end with <|end|>, turns end with something else.
  vocabulary.add("<|return|>", TokenType::kControl);
  vocabulary.add("<|call|>", TokenType::kControl);
  EXPECT_FALSE(opened(file_of(vocabulary, "gpt2"))->ends_generation(first + 4));
}

TEST(TokenizerFromGguf, IdsOutOfRangeAreErrors) {
  const auto tokenizer = opened(byte_pair_file());
  const auto count = static_cast<TokenId>(tokenizer->vocab_size());
  for (const TokenId id : {-1, count, std::numeric_limits<TokenId>::max()}) {
    const TokenId ids[] = {0, id};
    const auto text = tokenizer->decode(ids, ControlTokens::kPrint);
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().message,
              fmt::format("token id {} is out of range, expected 0 to {}", id, count - 1));
  }
}

TEST(TokenizerFromGguf, WithoutPreTheDefaultIsUsedAndAWarningGiven) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto tokenizer = opened(byte_pair_file("tokenizer.ggml.pre"));
  const std::string said =
      testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("vocab.gguf: metadata key 'tokenizer.ggml.pre' is missing"));
  EXPECT_EQ(cut(*tokenizer, "1234"), "123|4");
}

TEST(TokenizerFromGguf, AVocabularyOfOneTokenWorks) {
  OwnedVocabulary one;
  one.add("a");
  EXPECT_EQ(cut(*opened(file_of(one, "gpt2")), "abba"), "a|a");   // there is no token for b
  EXPECT_EQ(cut(*opened(file_of(one, "llama")), "aa"), "a|a|a");  // the space is unknown: token 0
}

TEST(WrongVocabulary, UnknownKinds) {
  expect_error(GgufBuilder(), "metadata key 'tokenizer.ggml.model' is missing");
  for (const std::string model : {"bert", "t5", "rwkv", "plamo2", "", "no_vocab"}) {
    expect_error(file_of(test::small_byte_pair_vocabulary(), model),
                 "metadata key 'tokenizer.ggml.model' is '" + model +
                     "', expected 'gpt2' or 'gemma4' (byte pair encoding) or 'llama' "
                     "(SentencePiece)");
  }
  expect_error(byte_pair_file("tokenizer.ggml.pre").add("tokenizer.ggml.pre", "new\n"),
               "metadata key 'tokenizer.ggml.pre' is 'new\\n', expected a pre-tokenizer that is "
               "known here, such as 'default', 'gpt-2', 'llama-bpe' or 'qwen2'");
}

TEST(WrongVocabulary, MissingLists) {
  expect_error(byte_pair_file(kTokens), "metadata key 'tokenizer.ggml.tokens' is missing");
  expect_error(byte_pair_file(kMerges), "metadata key 'tokenizer.ggml.merges' is missing");
  expect_error(sentence_piece_file(kScores),
               "metadata key 'tokenizer.ggml.scores' is missing, expected a score for each token");
  expect_error(byte_pair_file(kTokens).add(kTokens, Strings()),
               "metadata key 'tokenizer.ggml.tokens' is empty, expected at least one token");
}

TEST(WrongVocabulary, ListsOfAnotherType) {
  for (const char* key : {kTokens, kMerges}) {
    const auto tokenizer = open(byte_pair_file(key).add(key, Numbers{1, 2}));
    ASSERT_FALSE(tokenizer);
    EXPECT_THAT(tokenizer.error().message, testing::StartsWith("vocab.gguf: "));
    EXPECT_THAT(tokenizer.error().message, HasSubstr(key));
  }
  for (const char* key : {kTypes, kScores}) {
    const auto tokenizer = open(sentence_piece_file(key).add(key, Strings{"1", "2"}));
    ASSERT_FALSE(tokenizer);
    EXPECT_THAT(tokenizer.error().message, testing::StartsWith("vocab.gguf: "));
    EXPECT_THAT(tokenizer.error().message, HasSubstr(key));
  }
}

TEST(WrongVocabulary, ListsOfAnotherLength) {
  const std::size_t count = test::small_sentence_piece_vocabulary().tokens.size();
  for (const std::size_t length : {std::size_t{0}, count - 1, count + 1}) {
    const std::string end =
        fmt::format("' has {} elements, expected {}, one per token", length, count);
    expect_error(sentence_piece_file(kTypes).add(kTypes, Numbers(length, 1)),
                 std::string("metadata key '") + kTypes + end);
    expect_error(sentence_piece_file(kScores).add(kScores, std::vector<float>(length, 1)),
                 std::string("metadata key '") + kScores + end);
  }
}

TEST(WrongVocabulary, TypesAndScoresThatMeanNothing) {
  OwnedVocabulary vocabulary;
  vocabulary.add("a");
  vocabulary.add("b");
  for (const std::int32_t type : {-1, 7, 100}) {
    expect_error(
        file_of(vocabulary, "gpt2", kTypes).add(kTypes, Numbers{1, type}),
        fmt::format("metadata key '{}' has type {} for token 1, expected 1 to 6", kTypes, type));
  }
  vocabulary.scores[1] = std::numeric_limits<double>::quiet_NaN();
  expect_error(file_of(vocabulary, "llama"),
               "metadata key 'tokenizer.ggml.scores' is NaN for token 1, expected a number");
  vocabulary.types[1] = TokenType::kByte;
  expect_error(file_of(vocabulary, "llama"),
               "metadata key 'tokenizer.ggml.tokens': token 1 is 'b' and by its type a byte, "
               "expected a text like '<0x0A>'");
}

TEST(WrongVocabulary, Merges) {
  const auto with_merge = [](const std::string& merge) {
    OwnedVocabulary vocabulary;
    for (const char* token : {"a", "b", "ab", "c"}) vocabulary.add(token);
    vocabulary.merges = {"a b", merge};
    return file_of(vocabulary, "gpt2");
  };
  const auto message = [](const std::string& merge, const std::string& expected) {
    return "metadata key 'tokenizer.ggml.merges': merge 1 is '" + merge + "', expected " + expected;
  };
  for (const std::string merge : {"", " ", "a", "ab", "a ", " a"}) {
    expect_error(with_merge(merge), message(merge, "two texts with a space between them"));
  }
  for (const std::string merge : {"a x", "x a", "b a", "ab c"}) {
    expect_error(with_merge(merge),
                 message(merge, "both texts and their concatenation to be tokens"));
  }
  for (const std::string merge : {"a b c", "a 中"}) {
    expect_error(with_merge(merge), message(merge, "texts in the byte-level alphabet"));
  }
  expect_error(with_merge("a \xff"), message("a \\xff", "texts in the byte-level alphabet"));
  EXPECT_TRUE(open(with_merge("a b")));  // twice the same does no harm
}

TEST(WrongVocabulary, SpecialIdsOutOfRange) {
  const std::size_t count = test::small_byte_pair_vocabulary().tokens.size();
  for (const std::string name : {"bos", "eos", "unknown", "eot", "eom"}) {
    const std::string key = "tokenizer.ggml." + name + "_token_id";
    for (const auto id : {static_cast<std::uint32_t>(count), 0xffffffffu}) {
      expect_error(
          byte_pair_file().add(key, id),
          fmt::format("metadata key '{}' is {}, expected a token id below {}", key, id, count));
    }
    EXPECT_FALSE(open(byte_pair_file().add(key, "1")));
    EXPECT_FALSE(open(byte_pair_file().add(key, std::int32_t{-1})));
  }
}

TEST(WrongVocabulary, FlagsOfAnotherType) {
  for (const char* key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"}) {
    EXPECT_FALSE(open(byte_pair_file().add(key, "yes"))) << key;
  }
  EXPECT_FALSE(open(sentence_piece_file().add("tokenizer.ggml.add_space_prefix", 1.0f)));
  EXPECT_FALSE(open(byte_pair_file("tokenizer.ggml.pre").add("tokenizer.ggml.pre", true)));
}

}  // namespace
}  // namespace espalier::text
