// Tokenizers from tokenizer.json: what each step does, as Hugging Face's tokenizers 0.23.3 does it,
// the files beside it, and every way in which these can be wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/files.h"
#include "support/vocabularies.h"
#include "text/hf_pipeline.h"
#include "text/tokenizer.h"

namespace espalier::text {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json with_step(const char* key, const char* step) { return {{key, json::parse(step)}}; }

std::string words(const char* step, std::string_view text) {
  const json document = with_step("pre_tokenizer", step);
  const auto read = read_pre_tokenizer({document, "t"});
  if (!read) return read.error().message;
  std::string result;
  read->pre_tokenizer.split(text, Place::kTextBegin, [&](std::string_view word) {
    if (!result.empty()) result += '|';
    result += word;
  });
  return result;
}

std::string normal(const char* step, std::string_view text) {
  const json document = with_step("normalizer", step);
  const auto read = read_normalizer({document, "t"});
  if (!read) return read.error().message;
  return normalize(*read, {std::string(text), {}}).text;
}

TEST(HfPreTokenizer, SplitHasFiveBehaviors) {
  const auto split = [](const char* behavior, std::string_view text) {
    const std::string step = std::string(R"({"type": "Split", "pattern": {"Regex": "\\s"},
        "invert": false, "behavior": ")") +
                             behavior + "\"}";
    return words(step.c_str(), text);
  };
  EXPECT_EQ(split("Removed", "a b  c"), "a|b|c");
  EXPECT_EQ(split("Isolated", "a b  c "), "a| |b| | |c| ");
  EXPECT_EQ(split("MergedWithPrevious", " a b  c "), " |a |b | |c ");
  EXPECT_EQ(split("MergedWithNext", " a b  c "), " a| b| | c| ");
  EXPECT_EQ(split("Contiguous", " a b  c "), " |a| |b|  |c| ");
  EXPECT_EQ(words(R"({"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Removed",
                      "invert": true})",
                  "a, b!"),
            "a|b");
  EXPECT_EQ(words(R"j({"type": "Split", "pattern": {"Regex": "(?=[A-Z])"},
                       "behavior": "Isolated"})j",
                  "abCdE"),
            "ab|Cd|E");
  EXPECT_EQ(words(R"({"type": "Split", "pattern": {"String": "-"},
                      "behavior": "MergedWithPrevious"})",
                  "a-b--c"),
            "a-|b-|-|c");
}

TEST(HfPreTokenizer, EveryOtherType) {
  EXPECT_EQ(words(R"({"type": "Whitespace"})", "Hey friend!     How_are you?!?"),
            "Hey|friend|!|How_are|you|?!?");
  EXPECT_EQ(words(R"({"type": "WhitespaceSplit"})", "Hey  friend! x"), "Hey|friend!|x");
  EXPECT_EQ(words(R"({"type": "Punctuation"})", "Hey friend!!? a$b"), "Hey friend|!|!|?| a|$|b");
  EXPECT_EQ(words(R"({"type": "Punctuation", "behavior": "Contiguous"})", "Hey friend!!? a$b"),
            "Hey friend|!!?| a|$|b");
  EXPECT_EQ(words(R"({"type": "Digits", "individual_digits": true})", "a12b½"), "a|1|2|b|½");
  EXPECT_EQ(words(R"({"type": "Digits", "individual_digits": false})", "a12b½"), "a|12|b|½");
  EXPECT_EQ(words(R"({"type": "BertPreTokenizer"})", "Hey, you  there!"), "Hey|,|you|there|!");
  EXPECT_EQ(words(R"({"type": "CharDelimiterSplit", "delimiter": "-"})", "a-b--c"), "a|b|c");
  EXPECT_EQ(words("null", "a b"), "a b");
}

TEST(HfPreTokenizer, MetaspacePutsItsMarkForSpacesAndBeforeTheText) {
  EXPECT_EQ(words(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"})",
                  "Hey you  there "),
            "▁Hey|▁you|▁|▁there|▁");
  EXPECT_EQ(words(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                      "split": false})",
                  " Hey you"),
            "▁Hey▁you");
  EXPECT_EQ(
      words(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"})", "Hey you"),
      "Hey|▁you");
  EXPECT_EQ(
      words(R"({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true})", "Hey you"),
      "▁Hey|▁you");
  EXPECT_EQ(
      words(R"({"type": "Metaspace", "replacement": "▁", "add_prefix_space": false})", "Hey you"),
      "Hey|▁you");
  const std::string comma = R"({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": ","}, "behavior": "Isolated"},
      {"type": "Metaspace", "replacement": "▁", "prepend_scheme": ")";
  EXPECT_EQ(words((comma + "first\"}]}").c_str(), "a b,c"), "▁a|▁b|,|c");
  EXPECT_EQ(words((comma + "always\"}]}").c_str(), "a b,c"), "▁a|▁b|▁,|▁c");
}

