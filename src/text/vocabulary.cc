#include "text/vocabulary.h"

#include <array>
#include <cmath>
#include <unordered_set>

#include "base/printable.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";

// The byte-level alphabet of GPT-2: printable Latin-1 bytes are the characters of their own code,
// the others follow from U+0100 on, in order. kByteOfCharacter[c] is -1 where c is in no alphabet.
constexpr std::size_t kByteLevelCharacters = 0x100 + 68;
constexpr std::array<int, kByteLevelCharacters> kByteOfCharacter = [] {
  std::array<int, kByteLevelCharacters> table{};
  for (int& byte : table) byte = -1;
  std::size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    table[printable ? static_cast<std::size_t>(byte) : next++] = byte;
  }
  return table;
}();

// The byte of a byte token's text, <0x0A>.
std::optional<char> byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  int byte = 0;
  for (const char digit : text.substr(3, 2)) {
    const int value = digit >= '0' && digit <= '9'   ? digit - '0'
                      : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                      : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                                                     : -1;
    if (value < 0) return std::nullopt;
    byte = byte * 16 + value;
  }
  return static_cast<char>(byte);
}

// Ends of a generation that many files name by their text only. A list in the file would be
// better, but GGUF has none.
const std::unordered_set<std::string_view> kEndTexts = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    // Code models go on to another file with these.
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
};

bool may_end(TokenType type, std::string_view text, std::size_t id) {
  const bool user_defined = type == TokenType::kUserDefined;
  if (type != TokenType::kControl && !user_defined) return false;
  // </s> also ends what is struck out in HTML, as in Gemma's vocabulary. Llama's has it in place 2.
  if (text == "</s>") return !user_defined || id == 2;
  return kEndTexts.contains(text);
}

void find_ends(Vocabulary& vocabulary) {
  std::optional<TokenId> end;
  bool has_return = false, has_call = false, has_calls = false, has_flush = false;
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view text = vocabulary.tokens[i];
    if (!may_end(vocabulary.types[i], text, i)) continue;
    has_return |= text == "<|return|>";
    has_call |= text == "<|call|>";
    has_calls |= text == "<|calls|>";
    has_flush |= text == "<|flush|>";
    if (text == "<|end|>") {
      end = static_cast<TokenId>(i);
    } else {
      vocabulary.ends.push_back(static_cast<TokenId>(i));
    }
  }
  // Where turns have several messages, <|end|> ends a message and other tokens the turn.
  const bool ends_message = (has_return && has_call) || (has_calls && has_flush);
  if (end && !ends_message) vocabulary.ends.push_back(*end);
}

Result<std::optional<TokenId>> special_id(const file::Gguf& gguf, std::string_view key,
                                          std::size_t tokens) {
  ESPALIER_TRY(const auto id, gguf.unsigned_integer(key));
  if (!id) return std::optional<TokenId>();
  if (*id >= tokens) {
    return input_error("{}: metadata key '{}' is {}, expected a token id below {}", gguf.name(),
                       key, *id, tokens);
  }
  return std::optional<TokenId>(static_cast<TokenId>(*id));
}

Status check_count(const file::Gguf& gguf, std::string_view key, std::size_t found,
                   std::size_t expected) {
  if (found == expected) return {};
  return input_error("{}: metadata key '{}' has {} elements, expected {}, one per token",
                     gguf.name(), key, found, expected);
}

}  // namespace

Result<Vocabulary> read_vocabulary(const file::Gguf& gguf) {
  Vocabulary vocabulary;
  vocabulary.name = gguf.name();

  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  ESPALIER_TRY(vocabulary.tokens, required(gguf, kTokens, gguf.strings(kTokens)));
  const std::size_t count = vocabulary.tokens.size();
  if (count == 0) {
    return input_error("{}: metadata key '{}' is empty, expected at least one token", gguf.name(),
                       kTokens);
  }
  if (count > std::size_t{1} << 30) {
    return input_error("{}: metadata key '{}' has {} elements, expected at most {}", gguf.name(),
                       kTokens, count, std::size_t{1} << 30);
  }

  constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
  ESPALIER_TRY(const auto types, gguf.integers(kTypes));
  vocabulary.types.assign(count, TokenType::kNormal);
  if (types) {
    ESPALIER_CHECK(check_count(gguf, kTypes, types->size(), count));
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t type = (*types)[i];
      if (type < 0 || type > 6) {
        return input_error("{}: metadata key '{}' has type {} for token {}, expected 1 to 6",
                           gguf.name(), kTypes, type, i);
      }
      // 0 is written for what a converter could not tell.
      vocabulary.types[i] = type == 0 ? TokenType::kUnused : static_cast<TokenType>(type);
    }
  }

  constexpr std::string_view kScores = "tokenizer.ggml.scores";
  ESPALIER_TRY(auto scores, gguf.numbers(kScores));
  if (scores) {
    ESPALIER_CHECK(check_count(gguf, kScores, scores->size(), count));
    vocabulary.scores = std::move(*scores);
  }

  ESPALIER_TRY(auto merges, gguf.strings("tokenizer.ggml.merges"));
  if (merges) vocabulary.merges = std::move(*merges);

  ESPALIER_TRY(vocabulary.bos, special_id(gguf, "tokenizer.ggml.bos_token_id", count));
  ESPALIER_TRY(vocabulary.eos, special_id(gguf, "tokenizer.ggml.eos_token_id", count));
  ESPALIER_TRY(vocabulary.unknown, special_id(gguf, "tokenizer.ggml.unknown_token_id", count));
  for (const std::string_view key :
       {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    ESPALIER_TRY(const auto id, special_id(gguf, key, count));
    if (id) vocabulary.ends.push_back(*id);
  }
  find_ends(vocabulary);
  return vocabulary;
}

std::string with_spaces(std::string_view text) {
  std::string spaced;
  spaced.reserve(text.size());
  std::size_t done = 0;
  while (true) {
    const std::size_t mark = text.find(kSpaceMark, done);
    spaced += text.substr(done, mark - done);
    if (mark == std::string_view::npos) return spaced;
    spaced += ' ';
    done = mark + kSpaceMark.size();
  }
}

std::optional<std::string> spelled_bytes(std::string_view text, Spelling spelling) {
  if (spelling == Spelling::kSentencePiece) return with_spaces(text);
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = utf8_character(text);
    if (length == 0) return std::nullopt;
    const char32_t character = utf8_code_point(text, length);
    if (character >= kByteLevelCharacters || kByteOfCharacter[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOfCharacter[character]);
    text.remove_prefix(length);
  }
  return bytes;
}

Result<std::vector<std::string>> token_pieces(const Vocabulary& vocabulary, Spelling spelling) {
  std::vector<std::string> pieces;
  pieces.reserve(vocabulary.tokens.size());
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view text = vocabulary.tokens[i];
    switch (vocabulary.types[i]) {
      case TokenType::kByte: {
        const std::optional<char> byte = byte_token(text);
        if (!byte) {
          return input_error(
              "{}: metadata key 'tokenizer.ggml.tokens': token {} is '{}' and by its type a byte, "
              "expected a text like '<0x0A>'",
              vocabulary.name, i, printable(text));
        }
        pieces.emplace_back(1, *byte);
        break;
      }
      case TokenType::kNormal:
      case TokenType::kUnused:
        pieces.push_back(spelled_bytes(text, spelling).value_or(std::string(text)));
        break;
      case TokenType::kUnknown:
      case TokenType::kControl:
      case TokenType::kUserDefined:
        pieces.emplace_back(text);
        break;
    }
  }
  return pieces;
}

}  // namespace espalier::text
