// Tokenizers from the tokenizer.json of Hugging Face directories and the files beside it.
#include <algorithm>
#include <unordered_map>

#include "base/mapped_file.h"
#include "base/printable.h"
#include "text/encoder.h"
#include "text/hf_pipeline.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

namespace espalier::text {
namespace {

using file::Json;
using file::JsonObject;

// Ids without a token are harmless, but each takes memory that the file does not account for.
constexpr std::size_t kMaxUnusedIds = 1 << 16;

// An added token as the file lists it.
struct Added {
  AddedToken token;
  std::string_view text;  // as the document holds it
  bool in_model = false;  // its text is also in the model's own vocabulary
};

// The document while it is read. The views of `vocabulary` look at it.
struct Reader {
  JsonObject document;
  JsonObject model;
  Vocabulary vocabulary;
  std::vector<Added> added;
  bool byte_fallback = false;
};

std::string token_name(std::string_view text) { return fmt::format("'{}'", printable(text)); }

Status add_token(std::string_view text, const Json& id, const std::string& where,
                 std::vector<std::pair<std::size_t, std::string_view>>& tokens) {
  if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kMaxTokens) {
    return input_error("{}: the id of {} is {}, expected 0 to {}", where, token_name(text),
                       id.is_number() ? printable(id.dump()) : file::json_kind(id), kMaxTokens - 1);
  }
  tokens.emplace_back(id.get<std::uint64_t>(), text);
  return {};
}

// Puts the tokens in the order of their ids.
Status set_tokens(Reader& reader, std::vector<std::pair<std::size_t, std::string_view>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  const std::string& name = reader.document.where();
  if (tokens.empty()) return input_error("{}: the vocabulary is empty", name);
  const std::size_t count = tokens.back().first + 1;
  if (count > tokens.size() + kMaxUnusedIds) {
    return input_error(
        "{}: token {} has id {}, but there are only {} tokens; at most {} ids may be unused", name,
        token_name(tokens.back().second), tokens.back().first, tokens.size(), kMaxUnusedIds);
  }
  Vocabulary& vocabulary = reader.vocabulary;
  vocabulary.tokens.resize(count);
  vocabulary.types.assign(count, TokenType::kUnused);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto& [id, text] = tokens[i];
    if (i > 0 && tokens[i - 1].first == id) {
      return input_error("{}: tokens {} and {} have the same id, {}", name,
                         token_name(tokens[i - 1].second), token_name(text), id);
    }
    vocabulary.tokens[id] = text;
    vocabulary.types[id] =
        reader.byte_fallback && byte_token(text) ? TokenType::kByte : TokenType::kNormal;
  }
  return {};
}

// "added_tokens": [{"id": 0, "content": "<s>", "special": true, …}, …]
Status read_added(Reader& reader) {
  const Json* list = reader.document.find("added_tokens");
  if (list == nullptr) return {};
  if (!list->is_array()) {
    return input_error("{}: key 'added_tokens' is {}, expected an array", reader.document.where(),
                       file::json_kind(*list));
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}: added_tokens[{}]", reader.document.where(), i);
    if (!(*list)[i].is_object()) {
      return input_error("{} is {}, expected an object", where, file::json_kind((*list)[i]));
    }
    const JsonObject object((*list)[i], where);
    Added added;
    ESPALIER_TRY(const auto id, object.unsigned_integer("id"));
    ESPALIER_TRY(const auto content, object.string("content"));
    if (!id || *id >= kMaxTokens || !content) {
      return input_error("{}: found no 'id' below {} and 'content'", where, kMaxTokens);
    }
    added.token.id = static_cast<TokenId>(*id);
    added.token.text = *content;
    added.text = object.find("content")->get_ref<const std::string&>();
    for (const auto& [key, value] : {std::pair("special", &added.token.control),
                                     std::pair("single_word", &added.token.single_word),
                                     std::pair("lstrip", &added.token.strips_left),
                                     std::pair("rstrip", &added.token.strips_right),
                                     std::pair("normalized", &added.token.normalized)}) {
      ESPALIER_TRY(const auto flag, object.boolean(key));
      *value = flag.value_or(false);
    }
    reader.added.push_back(std::move(added));
  }
  return {};
}

