#include "text/hf_pipeline.h"

#include <algorithm>
#include <memory>

#include "base/base64.h"
#include "base/printable.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

using file::Json;
using file::JsonObject;

constexpr std::size_t kMaxSteps = 64;

// How many times as long the steps may make a text, and a decoder a token, at worst.
constexpr std::size_t kMaxNormalizerGrowth = 1024;
constexpr std::size_t kMaxDecoderGrowth = 16;

// Calls visit(step, type) for the step, or for each step of a Sequence, which lists them under
// `list`. Each must be an object with a type.
Status for_each_step(const JsonObject& step, const std::string& list, std::size_t& count,
                     const std::function<Status(const JsonObject&, const std::string&)>& visit) {
  ESPALIER_TRY(const auto type, step.string("type"));
  if (!type) return input_error("{}: key 'type' is missing", step.where());
  if (*type != "Sequence") {
    if (++count > kMaxSteps) {
      return input_error("{}: there are more than {} steps", step.where(), kMaxSteps);
    }
    return visit(step, *type);
  }
  const Json* steps = step.find(list);
  if (steps == nullptr || !steps->is_array()) {
    return input_error("{}: key '{}' is {}, expected an array", step.where(), list,
                       steps == nullptr ? "missing" : file::json_kind(*steps));
  }
  for (std::size_t i = 0; i < steps->size(); ++i) {
    const Json& inner = (*steps)[i];
    const std::string where = fmt::format("{}: {}[{}]", step.where(), list, i);
    if (!inner.is_object()) {
      return input_error("{} is {}, expected an object", where, file::json_kind(inner));
    }
    ESPALIER_CHECK(for_each_step(JsonObject(inner, where), list, count, visit));
  }
  return {};
}

// One entry of a table: a type of step, and what adds it to a State.
template <typename State>
struct StepReader {
  std::string_view type;
  Status (*read)(const JsonObject& step, State& state);
};

// Reads the steps under `key` by a table of what there is.
template <typename State, std::size_t kCount>
Status read_steps(const JsonObject& document, std::string_view key, const std::string& list,
                  const StepReader<State> (&readers)[kCount], State& state) {
  ESPALIER_TRY(const auto root, document.object(key));
  if (!root) return {};
  std::size_t count = 0;
  const auto read = [&](const JsonObject& step, const std::string& type) -> Status {
    std::string known;
    for (const StepReader<State>& reader : readers) {
      if (reader.type == type) return reader.read(step, state);
      known += fmt::format(", {}", reader.type);
    }
    return input_error("{}: type '{}' is not supported; supported: Sequence{}", step.where(),
                       printable(type), known);
  };
  return for_each_step(*root, list, count, read);
}

Result<std::string> required_string(const JsonObject& step, std::string_view key) {
  ESPALIER_TRY(auto text, step.string(key));
  if (!text) return input_error("{}: key '{}' is missing", step.where(), key);
  return std::move(*text);
}

Result<bool> flag(const JsonObject& step, std::string_view key, bool otherwise) {
  ESPALIER_TRY(const auto value, step.boolean(key));
  return value.value_or(otherwise);
}

Result<Pattern> compiled(std::string_view pattern, const std::string& where) {
  auto regex = Regex::compile(pattern);
  if (!regex) return Error{regex.error().kind, fmt::format("{}: {}", where, regex.error().message)};
  return Pattern(std::make_shared<const Regex>(std::move(*regex)));
}

// {"pattern": {"String": …}} or {"pattern": {"Regex": …}}.
Result<Pattern> read_pattern(const JsonObject& step) {
  ESPALIER_TRY(const auto pattern, step.object("pattern"));
  if (!pattern) return input_error("{}: key 'pattern' is missing", step.where());
  ESPALIER_TRY(auto text, pattern->string("String"));
  if (text) return Pattern(std::move(*text));
  ESPALIER_TRY(const auto regex, pattern->string("Regex"));
  if (regex) return compiled(*regex, pattern->where());
  return input_error("{}: found neither 'String' nor 'Regex'", pattern->where());
}

// By how much replacing the matches of a pattern can make a text longer.
std::size_t growth(const Pattern& pattern, const std::string& content) {
  const auto* text = std::get_if<std::string>(&pattern);
  if (text == nullptr) return content.size() + 1;  // which may match nothing at every place
  return std::max<std::size_t>(1, content.size() / std::max<std::size_t>(text->size(), 1) + 1);
}

