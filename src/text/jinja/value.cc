#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "text/jinja/characters.h"

namespace espalier::text::jinja {
namespace {

// Hashable as in Python: what cannot change. Everything else is no key of a dict.
bool hashable(const Value& value) {
  if (value.dict() != nullptr) return false;
  const Sequence* sequence = value.sequence();
  if (sequence == nullptr) return true;
  return sequence->kind == SequenceKind::kTuple &&
         std::all_of(sequence->items.begin(), sequence->items.end(), hashable);
}

// Equal for keys that are equal, and only for those.
std::string spelling(const Value& key) {
  if (const MarkedText* text = key.text()) return "s" + text->bytes();
  if (key.is_integer()) return fmt::format("{}", key.as_integer());
  if (key.is_real()) {
    const double real = key.as_real();
    const bool whole = std::trunc(real) == real && std::abs(real) < 1e18;
    return whole ? fmt::format("{}", static_cast<Integer>(real)) : real_repr(real);
  }
  if (key.object() != nullptr) return fmt::format("o{}", static_cast<const void*>(key.object()));
  std::string joined = key.is_none() ? "none" : "(";
  if (const Sequence* sequence = key.sequence()) {
    for (const Value& item : sequence->items) {
      const std::string part = spelling(item);
      joined += fmt::format("{}:{}", part.size(), part);
    }
  }
  return joined;
}

struct SequenceNames {
  std::string_view type, open, close;
};

SequenceNames names_of(SequenceKind kind) {
  switch (kind) {
    case SequenceKind::kTuple:
      return {"tuple", "(", ")"};
    case SequenceKind::kRange:
      return {"range", "range(", ")"};
    case SequenceKind::kKeys:
      return {"dict_keys", "dict_keys([", "])"};
    case SequenceKind::kValues:
      return {"dict_values", "dict_values([", "])"};
    case SequenceKind::kItems:
      return {"dict_items", "dict_items([", "])"};
    case SequenceKind::kGenerator:
      return {"generator", "<generator object", ">"};
    case SequenceKind::kGroup:
      return {"_GroupTuple", "(", ")"};
    default:
      return {"list", "[", "]"};
  }
}

bool is_tuple(SequenceKind kind) {
  return kind == SequenceKind::kTuple || kind == SequenceKind::kGroup;
}

// Writes str() and repr().
class Writer {
 public:
  explicit Writer(std::size_t most) : most_(most) {}

  void write(const Value& value) {
    if (out.size() > most_) return;
    if (const MarkedText* text = value.text()) return write_quoted(*text);
    if (const Sequence* sequence = value.sequence()) return write_sequence(*sequence);
    if (const Dict* dict = value.dict()) return write_dict(*dict);
    if (value.is_none()) return plain("None");
    if (value.is_boolean()) return plain(truthy(value) ? "True" : "False");
    if (value.is_integer()) return plain(fmt::format("{}", value.as_integer()));
    if (value.is_real()) return plain(real_repr(value.as_real()));
    if (value.is_undefined()) return plain("Undefined");
    plain(fmt::format("<{}>", value.object()->type_name()));
  }

  MarkedText out;

 private:
  void plain(std::string_view text) { out.append(text, Origin::kTemplate); }

  // Python prefers single quotes, unless the text has some and no double ones.
  void write_quoted(const MarkedText& text) {
    const std::string& bytes = text.bytes();
    const bool doubled =
        bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
    const char quote = doubled ? '"' : '\'';
    plain({&quote, 1});
    for (std::size_t i = 0; i < bytes.size();) {
      const Character c = character_at(bytes, i);
      const std::string escape = escaped(c, quote);
      if (escape.empty()) {
        out.append(text, i, c.length);
      } else {
        out.append(escape, text.origin(i));
      }
      i += c.length;
    }
    plain({&quote, 1});
  }

  // What stands for a character in repr(), or nothing where it stands for itself.
  static std::string escaped(const Character& c, char quote) {
    if (c.code == '\n') return "\\n";
    if (c.code == '\r') return "\\r";
    if (c.code == '\t') return "\\t";
    if (c.code == '\\' || c.code == static_cast<unsigned char>(quote)) {
      return {'\\', static_cast<char>(c.code)};
    }
    if (is_printable(c.code)) return {};
    if (c.code < 0x100) return fmt::format("\\x{:02x}", static_cast<unsigned>(c.code));
    if (c.code < 0x10000) return fmt::format("\\u{:04x}", static_cast<unsigned>(c.code));
    return fmt::format("\\U{:08x}", static_cast<unsigned>(c.code));
  }