// The tokens of the model and the added ones. A token may be both, under the same id.
Status read_tokens(Reader& reader) {
  const Json* vocab = reader.model.find("vocab");
  const bool is_list = vocab != nullptr && vocab->is_array();
  const std::string where = reader.model.where() + ": vocab";
  std::vector<std::pair<std::size_t, std::string_view>> tokens;
  std::unordered_map<std::string_view, std::size_t> ids;
  if (is_list) {
    for (std::size_t i = 0; i < vocab->size(); ++i) {
      const Json& entry = (*vocab)[i];
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
          !entry[1].is_number()) {
        return input_error("{}[{}] is not a text and its score", where, i);
      }
      tokens.emplace_back(i, entry[0].get_ref<const std::string&>());
      reader.vocabulary.scores.push_back(entry[1].get<double>());
    }
  } else if (vocab != nullptr && vocab->is_object()) {
    for (const auto& [text, id] : vocab->items()) {
      ESPALIER_CHECK(add_token(text, id, where, tokens));
    }
  } else {
    return input_error("{} is {}, expected an object or an array", where,
                       vocab == nullptr ? "missing" : file::json_kind(*vocab));
  }
  for (const auto& [id, text] : tokens) ids.emplace(text, id);
  for (Added& added : reader.added) {
    const auto found = ids.find(added.text);
    added.in_model = found != ids.end();
    if (!added.in_model) {
      tokens.emplace_back(static_cast<std::size_t>(added.token.id), added.text);
    } else if (found->second != static_cast<std::size_t>(added.token.id)) {
      return input_error("{}: added token {} has id {}, but {} in the model's vocabulary",
                         reader.document.where(), token_name(added.token.text), added.token.id,
                         found->second);
    }
  }
  ESPALIER_CHECK(set_tokens(reader, std::move(tokens)));
  for (const Added& added : reader.added) {
    reader.vocabulary.types[static_cast<std::size_t>(added.token.id)] =
        added.token.control ? TokenType::kControl : TokenType::kUserDefined;
  }
  return {};
}

Status set_unknown(Reader& reader, std::size_t id) {
  if (id >= reader.vocabulary.tokens.size()) {
    return input_error("{}: the unknown token has id {}, expected one below {}",
                       reader.model.where(), id, reader.vocabulary.tokens.size());
  }
  reader.vocabulary.unknown = static_cast<TokenId>(id);
  reader.vocabulary.types[id] = TokenType::kUnknown;
  return {};
}

Result<TokenId> find_token(const Vocabulary& vocabulary, std::string_view text,
                           const std::string& where) {
  const auto found = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), text);
  if (text.empty() || found == vocabulary.tokens.end()) {
    return input_error("{} is {}, expected a token of the vocabulary", where, token_name(text));
  }
  return static_cast<TokenId>(found - vocabulary.tokens.begin());
}