Status check_growth(const JsonObject& step, std::size_t& total, std::size_t factor,
                    std::size_t limit) {
  total *= std::min(factor, limit + 1);
  if (total <= limit) return {};
  return input_error("{}: the steps could make a text more than {} times as long", step.where(),
                     limit);
}

// Normalizers.

struct NormalizerState {
  Normalizer steps;
  std::size_t growth = 1;

  Status add(const JsonObject& step, NormalizerStep added, std::size_t factor) {
    steps.push_back(std::move(added));
    return check_growth(step, growth, factor, kMaxNormalizerGrowth);
  }
};

template <NormalForm kForm>
Status read_normal_form(const JsonObject&, NormalizerState& state) {
  // Once in a normal form, a text grows no more: no factor.
  state.steps.push_back(normal_form(kForm));
  return {};
}

Status read_lowercase(const JsonObject&, NormalizerState& state) {
  state.steps.push_back(lowercase());
  return {};
}

Status read_strip_accents(const JsonObject&, NormalizerState& state) {
  state.steps.push_back(strip_accents());
  return {};
}

Status read_strip(const JsonObject& step, NormalizerState& state) {
  ESPALIER_TRY(const bool left, flag(step, "strip_left", true));
  ESPALIER_TRY(const bool right, flag(step, "strip_right", true));
  if (left) state.steps.push_back(strip(Side::kLeft));
  if (right) state.steps.push_back(strip(Side::kRight));
  return {};
}

Status read_prepend(const JsonObject& step, NormalizerState& state) {
  ESPALIER_TRY(const std::string text, required_string(step, "prepend"));
  return state.add(step, prepend(text), text.size() + 1);
}

Status read_replace(const JsonObject& step, NormalizerState& state) {
  ESPALIER_TRY(const Pattern pattern, read_pattern(step));
  ESPALIER_TRY(const std::string content, required_string(step, "content"));
  return state.add(step, replace(pattern, content), growth(pattern, content));
}

Status read_precompiled(const JsonObject& step, NormalizerState& state) {
  constexpr std::string_view kKey = "precompiled_charsmap";
  ESPALIER_TRY(const std::string text, required_string(step, kKey));
  std::optional<std::string> blob = base64_decode(text);
  if (!blob) return input_error("{}: key '{}' is not base64", step.where(), kKey);
  auto map = character_map(std::move(*blob));
  if (!map) return input_error("{}: key '{}': {}", step.where(), kKey, map.error().message);
  return state.add(step, std::move(*map), kMaxMappedBytes);
}

constexpr StepReader<NormalizerState> kNormalizers[] = {
    {"NFC", read_normal_form<NormalForm::kC>},
    {"NFD", read_normal_form<NormalForm::kD>},
    {"NFKC", read_normal_form<NormalForm::kKC>},
    {"NFKD", read_normal_form<NormalForm::kKD>},
    {"Lowercase", read_lowercase},
    {"StripAccents", read_strip_accents},
    {"Strip", read_strip},
    {"Prepend", read_prepend},
    {"Replace", read_replace},
    {"Precompiled", read_precompiled},
};

// Pre-tokenizers.

struct PreTokenizerState {
  std::vector<PreTokenizer::Step> steps;
  bool byte_level = false;
};

Status add_split(const JsonObject& step, std::string_view pattern, Behavior behavior,
                 Polarity polarity, PreTokenizerState& state) {
  ESPALIER_TRY(Pattern regex, compiled(pattern, step.where()));
  state.steps.emplace_back(Split{std::move(regex), behavior, polarity});
  return {};
}

