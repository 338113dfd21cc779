#include "text/vocabulary.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "base/printable.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

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

// The character of each byte, as UTF-8.
const std::array<std::string, 256> kCharacterOfByte = [] {
  std::array<std::string, 256> table;
  for (std::size_t character = 0; character < kByteLevelCharacters; ++character) {
    const int byte = kByteOfCharacter[character];
    if (byte < 0) continue;
    std::string& spelled = table[static_cast<std::size_t>(byte)];
    if (character >= 0x80) spelled += static_cast<char>(0xc0 | character >> 6);
    spelled += static_cast<char>(character < 0x80 ? character : 0x80 | (character & 0x3f));
  }
  return table;
}();

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
  // </s> also ends what is struck out in HTML, as in Gemma's vocabulary. Llama's has it in place 2.
  if (text == "</s>") return type != TokenType::kUserDefined || id == 2;
  return kEndTexts.contains(text);
}

}  // namespace

void find_ends(Vocabulary& vocabulary, std::span<const TokenType> types) {
  std::optional<TokenId> end;
  bool has_return = false, has_call = false, has_calls = false, has_flush = false;
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view text = vocabulary.tokens[i];
    const TokenType type = vocabulary.types[i];
    const bool wanted = std::find(types.begin(), types.end(), type) != types.end();
    if (!wanted || !may_end(type, text, i)) continue;
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

std::optional<MergeRule> split_merge(std::string_view text) {
  const std::size_t space = text.find(' ', 1);
  if (text.empty() || space == std::string_view::npos || space + 1 == text.size()) {
    return std::nullopt;
  }
  return MergeRule{text.substr(0, space), text.substr(space + 1)};
}

std::string byte_level_spelling(std::string_view bytes) {
  std::string spelled;
  spelled.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    spelled += kCharacterOfByte[static_cast<unsigned char>(byte)];
  }
  return spelled;
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
  if (spelling == Spelling::kPlain) return std::string(text);
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
        pieces.emplace_back(spelling == Spelling::kPlain ? std::string(text)
                                                         : std::string(1, *byte));
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
