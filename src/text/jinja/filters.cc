// The filters of Jinja: `x|upper`.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"
#include "text/jinja/json.h"
#include "text/jinja/text_functions.h"

namespace espalier::text::jinja {
namespace {

using Items = std::vector<Value>;

// ---- numbers

Result<Value> absolute(Call& call) {
  if (call.self.is_real()) return Value::real(std::abs(call.self.as_real()));
  if (call.self.is_integer() && call.self.as_integer() >= 0) {
    return Value::integer(call.self.as_integer());
  }
  if (call.self.is_integer()) return call.run.binary("-", Value::integer(0), call.self);
  return input_error("bad operand type for abs(): '{}'", type_name(call.self));
}

std::optional<Integer> truncated(double value) {
  if (!(std::abs(value) < 1e38)) return std::nullopt;
  return static_cast<Integer>(value);
}

Result<Value> to_integer(Call& call) {
  const Value otherwise = call.argument(0) == nullptr ? Value::integer(0) : *call.argument(0);
  ESPALIER_TRY(const Integer base, call.integer(1, 10));
  if (call.self.is_integer()) return Value::integer(call.self.as_integer());
  std::optional<double> real;
  if (const MarkedText* text = call.self.text()) {
    const bool known = base == 0 || (base >= 2 && base <= 36);
    const auto value = known ? parse_integer(text->bytes(), static_cast<int>(base)) : std::nullopt;
    if (value) return Value::integer(*value);
    real = parse_real(text->bytes());
  } else if (call.self.is_real()) {
    real = call.self.as_real();
  }
  const auto value = real ? truncated(*real) : std::nullopt;
  return value ? Value::integer(*value) : otherwise;
}

Result<Value> to_real(Call& call) {
  if (call.self.is_number()) return Value::real(call.self.as_real());
  const auto value = call.self.is_text() ? parse_real(call.self.text()->bytes()) : std::nullopt;
  if (value) return Value::real(*value);
  return call.argument(0) == nullptr ? Value::real(0) : *call.argument(0);
}

Result<Value> round_number(Call& call) {
  ESPALIER_TRY(const Integer precision, call.integer(0, 0));
  ESPALIER_TRY(const MarkedText method, call.text(1, "common"));
  if (!call.self.is_number()) {
    return input_error("type {} doesn't define __round__ method", type_name(call.self));
  }
  if (precision < -300 || precision > 300) return input_error("round: precision out of range");
  const int digits = static_cast<int>(precision);
  const double value = call.self.as_real();
  if (method.bytes() == "common") {
    if (call.self.is_integer() && digits >= 0) return Value::integer(call.self.as_integer());
    // Decimal digits round the exact value half to even, which scaling by a power of ten does not.
    if (digits >= 0) return Value::real(*parse_real(fmt::format("{:.{}f}", value, digits)));
    const double scale = std::pow(10.0, -digits);
    const double rounded = std::nearbyint(value / scale) * scale;
    return call.self.is_integer() ? Value::integer(truncated(rounded).value_or(0))
                                  : Value::real(rounded);
  }
  const double scaled = value * std::pow(10.0, digits);
  if (method.bytes() == "ceil") return Value::real(std::ceil(scaled) / std::pow(10.0, digits));
  if (method.bytes() == "floor") return Value::real(std::floor(scaled) / std::pow(10.0, digits));
  return input_error("method must be common, ceil or floor");
}

Result<Value> file_size(Call& call) {
  ESPALIER_TRY(const Value number,
               call_builtin(*find(filters(), "float"), call.run, call.self, {}));
  const double bytes = number.as_real();
  const bool binary = call.flag(0);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::text("1 Byte");
  if (bytes < base) return Value::text(fmt::format("{:.0f} Bytes", std::trunc(bytes)));
  const std::string_view prefixes = "kMGTPEZY";
  double unit = base;
  std::size_t i = 0;
  while (i + 1 < prefixes.size() && bytes >= unit * base) {
    unit *= base;
    ++i;
  }
  const char prefix = binary && i == 0 ? 'K' : prefixes[i];
  return Value::text(fmt::format("{:.1f} {}{}B", bytes / unit, prefix, binary ? "i" : ""));
}

// ---- text

Result<Value> upper_case(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  return map_characters(call.run, text, [](char32_t c, char32_t) { return upper(c); });
}

Result<Value> lower_case(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  return map_characters(call.run, text, [](char32_t c, char32_t) { return lower(c); });
}

Result<Value> capitalize(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  return map_characters(call.run, text, capitalized);
}

// Unlike str.title, words begin after white space, hyphens and opening brackets only.
Result<Value> title_case(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  return map_characters(call.run, text, [](char32_t c, char32_t before) {
    const bool begins = before == 0 || is_space(before) || before == '-' || before == '(' ||
                        before == '{' || before == '[' || before == '<';
    return begins ? upper(c) : lower(c);
  });
}

Result<Value> trim(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  ESPALIER_TRY(const MarkedText characters, call.text(0));
  const bool given = call.argument(0) != nullptr && !call.argument(0)->is_none();
  ESPALIER_CHECK(call.run.spend(text.size() / 64 * characters.size()));
  return call.run.text(stripped(text, Sides::kBoth, given ? &characters.bytes() : nullptr));
}

Result<Value> replace(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  ESPALIER_TRY(const MarkedText old, call.run.str(*call.argument(0)));
  ESPALIER_TRY(const MarkedText by, call.run.str(*call.argument(1)));
  ESPALIER_TRY(const Integer count, call.integer(2, -1));
  return replaced(call.run, text, old.bytes(), by, count);
}

Result<Value> center(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  ESPALIER_TRY(const Integer width, call.integer(0, 80));
  return padded(call.run, text, width, MarkedText(" ", Origin::kTemplate), Sides::kBoth);
}

Result<Value> indent(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  MarkedText indention;
  if (call.argument(0) != nullptr && call.argument(0)->is_text()) {
    indention = *call.argument(0)->text();
  } else {
    ESPALIER_TRY(const Integer given, call.integer(0, 4));
    ESPALIER_TRY(const std::size_t width, checked_width(call.run, given));
    ESPALIER_CHECK(call.run.allocate(width));
    indention.append(std::string(width, ' '), Origin::kTemplate);
  }
  ESPALIER_CHECK(call.run.spend(text.size() / 4));
  TextBuilder builder(call.run);
  std::vector<MarkedText> lines = split_lines(text, LineBreaks::kDrop);
  // A text that ends in a line break has an empty last line here.
  const bool ends_in_break = lines.empty() || text.bytes().ends_with('\n');
  if (ends_in_break) lines.emplace_back();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) builder.append("\n", Origin::kTemplate);
    if (i == 0 ? call.flag(1) : call.flag(2) || !lines[i].empty()) builder.append(indention);
    builder.append(lines[i]);
  }
  return std::move(builder).finish();
}