TEST(HfPreTokenizer, ByteLevelGivesBytesAndSpellsThemForStepsThatFollow) {
  EXPECT_EQ(words(R"({"type": "ByteLevel", "add_prefix_space": true})", "Hey you 12é"),
            " Hey| you| 12|é");
  EXPECT_EQ(
      words(R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})", "Hey you"),
      "Hey you");
  // The second byte of ² is spelled with the digit ².
  EXPECT_EQ(words(R"({"type": "Sequence", "pretokenizers": [
      {"type": "ByteLevel", "add_prefix_space": false},
      {"type": "Digits", "individual_digits": false}]})",
                  "a 12é² b"),
            "a| |12|é|\xc2|\xb2| b");
}

TEST(HfNormalizer, EveryType) {
  EXPECT_EQ(normal(R"({"type": "NFC"})", "e\u0301"), "é");
  EXPECT_EQ(normal(R"({"type": "NFD"})", "é한"), "e\u0301\u1112\u1161\u11ab");
  EXPECT_EQ(normal(R"({"type": "NFKC"})", "ﬁ①㋿"), "fi1㋿");  // ㋿ came later
  EXPECT_EQ(normal(R"({"type": "NFKD"})", "é½"), "e\u03011\u20442");
  EXPECT_EQ(normal(R"({"type": "Lowercase"})", "ÀİΣ\xff"), "ài\u0307σ\xff");
  EXPECT_EQ(normal(R"({"type": "StripAccents"})", "e\u0301a\u0903"), "ea");
  EXPECT_EQ(normal(R"({"type": "Strip", "strip_left": true, "strip_right": false})", " \u3000a "),
            "a ");
  EXPECT_EQ(normal(R"({"type": "Strip", "strip_left": true, "strip_right": true})", " a "), "a");
  EXPECT_EQ(normal(R"({"type": "Prepend", "prepend": "▁"})", "a"), "▁a");
  EXPECT_EQ(normal(R"({"type": "Prepend", "prepend": "▁"})", ""), "");
  EXPECT_EQ(
      normal(R"({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})", "a   b c"),
      "a b c");
  EXPECT_EQ(normal(R"({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "-"})", "axb"),
            "-a-b-");
  EXPECT_EQ(normal(R"({"type": "Replace", "pattern": {"String": "aa"}, "content": "b"})", "aaa"),
            "ba");
  EXPECT_EQ(normal(R"({"type": "Sequence", "normalizers": [{"type": "NFKC"},
      {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
      {"type": "Prepend", "prepend": "▁"}]})",
                   "ａ\u3000\n b"),
            "▁a b");
}

// A trie with "a" → "xy" and "é" → "e", laid out by hand: units are [label, has a value, offset].
std::string character_map_of_two() {
  std::vector<std::uint32_t> units(1024);
  const auto set = [&](std::size_t place, std::uint32_t label, bool leaf, std::size_t children) {
    units[place] =
        label | (leaf ? 1u << 8 : 0) | static_cast<std::uint32_t>(place ^ children) << 10;
  };
  set(0, 0, false, 0x100);
  set(0x100 ^ 'a', 'a', true, 0x200);
  units[0x200] = 0x80000000u | 0;
  set(0x100 ^ 0xc3, 0xc3, false, 0x300);
  set(0x300 ^ 0xa9, 0xa9, true, 0x240);
  units[0x240] = 0x80000000u | 3;
  std::string blob;
  const auto bytes = static_cast<std::uint32_t>(units.size() * 4);
  blob.append(reinterpret_cast<const char*>(&bytes), 4);
  blob.append(reinterpret_cast<const char*>(units.data()), bytes);
  return blob + std::string("xy\0e\0", 5);
}

TEST(HfNormalizer, CharacterMapsReplaceClustersByTheirBeginning) {
  const auto step = character_map(character_map_of_two());
  ASSERT_TRUE(step);
  const auto mapped = [&](std::string text) {
    return normalize({*step}, {std::move(text), {}}).text;
  };
  EXPECT_EQ(mapped("banané"), "bxynxyne");
  EXPECT_EQ(mapped("a\u0301b"), "xyb");  // the whole cluster, as it begins with a
  EXPECT_EQ(mapped("a\u0301\u0302\u0303"), "xy\u0301\u0302\u0303");  // too long: one by one
  EXPECT_EQ(mapped("\xff"
                   "a\xc3"),
            "\xffxy\xc3");

  for (const std::string& blob :
       {std::string(), std::string(3, '\0'), std::string(4, '\0'), std::string("\5\0\0\0.....", 9),
        std::string("\x08\0\0\0....", 8)}) {
    EXPECT_FALSE(character_map(blob));
  }
  // Any bytes in the trie lead nowhere outside of it.
  std::string wild = character_map_of_two();
  for (std::size_t i = 4; i < wild.size(); ++i) wild[i] = static_cast<char>(i * 37);
  EXPECT_TRUE(character_map(wild));
  (void)normalize({*character_map(wild)}, {"banané \xff", {}});
}

