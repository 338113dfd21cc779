#include "text/tokenizer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <tuple>
#include <utility>

#include "base/printable.h"
#include "text/encoder.h"
#include "text/special_tokens.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

// What a vocabulary adds to a text, and what it takes for the end.
struct Options {
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;
  std::vector<bool> strips_right;  // by id: white space after the token goes with it
};

// Length of the white space that `text` begins with (Unicode's White_Space).
std::size_t leading_space(std::string_view text) {
  const auto is_space = [](char32_t c) {
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
  };
  std::size_t end = 0;
  while (const std::size_t length = utf8_character(text.substr(end))) {
    if (!is_space(utf8_code_point(text.substr(end), length))) break;
    end += length;
  }
  return end;
}

// Stretches of a text, added from left to right; those that touch are one.
class Ranges {
 public:
  void add(std::size_t begin, std::size_t length) {
    if (length == 0) return;
    if (!ranges_.empty() && ranges_.back().second == begin) {
      ranges_.back().second += length;
    } else {
      ranges_.emplace_back(begin, begin + length);
    }
  }

  // True if one of them holds all of [begin, begin + length).
  [[nodiscard]] bool contain(std::size_t begin, std::size_t length) const {
    const auto after = std::partition_point(
        ranges_.begin(), ranges_.end(), [&](const auto& range) { return range.first <= begin; });
    return after != ranges_.begin() && begin + length <= std::prev(after)->second;
  }

 private:
  std::vector<std::pair<std::size_t, std::size_t>> ranges_;  // begin, end
};

class VocabularyTokenizer : public Tokenizer {
 public:
  using Tokenizer::encode;

  VocabularyTokenizer(const Vocabulary& vocabulary, std::vector<std::string> pieces,
                      std::unique_ptr<TextEncoder> encoder, Options options)
      : pieces_(std::move(pieces)),
        types_(vocabulary.types),
        encoder_(std::move(encoder)),
        options_(std::move(options)),
        bos_(vocabulary.bos),
        eos_(vocabulary.eos),
        ends_(pieces_.size()) {
    std::vector<SpecialTokens::Entry> specials;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (types_[i] != TokenType::kUserDefined && !is_control(i)) continue;
      specials.push_back({pieces_[i], static_cast<TokenId>(i)});
    }
    specials_ = SpecialTokens(std::move(specials));
    for (const TokenId id : vocabulary.ends) ends_[static_cast<std::size_t>(id)] = true;
    if (eos_) ends_[static_cast<std::size_t>(*eos_)] = true;
  }

  std::vector<TokenId> encode(std::span<const TextPart> parts,
                              AddSpecial add_special) const override {
    std::string joined;
    Ranges parsed;
    for (const TextPart& part : parts) {
      if (part.parse_special == ParseSpecial::kYes) parsed.add(joined.size(), part.text.size());
      joined += part.text;
    }
    const std::string_view text = joined;
    const auto allowed = [&](const SpecialTokens::Match& match) {
      return !is_control(static_cast<std::size_t>(match.id)) ||
             parsed.contain(match.begin, match.length);
    };
    std::vector<TokenId> ids;
    if (add_special == AddSpecial::kYes && options_.add_bos) ids.push_back(*bos_);
    std::size_t done = 0;
    while (const auto special = specials_.find(text, done, allowed)) {
      encode_text(text.substr(done, special->begin - done), ids);
      ids.push_back(special->id);
      done = special->begin + special->length;
      if (options_.strips_right[static_cast<std::size_t>(special->id)]) {
        done += leading_space(text.substr(done));
      }
    }
    encode_text(text.substr(done), ids);
    if (add_special == AddSpecial::kYes && options_.add_eos) ids.push_back(*eos_);
    return ids;
  }

  Result<std::string> piece(TokenId id, ControlTokens control) const override {
    if (id < 0 || static_cast<std::size_t>(id) >= pieces_.size()) {
      return input_error("token id {} is out of range, expected 0 to {}", id, pieces_.size() - 1);
    }
    const auto index = static_cast<std::size_t>(id);
    if (control == ControlTokens::kSkip && (is_control(index) || ends_[index])) {
      return std::string();
    }
    return pieces_[index];
  }

  std::size_t vocab_size() const override { return pieces_.size(); }
  bool ends_generation(TokenId id) const override {
    return id >= 0 && static_cast<std::size_t>(id) < ends_.size() &&
           ends_[static_cast<std::size_t>(id)];
  }
  std::optional<TokenId> begin_of_sequence() const override { return bos_; }
  std::optional<TokenId> end_of_sequence() const override { return eos_; }
  bool adds_space_prefix() const override { return options_.add_space_prefix; }

 private:
  bool is_control(std::size_t id) const {
    return types_[id] == TokenType::kControl || types_[id] == TokenType::kUnknown;
  }

  // Encodes what lies between special tokens; each such text gets a space of its own.
  void encode_text(std::string_view text, std::vector<TokenId>& ids) const {
    if (text.empty()) return;
    std::string prefixed;
    if (options_.add_space_prefix) {
      prefixed.reserve(text.size() + 1);
      text = prefixed.append(1, ' ').append(text);
    }
    encoder_->encode(text, ids);
  }

  std::vector<std::string> pieces_;
  std::vector<TokenType> types_;
  std::unique_ptr<TextEncoder> encoder_;  // looks at pieces_
  Options options_;
  std::optional<TokenId> bos_, eos_;
  std::vector<bool> ends_;
  SpecialTokens specials_;  // looks at pieces_
};