// "merges": ["a b", …] or [["a", "b"], …].
Status read_merges(Reader& reader) {
  const Json* merges = reader.model.find("merges");
  reader.vocabulary.merges_name = "model: merges";
  if (merges == nullptr || !merges->is_array()) {
    return input_error("{}: key 'merges' is {}, expected an array", reader.model.where(),
                       merges == nullptr ? "missing" : file::json_kind(*merges));
  }
  reader.vocabulary.merges.reserve(merges->size());
  for (std::size_t i = 0; i < merges->size(); ++i) {
    const Json& merge = (*merges)[i];
    std::optional<MergeRule> rule;
    if (merge.is_string()) {
      rule = split_merge(merge.get_ref<const std::string&>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      rule = {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
    }
    if (!rule) {
      return input_error("{}: merges[{}] is {}, expected two texts", reader.model.where(), i,
                         merge.is_string() ? token_name(merge.get_ref<const std::string&>())
                                           : std::string(file::json_kind(merge)));
    }
    reader.vocabulary.merges.push_back(*rule);
  }
  return {};
}

// The tokens' spellings for the model, which does not know added tokens of other texts.
Result<std::vector<std::string>> model_pieces(const Reader& reader, Spelling spelling) {
  ESPALIER_TRY(std::vector<std::string> pieces, token_pieces(reader.vocabulary, spelling));
  for (const Added& added : reader.added) {
    if (!added.in_model) pieces[static_cast<std::size_t>(added.token.id)].clear();
  }
  return pieces;
}

Result<std::unique_ptr<TextEncoder>> read_byte_pair(Reader& reader, Spelling spelling) {
  BytePairOptions options{.spelling = spelling};
  ESPALIER_TRY(const auto unknown, reader.model.string("unk_token"));
  if (unknown && !unknown->empty()) {
    ESPALIER_TRY(const TokenId id, find_token(reader.vocabulary, *unknown,
                                              reader.model.where() + ": key 'unk_token'"));
    ESPALIER_CHECK(set_unknown(reader, static_cast<std::size_t>(id)));
  }
  ESPALIER_TRY(const auto fuse, reader.model.boolean("fuse_unk"));
  ESPALIER_TRY(const auto ignore, reader.model.boolean("ignore_merges"));
  ESPALIER_TRY(const auto prefix, reader.model.string("continuing_subword_prefix"));
  ESPALIER_TRY(const auto suffix, reader.model.string("end_of_word_suffix"));
  options.fuse_unknown = fuse.value_or(false);
  options.ignore_merges = ignore.value_or(false);
  options.subword_prefix = prefix.value_or("");
  options.word_suffix = suffix.value_or("");
  if (spelling == Spelling::kByteLevel &&
      !(options.subword_prefix.empty() && options.word_suffix.empty())) {
    return input_error("{}: a byte-level vocabulary has prefixes or suffixes, expected neither",
                       reader.model.where());
  }
  ESPALIER_CHECK(read_merges(reader));
  ESPALIER_TRY(std::vector<std::string> pieces, model_pieces(reader, spelling));
  return byte_pair_encoder(reader.vocabulary, std::move(pieces), std::move(options));
}

Result<std::unique_ptr<TextEncoder>> read_unigram(Reader& reader, Spelling spelling) {
  if (spelling != Spelling::kPlain) {
    return input_error("{}: a Unigram model follows ByteLevel, expected none",
                       reader.model.where());
  }
  if (reader.vocabulary.scores.empty()) {
    return input_error("{}: key 'vocab' is no array of texts and scores", reader.model.where());
  }
  ESPALIER_TRY(const auto unknown, reader.model.unsigned_integer("unk_id"));
  if (unknown) ESPALIER_CHECK(set_unknown(reader, *unknown));
  ESPALIER_TRY(std::vector<std::string> pieces, model_pieces(reader, spelling));
  return unigram_encoder(reader.vocabulary, std::move(pieces));
}

Result<std::unique_ptr<TextEncoder>> read_model(Reader& reader, Spelling spelling) {
  ESPALIER_TRY(const auto type, reader.model.string("type"));
  // Early files do not say; only one kind has merges.
  const std::string name =
      type.value_or(reader.model.find("merges") != nullptr ? "BPE" : "Unigram");
  const bool byte_pair = name == "BPE";
  if (!byte_pair && name != "Unigram") {
    return input_error("{}: type '{}' is not supported, expected BPE or Unigram",
                       reader.model.where(), printable(name));
  }
  ESPALIER_TRY(const auto byte_fallback, reader.model.boolean("byte_fallback"));
  reader.byte_fallback = byte_fallback.value_or(false);
  ESPALIER_CHECK(read_tokens(reader));
  return byte_pair ? read_byte_pair(reader, spelling) : read_unigram(reader, spelling);
}

// The added tokens that are looked for before normalization, and those after it.
void set_added(Reader& reader, TokenizerParts& parts) {
  std::vector<AddedToken> raw, normalized;
  for (Added& added : reader.added) {
    if (!added.token.normalized) {
      raw.push_back(std::move(added.token));
      continue;
    }
    added.token.text = normalize(parts.normalizer, {std::move(added.token.text), {}}).text;
    normalized.push_back(std::move(added.token));
  }
  parts.added = AddedTokens(std::move(raw));
  parts.added_normalized = AddedTokens(std::move(normalized));
}

// A tokenizer all but finished, and what the files beside it may add to.
struct Draft {
  TokenizerParts parts;
  Vocabulary vocabulary;
};

Result<Draft> read_tokenizer(const Json& json, const std::string& name) {
  const JsonObject document(json, name);
  ESPALIER_TRY(const auto model, document.object("model"));
  if (!model) return input_error("{}: key 'model' is missing", name);
  Reader reader{document, *model, {}, {}};
  reader.vocabulary.name = name;
  TokenizerParts parts;
  ESPALIER_TRY(parts.normalizer, read_normalizer(document));
  ESPALIER_TRY(PreTokenizing pre, read_pre_tokenizer(document));
  parts.pre_tokenizer = std::move(pre.pre_tokenizer);
  ESPALIER_CHECK(read_added(reader));
  ESPALIER_TRY(parts.encoder, read_model(reader, pre.spelling));

  const Vocabulary& vocabulary = reader.vocabulary;
  ESPALIER_TRY(Template around, read_post_processor(document));
  for (std::vector<TokenId>* ids : {&around.before, &around.after}) {
    for (const TokenId id : *ids) {
      if (static_cast<std::size_t>(id) < vocabulary.tokens.size()) continue;
      return input_error("{}: post_processor: token id {} is out of range, expected 0 to {}", name,
                         id, vocabulary.tokens.size() - 1);
    }
  }
  parts.before = std::move(around.before);
  parts.after = std::move(around.after);

  ESPALIER_TRY(Decoding decoding, read_decoder(document));
  std::vector<bool> is_added(vocabulary.tokens.size());
  for (const Added& added : reader.added) is_added[static_cast<std::size_t>(added.token.id)] = true;
  parts.pieces.reserve(vocabulary.tokens.size());
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const std::string_view token = vocabulary.tokens[i];
    parts.pieces.push_back(token.empty() ? "" : decoding.piece(token, is_added[i]));
  }
  if (decoding.byte_fallback) {
    for (const std::string_view token : vocabulary.tokens) {
      parts.byte_tokens.push_back(byte_token(token).has_value());
    }
  }
  parts.replaces_broken = decoding.byte_level;
  parts.drops_first_spaces = decoding.drops_first_spaces;
  parts.trims = std::move(decoding.trims);
  set_added(reader, parts);
  return Draft{std::move(parts), std::move(reader.vocabulary)};
}

std::unique_ptr<Tokenizer> finish(Draft draft) {
  if (draft.vocabulary.ends.empty() && !draft.vocabulary.eos) {
    constexpr TokenType kNamed[] = {TokenType::kControl};
    find_ends(draft.vocabulary, kNamed);
  }
  draft.parts.set_vocabulary(draft.vocabulary);
  return std::make_unique<Tokenizer>(std::move(draft.parts));
}

// The JSON file `name` of a directory, or nothing.
Result<std::optional<Json>> read_optional(const std::filesystem::path& directory,
                                          const char* name) {
  const std::filesystem::path path = directory / name;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::optional<Json>();
  ESPALIER_TRY(Json json, file::read_json(path));
  return std::optional(std::move(json));
}

// A token that a file names: "bos_token": "<s>" or {"content": "<s>", …}. Names of no token count
// as absent: some files give one for a padding that the vocabulary lacks.
Result<std::optional<TokenId>> named_token(const JsonObject& object, std::string_view key,
                                           const Vocabulary& vocabulary) {
  const Json* value = object.find(key);
  if (value == nullptr) return std::optional<TokenId>();
  std::optional<std::string> text;
  if (value->is_object()) {
    ESPALIER_TRY(const auto token, object.object(key));
    ESPALIER_TRY(text, token->string("content"));
  } else {
    ESPALIER_TRY(text, object.string(key));
  }
  const auto found =
      text ? find_token(vocabulary, *text, object.where()) : Result<TokenId>(TokenId{-1});
  return found && *found >= 0 ? std::optional(*found) : std::optional<TokenId>();
}

// "eos_token_id": 2 or [2, 3].
Status add_ends(const JsonObject& object, Vocabulary& vocabulary) {
  const Json* value = object.find("eos_token_id");
  if (value == nullptr) return {};
  const auto add = [&](const Json& id) -> Status {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kMaxTokens) {
      return input_error("{}: key 'eos_token_id' holds {}, expected token ids", object.where(),
                         file::json_kind(id));
    }
    // Of ids beyond the vocabulary, the model may know more than the tokenizer.
    if (id.get<std::uint64_t>() < vocabulary.tokens.size()) {
      vocabulary.ends.push_back(static_cast<TokenId>(id.get<std::uint64_t>()));
    }
    return {};
  };
  if (!value->is_array()) return add(*value);
  for (const Json& id : *value) ESPALIER_CHECK(add(id));
  return {};
}