// A byte-level BPE of every byte and a few merges, with added tokens.
json byte_pair_json() {
  const test::OwnedVocabulary small = test::small_byte_pair_vocabulary();
  json vocab, added = json::array();
  for (std::size_t i = 0; i < small.tokens.size(); ++i) {
    if (small.types[i] == TokenType::kNormal) {
      vocab[small.tokens[i]] = i;
    } else {
      added.push_back({{"id", i},
                       {"content", small.tokens[i]},
                       {"special", small.types[i] == TokenType::kControl}});
    }
  }
  return {{"added_tokens", added},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", small.merges}}}};
}

// A character BPE whose tokens are these, with merges.
json character_json(const std::vector<std::string>& tokens, json merges = json::array()) {
  json vocab;
  for (std::size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", std::move(merges)}}},
          {"decoder", {{"type", "Fuse"}}}};
}

json unigram_json() {
  return json::parse(R"({
      "added_tokens": [{"id": 0, "content": "<unk>", "special": true},
                       {"id": 1, "content": "</s>", "special": true}],
      "decoder": {"type": "Fuse"},
      "model": {"type": "Unigram", "unk_id": 0,
                "vocab": [["<unk>", 0], ["</s>", 0], ["a", -1], ["b", -1.5], ["ab", -2],
                          ["abc", -9], ["c", -4], ["aa", -3]]}})");
}

Result<std::unique_ptr<Tokenizer>> open(const json& document) {
  const std::string text = document.dump();
  return tokenizer_from_json(as_bytes(text), "t.json");
}

std::unique_ptr<Tokenizer> opened(const json& document) {
  auto tokenizer = open(document);
  if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
  return std::move(*tokenizer);
}

std::string joined(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string result;
  for (const TokenId id : ids) {
    if (!result.empty()) result += '|';
    result += *tokenizer.piece(id, ControlTokens::kPrint);
  }
  return result;
}

std::string cut(const Tokenizer& tokenizer, std::string_view text,
                ParseSpecial parse = ParseSpecial::kYes) {
  return joined(tokenizer, tokenizer.encode(text, AddSpecial::kNo, parse));
}

TEST(TokenizerJson, ByteLevelBytePair) {
  const auto tokenizer = opened(byte_pair_json());
  EXPECT_EQ(cut(*tokenizer, "the the<s>ababa<tag>12"), "the| the|<s>|ab|aba|<tag>|12");
  EXPECT_EQ(cut(*tokenizer, "<s><tag>", ParseSpecial::kNo), "<|s|>|<tag>");
  EXPECT_EQ(cut(*tokenizer, "\xff\xe4\xb8\xad"), "\xff|\xe4\xb8\xad");
}

TEST(TokenizerJson, MergesAreTextsOrPairs) {
  const std::vector<std::string> tokens = {"a", "b", "ab", " ", "a ", "a b"};
  EXPECT_EQ(cut(*opened(character_json(tokens, {"a b"})), "aab"), "a|ab");
  EXPECT_EQ(
      cut(*opened(character_json(tokens, json::parse(R"([["a", " "], ["a ", "b"]])"))), "a ba"),
      "a b|a");
}

