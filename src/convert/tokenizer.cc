#include "convert/tokenizer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/printable.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/tokenizer.h"

namespace espalier::convert {
namespace {

using file::Gguf;
using file::GgufMetadata;
using file::HfDirectory;
using file::Json;
using file::JsonObject;
using text::AddSpecial;
using text::ParseSpecial;
using text::TokenId;
using text::Tokenizer;
using text::TokenType;

// What two tokenizers have to agree on to be taken for the same: scripts, cases, digits, marks,
// contractions, white space of all kinds and what most patterns treat specially.
constexpr std::string_view kProbe =
    "The quick brown fox jumps over 13 lazy dogs; it's I'LL we've THEY'RE O'Neil's.\n\n"
    "  two  spaces\tand a tab\r\nCRLF   \n \n  \t trailing \n"
    "1 12 123 1234 12345 1,234.56 3.14e-10 0xFF \u0661\u0662\u0663 \u2167 \u00bd\n"
    "int main(int argc, char** argv) { return a[i]->b != c ? x++ : --y; } // #include <x>\n"
    "camelCase HTTPServer snake_case XMLHttpRequest $100 50% a@b.c https://e.org/x?y=1&z=2\n"
    "na\u00efve \u00dcber Stra\u00dfe e\u0301 \u1e9b\u0323 \u0416\u0443\u043a \u03b1\u03b2\u03b3 "
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u4f60\u597d\u4e16\u754c\uff0c123\u4e2a "
    "\u3053\u3093\u306b\u3061\u306f\u30ab\u30bf\u30ab\u30ca \uc548\ub155 \u2026\u2014\u201cq\u201d "
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 !!! ??? ... ((( [[[ <s> </s> <unk> ~~ "
    "``` "
    "''' \"\"\" ## == => |> \\n \\\\ \u00a0nbsp\u3000wide\u2028line";

std::vector<TokenId> probe_ids(const Tokenizer& tokenizer) {
  return tokenizer.encode(kProbe, AddSpecial::kYes, ParseSpecial::kNo);
}

// Whether texts get this token in front of them.
bool starts_with(const Tokenizer& tokenizer, std::optional<TokenId> token) {
  const std::vector<TokenId> ids = tokenizer.encode("a", AddSpecial::kYes, ParseSpecial::kNo);
  return token && !ids.empty() && ids.front() == *token;
}
bool ends_with(const Tokenizer& tokenizer, std::optional<TokenId> token) {
  const std::vector<TokenId> ids = tokenizer.encode("a", AddSpecial::kYes, ParseSpecial::kNo);
  return token && !ids.empty() && ids.back() == *token;
}

std::string ggml_key(std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); }

// The special tokens that both sides have a name for.
constexpr auto kSpecials = std::to_array<std::string_view>({"bos", "eos", "unk", "pad"});

std::string ggml_special(std::string_view name) {
  return ggml_key(fmt::format("{}_token_id", name == "unk"   ? "unknown"
                                             : name == "pad" ? "padding"
                                                             : name));
}

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";

// --- GGUF to directory ---------------------------------------------------------------------------

struct GgufTokens {
  std::vector<std::string_view> texts;
  std::vector<std::int64_t> types;
};

bool is_type(std::int64_t found, TokenType type) {
  return found == static_cast<std::int64_t>(type);
}

Result<GgufTokens> read_tokens(const Gguf& gguf) {
  GgufTokens tokens;
  const std::string key = ggml_key("tokens");
  ESPALIER_TRY(tokens.texts, file::required(gguf, key, gguf.strings(key)));
  ESPALIER_TRY(auto types, gguf.integers(ggml_key("token_type")));
  tokens.types = types ? std::move(*types) : std::vector<std::int64_t>();
  tokens.types.resize(tokens.texts.size(), static_cast<std::int64_t>(TokenType::kNormal));
  return tokens;
}

Json added_token(std::uint64_t id, std::string_view content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

Json added_tokens(const GgufTokens& tokens) {
  Json added = Json::array();
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    const std::int64_t type = tokens.types[id];
    const bool control = is_type(type, TokenType::kControl) || is_type(type, TokenType::kUnknown);
    if (control || is_type(type, TokenType::kUserDefined)) {
      added.push_back(added_token(id, tokens.texts[id], control));
    }
  }
  return added;
}

// The tokens around a text, as a post-processor.
Json post_processor(const Tokenizer& tokenizer, const GgufTokens& tokens) {
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  Json single = Json::array();
  Json specials = Json::object();
  const auto add = [&](TokenId id) {
    const std::string_view content = tokens.texts[static_cast<std::size_t>(id)];
    single.push_back({{"SpecialToken", {{"id", content}, {"type_id", 0}}}});
    specials[content] = {{"id", content}, {"ids", {id}}, {"tokens", {content}}};
  };
  const auto bos = tokenizer.begin_of_sequence();
  const auto eos = tokenizer.end_of_sequence();
  if (starts_with(tokenizer, bos)) add(*bos);
  single.push_back(text);
  if (ends_with(tokenizer, eos)) add(*eos);
  Json pair = single;
  for (Json part : single) {
    for (auto& [kind, fields] : part.items()) fields["type_id"] = 1;
    if (part.contains("Sequence")) part["Sequence"]["id"] = "B";
    pair.push_back(std::move(part));
  }
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(specials)}};
}

Json vocabulary(const GgufTokens& tokens) {
  Json vocab = Json::object();
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    vocab.emplace(tokens.texts[id], id);  // of equal texts the first counts
  }
  return vocab;
}

// Byte-level BPE.
Result<Json> byte_level_document(const Gguf& gguf, const GgufTokens& tokens) {
  const std::string merges_key = ggml_key("merges");
  ESPALIER_TRY(const auto merges, file::required(gguf, merges_key, gguf.strings(merges_key)));
  ESPALIER_TRY(const auto pre, gguf.string(ggml_key("pre")));
  const text::PreTokenizerSpec* spec = text::find_pre_tokenizer(pre.value_or("default"));
  if (spec == nullptr) {
    return input_error("metadata key '{}': '{}' is not known", ggml_key("pre"), printable(*pre));
  }
  Json steps = Json::array();
  for (const text::SplitStep& step : spec->steps) {
    if (step.cut != text::SplitStep::Cut::kMatches) {
      return input_error(
          "metadata key '{}': '{}' cuts from the right, which no step of a "
          "tokenizer.json does",
          ggml_key("pre"), printable(*pre));
    }
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", step.pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  steps.push_back(byte_level);
  Json pairs = Json::array();
  for (const std::string_view merge : merges) {
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos) {
      return input_error("metadata key '{}': '{}' is no merge", merges_key, printable(merge));
    }
    pairs.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return Json{{"normalizer", spec->nfc ? Json{{"type", "NFC"}} : Json()},
              {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
              {"decoder", byte_level},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", spec->ignore_merges},
                {"vocab", vocabulary(tokens)},
                {"merges", std::move(pairs)}}}};
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

// Merges for pieces with scores: every way to cut a piece in two others, the best pieces first; of
// one piece, and of pieces with equal scores, the longer left parts first.
Json merges_of_scores(const GgufTokens& tokens, const std::vector<double>& scores) {
  std::unordered_map<std::string_view, std::size_t> ids;
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) ids.emplace(tokens.texts[id], id);
  struct Merge {
    double score;
    std::size_t left_characters, right_characters, left, right;
  };
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    if (!is_type(tokens.types[id], TokenType::kNormal)) continue;
    const std::string_view piece = tokens.texts[id];
    for (std::size_t cut = 1; cut < piece.size(); ++cut) {
      if ((piece[cut] & 0xc0) == 0x80) continue;
      const auto left = ids.find(piece.substr(0, cut));
      const auto right = ids.find(piece.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back({scores[id], characters(left->first), characters(right->first), left->second,
                        right->second});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return std::tuple(a.score, a.left_characters, a.right_characters) >
           std::tuple(b.score, b.left_characters, b.right_characters);
  });
  Json pairs = Json::array();
  for (const Merge& merge : merges) {
    pairs.push_back({tokens.texts[merge.left], tokens.texts[merge.right]});
  }
  return pairs;
}

// SentencePiece's BPE, in the form that conversions of Llama 2 have: spaces are written as U+2581,
// and bytes that no piece spells are pieces of their own.
Result<Json> sentence_piece_document(const Gguf& gguf, const GgufTokens& tokens) {
  const std::string scores_key = ggml_key("scores");
  ESPALIER_TRY(auto scores, file::required(gguf, scores_key, gguf.numbers(scores_key)));
  scores.resize(tokens.texts.size());
  ESPALIER_TRY(const auto prefix, gguf.boolean(ggml_key("add_space_prefix")));
  const auto unknown =
      std::find_if(tokens.types.begin(), tokens.types.end(),
                   [](std::int64_t type) { return is_type(type, TokenType::kUnknown); });
  const Json mark = std::string(text::kSpaceMark);
  const auto replace = [](const Json& from, const Json& to) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  Json normalizers = Json::array();
  Json decoders =
      Json::array({replace(mark, " "), Json{{"type", "ByteFallback"}}, Json{{"type", "Fuse"}}});
  if (prefix.value_or(true)) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", mark}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  normalizers.push_back(replace(" ", mark));
  return Json{
      {"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
      {"pre_tokenizer", nullptr},
      {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token",
         unknown == tokens.types.end()
             ? Json()
             : Json(tokens.texts[static_cast<std::size_t>(unknown - tokens.types.begin())])},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"ignore_merges", false},
        {"vocab", vocabulary(tokens)},
        {"merges", merges_of_scores(tokens, scores)}}}};
}

Result<std::string> dump(const Json& document) {
  try {
    return document.dump(1) + "\n";
  } catch (const Json::exception&) {
    return input_error("a token or the chat template is not UTF-8");
  }
}

// tokenizer_config.json, and the ids for config.json and generation_config.json.
Status set_specials(const Gguf& gguf, const GgufTokens& tokens, Json& tokenizer_config,
                    Json& config, Json& generation) {
  for (const std::string_view name : kSpecials) {
    ESPALIER_TRY(const auto id, gguf.unsigned_integer(ggml_special(name)));
    if (!id || *id >= tokens.texts.size()) continue;
    tokenizer_config[fmt::format("{}_token", name)] = tokens.texts[*id];
    if (name == "unk") continue;
    config[fmt::format("{}_token_id", name)] = *id;
    generation[fmt::format("{}_token_id", name)] = *id;
  }
  // What ends a turn ends a generation too.
  for (const std::string_view name : {"eot", "eom"}) {
    ESPALIER_TRY(const auto id, gguf.unsigned_integer(ggml_special(name)));
    if (!id || *id >= tokens.texts.size()) continue;
    Json& ends = generation["eos_token_id"];
    if (!ends.is_array()) ends = ends.is_null() ? Json::array() : Json::array({ends});
    if (std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
  }
  return {};
}

// --- Directory to GGUF ---------------------------------------------------------------------------

// Whether a part of this type is in a tree of pre-tokenizers, normalizers or decoders.
bool uses(const Json& part, std::string_view type) {
  if (part.is_object()) {
    const auto found = part.find("type");
    if (found != part.end() && *found == type) return true;
  }
  return part.is_structured() && std::any_of(part.begin(), part.end(), [type](const Json& inner) {
           return uses(inner, type);
         });
}

struct HfTokens {
  std::vector<std::string> texts;
  std::vector<std::int32_t> types;
  std::unordered_map<std::string, std::size_t> ids;
};

// That the document makes sense was checked when the tokenizer was made from it.
HfTokens read_tokens(const JsonObject& document, const Json& model, std::uint64_t vocab_size) {
  HfTokens tokens;
  const auto put = [&](std::uint64_t id, const std::string& text, TokenType type) {
    if (id >= tokens.texts.size()) {
      tokens.texts.resize(id + 1);
      tokens.types.resize(id + 1, static_cast<std::int32_t>(TokenType::kUnused));
    }
    tokens.texts[id] = text;
    tokens.types[id] = static_cast<std::int32_t>(type);
    tokens.ids.emplace(text, id);
  };
  const bool byte_fallback = model.value("byte_fallback", false);
  for (const auto& [text, id] : model.at("vocab").items()) {
    const bool byte = byte_fallback && text::byte_token(text);
    put(id.get<std::uint64_t>(), text, byte ? TokenType::kByte : TokenType::kNormal);
  }
  if (const Json* added = document.find("added_tokens")) {
    for (const Json& token : *added) {
      const bool special = token.value("special", false);
      put(token.at("id").get<std::uint64_t>(), token.at("content").get<std::string>(),
          special ? TokenType::kControl : TokenType::kUserDefined);
    }
  }
  tokens.texts.resize(std::max<std::size_t>(tokens.texts.size(), vocab_size));
  tokens.types.resize(tokens.texts.size(), static_cast<std::int32_t>(TokenType::kUnused));
  for (std::size_t id = 0; id < tokens.texts.size(); ++id) {
    if (tokens.texts[id].empty()) tokens.texts[id] = fmt::format("[PAD{}]", id);
  }
  return tokens;
}

std::vector<std::string> read_merges(const Json& model) {
  std::vector<std::string> merges;
  for (const Json& merge : model.at("merges")) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
  }
  return merges;
}

// Scores by which SentencePiece's rule, the best piece first, makes the merges in their order.
std::vector<float> scores_of_merges(const HfTokens& tokens,
                                    const std::vector<std::string>& merges) {
  std::vector<float> scores(tokens.texts.size(), 0);
  float rank = 0;
  for (const std::string& merge : merges) {
    std::string piece = merge;
    piece.erase(piece.find(' ', 1), 1);
    const auto found = tokens.ids.find(piece);
    if (found != tokens.ids.end() && scores[found->second] == 0) scores[found->second] = --rank;
  }
  return scores;
}

// The id of a special token by tokenizer_config.json, or else by config.json.
Result<std::optional<std::uint64_t>> special_id(const HfDirectory& directory,
                                                const std::optional<Json>& tokenizer_config,
                                                const HfTokens& tokens, std::string_view name) {
  if (tokenizer_config) {
    const auto found = tokenizer_config->find(fmt::format("{}_token", name));
    const Json* text = found == tokenizer_config->end() ? nullptr : &*found;
    if (text != nullptr && text->is_object() && text->contains("content"))
      text = &text->at("content");
    if (text != nullptr && text->is_string()) {
      const auto id = tokens.ids.find(text->get<std::string>());
      if (id != tokens.ids.end()) return std::optional<std::uint64_t>(id->second);
    }
  }
  const std::string key = fmt::format("{}_token_id", name);
  const Json* value = directory.config().find(key);
  if (value != nullptr && value->is_array() && !value->empty()) value = &value->front();
  if (value == nullptr || !value->is_number_unsigned()) return std::optional<std::uint64_t>();
  return std::optional(value->get<std::uint64_t>());
}

Result<std::unique_ptr<Tokenizer>> tokenizer_of(const GgufMetadata& metadata) {
  const std::string bytes = metadata.bytes();
  ESPALIER_TRY(const Gguf gguf, Gguf::parse(as_bytes(bytes), "GGUF"));
  return text::tokenizer_from_gguf(gguf);
}

// Sets tokenizer.ggml.pre to the first known name that makes of the metadata the tokenizer that
// `wanted` came from; false where there is none.
Result<bool> find_pre(GgufMetadata& metadata, const std::vector<TokenId>& wanted) {
  for (const text::PreTokenizerSpec& spec : text::pre_tokenizers()) {
    if (spec.spelling != text::Spelling::kByteLevel) continue;
    metadata.set(ggml_key("pre"), std::string(spec.names.front()));
    ESPALIER_TRY(const auto tokenizer, tokenizer_of(metadata));
    if (probe_ids(*tokenizer) == wanted) return true;
  }
  return false;
}

Error inexpressible(const std::string& name, std::string_view where) {
  return input_error("{}: the tokenizer cannot be expressed in {}", name, where);
}

Status set_templates(const HfDirectory& directory, GgufMetadata& metadata) {
  ESPALIER_TRY(const auto templates, text::chat_templates(directory.name()));
  std::set<std::string_view> seen;
  for (const text::NamedTemplate& entry : templates) {
    if (!seen.insert(entry.name).second) continue;
    const bool standard = entry.name == "default";
    metadata.set(
        standard ? std::string(kTemplateKey) : fmt::format("{}.{}", kTemplateKey, entry.name),
        entry.source);
  }
  return {};
}

// Of several tokens that end a generation, GGUF has keys for two: beside the end of a text the
// first other one is taken for the end of a turn.
Status set_end_of_turn(const HfDirectory& directory, const HfTokens& tokens,
                       GgufMetadata& metadata) {
  const auto path = directory.find_file("generation_config.json");
  if (!path) return {};
  ESPALIER_TRY(const Json generation, file::read_json(*path));
  const Json ends = generation.value("eos_token_id", Json());
  if (!ends.is_array() || ends.size() < 2) return {};
  const Json& other = ends[1];
  if (!other.is_number_unsigned() || other.get<std::uint64_t>() >= tokens.texts.size()) return {};
  metadata.set(ggml_special("eot"), other.get<std::uint32_t>());
  return {};
}

Status set_ids(const HfDirectory& directory, const HfTokens& tokens, GgufMetadata& metadata) {
  std::optional<Json> tokenizer_config;
  if (const auto path = directory.find_file("tokenizer_config.json")) {
    ESPALIER_TRY(tokenizer_config, file::read_json(*path));
  }
  for (const std::string_view name : kSpecials) {
    ESPALIER_TRY(const auto id, special_id(directory, tokenizer_config, tokens, name));
    if (!id || *id >= tokens.texts.size()) continue;
    metadata.set(ggml_special(name), static_cast<std::uint32_t>(*id));
  }
  return set_end_of_turn(directory, tokens, metadata);
}

}  // namespace

Result<std::map<std::string, std::string>> to_tokenizer_files(const Gguf& gguf, Json& config) {
  std::map<std::string, std::string> files;
  ESPALIER_TRY(const auto model, gguf.string(ggml_key("model")));
  if (!model) return files;
  ESPALIER_TRY(const auto tokenizer, text::tokenizer_from_gguf(gguf));
  ESPALIER_TRY(const GgufTokens tokens, read_tokens(gguf));
  auto document =
      *model == "llama" ? sentence_piece_document(gguf, tokens) : byte_level_document(gguf, tokens);
  if (!document) return input_error("{}: {}", gguf.name(), document.error().message);
  (*document)["version"] = "1.0";
  (*document)["truncation"] = nullptr;
  (*document)["padding"] = nullptr;
  (*document)["added_tokens"] = added_tokens(tokens);
  (*document)["post_processor"] = post_processor(*tokenizer, tokens);

  Json tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                           {"clean_up_tokenization_spaces", false}};
  Json generation = Json::object();
  ESPALIER_CHECK(set_specials(gguf, tokens, tokenizer_config, config, generation));
  ESPALIER_TRY(const auto chat, gguf.string(kTemplateKey));
  if (chat) files["chat_template.jinja"] = *chat;
  for (const auto& [name, json] : {std::pair("tokenizer.json", &*document),
                                   std::pair("tokenizer_config.json", &tokenizer_config),
                                   std::pair("generation_config.json", &generation)}) {
    auto text = dump(*json);
    if (!text) return input_error("{}: {}", gguf.name(), text.error().message);
    files[name] = std::move(*text);
  }
  const auto made = text::tokenizer_from_json(as_bytes(files["tokenizer.json"]), "tokenizer.json");
  if (!made || probe_ids(**made) != probe_ids(*tokenizer)) {
    return inexpressible(gguf.name(), "a tokenizer.json");
  }
  return files;
}