Result<Behavior> read_behavior(const JsonObject& step, Behavior otherwise) {
  struct Name {
    std::string_view name;
    Behavior behavior;
  };
  constexpr Name kNames[] = {{"Removed", Behavior::kRemoved},
                             {"Isolated", Behavior::kIsolated},
                             {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                             {"MergedWithNext", Behavior::kMergedWithNext},
                             {"Contiguous", Behavior::kContiguous}};
  ESPALIER_TRY(const auto name, step.string("behavior"));
  if (!name) return otherwise;
  for (const Name& known : kNames) {
    if (known.name == *name) return known.behavior;
  }
  return input_error(
      "{}: key 'behavior' is '{}', expected Removed, Isolated, MergedWithPrevious, MergedWithNext "
      "or Contiguous",
      step.where(), printable(*name));
}

Status read_split(const JsonObject& step, PreTokenizerState& state) {
  ESPALIER_TRY(Pattern pattern, read_pattern(step));
  ESPALIER_TRY(const Behavior behavior, read_behavior(step, Behavior::kIsolated));
  ESPALIER_TRY(const bool invert, flag(step, "invert", false));
  state.steps.emplace_back(
      Split{std::move(pattern), behavior, invert ? Polarity::kRest : Polarity::kMatches});
  return {};
}

Status read_byte_level(const JsonObject& step, PreTokenizerState& state) {
  if (state.byte_level) {
    return input_error("{}: there are two ByteLevel steps, expected one", step.where());
  }
  ESPALIER_TRY(const bool prefix, flag(step, "add_prefix_space", true));
  ESPALIER_TRY(const bool use_regex, flag(step, "use_regex", true));
  if (prefix) state.steps.emplace_back(Prefix{" ", PrefixScheme::kAlways});
  if (use_regex) {
    ESPALIER_CHECK(add_split(step, find_pre_tokenizer("gpt-2")->steps[0].pattern,
                             Behavior::kIsolated, Polarity::kMatches, state));
  }
  state.steps.emplace_back(SpellBytes{});
  state.byte_level = true;
  return {};
}

struct MetaspaceOptions {
  std::string replacement;
  std::optional<PrefixScheme> scheme;
};

// What Metaspace means as a pre-tokenizer and as a decoder.
Result<MetaspaceOptions> read_metaspace_options(const JsonObject& step) {
  MetaspaceOptions options;
  ESPALIER_TRY(options.replacement, required_string(step, "replacement"));
  if (utf8_character(options.replacement) != options.replacement.size()) {
    return input_error("{}: key 'replacement' is '{}', expected one character", step.where(),
                       printable(options.replacement));
  }
  // Before there was prepend_scheme, there was add_prefix_space.
  ESPALIER_TRY(const bool prefix, flag(step, "add_prefix_space", true));
  ESPALIER_TRY(const auto scheme, step.string("prepend_scheme"));
  const std::string name = scheme.value_or(prefix ? "always" : "never");
  if (name == "always") options.scheme = PrefixScheme::kAlways;
  if (name == "first") options.scheme = PrefixScheme::kFirst;
  if (!options.scheme && name != "never") {
    return input_error("{}: key 'prepend_scheme' is '{}', expected always, first or never",
                       step.where(), printable(name));
  }
  return options;
}

Status read_metaspace(const JsonObject& step, PreTokenizerState& state) {
  ESPALIER_TRY(const MetaspaceOptions options, read_metaspace_options(step));
  ESPALIER_TRY(const bool split, flag(step, "split", true));
  state.steps.emplace_back(Substitute{" ", options.replacement});
  if (options.scheme) state.steps.emplace_back(Prefix{options.replacement, *options.scheme});
  if (split) state.steps.emplace_back(Split{options.replacement, Behavior::kMergedWithNext});
  return {};
}

Status read_digits(const JsonObject& step, PreTokenizerState& state) {
  ESPALIER_TRY(const bool single, flag(step, "individual_digits", false));
  return add_split(step, R"(\p{N})", single ? Behavior::kIsolated : Behavior::kContiguous,
                   Polarity::kMatches, state);
}

constexpr std::string_view kPunctuation = R"([\p{P}$+<=>^`|~])";

Status read_punctuation(const JsonObject& step, PreTokenizerState& state) {
  ESPALIER_TRY(const Behavior behavior, read_behavior(step, Behavior::kIsolated));
  return add_split(step, kPunctuation, behavior, Polarity::kMatches, state);
}

Status read_whitespace(const JsonObject& step, PreTokenizerState& state) {
  return add_split(step, R"(\w+|[^\w\s]+)", Behavior::kRemoved, Polarity::kRest, state);
}

Status read_whitespace_split(const JsonObject& step, PreTokenizerState& state) {
  return add_split(step, R"(\s)", Behavior::kRemoved, Polarity::kMatches, state);
}

Status read_bert(const JsonObject& step, PreTokenizerState& state) {
  ESPALIER_CHECK(read_whitespace_split(step, state));
  return add_split(step, kPunctuation, Behavior::kIsolated, Polarity::kMatches, state);
}

Status read_delimiter(const JsonObject& step, PreTokenizerState& state) {
  ESPALIER_TRY(std::string delimiter, required_string(step, "delimiter"));
  state.steps.emplace_back(Split{std::move(delimiter), Behavior::kRemoved});
  return {};
}

constexpr StepReader<PreTokenizerState> kPreTokenizers[] = {
    {"Split", read_split},
    {"ByteLevel", read_byte_level},
    {"Metaspace", read_metaspace},
    {"Digits", read_digits},
    {"Punctuation", read_punctuation},
    {"Whitespace", read_whitespace},
    {"WhitespaceSplit", read_whitespace_split},
    {"BertPreTokenizer", read_bert},
    {"CharDelimiterSplit", read_delimiter},
};

// Post-processors. Those of a Sequence work one after the other, each around what there is.

Result<TokenId> token_id(const Json& value, const std::string& where) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= kMaxTokens) {
    return input_error("{}: found {}, expected a token id", where, file::json_kind(value));
  }
  return static_cast<TokenId>(value.get<std::uint64_t>());
}