TEST(TokenizerJson, UnknownCharactersAreLeftOutOrUnknownOrBytes) {
  json document = character_json({"<unk>", "a", "b", "ab"}, {"a b"});
  EXPECT_EQ(cut(*opened(document), "axxb"), "ab");  // as if they were not there
  document["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(cut(*opened(document), "axxb"), "a|<unk>|<unk>|b");
  document["model"]["fuse_unk"] = true;
  EXPECT_EQ(cut(*opened(document), "axxbx"), "a|<unk>|b|<unk>");

  std::vector<std::string> tokens = {"<unk>", "a"};
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(fmt::format("<0x{:02X}>", byte));
  document = character_json(tokens);
  document["model"]["unk_token"] = "<unk>";
  document["model"]["byte_fallback"] = true;
  document["decoder"] = {{"type", "ByteFallback"}};
  const auto tokenizer = opened(document);
  EXPECT_EQ(cut(*tokenizer, "a中\xff"), "a|\xe4|\xb8|\xad|\xff");
}

TEST(TokenizerJson, WholeWordsAreTakenWhereMergesAreIgnored) {
  json document = character_json({"a", "b", "ab"});
  EXPECT_EQ(cut(*opened(document), "ab"), "a|b");
  document["model"]["ignore_merges"] = true;
  EXPECT_EQ(cut(*opened(document), "ab"), "ab");
}

TEST(TokenizerJson, SubwordsHavePrefixesAndWordsSuffixes) {
  json document = character_json({"a", "##b", "ab", "b</w>", "##b</w>", "ab</w>"},
                                 json::parse(R"([["a", "##b"], ["a", "##b</w>"]])"));
  document["model"]["continuing_subword_prefix"] = "##";
  EXPECT_EQ(cut(*opened(document), "ab"), "ab");
  document["model"]["end_of_word_suffix"] = "</w>";
  EXPECT_EQ(cut(*opened(document), "ab"), "ab</w>");
}

TEST(TokenizerJson, UnigramTakesTheBestSum) {
  const auto tokenizer = opened(unigram_json());
  EXPECT_EQ(cut(*tokenizer, "abc"), "ab|c");   // -6 beats -9 and -6.5
  EXPECT_EQ(cut(*tokenizer, "aab"), "a|ab");   // -3 beats -4.5
  EXPECT_EQ(cut(*tokenizer, "aaa"), "a|a|a");  // -3 beats -4
  EXPECT_EQ(cut(*tokenizer, "a中文b"), "a|<unk>|b");
  EXPECT_EQ(cut(*tokenizer, "\xff"), "<unk>");
  EXPECT_EQ(cut(*tokenizer, "a</s>", ParseSpecial::kNo), "a|<unk>");
  EXPECT_EQ(cut(*tokenizer, "a</s>"), "a|</s>");
}

TEST(TokenizerJson, AddedTokensTakeWhiteSpaceAndWordsAsTheySay) {
  const auto with = [](const char* flag) {
    json document = byte_pair_json();
    document["added_tokens"].push_back({{"id", 300}, {"content", "cat"}, {flag, true}});
    return opened(document);
  };
  EXPECT_EQ(cut(*with("lstrip"), "x \n cat\ty"), "x|cat|\t|y");
  EXPECT_EQ(cut(*with("rstrip"), "x cat\u3000 y"), "x| |cat|y");
  EXPECT_EQ(cut(*with("single_word"), "cat catx x.cat"), "cat| |c|a|t|x| |x|.|cat");
  EXPECT_EQ(with("lstrip")->vocab_size(), 301u);
  EXPECT_EQ(*with("lstrip")->piece(299, ControlTokens::kPrint), "");  // an id without a token
}

TEST(TokenizerJson, NormalizedTokensAreFoundInNormalizedText) {
  json document = character_json({"<unk>", "▁", "a", "b", "<", "s", ">", "▁<s>"});
  document["model"]["unk_token"] = "<unk>";
  document["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})");
  document["added_tokens"] = {
      {{"id", 8}, {"content", "<s>"}, {"special", true}, {"normalized", true}}};
  const auto tokenizer = opened(document);
  // Normalized, the token is spelled ▁<s>.
  EXPECT_EQ(cut(*tokenizer, "<s>a <s>b<s>"), "<s>|a|<s>|b|<|s|>");
  EXPECT_EQ(cut(*tokenizer, "<s>a", ParseSpecial::kNo), "▁|<|s|>|a");
  // What the normalizer made of untrusted text is not trusted either.
  constexpr auto kYes = ParseSpecial::kYes, kNo = ParseSpecial::kNo;
  const auto parts = [&](const std::vector<TextPart>& list) {
    return joined(*tokenizer, tokenizer->encode(list, AddSpecial::kNo));
  };
  EXPECT_EQ(parts({{"<s>a", kYes}, {" <s>b", kNo}, {" <s>", kYes}}), "<s>|a|▁|<|s|>|b|<s>");
  EXPECT_EQ(parts({{"a ", kNo}, {"<s>", kYes}}), "▁|a|▁|<|s|>");
}

// The vocabularies of the first Llamas have control tokens with "normalized": true. Versions 0.13
// to 0.22 of Hugging Face's library print them as they are and skip them; 0.23 spells them with
// what the normalizer adds and no longer knows that they are special.
TEST(TokenizerJson, NormalizedTokensArePrintedAsTheyAreAndSkipped) {
  json document = character_json({"<unk>", "<s>", "</s>", "▁", "x", "a"});
  document["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})");
  document["decoder"] = json::parse(R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  document["added_tokens"] = json::array();
  for (const auto& [id, text] :
       {std::pair(0, "<unk>"), std::pair(1, "<s>"), std::pair(2, "</s>")}) {
    document["added_tokens"].push_back(
        {{"id", id}, {"content", text}, {"special", true}, {"normalized", true}});
  }
  const auto tokenizer = opened(document);
  const auto both = [&](std::string_view text) {
    const auto ids = tokenizer->encode(text, AddSpecial::kNo, ParseSpecial::kYes);
    return *tokenizer->detokenize(ids) + '|' + *tokenizer->detokenize(ids, ControlTokens::kSkip);
  };
  EXPECT_EQ(both("<s>a"), "<s>a|a");
  EXPECT_EQ(both(" <s>x </s>"), "<s>x</s>|x");
  EXPECT_EQ(both("a <s>"), "a<s>|a");
}

// "first" is where the first character of the text is, or what was made of it.
TEST(TokenizerJson, TheFirstWordIsWhereTheTextsFirstCharacterIs) {
  json document = character_json({"▁", "a", "b", "\u0301", "½", "1", "2", "⁄"});
  document["pre_tokenizer"] = json::parse(R"({"type": "Metaspace", "replacement": "▁",
                                              "prepend_scheme": "first"})");
  const auto with = [&](const char* normalizer, std::string_view text) {
    document["normalizer"] = json::parse(normalizer);
    return cut(*opened(document), text);
  };
  const char* strip = R"({"type": "Strip", "strip_left": true, "strip_right": true})";
  EXPECT_EQ(with("null", "ab a"), "▁|a|b|▁|a");
  EXPECT_EQ(with(strip, "ab a"), "▁|a|b|▁|a");
  EXPECT_EQ(with(strip, " ab a"), "a|b|▁|a");
  EXPECT_EQ(with(strip, " \u0301"), "\u0301");
  const char* forms = R"({"type": "Sequence", "normalizers": [{"type": "NFKD"},
      {"type": "Strip", "strip_left": true, "strip_right": true}, {"type": "StripAccents"}]})";
  EXPECT_EQ(with(forms, "½a"), "▁|1|⁄|2|a");
  EXPECT_EQ(with(forms, "á"), "▁|a");
  EXPECT_EQ(with(forms, "\u0301a"), "a");
  EXPECT_EQ(with(forms, " \u0301b"), "b");
  const char* drop = R"({"type": "Replace", "pattern": {"Regex": "^b"}, "content": ""})";
  EXPECT_EQ(with(drop, "ba"), "a");
  EXPECT_EQ(with(drop, "aba"), "▁|a|b|a");
  EXPECT_EQ(with(R"({"type": "Replace", "pattern": {"String": "b"}, "content": "a"})", "ba"),
            "▁|a|a");
}