Status set_tokenizer(const HfDirectory& directory, std::uint64_t vocab_size,
                     GgufMetadata& metadata) {
  const auto path = directory.find_file("tokenizer.json");
  if (!path) {
    spdlog::warn("{}: has no tokenizer.json, so the GGUF file has no tokenizer", directory.name());
    return {};
  }
  ESPALIER_TRY(const auto tokenizer, text::tokenizer_from_directory(directory.name()));
  ESPALIER_TRY(const Json json, file::read_json(*path));
  const JsonObject document(json, path->string());
  ESPALIER_TRY(const auto model, document.object("model"));
  if (!model || !model->json().value("vocab", Json()).is_object() ||
      !model->json().value("merges", Json()).is_array()) {
    return inexpressible(path->string(), "GGUF: it is not byte pair encoding");
  }
  const HfTokens tokens = read_tokens(document, model->json(), vocab_size);
  const std::vector<std::string> merges = read_merges(model->json());
  const bool byte_level = uses(json, "ByteLevel");
  metadata.set(ggml_key("model"), std::string(byte_level ? "gpt2" : "llama"));
  metadata.set(ggml_key("pre"), std::string("default"));
  metadata.set(ggml_key("tokens"), tokens.texts);
  if (byte_level) {
    metadata.set(ggml_key("token_type"), tokens.types);
    metadata.set(ggml_key("merges"), merges);
  } else {
    std::vector<std::int32_t> types = tokens.types;
    const auto unknown = tokens.ids.find(model->json().value("unk_token", Json()).is_string()
                                             ? model->json().at("unk_token").get<std::string>()
                                             : std::string());
    if (unknown != tokens.ids.end()) {
      types[unknown->second] = static_cast<std::int32_t>(TokenType::kUnknown);
    }
    metadata.set(ggml_key("token_type"), types);
    metadata.set(ggml_key("scores"), scores_of_merges(tokens, merges));
    metadata.set(ggml_key("add_space_prefix"), uses(json, "Prepend"));
  }
  ESPALIER_CHECK(set_ids(directory, tokens, metadata));
  metadata.set(ggml_key("add_bos_token"), starts_with(*tokenizer, tokenizer->begin_of_sequence()));
  metadata.set(ggml_key("add_eos_token"), ends_with(*tokenizer, tokenizer->end_of_sequence()));
  ESPALIER_CHECK(set_templates(directory, metadata));

  const std::vector<TokenId> wanted = probe_ids(*tokenizer);
  if (byte_level) {
    ESPALIER_TRY(const bool found, find_pre(metadata, wanted));
    if (!found)
      return inexpressible(path->string(), "GGUF: no known pre-tokenizer cuts as it does");
    return {};
  }
  ESPALIER_TRY(const auto made, tokenizer_of(metadata));
  if (probe_ids(*made) != wanted) return inexpressible(path->string(), "GGUF");
  return {};
}

}  // namespace espalier::convert