Result<Value> escape(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  ESPALIER_TRY(MarkedText escaped, html_escaped(call.run, text));
  return call.run.text(std::move(escaped));
}

Result<Value> escape_again(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  ESPALIER_TRY(MarkedText escaped, html_escaped(call.run, text.substr(0, text.size())));
  return call.run.text(std::move(escaped));
}

Result<Value> safe(Call& call) {
  ESPALIER_TRY(MarkedText text, call.self_text());
  return call.run.text(std::move(text).as_html());
}

// Without <!-- comments --> and <tags>, and with single spaces.
Result<Value> strip_tags(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  const std::string& bytes = text.bytes();
  MarkedText plain;
  for (std::size_t i = 0; i < bytes.size();) {
    const bool comment = bytes.compare(i, 4, "<!--") == 0;
    const std::string_view close = comment ? "-->" : ">";
    const std::size_t end = bytes[i] == '<' ? bytes.find(close, i) : std::string::npos;
    if (end != std::string::npos) {
      i = end + close.size();
    } else {
      const std::size_t next = std::min(bytes.find('<', i + 1), bytes.size());
      plain.append(text, i, next - i);
      i = next;
      // What is not closed now never will be.
      if (bytes.find('>', i) == std::string::npos) {
        plain.append(text, i, bytes.size() - i);
        break;
      }
    }
  }
  MarkedText spaced;
  for (std::size_t i = 0; i < plain.size();) {
    const std::size_t length = character_at(plain.bytes(), i).length;
    const std::size_t space = leading_space(std::string_view(plain.bytes()).substr(i));
    if (space == 0) {
      spaced.append(plain, i, length);
    } else if (!spaced.empty() && i + space < plain.size()) {
      spaced.append(" ", plain.origin(i));
    }
    i += std::max(space, length);
  }
  return call.run.text(std::move(spaced));
}