// Some files say beside the tokenizer whether a token is put at an end of each text; that decides.
Status set_edge(const JsonObject& config, std::string_view key, std::optional<TokenId> token,
                std::vector<TokenId>& edge) {
  ESPALIER_TRY(const auto add, config.boolean(key));
  if (!add || !token) return {};
  const auto found = std::find(edge.begin(), edge.end(), *token);
  if (*add && found == edge.end()) edge.push_back(*token);
  if (!*add && found != edge.end()) edge.erase(found);
  return {};
}

Status read_special_files(const std::filesystem::path& directory, Draft& draft) {
  Vocabulary& vocabulary = draft.vocabulary;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    ESPALIER_TRY(const auto json, read_optional(directory, name));
    if (!json) continue;
    const JsonObject config(*json, (directory / name).string());
    for (const auto& [key, id] :
         {std::pair("bos_token", &vocabulary.bos), std::pair("eos_token", &vocabulary.eos)}) {
      ESPALIER_TRY(const auto token, named_token(config, key, vocabulary));
      if (!*id) *id = token;
    }
    ESPALIER_CHECK(set_edge(config, "add_bos_token", vocabulary.bos, draft.parts.before));
    ESPALIER_CHECK(set_edge(config, "add_eos_token", vocabulary.eos, draft.parts.after));
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    ESPALIER_TRY(const auto json, read_optional(directory, name));
    if (json) ESPALIER_CHECK(add_ends(JsonObject(*json, (directory / name).string()), vocabulary));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> tokenizer_from_json(Bytes bytes, const std::string& name) {
  ESPALIER_TRY(const Json json, file::parse_json(bytes, name));
  ESPALIER_TRY(Draft draft, read_tokenizer(json, name));
  return finish(std::move(draft));
}

Result<std::unique_ptr<Tokenizer>> tokenizer_from_directory(
    const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    const bool other = std::filesystem::exists(directory / "tokenizer.model", error) ||
                       std::filesystem::exists(directory / "vocab.json", error);
    return input_error("{}: there is no tokenizer.json{}", directory.string(),
                       other ? "; save the model once with Transformers' fast tokenizer, which "
                               "makes one from the files that are there"
                             : "");
  }
  ESPALIER_TRY(const Json json, file::read_json(path));
  ESPALIER_TRY(Draft draft, read_tokenizer(json, path.string()));
  ESPALIER_CHECK(read_special_files(directory, draft));
  return finish(std::move(draft));
}