  void write_sequence(const Sequence& sequence) {
    const SequenceNames names = names_of(sequence.kind);
    plain(names.open);
    if (sequence.kind == SequenceKind::kRange) {
      write_range(sequence);
    } else if (sequence.kind != SequenceKind::kGenerator) {
      for (std::size_t i = 0; i < sequence.items.size() && out.size() <= most_; ++i) {
        if (i > 0) plain(", ");
        write(sequence.items[i]);
      }
      if (is_tuple(sequence.kind) && sequence.items.size() == 1) plain(",");
    }
    plain(names.close);
  }

  // A range knows its items only, so its bounds are read off them.
  void write_range(const Sequence& sequence) {
    const auto& items = sequence.items;
    const Integer first = items.empty() ? 0 : items.front().as_integer();
    const Integer step = items.size() < 2 ? 1 : items[1].as_integer() - first;
    const Integer stop = items.empty() ? 0 : items.back().as_integer() + step;
    plain(fmt::format("{}, {}", first, stop));
    if (step != 1) plain(fmt::format(", {}", step));
  }

  void write_dict(const Dict& dict) {
    plain("{");
    for (std::size_t i = 0; i < dict.items.size() && out.size() <= most_; ++i) {
      if (i > 0) plain(", ");
      write(dict.items[i].first);
      plain(": ");
      write(dict.items[i].second);
    }
    plain("}");
  }

  std::size_t most_;
};

std::uint32_t depth_of(const Value& value) {
  if (const Sequence* sequence = value.sequence()) return sequence->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  return 0;
}

Error too_deep() { return input_error("values are nested more than {} deep", kMaxValueDepth); }

Result<int> compare_sequences(const Sequence& a, const Sequence& b, std::string_view sign) {
  const std::size_t common = std::min(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (!equal(a.items[i], b.items[i])) return compare(a.items[i], b.items[i], sign);
  }
  return a.items.size() < b.items.size() ? -1 : a.items.size() > b.items.size() ? 1 : 0;
}

template <typename T>
int order(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

std::size_t weight_of_items(const Value& value, std::size_t most, std::size_t sum) {
  const auto add = [&](const Value& item) {
    if (sum < most) sum += weight(item, most - sum);
  };
  if (const Sequence* sequence = value.sequence()) {
    for (std::size_t i = 0; i < sequence->items.size() && sum < most; ++i) add(sequence->items[i]);
  } else if (const Dict* dict = value.dict()) {
    for (std::size_t i = 0; i < dict->items.size() && sum < most; ++i) {
      add(dict->items[i].first);
      add(dict->items[i].second);
    }
  }
  return sum;
}

}  // namespace

bool can_be_indexed(const Sequence& sequence) {
  switch (sequence.kind) {
    case SequenceKind::kList:
    case SequenceKind::kTuple:
    case SequenceKind::kRange:
    case SequenceKind::kGroup:
      return true;
    default:
      return false;
  }
}

std::string Undefined::message() const {
  switch (why) {
    case Why::kName:
      return fmt::format("{} is undefined", quoted(name));
    case Why::kAttribute:
      return fmt::format("'{}' has no attribute {}",
                         type == "NoneType" ? "None" : fmt::format("{} object", type),
                         quoted(name));
    case Why::kElement:
      return fmt::format("{} has no element {}",
                         type == "NoneType" ? "None" : fmt::format("{} object", type), name);
    case Why::kUnsafe:
      return fmt::format("access to attribute {} of '{}' object is unsafe.", quoted(name), type);
    case Why::kHint:
      break;
  }
  return name;
}

const Value* Dict::find(const Value& key) const {
  if (const MarkedText* text = key.text()) return find(text->bytes());
  for (const auto& [name, value] : items) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : items) {
    const MarkedText* text = name.text();
    if (text != nullptr && text->bytes() == key) return &value;
  }
  return nullptr;
}

std::optional<Value> Object::attribute(std::string_view /*name*/) const { return std::nullopt; }

Result<Value> Object::call(Interpreter& /*run*/, Arguments /*arguments*/) {
  return input_error("'{}' object is not callable", type_name());
}

Integer Value::as_integer() const {
  if (const bool* value = std::get_if<bool>(&state_)) return *value ? 1 : 0;
  if (const Integer* value = std::get_if<Integer>(&state_)) return *value;
  return 0;
}

double Value::as_real() const {
  if (const double* value = std::get_if<double>(&state_)) return *value;
  return static_cast<double>(as_integer());
}

Result<Value> make_sequence(SequenceKind kind, std::vector<Value> items) {
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  for (const Value& item : items) sequence->depth = std::max(sequence->depth, 1 + depth_of(item));
  if (sequence->depth > kMaxValueDepth) return too_deep();
  sequence->items = std::move(items);
  return Value(Value::SequencePtr(std::move(sequence)));
}

Result<Value> make_dict(std::vector<std::pair<Value, Value>> items) {
  auto dict = std::make_shared<Dict>();
  std::unordered_map<std::string, std::size_t> places;
  for (auto& [key, value] : items) {
    if (!hashable(key)) return input_error("unhashable type: '{}'", type_name(key));
    dict->depth = std::max({dict->depth, 1 + depth_of(key), 1 + depth_of(value)});
    if (dict->depth > kMaxValueDepth) return too_deep();
    const auto [place, is_new] = places.emplace(spelling(key), dict->items.size());
    if (is_new) {
      dict->items.emplace_back(std::move(key), std::move(value));
    } else {
      dict->items[place->second].second = std::move(value);
    }
  }
  return Value(Value::DictPtr(std::move(dict)));
}

std::string_view type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_boolean()) return "bool";
  if (value.is_integer()) return "int";
  if (value.is_real()) return "float";
  if (value.is_text()) return "str";
  if (value.dict() != nullptr) return "dict";
  if (value.is_undefined()) return "Undefined";
  if (const Sequence* sequence = value.sequence()) return names_of(sequence->kind).type;
  return value.object()->type_name();
}