Result<MarkedText> url_quoted(Interpreter& run, const Value& value, std::string_view safe) {
  ESPALIER_TRY(const MarkedText text, run.str(value));
  TextBuilder builder(run);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~").find(c) != std::string_view::npos ||
                       safe.find(c) != std::string_view::npos;
    if (plain) {
      builder.append(text, i, 1);
    } else {
      builder.append(fmt::format("%{:02X}", static_cast<unsigned char>(c)), text.origin(i));
    }
  }
  return std::move(builder).finish_text();
}

Result<Value> url_encode(Call& call) {
  const Dict* dict = call.self.dict();
  if (dict == nullptr) {
    ESPALIER_TRY(MarkedText text, url_quoted(call.run, call.self, "/"));
    return call.run.text(std::move(text));
  }
  TextBuilder builder(call.run);
  for (const auto& [key, value] : dict->items) {
    if (!builder.so_far().empty()) builder.append("&", Origin::kTemplate);
    ESPALIER_TRY(const MarkedText name, url_quoted(call.run, key, ""));
    ESPALIER_TRY(const MarkedText text, url_quoted(call.run, value, ""));
    builder.append(name);
    builder.append("=", Origin::kTemplate);
    builder.append(text);
  }
  return std::move(builder).finish();
}

Result<Value> truncate(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  ESPALIER_TRY(const Integer length, call.integer(0, 255));
  ESPALIER_TRY(const MarkedText end, call.text(2, "..."));
  ESPALIER_TRY(const Integer leeway, call.integer(3, 5));
  const auto characters = static_cast<Integer>(count_characters(text.bytes()));
  const auto ending = static_cast<Integer>(count_characters(end.bytes()));
  if (length < ending || leeway < 0) return input_error("truncate: length or leeway is too small");
  if (characters <= length + leeway) return call.run.text(text);
  const std::size_t cut =
      byte_of_character(text.bytes(), static_cast<std::size_t>(length - ending));
  MarkedText kept = text.substr(0, cut);
  if (!call.flag(1)) {
    const std::size_t space = kept.bytes().rfind(' ');
    if (space != std::string::npos) kept = kept.substr(0, space);
  }
  kept.append(end);
  return call.run.text(std::move(kept));
}

Result<Value> count_words(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  std::size_t words = 0;
  bool inside = false;
  for (std::size_t i = 0; i < text.size();) {
    const Character c = character_at(text.bytes(), i);
    const bool word = is_alpha(c.code) || is_digit(c.code) || c.code == '_';
    words += word && !inside ? 1 : 0;
    inside = word;
    i += c.length;
  }
  return Value::length(words);
}

Result<Value> format(Call& call) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  if (!call.rest.named.empty() && !call.rest.positional.empty()) {
    return input_error("can't handle positional and keyword arguments at the same time");
  }
  if (!call.rest.named.empty()) {
    std::vector<std::pair<Value, Value>> named;
    for (auto& [name, value] : call.rest.named) named.emplace_back(Value::text(name), value);
    ESPALIER_TRY(const Value dict, call.run.dict(std::move(named)));
    return format_percent(call.run, text, dict);
  }
  ESPALIER_TRY(const Value values,
               call.run.list(std::move(call.rest.positional), SequenceKind::kTuple));
  return format_percent(call.run, text, values);
}

Result<Value> to_string(Call& call) {
  ESPALIER_TRY(MarkedText text, call.self_text());
  return call.run.text(std::move(text));
}

Result<Value> pretty(Call& call) {
  ESPALIER_TRY(MarkedText text, call.run.repr(call.self));
  return call.run.text(std::move(text));
}