void put_around(Template& state, const Template& outer) {
  state.before.insert(state.before.begin(), outer.before.begin(), outer.before.end());
  state.after.insert(state.after.end(), outer.after.begin(), outer.after.end());
}

// The ids of an entry of a template's list of special tokens.
Status append_special(const JsonObject& step, const std::string& name, std::vector<TokenId>& ids) {
  ESPALIER_TRY(const auto specials, step.object("special_tokens"));
  if (specials) {
    ESPALIER_TRY(const auto special, specials->object(name));
    const Json* list = special ? special->find("ids") : nullptr;
    if (list != nullptr && list->is_array()) {
      for (const Json& id : *list) {
        ESPALIER_TRY(const TokenId checked, token_id(id, special->where() + ": ids"));
        ids.push_back(checked);
      }
      return {};
    }
  }
  return input_error("{}: key 'special_tokens' has no ids for '{}'", step.where(), printable(name));
}

Status read_template(const JsonObject& step, Template& state) {
  const Json* single = step.find("single");
  if (single == nullptr || !single->is_array()) {
    return input_error("{}: key 'single' is {}, expected an array", step.where(),
                       single == nullptr ? "missing" : file::json_kind(*single));
  }
  Template outer;
  std::size_t sequences = 0;
  for (const Json& item : *single) {
    const std::string where = step.where() + ": single";
    if (!item.is_object()) {
      return input_error("{}: found {}, expected objects", where, file::json_kind(item));
    }
    const JsonObject object(item, where);
    ESPALIER_TRY(const auto special, object.object("SpecialToken"));
    if (!special) {
      ++sequences;
      continue;
    }
    ESPALIER_TRY(const std::string name, required_string(*special, "id"));
    ESPALIER_CHECK(append_special(step, name, sequences == 0 ? outer.before : outer.after));
  }
  if (sequences != 1) {
    return input_error("{}: key 'single' has the text {} times, expected once", step.where(),
                       sequences);
  }
  put_around(state, outer);
  return {};
}

// "cls": ["<s>", 0] and "sep".
Status read_cls_sep(const JsonObject& step, Template& state) {
  Template outer;
  for (const auto& [key, ids] : {std::pair("cls", &outer.before), std::pair("sep", &outer.after)}) {
    const Json* pair = step.find(key);
    if (pair == nullptr || !pair->is_array() || pair->size() != 2) {
      return input_error("{}: key '{}' is {}, expected a token and its id", step.where(), key,
                         pair == nullptr ? "missing" : file::json_kind(*pair));
    }
    ESPALIER_TRY(const TokenId id, token_id((*pair)[1], fmt::format("{}: {}", step.where(), key)));
    ids->push_back(id);
  }
  put_around(state, outer);
  return {};
}

// It only changes what offsets say.
Status read_no_tokens(const JsonObject&, Template&) { return {}; }

constexpr StepReader<Template> kPostProcessors[] = {
    {"TemplateProcessing", read_template},
    {"RobertaProcessing", read_cls_sep},
    {"BertProcessing", read_cls_sep},
    {"ByteLevel", read_no_tokens},
};

// Decoders.

struct DecoderState {
  Decoding decoding;
  bool fused = false;  // the steps that follow see the whole text
  std::size_t growth = 1;
};

std::string replaced(const Pattern& pattern, const std::string& content, std::string_view text) {
  std::string result;
  for_each_match(pattern, text, [&](std::size_t begin, std::size_t length, bool is_match) {
    result += is_match ? std::string_view(content) : text.substr(begin, length);
  });
  return result;
}