TEST(TokenizerJson, PostProcessorsPutTokensAround) {
  json document = byte_pair_json();
  const std::size_t s = document["added_tokens"][1]["id"];
  const json around = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}}}},
        {{"Sequence", {{"id", "A"}}}},
        {{"SpecialToken", {{"id", "both"}}}}}},
      {"special_tokens", {{"<s>", {{"ids", {s}}}}, {"both", {{"ids", {s + 1, s}}}}}}};
  document["post_processor"] = around;
  const auto text = [&] {
    const auto tokenizer = opened(document);
    return joined(*tokenizer, tokenizer->encode("a", AddSpecial::kYes, ParseSpecial::kNo));
  };
  EXPECT_EQ(text(), "<s>|a|</s>|<s>");
  document["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "RobertaProcessing"}, {"cls", {"<s>", s}}, {"sep", {"</s>", s + 1}}},
        around}}};
  EXPECT_EQ(text(), "<s>|<s>|a|</s>|</s>|<s>");
}

TEST(TokenizerJson, DecodersSpellTokens) {
  json document = character_json({"▁▁a", "<0xC3>", "<0xA9>", "▁▁", "▁b"});
  const auto decoded = [&](const char* decoder, const std::vector<TokenId>& ids) {
    document["decoder"] = json::parse(decoder);
    return *opened(document)->detokenize(ids);
  };
  const char* llama = R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}]})";
  EXPECT_EQ(decoded(llama, {0, 1, 2, 3}), " aé ");
  // Byte tokens side by side are UTF-8 together, or none of them is.
  EXPECT_EQ(decoded(llama, {4, 1, 4}), "b\ufffd b");
  EXPECT_EQ(decoded(llama, {4, 1, 2, 1}), "b\ufffd\ufffd\ufffd");
  EXPECT_EQ(decoded(llama, {2, 4, 1, 2}), "\ufffd bé");
  const char* metaspace = R"({"type": "Metaspace", "replacement": "▁"})";
  EXPECT_EQ(decoded(metaspace, {0, 4, 3}), "a b  ");
  EXPECT_EQ(decoded(metaspace, {3, 3}), "  ");
  EXPECT_EQ(decoded("null", {4, 4}), "▁b ▁b");
  EXPECT_EQ(*opened(document)->decode(std::vector<TokenId>{4, 4}, ControlTokens::kPrint), " ▁b ▁b");

  const auto bytes = opened(byte_pair_json());
  const auto broken = bytes->encode("\xf0\x9f<s>\xe4\xb8", AddSpecial::kNo, ParseSpecial::kYes);
  EXPECT_EQ(*bytes->detokenize(broken), "\ufffd<s>\ufffd");
  EXPECT_EQ(*bytes->decode(broken, ControlTokens::kPrint), "\xf0\x9f<s>\xe4\xb8");
}