Result<Value> to_json_text(Call& call) {
  JsonStyle style;
  if (call.flag(0)) style.characters = JsonStyle::Characters::kAscii;
  if (const Value* given = call.argument(1); given != nullptr && !given->is_none()) {
    if (given->is_text()) {
      style.indent = given->text()->bytes();
    } else {
      constexpr Integer kWidest = 64;  // times the depth of the value
      ESPALIER_TRY(const Integer width, call.integer(1, 0));
      if (width > kWidest) return input_error("tojson: an indent of more than {}", kWidest);
      style.indent = std::string(static_cast<std::size_t>(std::max<Integer>(width, 0)), ' ');
    }
  }
  if (const Value* given = call.argument(2); given != nullptr && !given->is_none()) {
    ESPALIER_TRY(const Value::SequencePtr pair, call.run.items(*given));
    if (pair->items.size() != 2 || !pair->items[0].is_text() || !pair->items[1].is_text()) {
      return input_error("tojson: separators are two strings");
    }
    style.item_separator = pair->items[0].text()->bytes();
    style.key_separator = pair->items[1].text()->bytes();
  }
  if (call.flag(3)) style.keys = JsonStyle::Keys::kSorted;
  ESPALIER_CHECK(call.run.spend_on(call.self));
  ESPALIER_TRY(MarkedText text, to_json(call.self, style, call.run.bytes_left()));
  return call.run.text(std::move(text));
}

// ---- sequences

Result<Value> length(Call& call) {
  if (const MarkedText* text = call.self.text()) {
    return Value::length(count_characters(text->bytes()));
  }
  if (const Dict* dict = call.self.dict()) return Value::length(dict->items.size());
  if (call.self.is_undefined()) return Value::integer(0);
  const Sequence* sequence = call.self.sequence();
  if (sequence == nullptr && call.self.object() != nullptr) sequence = call.self.object()->items();
  if (sequence == nullptr || sequence->kind == SequenceKind::kGenerator) {
    return input_error("object of type '{}' has no len()", type_name(call.self));
  }
  return Value::length(sequence->items.size());
}

Result<Value> first(Call& call) {
  if (const Sequence* sequence = call.self.sequence();
      sequence != nullptr && sequence->kind == SequenceKind::kGenerator) {
    if (sequence->consumed < sequence->items.size()) return sequence->items[sequence->consumed++];
  } else {
    ESPALIER_TRY(const Value::SequencePtr items, call.run.items(call.self));
    if (!items->items.empty()) return items->items.front();
  }
  return Value::undefined(
      {.why = Undefined::Why::kHint, .name = "No first item, sequence was empty."});
}

Result<Value> last(Call& call) {
  if (const Sequence* sequence = call.self.sequence();
      sequence != nullptr && sequence->kind == SequenceKind::kGenerator) {
    return input_error("'generator' object is not reversible");
  }
  ESPALIER_TRY(const Value::SequencePtr items, call.run.items(call.self));
  if (!items->items.empty()) return items->items.back();
  return Value::undefined(
      {.why = Undefined::Why::kHint, .name = "No last item, sequence was empty."});
}

Result<Value> to_list(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr items, call.run.items(call.self));
  return call.run.list(items->items);
}

Result<Value> item_pairs(Call& call) {
  if (call.self.is_undefined()) return call.run.list({}, SequenceKind::kGenerator);
  if (call.self.dict() == nullptr) return input_error("Can only get item pairs from a mapping.");
  ESPALIER_TRY(const Value pairs,
               call_builtin(*find(dict_methods(), "items"), call.run, call.self, {}));
  return call.run.list(pairs.sequence()->items, SequenceKind::kGenerator);
}

Result<Value> reverse(Call& call) {
  if (const MarkedText* text = call.self.text()) {
    TextBuilder builder(call.run);
    std::vector<std::pair<std::size_t, std::size_t>> characters;
    for (std::size_t i = 0; i < text->size();) {
      const std::size_t length = character_at(text->bytes(), i).length;
      characters.emplace_back(i, length);
      i += length;
    }
    for (auto c = characters.rbegin(); c != characters.rend(); ++c) {
      builder.append(*text, c->first, c->second);
    }
    return std::move(builder).finish();
  }
  ESPALIER_TRY(const Value::SequencePtr items, call.run.items(call.self));
  return call.run.list(Items(items->items.rbegin(), items->items.rend()), SequenceKind::kGenerator);
}

