// The methods of strings, lists and dicts, as Python has them.
#include <algorithm>
#include <array>

#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"
#include "text/jinja/text_functions.h"

namespace espalier::text::jinja {
namespace {

const MarkedText& self(const Call& call) { return *call.self.text(); }

// ---- searching

// The bytes between the characters `start` and `end` that a method was given as arguments i, i + 1.
struct Window {
  std::size_t begin, end;
};

// Nothing where the window lies outside of the text, in which not even "" is found.
Result<std::optional<Window>> window(const Call& call, std::size_t i) {
  const std::string& bytes = self(call).bytes();
  if (call.argument(i) == nullptr && call.argument(i + 1) == nullptr) {
    return std::optional(Window{0, bytes.size()});
  }
  const auto length = static_cast<Integer>(count_characters(bytes));
  ESPALIER_TRY(Integer start, call.integer(i, 0));
  ESPALIER_TRY(Integer end, call.integer(i + 1, length));
  if (start < 0) start = std::max<Integer>(0, start + length);
  if (end < 0) end = std::max<Integer>(0, end + length);
  end = std::min(end, length);
  if (start > end) return std::optional<Window>();
  return std::optional(Window{byte_of_character(bytes, static_cast<std::size_t>(start)),
                              byte_of_character(bytes, static_cast<std::size_t>(end))});
}

enum class From { kLeft, kRight };

// The index of the character where the argument is found, or -1.
Result<Integer> search(const Call& call, From from) {
  ESPALIER_TRY(const MarkedText sub, call.text(0));
  ESPALIER_TRY(const auto within, window(call, 1));
  if (!within) return Integer{-1};
  const std::string_view all = self(call).bytes();
  const std::string_view part = all.substr(within->begin, within->end - within->begin);
  const std::size_t found = from == From::kLeft ? part.find(sub.bytes()) : part.rfind(sub.bytes());
  if (found == std::string_view::npos) return Integer{-1};
  return static_cast<Integer>(count_characters(all.substr(0, within->begin + found)));
}

template <From from>
Result<Value> find(Call& call) {
  ESPALIER_TRY(const Integer index, search(call, from));
  return Value::integer(index);
}

template <From from>
Result<Value> index(Call& call) {
  ESPALIER_TRY(const Integer index, search(call, from));
  if (index < 0) return input_error("substring not found");
  return Value::integer(index);
}

Result<Value> count(Call& call) {
  ESPALIER_TRY(const MarkedText sub, call.text(0));
  ESPALIER_TRY(const auto within, window(call, 1));
  if (!within) return Value::integer(0);
  const std::string_view part =
      std::string_view(self(call).bytes()).substr(within->begin, within->end - within->begin);
  if (sub.empty()) return Value::length(count_characters(part) + 1);
  std::size_t count = 0;
  for (std::size_t at = part.find(sub.bytes()); at != std::string_view::npos;
       at = part.find(sub.bytes(), at + sub.size())) {
    ++count;
  }
  return Value::length(count);
}

enum class End { kStart, kEnd };

template <End end>
Result<Value> begins_or_ends(Call& call) {
  ESPALIER_TRY(const auto within, window(call, 1));
  const std::string_view all = self(call).bytes();
  const auto matches = [&](const Value& candidate) -> Result<bool> {
    const MarkedText* affix = candidate.text();
    if (affix == nullptr) {
      return input_error("{} first arg must be str or a tuple of str, not {}",
                         end == End::kStart ? "startswith" : "endswith", type_name(candidate));
    }
    if (!within) return false;
    const std::string_view part = all.substr(within->begin, within->end - within->begin);
    return end == End::kStart ? part.starts_with(affix->bytes()) : part.ends_with(affix->bytes());
  };
  const Value& affixes = *call.argument(0);
  const Sequence* several = affixes.sequence();
  if (several == nullptr || several->kind != SequenceKind::kTuple) {
    ESPALIER_TRY(const bool matched, matches(affixes));
    return Value::boolean(matched);
  }
  for (const Value& affix : several->items) {
    ESPALIER_TRY(const bool matched, matches(affix));
    if (matched) return Value::boolean(true);
  }
  return Value::boolean(false);
}

// ---- cutting

template <Sides sides>
Result<Value> strip(Call& call) {
  const Value* characters = call.argument(0);
  if (characters == nullptr || characters->is_none()) {
    return call.run.text(stripped(self(call), sides, nullptr));
  }
  ESPALIER_TRY(const MarkedText wanted, call.text(0));
  ESPALIER_CHECK(call.run.spend(self(call).size() / 64 * wanted.size()));
  return call.run.text(stripped(self(call), sides, &wanted.bytes()));
}

// Words between white space; beyond `most` cuts the rest stays in one piece.
std::vector<MarkedText> words(const MarkedText& text, std::size_t most) {
  std::vector<MarkedText> words;
  const std::string_view bytes = text.bytes();
  std::size_t at = leading_space(bytes);
  while (at < bytes.size()) {
    std::size_t end = at;
    if (words.size() == most) {
      end = bytes.size() - trailing_space(bytes);
    } else {
      while (end < bytes.size() && !is_space(character_at(bytes, end).code)) {
        end += character_at(bytes, end).length;
      }
    }
    words.push_back(text.substr(at, end - at));
    at = end + leading_space(bytes.substr(end));
  }
  return words;
}

// The same from the right.
std::vector<MarkedText> words_from_right(const MarkedText& text, std::size_t most) {
  std::vector<MarkedText> words = jinja::words(text, std::string::npos);
  if (words.size() <= most) return words;
  std::size_t kept = 0;  // bytes of the words that stay apart
  std::string_view bytes = text.bytes();
  for (std::size_t i = 0; i < most; ++i) {
    bytes.remove_suffix(trailing_space(bytes));
    bytes.remove_suffix(words[words.size() - 1 - i].size());
    ++kept;
  }
  bytes.remove_suffix(trailing_space(bytes));
  const std::size_t begin = leading_space(bytes);
  std::vector<MarkedText> result = {text.substr(begin, bytes.size() - begin)};
  result.insert(result.end(), words.end() - static_cast<std::ptrdiff_t>(kept), words.end());
  return result;
}

std::vector<MarkedText> pieces(const MarkedText& text, const std::string& separator,
                               std::size_t most, From from) {
  std::vector<std::size_t> cuts;
  const std::string& bytes = text.bytes();
  if (from == From::kLeft) {
    for (std::size_t at = bytes.find(separator); at != std::string::npos && cuts.size() < most;
         at = bytes.find(separator, at + separator.size())) {
      cuts.push_back(at);
    }
  } else {
    std::size_t end = bytes.size();
    while (cuts.size() < most && end >= separator.size()) {
      const std::size_t at = bytes.rfind(separator, end - separator.size());
      if (at == std::string::npos) break;
      cuts.push_back(at);
      end = at;
    }
    std::reverse(cuts.begin(), cuts.end());
  }
  std::vector<MarkedText> pieces;
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    pieces.push_back(text.substr(begin, cut - begin));
    begin = cut + separator.size();
  }
  pieces.push_back(text.substr(begin, bytes.size() - begin));
  return pieces;
}

Result<Value> list_of(Interpreter& run, std::vector<MarkedText> texts,
                      SequenceKind kind = SequenceKind::kList) {
  std::vector<Value> values;
  for (MarkedText& text : texts) {
    ESPALIER_TRY(Value value, run.text(std::move(text)));
    values.push_back(std::move(value));
  }
  return run.list(std::move(values), kind);
}

template <From from>
Result<Value> split(Call& call) {
  ESPALIER_TRY(const Integer limit, call.integer(1, -1));
  const std::size_t most = limit < 0 ? std::string::npos : static_cast<std::size_t>(limit);
  const Value* separator = call.argument(0);
  // Pieces cost more than the bytes that they hold.
  ESPALIER_CHECK(call.run.spend(self(call).size() / 4));
  if (separator == nullptr || separator->is_none()) {
    return list_of(call.run, from == From::kLeft ? words(self(call), most)
                                                 : words_from_right(self(call), most));
  }
  ESPALIER_TRY(const MarkedText text, call.text(0));
  if (text.empty()) return input_error("empty separator");
  return list_of(call.run, pieces(self(call), text.bytes(), most, from));
}

template <From from>
Result<Value> partition(Call& call) {
  ESPALIER_TRY(const MarkedText separator, call.text(0));
  if (separator.empty()) return input_error("empty separator");
  const MarkedText& text = self(call);
  const std::size_t at = from == From::kLeft ? text.bytes().find(separator.bytes())
                                             : text.bytes().rfind(separator.bytes());
  std::vector<MarkedText> parts(3);
  if (at == std::string::npos) {
    parts[from == From::kLeft ? 0 : 2] = text;
  } else {
    const std::size_t after = at + separator.size();
    parts = {text.substr(0, at), text.substr(at, separator.size()),
             text.substr(after, text.size() - after)};
  }
  return list_of(call.run, std::move(parts), SequenceKind::kTuple);
}

Result<Value> splitlines(Call& call) {
  ESPALIER_CHECK(call.run.spend(self(call).size() / 4));
  return list_of(call.run,
                 split_lines(self(call), call.flag(0) ? LineBreaks::kKeep : LineBreaks::kDrop));
}

template <End end>
Result<Value> without_affix(Call& call) {
  ESPALIER_TRY(const MarkedText affix, call.text(0));
  const MarkedText& text = self(call);
  const std::size_t rest = text.size() - std::min(text.size(), affix.size());
  if (end == End::kStart && text.bytes().starts_with(affix.bytes())) {
    return call.run.text(text.substr(affix.size(), rest));
  }
  if (end == End::kEnd && text.bytes().ends_with(affix.bytes())) {
    return call.run.text(text.substr(0, rest));
  }
  return call.self;
}

// ---- changing

Result<Value> lower_case(Call& call) {
  return map_characters(call.run, self(call), [](char32_t c, char32_t) { return lower(c); });
}
Result<Value> upper_case(Call& call) {
  return map_characters(call.run, self(call), [](char32_t c, char32_t) { return upper(c); });
}
Result<Value> swap_case(Call& call) {
  return map_characters(call.run, self(call),
                        [](char32_t c, char32_t) { return is_upper(c) ? lower(c) : upper(c); });
}
Result<Value> capitalize(Call& call) { return map_characters(call.run, self(call), capitalized); }
Result<Value> title_case(Call& call) {
  return map_characters(call.run, self(call), [](char32_t c, char32_t before) {
    return is_alpha(before) ? lower(c) : title(c);
  });
}

Result<Value> replace(Call& call) {
  ESPALIER_TRY(const MarkedText old, call.text(0));
  ESPALIER_TRY(const MarkedText by, call.text(1));
  ESPALIER_TRY(const Integer count, call.integer(2, -1));
  return replaced(call.run, self(call), old.bytes(), by, count);
}

Result<Value> join(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr sequence, call.run.items(*call.argument(0)));
  for (std::size_t i = 0; i < sequence->items.size(); ++i) {
    if (!sequence->items[i].is_text()) {
      return input_error("sequence item {}: expected str instance, {} found", i,
                         type_name(sequence->items[i]));
    }
  }
  return joined(call.run, self(call), sequence->items);
}