// Wrong documents.

void expect_error(const json& document, const std::string& message) {
  const auto tokenizer = open(document);
  ASSERT_FALSE(tokenizer) << "expected: " << message;
  EXPECT_EQ(tokenizer.error().kind, ErrorKind::kInput);
  EXPECT_EQ(tokenizer.error().message, "t.json: " + message);
}

void expect_text_error(std::string_view text, const std::string& message) {
  const auto tokenizer = tokenizer_from_json(as_bytes(text), "t.json");
  ASSERT_FALSE(tokenizer) << "expected: " << message;
  EXPECT_EQ(tokenizer.error().message, "t.json: " + message);
}

TEST(WrongTokenizerJson, NoDocument) {
  expect_text_error("", "not JSON at byte 1");
  expect_text_error("{\"model\": \"\xff\"}", "not UTF-8 at byte 12");
  expect_text_error("[]", "the document is an array, expected an object");
  expect_text_error(std::string(100000, '['), "nested 100000 deep, at most 64 are read");
  expect_error(json::object(), "key 'model' is missing");
  expect_error({{"model", 1}}, "key 'model' is an integer, expected an object");
}

TEST(WrongTokenizerJson, Models) {
  for (const char* type : {"WordLevel", "WordPiece", "New\n"}) {
    json document = byte_pair_json();
    document["model"]["type"] = type;
    expect_error(document, std::string("model: type '") + (*type == 'N' ? "New\\n" : type) +
                               "' is not supported, expected BPE or Unigram");
  }
  json document = byte_pair_json();
  document["model"].erase("vocab");
  expect_error(document, "model: vocab is missing, expected an object or an array");
  document["model"]["vocab"] = "a";
  expect_error(document, "model: vocab is a string, expected an object or an array");
  document = {{"model", {{"type", "BPE"}, {"vocab", json::object()}, {"merges", json::array()}}}};
  expect_error(document, "the vocabulary is empty");
  document = byte_pair_json();
  document["model"]["unk_token"] = "<none>";
  expect_error(document, "model: key 'unk_token' is '<none>', expected a token of the vocabulary");
}

TEST(WrongTokenizerJson, Ids) {
  const auto with_id = [](const json& id) {
    json document = character_json({"a", "b"});
    document["model"]["vocab"]["c"] = id;
    return document;
  };
  const std::string range = ", expected 0 to 1073741823";
  expect_error(with_id(-1), "model: vocab: the id of 'c' is -1" + range);
  expect_error(with_id(std::uint64_t{1} << 40),
               "model: vocab: the id of 'c' is 1099511627776" + range);
  expect_error(with_id(1.5), "model: vocab: the id of 'c' is 1.5" + range);
  expect_error(with_id("1"), "model: vocab: the id of 'c' is a string" + range);
  expect_error(with_id(1), "tokens 'b' and 'c' have the same id, 1");
  expect_error(with_id(100000),
               "token 'c' has id 100000, but there are only 3 tokens; at most 65536 ids may be "
               "unused");
  EXPECT_EQ(opened(with_id(1000))->vocab_size(), 1001u);

  json document = character_json({"a", "b"});
  document["added_tokens"] = {{{"id", 1}, {"content", "a"}}};
  expect_error(document, "added token 'a' has id 1, but 0 in the model's vocabulary");
  document["added_tokens"] = {{{"id", 1}, {"content", "x"}}};
  expect_error(document, "tokens 'b' and 'x' have the same id, 1");
  document["added_tokens"] = {{{"content", "x"}}};
  expect_error(document, "added_tokens[0]: found no 'id' below 1073741824 and 'content'");
  document["added_tokens"] = json::object();
  expect_error(document, "key 'added_tokens' is an object, expected an array");
  document["added_tokens"] = {{{"id", 2}, {"content", "x"}, {"special", 1}}};
  expect_error(document, "added_tokens[0]: key 'special' is an integer, expected a boolean");
}

TEST(WrongTokenizerJson, Merges) {
  const auto with_merge = [](const json& merge) {
    return character_json({"a", "b", "ab"}, {"a b", merge});
  };
  expect_error(with_merge("a x"),
               "model: merges: merge 1 is 'a x', expected both texts and their "
               "concatenation to be tokens");
  expect_error(with_merge(json::array({"b", "a"})),
               "model: merges: merge 1 is 'b a', expected both texts and "
               "their concatenation to be tokens");
  expect_error(with_merge("ab"), "model: merges[1] is 'ab', expected two texts");
  expect_error(with_merge({"a"}), "model: merges[1] is an array, expected two texts");
  expect_error(with_merge(1), "model: merges[1] is an integer, expected two texts");
  json document = character_json({"a"});
  document["model"].erase("merges");
  expect_error(document, "model: key 'merges' is missing, expected an array");
}