// The value that `path`, such as "function.name" or 0, leads to from an item.
Result<Value> follow(Interpreter& run, const Value& item, const Value& path,
                     const Value* otherwise = nullptr) {
  Value value = item;
  if (!path.is_text()) {
    ESPALIER_TRY(value, run.item(item, path));
  } else {
    std::string_view rest = path.text()->bytes();
    while (true) {
      const std::string_view part = rest.substr(0, rest.find('.'));
      const auto index = part.find_first_not_of("0123456789") == std::string_view::npos
                             ? parse_integer(part, 10)
                             : std::nullopt;
      ESPALIER_TRY(value, run.item(value, index ? Value::integer(*index) : Value::text(part)));
      if (part.size() == rest.size()) break;
      rest.remove_prefix(part.size() + 1);
    }
  }
  return value.is_undefined() && otherwise != nullptr ? *otherwise : value;
}

// What items are sorted and compared by.
struct Key {
  const Value* attribute;  // null: the item itself
  bool case_sensitive;
  const Value* otherwise = nullptr;

  [[nodiscard]] Result<Value> of(Interpreter& run, const Value& item) const {
    Value key = item;
    if (attribute != nullptr && !attribute->is_none()) {
      ESPALIER_TRY(key, follow(run, item, *attribute, otherwise));
    }
    if (case_sensitive || !key.is_text()) return key;
    return map_characters(run, *key.text(), [](char32_t c, char32_t) { return lower(c); });
  }
};

enum class Direction { kUp, kDown };

// Sorts stably by keys of the same length, as Python does.
Result<Items> sorted(Interpreter& run, const Items& items, const Items& keys, Direction direction) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::optional<Error> problem;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (problem) return false;
    if (direction == Direction::kDown) std::swap(a, b);
    const auto compared = run.order(keys[a], keys[b]);
    if (!compared) problem = compared.error();
    return compared && *compared < 0;
  });
  if (problem) return *problem;
  Items result;
  for (const std::size_t i : order) result.push_back(items[i]);
  return result;
}

Result<Items> keys_of(Interpreter& run, const Items& items, const Key& key) {
  Items keys;
  for (const Value& item : items) {
    ESPALIER_TRY(Value value, key.of(run, item));
    keys.push_back(std::move(value));
  }
  return keys;
}

Result<Value> sort(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr sequence, call.run.items(call.self));
  Items items = sequence->items;
  const Direction direction = call.flag(0) ? Direction::kDown : Direction::kUp;
  std::vector<Value> attributes;
  if (const Value* given = call.argument(2); given != nullptr && given->is_text()) {
    std::string_view rest = given->text()->bytes();  // "a,b": by a, then by b
    while (true) {
      const std::string_view part = rest.substr(0, rest.find(','));
      attributes.push_back(Value::text(part));
      if (part.size() == rest.size()) break;
      rest.remove_prefix(part.size() + 1);
    }
  } else {
    attributes.push_back(given == nullptr ? Value() : *given);
  }
  ESPALIER_CHECK(call.run.allocate(items.size() * sizeof(Value) * (1 + attributes.size())));
  // Stable sorts from the last attribute to the first come to the same as one by all of them.
  for (auto attribute = attributes.rbegin(); attribute != attributes.rend(); ++attribute) {
    ESPALIER_TRY(const Items keys, keys_of(call.run, items, {&*attribute, call.flag(1)}));
    ESPALIER_TRY(items, sorted(call.run, items, keys, direction));
  }
  return call.run.list(std::move(items));
}