template <Sides pad>
Result<Value> pad_to(Call& call) {
  ESPALIER_TRY(const Integer width, call.integer(0, 0));
  ESPALIER_TRY(const MarkedText fill, call.text(1, " "));
  return padded(call.run, self(call), width, fill, pad);
}

Result<Value> zfill(Call& call) {
  ESPALIER_TRY(const Integer width, call.integer(0, 0));
  const MarkedText& text = self(call);
  const bool sign = text.bytes().starts_with('-') || text.bytes().starts_with('+');
  const std::size_t begin = sign ? 1 : 0;
  ESPALIER_TRY(const Value digits, padded(call.run, text.substr(begin, text.size() - begin),
                                          width - static_cast<Integer>(begin),
                                          MarkedText("0", Origin::kTemplate), Sides::kLeft));
  TextBuilder builder(call.run);
  builder.append(text, 0, begin);
  builder.append(*digits.text());
  return std::move(builder).finish();
}

Result<Value> expand_tabs(Call& call) {
  ESPALIER_TRY(const Integer size, call.integer(0, 8));
  ESPALIER_TRY(const std::size_t width, checked_width(call.run, size));
  const MarkedText& text = self(call);
  TextBuilder builder(call.run);
  std::size_t column = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Character c = character_at(text.bytes(), i);
    if (c.code == '\t') {
      const std::size_t spaces = width == 0 ? 0 : width - column % width;
      ESPALIER_CHECK(call.run.allocate(spaces));
      builder.append(std::string(spaces, ' '), text.origin(i));
      column += spaces;
    } else {
      builder.append(text, i, c.length);
      column = c.code == '\n' || c.code == '\r' ? 0 : column + 1;
    }
    i += c.length;
  }
  return std::move(builder).finish();
}

