#include "text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/jinja/characters.h"

namespace espalier::text::jinja {
namespace {

using Parsed = nlohmann::json;

// Builds values as the parser comes upon them. A frame is an array or object that is still open.
class ValueBuilder final : public nlohmann::json_sax<Parsed> {
 public:
  ValueBuilder(Origin origin, std::string name) : origin_(origin), name_(std::move(name)) {}

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Value::integer(value)); }
  bool number_float(number_float_t value, const string_t& digits) override {
    // Integers beyond 64 bits come here too.
    if (digits.find_first_of(".eE") != std::string::npos) return add(Value::real(value));
    const bool negative = digits.starts_with('-');
    Integer sum = 0;
    for (const char digit : digits.substr(negative ? 1 : 0)) {
      if (__builtin_mul_overflow(sum, Integer{10}, &sum) ||
          __builtin_add_overflow(sum, Integer{digit - '0'}, &sum)) {
        return add(Value::real(value));
      }
    }
    return add(Value::integer(negative ? -sum : sum));
  }
  bool string(string_t& value) override { return add(Value::text(value, origin_)); }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON has none

  bool start_object(std::size_t /*elements*/) override { return open(); }
  bool start_array(std::size_t /*elements*/) override { return open(); }
  bool key(string_t& value) override {
    frames_.back().key = Value::text(value, origin_);
    return true;
  }
  bool end_object() override {
    std::vector<std::pair<Value, Value>> members = std::move(frames_.back().members);
    return close(make_dict(std::move(members)));
  }
  bool end_array() override {
    std::vector<Value> items = std::move(frames_.back().items);
    return close(make_sequence(SequenceKind::kList, std::move(items)));
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const Parsed::exception& problem) override {
    const std::string_view what = problem.what();
    error_ = input_error("{}: {} at byte {}", name_,
                         what.find("UTF-8") != std::string_view::npos ? "not UTF-8" : "not JSON",
                         position);
    return false;
  }

  Result<Value> finish() && {
    if (error_) return *error_;
    return std::move(value_);
  }

 private:
  struct Frame {
    std::optional<Value> key;  // of the member to come; none in an array
    std::vector<Value> items;
    std::vector<std::pair<Value, Value>> members;
  };

  bool open() {
    if (frames_.size() == kMaxValueDepth) {
      error_ = input_error("{}: nested more than {} deep", name_, kMaxValueDepth);
      return false;
    }
    frames_.emplace_back();
    return true;
  }

  bool close(Result<Value> value) {
    frames_.pop_back();
    if (!value) {
      error_ = value.error();
      return false;
    }
    return add(std::move(*value));
  }

  bool add(Value value) {
    if (frames_.empty()) {
      value_ = std::move(value);
    } else if (frames_.back().key) {
      frames_.back().members.emplace_back(std::move(*frames_.back().key), std::move(value));
    } else {
      frames_.back().items.push_back(std::move(value));
    }
    return true;
  }