std::string type_repr(const Value& value) {
  if (value.is_none()) return "None";
  return fmt::format("{} object", type_name(value));
}

bool truthy(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_integer()) return value.as_integer() != 0;
  if (value.is_real()) return value.as_real() != 0;
  if (const MarkedText* text = value.text()) return !text->empty();
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  if (const Sequence* sequence = value.sequence()) {
    return sequence->kind == SequenceKind::kGenerator || !sequence->items.empty();
  }
  return true;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_integer() == b.as_integer();
    return a.as_real() == b.as_real();
  }
  if (a.is_text() && b.is_text()) return a.text()->bytes() == b.text()->bytes();
  const Sequence* left = a.sequence();
  const Sequence* right = b.sequence();
  if (left != nullptr && right != nullptr) {
    if (left == right) return true;
    if (left->kind == SequenceKind::kGenerator || right->kind == SequenceKind::kGenerator) {
      return false;
    }
    const bool comparable =
        left->kind == right->kind || (is_tuple(left->kind) && is_tuple(right->kind));
    return comparable && std::equal(left->items.begin(), left->items.end(), right->items.begin(),
                                    right->items.end(), equal);
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    const auto& items = a.dict()->items;
    return items.size() == b.dict()->items.size() &&
           std::all_of(items.begin(), items.end(), [&](const auto& item) {
             const Value* other = b.dict()->find(item.first);
             return other != nullptr && equal(item.second, *other);
           });
  }
  if (a.object() != nullptr) return a.object() == b.object();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

Result<int> compare(const Value& a, const Value& b, std::string_view sign) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return order(a.as_integer(), b.as_integer());
    return order(a.as_real(), b.as_real());
  }
  // UTF-8 sorts as its code points do.
  if (a.is_text() && b.is_text()) return order(a.text()->bytes(), b.text()->bytes());
  const Sequence* left = a.sequence();
  const Sequence* right = b.sequence();
  if (left != nullptr && right != nullptr) {
    const bool lists = left->kind == SequenceKind::kList && right->kind == SequenceKind::kList;
    if (lists || (is_tuple(left->kind) && is_tuple(right->kind))) {
      return compare_sequences(*left, *right, sign);
    }
  }
  for (const Value* value : {&a, &b}) {
    if (const Undefined* undefined = value->undefined())
      return input_error("{}", undefined->message());
  }
  return input_error("'{}' not supported between instances of '{}' and '{}'", sign, type_name(a),
                     type_name(b));
}

std::size_t weight(const Value& value, std::size_t most) {
  std::size_t own = 1;
  if (const MarkedText* text = value.text()) own += text->size() / 64;
  return std::min(most, weight_of_items(value, most, own));
}

MarkedText to_text(const Value& value, std::size_t most) {
  if (value.is_undefined()) return {};
  if (const MarkedText* text = value.text()) return *text;
  return to_repr(value, most);
}

MarkedText to_repr(const Value& value, std::size_t most) {
  Writer writer(most);
  writer.write(value);
  return std::move(writer.out);
}

std::string quoted(std::string_view text) {
  return to_repr(Value::text(text), text.size()).bytes();
}

std::string real_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string digits = fmt::format("{}", value);
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

}  // namespace espalier::text::jinja