Result<Value> format(Call& call) { return format_braces(call.run, self(call), call.rest); }

// ---- asking

template <bool (*is)(char32_t)>
Result<Value> all_are(Call& call) {
  const std::string& bytes = self(call).bytes();
  bool all = !bytes.empty();
  for (std::size_t i = 0; all && i < bytes.size(); i += character_at(bytes, i).length) {
    all = is(character_at(bytes, i).code);
  }
  return Value::boolean(all);
}

bool is_alnum(char32_t c) { return is_alpha(c) || is_digit(c); }
bool is_identifier(char32_t c) { return is_alnum(c) || c == '_'; }

Result<Value> is_ascii(Call& call) {
  const std::string& bytes = self(call).bytes();
  return Value::boolean(std::all_of(bytes.begin(), bytes.end(),
                                    [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
}

Result<Value> is_identifier_text(Call& call) {
  const std::string& bytes = self(call).bytes();
  if (bytes.empty() || is_digit(character_at(bytes, 0).code)) return Value::boolean(false);
  return all_are<is_identifier>(call);
}

template <bool (*wanted)(char32_t), bool (*unwanted)(char32_t)>
Result<Value> case_is(Call& call) {
  const std::string& bytes = self(call).bytes();
  bool any = false;
  for (std::size_t i = 0; i < bytes.size(); i += character_at(bytes, i).length) {
    const char32_t c = character_at(bytes, i).code;
    if (unwanted(c)) return Value::boolean(false);
    any |= wanted(c);
  }
  return Value::boolean(any);
}

Result<Value> is_title(Call& call) {
  const std::string& bytes = self(call).bytes();
  bool any = false;
  char32_t before = 0;
  for (std::size_t i = 0; i < bytes.size(); i += character_at(bytes, i).length) {
    const char32_t c = character_at(bytes, i).code;
    const bool inside = is_upper(before) || is_lower(before);
    if ((is_upper(c) && inside) || (is_lower(c) && !inside)) return Value::boolean(false);
    any |= is_upper(c);
    before = c;
  }
  return Value::boolean(any);
}

constexpr auto kTextMethods = std::to_array<Builtin>({
    {"capitalize", "", capitalize},
    {"casefold", "", lower_case},
    {"center", "width fillchar?", pad_to<Sides::kBoth>},
    {"count", "sub start? end?", count},
    {"endswith", "suffix start? end?", begins_or_ends<End::kEnd>},
    {"expandtabs", "tabsize?", expand_tabs},
    {"find", "sub start? end?", find<From::kLeft>},
    {"format", "*", format},
    {"index", "sub start? end?", index<From::kLeft>},
    {"isalnum", "", all_are<is_alnum>},
    {"isalpha", "", all_are<is_alpha>},
    {"isascii", "", is_ascii},
    {"isdecimal", "", all_are<is_digit>},
    {"isdigit", "", all_are<is_digit>},
    {"isidentifier", "", is_identifier_text},
    {"islower", "", case_is<is_lower, is_upper>},
    {"isnumeric", "", all_are<is_digit>},
    {"isspace", "", all_are<is_space>},
    {"istitle", "", is_title},
    {"isupper", "", case_is<is_upper, is_lower>},
    {"join", "iterable", join},
    {"ljust", "width fillchar?", pad_to<Sides::kRight>},
    {"lower", "", lower_case},
    {"lstrip", "chars?", strip<Sides::kLeft>},
    {"partition", "sep", partition<From::kLeft>},
    {"removeprefix", "prefix", without_affix<End::kStart>},
    {"removesuffix", "suffix", without_affix<End::kEnd>},
    {"replace", "old new count?", replace},
    {"rfind", "sub start? end?", find<From::kRight>},
    {"rindex", "sub start? end?", index<From::kRight>},
    {"rjust", "width fillchar?", pad_to<Sides::kLeft>},
    {"rpartition", "sep", partition<From::kRight>},
    {"rsplit", "sep? maxsplit?", split<From::kRight>},
    {"rstrip", "chars?", strip<Sides::kRight>},
    {"split", "sep? maxsplit?", split<From::kLeft>},
    {"splitlines", "keepends?", splitlines},
    {"startswith", "prefix start? end?", begins_or_ends<End::kStart>},
    {"strip", "chars?", strip<Sides::kBoth>},
    {"swapcase", "", swap_case},
    {"title", "", title_case},
    {"upper", "", upper_case},
    {"zfill", "width", zfill},
});

// ---- lists and tuples

Result<Value> count_items(Call& call) {
  Integer count = 0;
  for (const Value& item : call.self.sequence()->items) {
    ESPALIER_TRY(const bool same, call.run.equals(item, *call.argument(0)));
    count += same ? 1 : 0;
  }
  return Value::integer(count);
}

Result<Value> index_of_item(Call& call) {
  const auto& items = call.self.sequence()->items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    ESPALIER_TRY(const bool same, call.run.equals(items[i], *call.argument(0)));
    if (same) return Value::length(i);
  }
  ESPALIER_TRY(const MarkedText shown, call.run.repr(*call.argument(0)));
  return input_error("{} is not in list", shown.bytes());
}

constexpr auto kSequenceMethods = std::to_array<Builtin>({
    {"copy", "", [](Call& call) -> Result<Value> { return call.self; }},
    {"count", "value", count_items},
    {"index", "value", index_of_item},
});

// ---- dicts

template <SequenceKind kind>
Result<Value> view(Call& call) {
  std::vector<Value> items;
  for (const auto& [key, value] : call.self.dict()->items) {
    if (kind == SequenceKind::kItems) {
      ESPALIER_TRY(Value pair, call.run.list({key, value}, SequenceKind::kTuple));
      items.push_back(std::move(pair));
    } else {
      items.push_back(kind == SequenceKind::kKeys ? key : value);
    }
  }
  return call.run.list(std::move(items), kind);
}

Result<Value> get(Call& call) {
  if (const Value* found = call.self.dict()->find(*call.argument(0))) return *found;
  const Value* otherwise = call.argument(1);
  return otherwise == nullptr ? Value() : *otherwise;
}

constexpr auto kDictMethods = std::to_array<Builtin>({
    {"copy", "", [](Call& call) -> Result<Value> { return call.self; }},
    {"get", "key default?", get},
    {"items", "", view<SequenceKind::kItems>},
    {"keys", "", view<SequenceKind::kKeys>},
    {"values", "", view<SequenceKind::kValues>},
});

}  // namespace

std::span<const Builtin> text_methods() { return kTextMethods; }
std::span<const Builtin> sequence_methods() { return kSequenceMethods; }
std::span<const Builtin> dict_methods() { return kDictMethods; }

}  // namespace espalier::text::jinja