Result<Value> sort_dict(Call& call) {
  if (call.self.dict() == nullptr) {
    const Value missing = Value::undefined(
        {.why = Undefined::Why::kAttribute, .name = "items", .type = type_name(call.self)});
    return input_error("{}", call.self.is_undefined() ? call.self.undefined()->message()
                                                      : missing.undefined()->message());
  }
  ESPALIER_TRY(const MarkedText by, call.text(1, "key"));
  if (by.bytes() != "key" && by.bytes() != "value") {
    return input_error("You can only sort by either \"key\" or \"value\"");
  }
  ESPALIER_TRY(const Value pairs,
               call_builtin(*find(dict_methods(), "items"), call.run, call.self, {}));
  const Value position = Value::integer(by.bytes() == "key" ? 0 : 1);
  const Items& items = pairs.sequence()->items;
  ESPALIER_TRY(const Items keys, keys_of(call.run, items, {&position, call.flag(0)}));
  ESPALIER_TRY(Items result,
               sorted(call.run, items, keys, call.flag(2) ? Direction::kDown : Direction::kUp));
  return call.run.list(std::move(result));
}

Result<Value> group_by(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr sequence, call.run.items(call.self));
  const Key key{call.argument(0), call.flag(2), call.argument(1)};
  ESPALIER_TRY(const Items keys, keys_of(call.run, sequence->items, key));
  ESPALIER_TRY(const Items items, sorted(call.run, sequence->items, keys, Direction::kUp));
  Items groups, members;
  std::optional<Value> current;
  Value grouper;
  const auto close = [&]() -> Status {
    ESPALIER_TRY(Value list, call.run.list(std::exchange(members, {})));
    ESPALIER_TRY(Value group, call.run.list({grouper, std::move(list)}, SequenceKind::kGroup));
    groups.push_back(std::move(group));
    return {};
  };
  for (const Value& item : items) {
    ESPALIER_TRY(const Value value, key.of(call.run, item));
    bool same = current.has_value();
    if (same) {
      ESPALIER_TRY(same, call.run.equals(*current, value));
      if (!same) ESPALIER_CHECK(close());
    }
    if (!same) {
      ESPALIER_TRY(grouper, follow(call.run, item, *call.argument(0), call.argument(1)));
    }
    current = value;
    members.push_back(item);
  }
  if (current) ESPALIER_CHECK(close());
  return call.run.list(std::move(groups));
}

Result<Value> unique(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr sequence, call.run.items(call.self));
  const Key key{call.argument(1), call.flag(0)};
  Items keys, items;
  for (const Value& item : sequence->items) {
    ESPALIER_TRY(Value value, key.of(call.run, item));
    bool seen = false;
    for (std::size_t i = 0; i < keys.size() && !seen; ++i) {
      ESPALIER_CHECK(call.run.spend(1));
      ESPALIER_TRY(seen, call.run.equals(keys[i], value));
    }
    if (seen) continue;
    keys.push_back(std::move(value));
    items.push_back(item);
  }
  return call.run.list(std::move(items), SequenceKind::kGenerator);
}

template <bool greatest>
Result<Value> extreme(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr sequence, call.run.items(call.self));
  if (sequence->items.empty()) {
    return Value::undefined(
        {.why = Undefined::Why::kHint, .name = "No aggregated item, sequence was empty."});
  }
  ESPALIER_TRY(const Items keys,
               keys_of(call.run, sequence->items, {call.argument(1), call.flag(0)}));
  std::size_t best = 0;
  for (std::size_t i = 1; i < keys.size(); ++i) {
    ESPALIER_TRY(const int order, call.run.order(keys[i], keys[best], greatest ? ">" : "<"));
    if (greatest ? order > 0 : order < 0) best = i;
  }
  return sequence->items[best];
}

Result<Value> sum(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr sequence, call.run.items(call.self));
  Value total = call.argument(1) == nullptr ? Value::integer(0) : *call.argument(1);
  const Value* attribute = call.argument(0);
  for (const Value& item : sequence->items) {
    Value term = item;
    if (attribute != nullptr && !attribute->is_none()) {
      ESPALIER_TRY(term, follow(call.run, item, *attribute));
    }
    ESPALIER_TRY(total, call.run.binary("+", total, term));
  }
  return total;
}

