// Tokenizers from the tokenizer.ggml.* keys of GGUF.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>

#include "base/printable.h"
#include "file/gguf.h"
#include "text/encoder.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/tokenizer_parts.h"

namespace espalier::text {
namespace {

constexpr std::string_view kMerges = "tokenizer.ggml.merges";

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

// Reads the keys tokenizer.ggml.{tokens, token_type, scores, merges, *_token_id}. Lists that are
// missing, of another type or of another length than `tokens`, and ids outside of it, are errors.
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
  if (count > kMaxTokens) {
    return input_error("{}: metadata key '{}' has {} elements, expected at most {}", gguf.name(),
                       kTokens, count, kMaxTokens);
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

  ESPALIER_TRY(const auto merges, gguf.strings(kMerges));
  vocabulary.merges_name = fmt::format("metadata key '{}'", kMerges);
  if (merges) {
    vocabulary.merges.reserve(merges->size());
    for (const std::string_view text : *merges) {
      const std::optional<MergeRule> merge = split_merge(text);
      if (!merge) {
        return input_error("{}: {}: merge {} is '{}', expected two texts with a space between them",
                           gguf.name(), vocabulary.merges_name, vocabulary.merges.size(),
                           printable(text));
      }
      vocabulary.merges.push_back(*merge);
    }
  }

  ESPALIER_TRY(vocabulary.bos, special_id(gguf, "tokenizer.ggml.bos_token_id", count));
  ESPALIER_TRY(vocabulary.eos, special_id(gguf, "tokenizer.ggml.eos_token_id", count));
  ESPALIER_TRY(vocabulary.unknown, special_id(gguf, "tokenizer.ggml.unknown_token_id", count));
  for (const std::string_view key :
       {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    ESPALIER_TRY(const auto id, special_id(gguf, key, count));
    if (id) vocabulary.ends.push_back(*id);
  }
  constexpr TokenType kNamed[] = {TokenType::kControl, TokenType::kUserDefined};
  find_ends(vocabulary, kNamed);
  return vocabulary;
}

// White space beside some tokens goes with them, which GGUF has no key for: all special tokens of
// Phi-3 but three that are Llama's, and the mask of some encoders. As llama.cpp, by name.
void set_strips(std::vector<AddedToken>& tokens, std::string_view model_name,
                std::string_view pre) {
  std::string name(model_name);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto names = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  const bool phi3 = names("phi-3") || names("phi3");
  const bool jina = pre == "jina-v2-es" || pre == "jina-v2-de" || pre == "jina-v2-code";
  for (AddedToken& token : tokens) {
    token.strips_right =
        phi3 && token.text != "<unk>" && token.text != "<s>" && token.text != "<|endoftext|>";
    token.strips_left =
        (jina && token.text == "<mask>") || (names("modern-bert") && token.text == "[MASK]");
  }
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

// The tokens that are found before anything else is: control and user-defined ones.
std::vector<AddedToken> added_tokens(const Vocabulary& vocabulary) {
  std::vector<AddedToken> added;
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const bool control = is_control(vocabulary.types[i]);
    if (!control && vocabulary.types[i] != TokenType::kUserDefined) continue;
    added.push_back({.text = std::string(vocabulary.tokens[i]),
                     .id = static_cast<TokenId>(i),
                     .control = control});
  }
  return added;
}

// Whether a token is put before or after a text: by the key, or `otherwise`.
Status set_edge(const file::Gguf& gguf, std::string_view name, bool otherwise,
                std::optional<TokenId> id, std::vector<TokenId>& edge) {
  ESPALIER_TRY(const auto add, gguf.boolean(fmt::format("tokenizer.ggml.add_{}_token", name)));
  if (!add.value_or(otherwise)) return {};
  if (id) {
    edge.push_back(*id);
  } else {
    spdlog::warn(
        "{}: texts should get the token of metadata key 'tokenizer.ggml.{}_token_id', which is "
        "missing; they go without",
        gguf.name(), name);
  }
  return {};
}

// The steps and the encoder of vocabularies whose pieces are merged by score.
Status set_sentence_piece(const file::Gguf& gguf, Vocabulary& vocabulary, TokenizerParts& parts) {
  // Llama's own files leave out what its first vocabulary had.
  const auto has = [&](std::size_t id) { return id < vocabulary.tokens.size(); };
  if (!vocabulary.unknown && has(0)) vocabulary.unknown = 0;
  if (!vocabulary.bos && has(1)) vocabulary.bos = 1;
  if (!vocabulary.eos && has(2)) vocabulary.eos = 2;
  ESPALIER_TRY(const auto prefix, gguf.boolean("tokenizer.ggml.add_space_prefix"));
  if (prefix.value_or(true)) {
    parts.normalizer.push_back(prepend(" "));
    parts.trims.push_back({.character = " ", .start = 1});
  }
  parts.normalizer.push_back(replace(std::string(kSpaceMark), " "));
  ESPALIER_TRY(parts.pieces, token_pieces(vocabulary, Spelling::kSentencePiece));
  ESPALIER_TRY(parts.encoder, sentence_piece_encoder(vocabulary, parts.pieces));
  return {};
}

Status set_byte_pair(const Vocabulary& vocabulary, const PreTokenizerSpec& pre,
                     TokenizerParts& parts) {
  if (pre.spelling == Spelling::kSentencePiece) {
    parts.normalizer.push_back(replace(std::string(kSpaceMark), " "));
  }
  if (pre.nfc) parts.normalizer.push_back(normal_form(NormalForm::kC));
  ESPALIER_TRY(parts.pre_tokenizer, compile(pre));
  ESPALIER_TRY(parts.pieces, token_pieces(vocabulary, pre.spelling));
  ESPALIER_TRY(parts.encoder, byte_pair_encoder(vocabulary, parts.pieces,
                                                {.spelling = pre.spelling,
                                                 .ignore_merges = pre.ignore_merges,
                                                 .newline_tokens = pre.newline_tokens}));
  return {};
}

}  // namespace

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
  TokenizerParts parts;
  bool add_bos = true;
  if (sentence_piece) {
    ESPALIER_CHECK(set_sentence_piece(gguf, vocabulary, parts));
  } else {
    if (gguf.find(kMerges) == nullptr) {
      return input_error("{}: metadata key '{}' is missing", gguf.name(), kMerges);
    }
    ESPALIER_TRY(const PreTokenizerSpec* pre, pre_tokenizer_of(gguf, model));
    ESPALIER_CHECK(set_byte_pair(vocabulary, *pre, parts));
    add_bos = pre->add_bos;
  }
  ESPALIER_CHECK(set_edge(gguf, "bos", add_bos, vocabulary.bos, parts.before));
  ESPALIER_CHECK(set_edge(gguf, "eos", false, vocabulary.eos, parts.after));
  ESPALIER_TRY(const auto model_name, gguf.string("general.name"));
  ESPALIER_TRY(const auto pre_name, gguf.string("tokenizer.ggml.pre"));
  std::vector<AddedToken> added = added_tokens(vocabulary);
  set_strips(added, model_name.value_or(""), pre_name.value_or(""));
  parts.added = AddedTokens(std::move(added));
  parts.set_vocabulary(vocabulary);
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace espalier::text