Status read_byte_level_decoder(const JsonObject& step, DecoderState& state) {
  if (!state.decoding.token_steps.empty()) {
    return input_error("{}: ByteLevel follows other steps, expected it first", step.where());
  }
  state.decoding.byte_level = true;
  return {};
}

Status read_byte_fallback(const JsonObject&, DecoderState& state) {
  state.decoding.byte_fallback = true;
  state.decoding.token_steps.emplace_back([](std::string token) {
    const std::optional<char> byte = byte_token(token);
    return byte ? std::string(1, *byte) : token;
  });
  return {};
}

Status read_fuse(const JsonObject&, DecoderState& state) {
  state.fused = true;
  return {};
}

Status read_metaspace_decoder(const JsonObject& step, DecoderState& state) {
  ESPALIER_TRY(const MetaspaceOptions options, read_metaspace_options(step));
  state.decoding.drops_first_spaces = options.scheme.has_value();
  state.decoding.token_steps.emplace_back([replacement = options.replacement](std::string token) {
    return replaced(replacement, " ", token);
  });
  return {};
}

// Patterns are looked for in each token, also where the tokens are joined before.
Status read_replace_decoder(const JsonObject& step, DecoderState& state) {
  ESPALIER_TRY(Pattern pattern, read_pattern(step));
  ESPALIER_TRY(std::string content, required_string(step, "content"));
  ESPALIER_CHECK(check_growth(step, state.growth,
                              std::max<std::size_t>(1, growth(pattern, content) - 1),
                              kMaxDecoderGrowth));
  state.decoding.token_steps.emplace_back(
      [pattern = std::move(pattern), content = std::move(content)](std::string token) {
        return replaced(pattern, content, token);
      });
  return {};
}

Status read_strip_decoder(const JsonObject& step, DecoderState& state) {
  Trim trim;
  ESPALIER_TRY(trim.character, required_string(step, "content"));
  if (trim.character.empty()) return input_error("{}: key 'content' is empty", step.where());
  ESPALIER_TRY(const auto start, step.unsigned_integer("start"));
  ESPALIER_TRY(const auto stop, step.unsigned_integer("stop"));
  trim.start = start.value_or(0);
  trim.stop = stop.value_or(0);
  if (state.fused) {
    state.decoding.trims.push_back(std::move(trim));
  } else {
    state.decoding.token_steps.emplace_back([trim = std::move(trim)](std::string token) {
      apply(trim, token);
      return token;
    });
  }
  return {};
}

constexpr StepReader<DecoderState> kDecoders[] = {
    {"ByteLevel", read_byte_level_decoder},
    {"ByteFallback", read_byte_fallback},
    {"Fuse", read_fuse},
    {"Metaspace", read_metaspace_decoder},
    {"Replace", read_replace_decoder},
    {"Strip", read_strip_decoder},
};

}  // namespace

Result<Normalizer> read_normalizer(const JsonObject& document) {
  NormalizerState state;
  ESPALIER_CHECK(read_steps(document, "normalizer", "normalizers", kNormalizers, state));
  return std::move(state.steps);
}

Result<PreTokenizing> read_pre_tokenizer(const JsonObject& document) {
  PreTokenizerState state;
  ESPALIER_CHECK(read_steps(document, "pre_tokenizer", "pretokenizers", kPreTokenizers, state));
  return PreTokenizing{PreTokenizer(std::move(state.steps)),
                       state.byte_level ? Spelling::kByteLevel : Spelling::kPlain};
}

Result<Template> read_post_processor(const JsonObject& document) {
  Template state;
  ESPALIER_CHECK(read_steps(document, "post_processor", "processors", kPostProcessors, state));
  return state;
}

Result<Decoding> read_decoder(const JsonObject& document) {
  DecoderState state;
  if (document.find("decoder") == nullptr) {
    // Without a decoder, tokens are words with spaces between them.
    state.decoding.token_steps.emplace_back(
        [](std::string token) { return token.insert(0, 1, ' '); });
    state.decoding.trims.push_back({.character = " ", .start = 1});
    return std::move(state.decoding);
  }
  ESPALIER_CHECK(read_steps(document, "decoder", "decoders", kDecoders, state));
  return std::move(state.decoding);
}

std::string Decoding::piece(std::string_view token, bool added) const {
  std::string text(token);
  if (byte_level && !added) text = spelled_bytes(token, Spelling::kByteLevel).value_or(text);
  for (const auto& step : token_steps) text = step(std::move(text));
  return text;
}

}  // namespace espalier::text