Result<Value> join(Call& call) {
  MarkedText separator;
  if (call.argument(0) != nullptr) {
    ESPALIER_TRY(separator, call.run.str(*call.argument(0)));
  }
  ESPALIER_TRY(const Value::SequencePtr sequence, call.run.items(call.self));
  const Value* attribute = call.argument(1);
  if (attribute == nullptr || attribute->is_none()) {
    return joined(call.run, separator, sequence->items);
  }
  ESPALIER_TRY(const Items items, keys_of(call.run, sequence->items, {attribute, true}));
  return joined(call.run, separator, items);
}

// ---- map and select: lazy in Python, so what they give can be gone through once

Result<Arguments> without_first(const Call& call, std::string& name) {
  if (call.rest.positional.empty() || !call.rest.positional[0].is_text()) {
    return input_error("map requires a filter argument");
  }
  name = call.rest.positional[0].text()->bytes();
  Arguments rest = call.rest;
  rest.positional.erase(rest.positional.begin());
  return rest;
}

const Value* named(const Arguments& arguments, std::string_view name) {
  for (const auto& [known, value] : arguments.named) {
    if (known == name) return &value;
  }
  return nullptr;
}

// Whatever is not true holds nothing: none and 0, too.
Result<Value::SequencePtr> items_or_none(Call& call) {
  if (!truthy(call.self)) return Value::SequencePtr(std::make_shared<Sequence>());
  return call.run.items(call.self);
}

Result<Value> map(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr sequence, items_or_none(call));
  Items results;
  const Value* attribute = named(call.rest, "attribute");
  if (attribute != nullptr && call.rest.positional.empty()) {
    for (const Value& item : sequence->items) {
      ESPALIER_TRY(Value value, follow(call.run, item, *attribute, named(call.rest, "default")));
      results.push_back(std::move(value));
    }
  } else {
    std::string name;
    ESPALIER_TRY(const Arguments arguments, without_first(call, name));
    for (const Value& item : sequence->items) {
      ESPALIER_TRY(Value value, call.run.filter(name, item, arguments));
      results.push_back(std::move(value));
    }
  }
  return call.run.list(std::move(results), SequenceKind::kGenerator);
}

enum class Subject { kItem, kAttribute };

// Keeps the items that pass a test, or do not; without a test, those that are true.
template <Subject subject, bool wanted>
Result<Value> select(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr sequence, items_or_none(call));
  Arguments arguments = call.rest;
  Value attribute;
  if (subject == Subject::kAttribute) {
    if (arguments.positional.empty()) return input_error("Missing parameter for attribute name");
    attribute = arguments.positional[0];
    arguments.positional.erase(arguments.positional.begin());
  }
  std::string name;
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].is_text()) return input_error("the name of a test is a string");
    name = arguments.positional[0].text()->bytes();
    arguments.positional.erase(arguments.positional.begin());
  }
  Items chosen;
  for (const Value& item : sequence->items) {
    Value tested = item;
    if (subject == Subject::kAttribute) {
      ESPALIER_TRY(tested, follow(call.run, item, attribute));
    }
    bool passes = truthy(tested);
    if (!name.empty()) {
      ESPALIER_TRY(passes, call.run.test(name, tested, arguments));
    }
    if (passes == wanted) chosen.push_back(item);
  }
  return call.run.list(std::move(chosen), SequenceKind::kGenerator);
}

Result<Value> batch(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr sequence, call.run.items(call.self));
  ESPALIER_TRY(const Integer count, call.integer(0, 1));
  if (count < 1) return input_error("batch: expected at least one item a row");
  const Value* fill = call.argument(1);
  Items rows, row;
  const auto full = [&] { return static_cast<Integer>(row.size()) == count; };
  for (const Value& item : sequence->items) {
    if (full()) {
      ESPALIER_TRY(Value list, call.run.list(std::exchange(row, {})));
      rows.push_back(std::move(list));
    }
    row.push_back(item);
  }
  if (!row.empty()) {
    while (fill != nullptr && !fill->is_none() && !full()) {
      ESPALIER_CHECK(call.run.allocate(sizeof(Value)));
      row.push_back(*fill);
    }
    ESPALIER_TRY(Value list, call.run.list(std::move(row)));
    rows.push_back(std::move(list));
  }
  return call.run.list(std::move(rows), SequenceKind::kGenerator);
}