Result<std::vector<NamedTemplate>> chat_templates(const std::filesystem::path& directory) {
  std::vector<NamedTemplate> templates;
  const std::filesystem::path file = directory / "chat_template.jinja";
  std::error_code error;
  if (std::filesystem::exists(file, error)) {
    ESPALIER_TRY(const MappedFile mapped, MappedFile::open(file));
    templates.push_back({"default", std::string(as_text(mapped.bytes()))});
  }
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    ESPALIER_TRY(const auto json, read_optional(directory, name));
    if (!json) continue;
    const JsonObject config(*json, (directory / name).string());
    const Json* value = config.find("chat_template");
    if (value == nullptr) continue;
    if (!value->is_array()) {
      ESPALIER_TRY(auto source, config.string("chat_template"));
      templates.push_back({"default", std::move(*source)});
      continue;
    }
    for (const Json& entry : *value) {
      if (!entry.is_object()) {
        return input_error("{}: key 'chat_template' holds {}, expected objects", config.where(),
                           file::json_kind(entry));
      }
      const JsonObject named(entry, config.where() + ": chat_template");
      ESPALIER_TRY(auto entry_name, named.string("name"));
      ESPALIER_TRY(auto source, named.string("template"));
      if (!entry_name || !source) {
        return input_error("{}: found no 'name' and 'template'", named.where());
      }
      templates.push_back({std::move(*entry_name), std::move(*source)});
    }
  }
  return templates;
}

}  // namespace espalier::text