  Origin origin_;
  std::string name_;
  std::vector<Frame> frames_;
  Value value_;
  std::optional<Error> error_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, std::size_t most) : style_(style), most_(most) {
    item_separator_ = style.item_separator.value_or(style.indent ? "," : ", ");
    key_separator_ = style.key_separator.value_or(": ");
  }

  Status write(const Value& value) {
    if (out.size() > most_) return input_error("tojson gives more than {} bytes", most_);
    if (const MarkedText* text = value.text()) {
      write_string(*text);
    } else if (const Dict* dict = value.dict()) {
      return write_object(*dict);
    } else if (const Sequence* sequence = value.sequence();
               sequence != nullptr && has_json_form(sequence->kind)) {
      return write_array(*sequence);
    } else if (const auto scalar = scalar_text(value)) {
      plain(*scalar);
    } else {
      return input_error("Object of type {} is not JSON serializable", type_name(value));
    }
    return {};
  }

  MarkedText out;

 private:
  static bool has_json_form(SequenceKind kind) {
    return kind == SequenceKind::kList || kind == SequenceKind::kTuple ||
           kind == SequenceKind::kGroup;
  }

  static std::optional<std::string> scalar_text(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is_boolean()) return truthy(value) ? "true" : "false";
    if (value.is_integer()) return fmt::format("{}", value.as_integer());
    if (!value.is_real()) return std::nullopt;
    const double real = value.as_real();
    if (std::isnan(real)) return "NaN";
    if (std::isinf(real)) return real < 0 ? "-Infinity" : "Infinity";
    return real_repr(real);
  }

  void plain(std::string_view text) { out.append(text, Origin::kTemplate); }

  void new_line() {
    if (!style_.indent) return;
    plain("\n");
    for (std::size_t i = 0; i < level_; ++i) plain(*style_.indent);
  }

  void write_string(const MarkedText& text) {
    plain("\"");
    for (std::size_t i = 0; i < text.size();) {
      const Character c = character_at(text.bytes(), i);
      const std::string escape = escaped(c.code);
      if (escape.empty()) {
        out.append(text, i, c.length);
      } else {
        out.append(escape, text.origin(i));
      }
      i += c.length;
    }
    plain("\"");
  }

  [[nodiscard]] std::string escaped(char32_t code) const {
    constexpr std::string_view kShort = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (std::size_t i = 0; i < kShort.size(); i += 2) {
      if (code == static_cast<unsigned char>(kShort[i])) return {'\\', kShort[i + 1]};
    }
    const bool as_it_is = style_.characters == JsonStyle::Characters::kAsTheyAre;
    if (code >= 0x20 && (code < 0x7f || as_it_is)) return {};
    if (code == 0x7f) return {};
    const auto unit = [](std::uint32_t value) { return fmt::format("\\u{:04x}", value); };
    if (code < 0x10000) return unit(code);
    const std::uint32_t rest = code - 0x10000;
    return unit(0xd800 + (rest >> 10)) + unit(0xdc00 + (rest & 0x3ff));
  }

  Status write_array(const Sequence& sequence) {
    if (sequence.items.empty()) {
      plain("[]");
      return {};
    }
    plain("[");
    ++level_;
    for (std::size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) plain(item_separator_);
      new_line();
      ESPALIER_CHECK(write(sequence.items[i]));
    }
    --level_;
    new_line();
    plain("]");
    return {};
  }

  Status write_object(const Dict& dict) {
    if (dict.items.empty()) {
      plain("{}");
      return {};
    }
    ESPALIER_TRY(const auto items, ordered(dict));
    plain("{");
    ++level_;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) plain(item_separator_);
      new_line();
      ESPALIER_CHECK(write_key(items[i]->first));
      plain(key_separator_);
      ESPALIER_CHECK(write(items[i]->second));
    }
    --level_;
    new_line();
    plain("}");
    return {};
  }

  Status write_key(const Value& key) {
    if (const MarkedText* text = key.text()) {
      write_string(*text);
    } else if (const auto scalar = scalar_text(key)) {
      plain('"' + *scalar + '"');
    } else {
      return input_error("keys must be str, int, float, bool or None, not {}", type_name(key));
    }
    return {};
  }

  using Member = std::pair<Value, Value>;
  [[nodiscard]] Result<std::vector<const Member*>> ordered(const Dict& dict) const {
    std::vector<const Member*> items;
    for (const Member& item : dict.items) items.push_back(&item);
    if (style_.keys == JsonStyle::Keys::kInOrder) return items;
    std::optional<Error> problem;
    std::stable_sort(items.begin(), items.end(), [&](const Member* a, const Member* b) {
      const auto order = compare(a->first, b->first, "<");
      if (!order) problem = order.error();
      return order && *order < 0;
    });
    if (problem) return *problem;
    return items;
  }

  const JsonStyle& style_;
  std::string item_separator_, key_separator_;
  std::size_t most_;
  std::size_t level_ = 0;
};

}  // namespace

Result<Value> parse_json(std::string_view json, Origin origin, const std::string& name) {
  ValueBuilder builder(origin, name);
  Parsed::sax_parse(json, &builder);
  return std::move(builder).finish();
}

Result<MarkedText> to_json(const Value& value, const JsonStyle& style, std::size_t most) {
  JsonWriter writer(style, most);
  ESPALIER_CHECK(writer.write(value));
  return std::move(writer.out);
}

}  // namespace espalier::text::jinja