Result<Value> slice(Call& call) {
  ESPALIER_TRY(const Value::SequencePtr sequence, call.run.items(call.self));
  ESPALIER_TRY(const Integer given, call.integer(0, 1));
  if (given < 1) return input_error("slice: expected at least one slice");
  ESPALIER_TRY(const std::size_t slices, checked_width(call.run, given));
  const Value* fill = call.argument(1);
  const Items& items = sequence->items;
  const std::size_t size = items.size() / slices;
  const std::size_t longer = items.size() % slices;
  Items columns;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < slices; ++i) {
    const std::size_t end = begin + size + (i < longer ? 1 : 0);
    Items column(items.begin() + static_cast<std::ptrdiff_t>(begin),
                 items.begin() + static_cast<std::ptrdiff_t>(end));
    if (fill != nullptr && !fill->is_none() && i >= longer) column.push_back(*fill);
    ESPALIER_TRY(Value list, call.run.list(std::move(column)));
    columns.push_back(std::move(list));
    begin = end;
  }
  return call.run.list(std::move(columns), SequenceKind::kGenerator);
}

// ---- others

Result<Value> default_value(Call& call) {
  const bool replaced = call.self.is_undefined() || (call.flag(1) && !truthy(call.self));
  if (!replaced) return call.self;
  return call.argument(0) == nullptr ? Value::text("") : *call.argument(0);
}

// Attributes only, never the items of a dict.
Result<Value> attribute(Call& call) {
  ESPALIER_TRY(const MarkedText name, call.text(0));
  if (call.self.dict() == nullptr) return call.run.attribute(call.self, name.bytes());
  if (const auto method = find_method(call.self, name.bytes())) return *method;
  return Value::undefined(
      {.why = Undefined::Why::kAttribute, .name = name.bytes(), .type = "dict"});
}

constexpr auto kFilters = std::to_array<Builtin>({
    {"abs", "", absolute},
    {"attr", "name", attribute},
    {"batch", "linecount fill_with?", batch},
    {"capitalize", "", capitalize},
    {"center", "width?", center},
    {"count", "", length},
    {"d", "default_value? boolean?", default_value},
    {"default", "default_value? boolean?", default_value},
    {"dictsort", "case_sensitive? by? reverse?", sort_dict},
    {"e", "", escape},
    {"escape", "", escape},
    {"filesizeformat", "binary?", file_size},
    {"first", "", first},
    {"float", "default?", to_real},
    {"forceescape", "", escape_again},
    {"format", "*", format},
    {"groupby", "attribute default? case_sensitive?", group_by},
    {"indent", "width? first? blank?", indent},
    {"int", "default? base?", to_integer},
    {"items", "", item_pairs},
    {"join", "d? attribute?", join},
    {"last", "", last},
    {"length", "", length},
    {"list", "", to_list},
    {"lower", "", lower_case},
    {"map", "*", map},
    {"max", "case_sensitive? attribute?", extreme<true>},
    {"min", "case_sensitive? attribute?", extreme<false>},
    {"pprint", "", pretty},
    {"reject", "*", select<Subject::kItem, false>},
    {"rejectattr", "*", select<Subject::kAttribute, false>},
    {"replace", "old new count?", replace},
    {"reverse", "", reverse},
    {"round", "precision? method?", round_number},
    {"safe", "", safe},
    {"select", "*", select<Subject::kItem, true>},
    {"selectattr", "*", select<Subject::kAttribute, true>},
    {"slice", "slices fill_with?", slice},
    {"sort", "reverse? case_sensitive? attribute?", sort},
    {"string", "", to_string},
    {"striptags", "", strip_tags},
    {"sum", "attribute? start?", sum},
    {"title", "", title_case},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", to_json_text},
    {"trim", "chars?", trim},
    {"truncate", "length? killwords? end? leeway?", truncate},
    {"unique", "case_sensitive? attribute?", unique},
    {"upper", "", upper_case},
    {"urlencode", "", url_encode},
    {"wordcount", "", count_words},
});

}  // namespace

std::span<const Builtin> filters() { return kFilters; }

}  // namespace espalier::text::jinja