// Phi-3's special tokens take the white space after them; GGUF has no key for that. Not these
// three, which are Llama's.
std::vector<bool> tokens_that_strip(const Vocabulary& vocabulary, std::string_view model_name) {
  std::vector<bool> strips(vocabulary.tokens.size());
  std::string name(model_name);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos) {
    return strips;
  }
  for (std::size_t i = 0; i < strips.size(); ++i) {
    const TokenType type = vocabulary.types[i];
    const std::string_view text = vocabulary.tokens[i];
    const bool special = type == TokenType::kControl || type == TokenType::kUnknown ||
                         type == TokenType::kUserDefined;
    strips[i] = special && text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
  }
  return strips;
}

// The entry of the table that the file names.
Result<const PreTokenizerSpec*> pre_tokenizer_of(const file::Gguf& gguf, std::string_view model) {
  constexpr std::string_view kPre = "tokenizer.ggml.pre";
  ESPALIER_TRY(const auto pre, gguf.string(kPre));
  if (model == "gemma4") return find_pre_tokenizer("gemma4");
  if (!pre) {
    spdlog::warn(
        "{}: metadata key '{}' is missing; words are cut as by 'default', which may not be how the "
        "model was trained",
        gguf.name(), kPre);
    return find_pre_tokenizer("default");
  }
  const PreTokenizerSpec* spec = find_pre_tokenizer(*pre);
  if (spec == nullptr) {
    return input_error(
        "{}: metadata key '{}' is '{}', expected a pre-tokenizer that is known here, such as "
        "'default', 'gpt-2', 'llama-bpe' or 'qwen2'",
        gguf.name(), kPre, printable(*pre));
  }
  return spec;
}

}  // namespace

std::vector<TokenId> Tokenizer::encode(std::string_view text, AddSpecial add_special,
                                       ParseSpecial parse_special) const {
  const TextPart parts[] = {{text, parse_special}};
  return encode(parts, add_special);
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, ControlTokens control) const {
  std::string text;
  for (const TokenId id : ids) {
    ESPALIER_TRY(const std::string bytes, piece(id, control));
    text += bytes;
  }
  return text;
}

Result<std::string> Tokenizer::detokenize(std::span<const TokenId> ids) const {
  ESPALIER_TRY(std::string text, decode(ids, ControlTokens::kPrint));
  if (adds_space_prefix() && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

Result<std::unique_ptr<Tokenizer>> tokenizer_from_gguf(const file::Gguf& gguf) {
  constexpr std::string_view kModel = "tokenizer.ggml.model";
  ESPALIER_TRY(const std::string_view model, required(gguf, kModel, gguf.string(kModel)));
  const bool sentence_piece = model == "llama";
  if (!sentence_piece && model != "gpt2" && model != "gemma4") {
    return input_error(
        "{}: metadata key '{}' is '{}', expected 'gpt2' or 'gemma4' (byte pair encoding) or "
        "'llama' (SentencePiece)",
        gguf.name(), kModel, printable(model));
  }

  ESPALIER_TRY(Vocabulary vocabulary, read_vocabulary(gguf));
  Options options;
  std::unique_ptr<TextEncoder> encoder;
  std::vector<std::string> pieces;
  if (sentence_piece) {
    // Llama's own files leave out what its first vocabulary had.
    const auto has = [&](std::size_t id) { return id < vocabulary.tokens.size(); };
    if (!vocabulary.unknown && has(0)) vocabulary.unknown = 0;
    if (!vocabulary.bos && has(1)) vocabulary.bos = 1;
    if (!vocabulary.eos && has(2)) vocabulary.eos = 2;
    ESPALIER_TRY(const auto prefix, gguf.boolean("tokenizer.ggml.add_space_prefix"));
    options.add_space_prefix = prefix.value_or(true);
    options.add_bos = true;
    ESPALIER_TRY(pieces, token_pieces(vocabulary, Spelling::kSentencePiece));
    ESPALIER_TRY(encoder, sentence_piece_encoder(vocabulary, pieces));
  } else {
    constexpr std::string_view kMerges = "tokenizer.ggml.merges";
    if (gguf.find(kMerges) == nullptr) {
      return input_error("{}: metadata key '{}' is missing", gguf.name(), kMerges);
    }
    ESPALIER_TRY(const PreTokenizerSpec* pre, pre_tokenizer_of(gguf, model));
    options.add_bos = pre->add_bos;
    ESPALIER_TRY(pieces, token_pieces(vocabulary, pre->spelling));
    ESPALIER_TRY(encoder, byte_pair_encoder(vocabulary, pieces, *pre));
  }

  ESPALIER_TRY(const auto add_bos, gguf.boolean("tokenizer.ggml.add_bos_token"));
  ESPALIER_TRY(const auto add_eos, gguf.boolean("tokenizer.ggml.add_eos_token"));
  options.add_bos = add_bos.value_or(options.add_bos);
  options.add_eos = add_eos.value_or(options.add_eos);
  for (const auto& [add, id, key] : {std::tuple(&options.add_bos, vocabulary.bos, "bos"),
                                     std::tuple(&options.add_eos, vocabulary.eos, "eos")}) {
    if (!*add || id) continue;
    spdlog::warn(
        "{}: texts should get the token of metadata key 'tokenizer.ggml.{}_token_id', which is "
        "missing; they go without",
        gguf.name(), key);
    *add = false;
  }
  ESPALIER_TRY(const auto model_name, gguf.string("general.name"));
  options.strips_right = tokens_that_strip(vocabulary, model_name.value_or(""));
  return std::unique_ptr<Tokenizer>(std::make_unique<VocabularyTokenizer>(
      vocabulary, std::move(pieces), std::move(encoder), std::move(options)));
}

}  // namespace espalier::text