TEST(WrongTokenizerJson, Unigrams) {
  json document = unigram_json();
  document["model"]["vocab"][2] = {"a", "b"};
  expect_error(document, "model: vocab[2] is not a text and its score");
  document = unigram_json();
  document["model"]["vocab"][2][1] = -1e40;
  expect_error(document, "the score of token 2 is -1e+40, expected -1e+30 to 1e+30");
  document = unigram_json();
  document["model"]["vocab"][2][0] = std::string(1025, 'a');
  EXPECT_THAT(open(document).error().message, HasSubstr("has 1025 bytes, at most 1024 are read"));
  document = unigram_json();
  document["model"]["unk_id"] = 8;
  expect_error(document, "model: the unknown token has id 8, expected one below 8");
  document["model"].erase("unk_id");
  expect_error(document,
               "there is no unknown token, expected one for characters that no token spells");
}

TEST(WrongTokenizerJson, StepsThatAreNotKnownOrLackSomething) {
  const auto wrong = [](const char* key, const char* step, const std::string& message) {
    json document = byte_pair_json();
    document[key] = json::parse(step);
    expect_error(document, message);
  };
  wrong("normalizer", R"({})", "normalizer: key 'type' is missing");
  wrong("normalizer", R"("NFC")", "key 'normalizer' is a string, expected an object");
  wrong("decoder", R"({"type": "WordPiece"})",
        "decoder: type 'WordPiece' is not supported; supported: Sequence, ByteLevel, ByteFallback, "
        "Fuse, Metaspace, Replace, Strip");
  wrong("pre_tokenizer", R"({"type": "Sequence"})",
        "pre_tokenizer: key 'pretokenizers' is missing, expected an array");
  wrong("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [1]})",
        "pre_tokenizer: pretokenizers[0] is an integer, expected an object");
  wrong("pre_tokenizer", R"({"type": "Split"})", "pre_tokenizer: key 'pattern' is missing");
  wrong("pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "("}})",
        "pre_tokenizer: pattern: the pattern '(' cannot be used: missing closing parenthesis");
  wrong("pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Odd"})",
        "pre_tokenizer: key 'behavior' is 'Odd', expected Removed, Isolated, MergedWithPrevious, "
        "MergedWithNext or Contiguous");
  wrong("pre_tokenizer", R"({"type": "Metaspace", "replacement": "__"})",
        "pre_tokenizer: key 'replacement' is '__', expected one character");
  wrong("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"},
        {"type": "ByteLevel"}]})",
        "pre_tokenizer: pretokenizers[1]: there are two ByteLevel steps, expected one");
  wrong("normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "?"})",
        "normalizer: key 'precompiled_charsmap' is not base64");
  wrong("normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "/////w=="})",
        "normalizer: key 'precompiled_charsmap': its trie has 4294967295 bytes, expected a "
        "multiple of 4 from 4 to 0");
  wrong("post_processor", R"({"type": "TemplateProcessing", "single": []})",
        "post_processor: key 'single' has the text 0 times, expected once");
  wrong("post_processor", R"({"type": "TemplateProcessing", "single": [{"SpecialToken":
        {"id": "<s>"}}, {"Sequence": {}}], "special_tokens": {}})",
        "post_processor: key 'special_tokens' has no ids for '<s>'");
  wrong("post_processor", R"({"type": "BertProcessing", "cls": ["<s>", 9999], "sep": ["<s>", 0]})",
        "post_processor: token id 9999 is out of range, expected 0 to 280");
}

TEST(WrongTokenizerJson, StepsThatLetTextsGrowWithoutBounds) {
  json document = byte_pair_json();
  json step = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaaaaaa"}};
  json steps = json::array({step, step, step, step});
  document["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  expect_error(document,
               "normalizer: normalizers[3]: the steps could make a text more than 1024 times as "
               "long");
  document["normalizer"] = nullptr;
  document["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  expect_error(document,
               "decoder: decoders[1]: the steps could make a text more than 16 times as long");
  document = byte_pair_json();
  steps = json::array();
  for (int i = 0; i < 65; ++i) steps.push_back({{"type", "NFC"}});
  document["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  expect_error(document, "normalizer: normalizers[64]: there are more than 64 steps");
}

// The files beside tokenizer.json.

class TokenizerDirectory : public testing::Test {
 protected:
  TokenizerDirectory() { write("tokenizer.json", byte_pair_json()); }

  void write(const char* name, const json& document) {
    test::write_file(folder_ / name, document.dump());
  }
  std::unique_ptr<Tokenizer> opened() {
    auto tokenizer = tokenizer_from_directory(folder_.path());
    if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
    return std::move(*tokenizer);
  }

  test::TemporaryDirectory folder_;
  const TokenId begin_ = byte_pair_json()["added_tokens"][1]["id"], end_ = begin_ + 1;
};

TEST_F(TokenizerDirectory, AloneItIsEnough) {
  const auto tokenizer = opened();
  EXPECT_EQ(tokenizer->begin_of_sequence(), std::nullopt);
  EXPECT_TRUE(tokenizer->ends_generation(end_));  // </s>, by its name
}

TEST_F(TokenizerDirectory, TokensThatBeginAndEnd) {
  write("tokenizer_config.json", {{"bos_token", {{"content", "<s>"}}},
                                  {"eos_token", "</s>"},
                                  {"pad_token", "<nowhere>"},
                                  {"add_bos_token", true},
                                  {"add_eos_token", true}});
  auto tokenizer = opened();
  EXPECT_EQ(tokenizer->begin_of_sequence(), begin_);
  EXPECT_EQ(tokenizer->end_of_sequence(), end_);
  EXPECT_EQ(joined(*tokenizer, tokenizer->encode("a", AddSpecial::kYes, ParseSpecial::kNo)),
            "<s>|a|</s>");
  write("tokenizer_config.json", {{"add_bos_token", false}});
  write("special_tokens_map.json", {{"bos_token", "<s>"}});
  tokenizer = opened();
  EXPECT_EQ(tokenizer->begin_of_sequence(), begin_);
  EXPECT_EQ(joined(*tokenizer, tokenizer->encode("a", AddSpecial::kYes, ParseSpecial::kNo)), "a");
}

TEST_F(TokenizerDirectory, EveryTokenThatEndsAGeneration) {
  write("generation_config.json", {{"eos_token_id", {5, 7}}});
  write("config.json", {{"eos_token_id", 9}});
  const auto tokenizer = opened();
  for (const TokenId id : {5, 7, 9}) EXPECT_TRUE(tokenizer->ends_generation(id)) << id;
  for (const TokenId id : {4, 6, 8, end_}) EXPECT_FALSE(tokenizer->ends_generation(id)) << id;
  write("generation_config.json", {{"eos_token_id", "5"}});
  const auto wrong = tokenizer_from_directory(folder_.path());
  ASSERT_FALSE(wrong);
  EXPECT_THAT(
      wrong.error().message,
      HasSubstr("generation_config.json: key 'eos_token_id' holds a string, expected token ids"));
}

TEST_F(TokenizerDirectory, WithoutATokenizerJsonItSaysWhatToDo) {
  std::filesystem::remove(folder_ / "tokenizer.json");
  EXPECT_EQ(tokenizer_from_directory(folder_.path()).error().message,
            folder_.path().string() + ": there is no tokenizer.json");
  test::write_file(folder_ / "tokenizer.model", "");
  EXPECT_EQ(tokenizer_from_directory(folder_.path()).error().message,
            folder_.path().string() +
                ": there is no tokenizer.json; save the model once with Transformers' fast "
                "tokenizer, which makes one from the files that are there");
}

TEST_F(TokenizerDirectory, ChatTemplates) {
  EXPECT_TRUE(chat_templates(folder_.path())->empty());
  write("tokenizer_config.json", {{"chat_template",
                                   {{{"name", "default"}, {"template", "one"}},
                                    {{"name", "tool_use"}, {"template", "two"}}}}});
  auto templates = *chat_templates(folder_.path());
  ASSERT_EQ(templates.size(), 2u);
  EXPECT_EQ(templates[1].name, "tool_use");
  EXPECT_EQ(templates[1].source, "two");
  test::write_file(folder_ / "chat_template.jinja", "file");
  write("tokenizer_config.json", {{"chat_template", "one"}});
  templates = *chat_templates(folder_.path());
  ASSERT_EQ(templates.size(), 2u);
  EXPECT_EQ(templates[0].source, "file");
  EXPECT_EQ(templates[1].name, "default");
  write("tokenizer_config.json", {{"chat_template", 1}});
  EXPECT_FALSE(chat_templates(folder_.path()));
}

// Finishing at all shows that the time is not quadratic.
TEST(LongTokenizerJsonTexts, AMegabyteWithoutAWordBoundary) {
  json metaspace = unigram_json();
  metaspace["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"split", false}};
  const json characters = character_json({"a", "b", "ab", "aa", "aaaa"}, {"a a", "aa aa", "a b"});
  for (const json& document : {byte_pair_json(), metaspace, characters}) {
    const auto tokenizer = opened(document);
    for (const std::string unit : {"a", "ab", "中"}) {
      std::string text;
      while (text.size() < std::size_t{1} << 20) text += unit;
      EXPECT_GE(tokenizer->encode(text, AddSpecial::kNo, ParseSpecial::kYes).size(), 0u);
    }
  }
}

}  // namespace
}  // namespace espalier::text
