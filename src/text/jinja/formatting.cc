// `'%d of %s' % (1, x)` and `'{} of {:>8}'.format(1, x)`.
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"
#include "text/jinja/text_functions.h"

namespace espalier::text::jinja {
namespace {

// Python's format specification mini-language; printf's flags are translated into it.
struct Spec {
  MarkedText fill = MarkedText(" ", Origin::kTemplate);
  char align = 0;  // < > ^ or = (padding after the sign); 0: as the type has it
  char sign = '-';
  bool alternate = false;
  bool thousands = false;
  Integer width = 0;
  int precision = -1;  // -1: not given
  char type = 0;
};

constexpr int kMaxPrecision = 1000;

// Text and sign of a number; the sign goes before padding with '='.
struct Digits {
  std::string sign, digits;
};

std::string grouped(std::string digits) {
  const std::size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (std::size_t i = end; i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string sign_of(bool negative, const Spec& spec) {
  if (negative) return "-";
  return spec.sign == '-' ? "" : std::string(1, spec.sign);
}

Result<Digits> integer_digits(Integer value, const Spec& spec) {
  if (spec.type == 'c') {
    std::string character;
    append_utf8(character, value < 0 || value > 0x10ffff ? 0xfffd : static_cast<char32_t>(value));
    return Digits{"", character};
  }
  const bool negative = value < 0;
  if (negative && __builtin_sub_overflow(Integer{0}, value, &value)) {
    return input_error("an integer is too large");
  }
  Digits result{sign_of(negative, spec), ""};
  switch (spec.type) {
    case 'x':
      result.digits = fmt::format("{:x}", value);
      break;
    case 'X':
      result.digits = fmt::format("{:X}", value);
      break;
    case 'o':
      result.digits = fmt::format("{:o}", value);
      break;
    case 'b':
      result.digits = fmt::format("{:b}", value);
      break;
    default:
      result.digits = fmt::format("{}", value);
  }
  if (spec.alternate &&
      (spec.type == 'x' || spec.type == 'X' || spec.type == 'o' || spec.type == 'b')) {
    result.sign += '0';
    result.sign += spec.type;
  }
  if (spec.thousands) result.digits = grouped(std::move(result.digits));
  return result;
}

Result<Digits> real_digits(double value, const Spec& spec) {
  if (spec.precision > kMaxPrecision) return input_error("precision too big");
  Digits result{sign_of(std::signbit(value), spec), ""};
  value = std::abs(value);
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  switch (spec.type) {
    case 'f':
    case 'F':
      result.digits = fmt::format("{:.{}f}", value, precision);
      break;
    case '%':
      result.digits = fmt::format("{:.{}f}%", value * 100, precision);
      break;
    case 'e':
      result.digits = fmt::format("{:.{}e}", value, precision);
      break;
    case 'E':
      result.digits = fmt::format("{:.{}E}", value, precision);
      break;
    case 'g':
    case 'G':
      result.digits = fmt::format("{:.{}g}", value, std::max(precision, 1));
      break;
    default:
      result.digits = spec.precision < 0
                          ? real_repr(value)
                          : fmt::format("{:.{}g}", value, std::max(spec.precision, 1));
  }
  if (spec.thousands) result.digits = grouped(std::move(result.digits));
  return result;
}

Result<Value> padded_number(Interpreter& run, const Digits& digits, const Spec& spec) {
  if (spec.align == '=') {
    ESPALIER_TRY(const Value body, padded(run, MarkedText(digits.digits, Origin::kTemplate),
                                          spec.width - static_cast<Integer>(digits.sign.size()),
                                          spec.fill, Sides::kLeft));
    TextBuilder builder(run);
    builder.append(digits.sign, Origin::kTemplate);
    builder.append(*body.text());
    return std::move(builder).finish();
  }
  const Sides pad = spec.align == '<'   ? Sides::kRight
                    : spec.align == '^' ? Sides::kBoth
                                        : Sides::kLeft;
  return padded(run, MarkedText(digits.sign + digits.digits, Origin::kTemplate), spec.width,
                spec.fill, pad);
}

Result<Value> formatted_text(Interpreter& run, MarkedText text, const Spec& spec) {
  if (spec.precision >= 0) {
    const auto most = static_cast<std::size_t>(spec.precision);
    text = text.substr(0, byte_of_character(text.bytes(), most));
  }
  const Sides pad = spec.align == '>'   ? Sides::kLeft
                    : spec.align == '^' ? Sides::kBoth
                                        : Sides::kRight;
  return padded(run, text, spec.width, spec.fill, pad);
}

// format(value, spec).
Result<Value> formatted(Interpreter& run, const Value& value, const Spec& spec) {
  const bool as_text = spec.type == 's' || (spec.type == 0 && !value.is_number());
  if (as_text || value.is_boolean()) {
    ESPALIER_TRY(MarkedText text, run.str(value));
    if (!value.is_boolean() || as_text || spec.type == 0) {
      return formatted_text(run, std::move(text), spec);
    }
  }
  if (!value.is_number()) {
    return input_error("Unknown format code '{}' for object of type '{}'", spec.type,
                       type_name(value));
  }
  const bool real =
      value.is_real() || std::string_view("fFeEgG%").find(spec.type) != std::string_view::npos;
  if (real && spec.type != 0) {
    ESPALIER_TRY(const Digits digits, real_digits(value.as_real(), spec));
    return padded_number(run, digits, spec);
  }
  if (value.is_real()) {
    ESPALIER_TRY(const Digits digits, real_digits(value.as_real(), spec));
    return padded_number(run, digits, spec);
  }
  ESPALIER_TRY(const Digits digits, integer_digits(value.as_integer(), spec));
  return padded_number(run, digits, spec);
}

// Reads a format from left to right.
struct Reader {
  const std::string& bytes;
  std::size_t at = 0;

  [[nodiscard]] bool done() const { return at >= bytes.size(); }
  [[nodiscard]] char peek() const { return done() ? '\0' : bytes[at]; }
  bool skip(char c) {
    if (done() || bytes[at] != c) return false;
    ++at;
    return true;
  }
  // A number, or nothing; too long a one is cut to what exceeds every limit.
  std::optional<Integer> number() {
    const std::size_t begin = at;
    Integer value = 0;
    for (; !done() && bytes[at] >= '0' && bytes[at] <= '9'; ++at) {
      value = std::min(value * 10 + (bytes[at] - '0'), Integer{1} << 62);
    }
    return at == begin ? std::nullopt : std::optional(value);
  }
};

int as_precision(Integer value) {
  return static_cast<int>(std::min<Integer>(value, Integer{1} << 30));
}

// ---- printf style

class PercentFormat {
 public:
  PercentFormat(Interpreter& run, const MarkedText& format, const Value& values)
      : run_(run), format_(format), reader_{format.bytes()}, values_(values), builder_(run) {
    const Sequence* sequence = values.sequence();
    if (sequence != nullptr && sequence->kind == SequenceKind::kTuple) tuple_ = sequence;
  }

  Result<Value> write() {
    while (!reader_.done()) {
      const std::size_t percent = std::min(format_.bytes().find('%', reader_.at), format_.size());
      builder_.append(format_, reader_.at, percent - reader_.at);
      reader_.at = percent + 1;
      if (percent == format_.size()) break;
      ESPALIER_CHECK(conversion());
    }
    if (values_.dict() == nullptr && next_ < (tuple_ == nullptr ? 1 : tuple_->items.size())) {
      return input_error("not all arguments converted during string formatting");
    }
    return std::move(builder_).finish();
  }

 private:
  Result<Value> next_value() {
    if (tuple_ != nullptr) {
      if (next_ < tuple_->items.size()) return tuple_->items[next_++];
    } else if (next_++ == 0) {
      return values_;
    }
    return input_error("not enough arguments for format string");
  }

  Result<Value> named_value() {
    const std::size_t end = format_.bytes().find(')', reader_.at);
    if (end == std::string::npos) return input_error("incomplete format key");
    const std::string name = format_.bytes().substr(reader_.at, end - reader_.at);
    reader_.at = end + 1;
    if (values_.dict() == nullptr) return input_error("format requires a mapping");
    if (const Value* found = values_.dict()->find(name)) return *found;
    return input_error("{}", quoted(name));
  }

  Result<Integer> star_or_number() {
    if (!reader_.skip('*')) return reader_.number().value_or(0);
    ESPALIER_TRY(const Value value, next_value());
    if (!value.is_integer()) return input_error("* wants int");
    return value.as_integer();
  }

  Status conversion() {
    if (reader_.skip('%')) {
      builder_.append("%", Origin::kTemplate);
      return {};
    }
    std::optional<Value> value;
    if (reader_.skip('(')) {
      ESPALIER_TRY(value, named_value());
    }
    Spec spec;
    spec.align = '>';
    bool zero = false;
    for (bool more = true; more;) {
      more = true;
      if (reader_.skip('-')) {
        spec.align = '<';
      } else if (reader_.skip('0')) {
        zero = true;
      } else if (reader_.skip('#')) {
        spec.alternate = true;
      } else if (reader_.skip('+')) {
        spec.sign = '+';
      } else if (reader_.skip(' ')) {
        if (spec.sign != '+') spec.sign = ' ';
      } else {
        more = false;
      }
    }
    ESPALIER_TRY(spec.width, star_or_number());
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -std::max<Integer>(spec.width, -(Integer{1} << 62));
    }
    if (reader_.skip('.')) {
      ESPALIER_TRY(const Integer precision, star_or_number());
      spec.precision = as_precision(std::max<Integer>(precision, 0));
    }
    if (reader_.done()) return input_error("incomplete format");
    spec.type = reader_.peek();
    ++reader_.at;
    if (!value) {
      ESPALIER_TRY(value, next_value());
    }
    if (zero && spec.align == '>' && spec.type != 's' && spec.type != 'r') {
      spec.align = '=';
      spec.fill = MarkedText("0", Origin::kTemplate);
    }
    return convert(*value, spec);
  }

  Status convert(const Value& value, Spec spec) {
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
      ESPALIER_TRY(MarkedText text, spec.type == 's' ? run_.str(value) : run_.repr(value));
      ESPALIER_TRY(const Value written, formatted_text(run_, std::move(text), spec));
      builder_.append(*written.text());
      return {};
    }
    if (std::string_view("diuxXocfFeEgG").find(spec.type) == std::string_view::npos) {
      return input_error("unsupported format character '{}'", quoted({&spec.type, 1}));
    }
    if (spec.type == 'c' && value.is_text()) {
      builder_.append(*value.text());
      return {};
    }
    if (!value.is_number()) {
      return input_error("%{} format: a real number is required, not {}", spec.type,
                         type_name(value));
    }
    Value number = value;
    if (std::string_view("diuxXoc").find(spec.type) != std::string_view::npos) {
      const double real = value.as_real();
      if (value.is_real() && !(std::abs(real) < 1e30))
        return input_error("an integer is too large");
      number = Value::integer(value.is_real() ? static_cast<Integer>(real) : value.as_integer());
      if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    }
    ESPALIER_TRY(const Value written, formatted(run_, number, spec));
    builder_.append(*written.text());
    return {};
  }

  Interpreter& run_;
  const MarkedText& format_;
  Reader reader_;
  const Value& values_;
  const Sequence* tuple_ = nullptr;
  std::size_t next_ = 0;
  TextBuilder builder_;
};

// ---- str.format

class BraceFormat {
 public:
  BraceFormat(Interpreter& run, const MarkedText& format, const Arguments& values)
      : run_(run), format_(format), reader_{format.bytes()}, values_(values), builder_(run) {}

  Result<Value> write() {
    while (!reader_.done()) {
      const std::size_t brace =
          std::min(format_.bytes().find_first_of("{}", reader_.at), format_.size());
      builder_.append(format_, reader_.at, brace - reader_.at);
      if (brace == format_.size()) break;
      reader_.at = brace + 1;
      const char c = format_.bytes()[brace];
      if (reader_.peek() == c) {  // doubled: itself
        builder_.append(format_, brace, 1);
        ++reader_.at;
      } else if (c == '}') {
        return input_error("Single '}}' encountered in format string");
      } else {
        ESPALIER_CHECK(field());
      }
    }
    return std::move(builder_).finish();
  }

 private:
  Status field() {
    ESPALIER_TRY(Value value, field_value());
    if (reader_.skip('!')) {
      const char conversion = reader_.peek();
      if (conversion != 'r' && conversion != 's' && conversion != 'a') {
        return input_error("Unknown conversion specifier in a format string");
      }
      ++reader_.at;
      ESPALIER_TRY(MarkedText text, conversion == 's' ? run_.str(value) : run_.repr(value));
      value = Value::text(std::move(text));
    }
    Spec spec;
    if (reader_.skip(':')) ESPALIER_CHECK(read_spec(spec, value));
    if (!reader_.skip('}')) return input_error("expected '}}' before end of string");
    ESPALIER_TRY(const Value written, formatted(run_, value, spec));
    builder_.append(*written.text());
    return {};
  }

  // "", "0", "name", "0.attribute", "0[key]".
  Result<Value> field_value() {
    const std::size_t begin = reader_.at;
    reader_.at = std::min(format_.bytes().find_first_of(".[!:}", begin), format_.size());
    const std::string name = format_.bytes().substr(begin, reader_.at - begin);
    ESPALIER_TRY(Value value, argument(name));
    while (true) {
      if (reader_.skip('.')) {
        const std::size_t from = reader_.at;
        reader_.at = std::min(format_.bytes().find_first_of(".[!:}", from), format_.size());
        ESPALIER_TRY(value, run_.attribute(value, format_.bytes().substr(from, reader_.at - from)));
      } else if (reader_.skip('[')) {
        const std::size_t from = reader_.at;
        const std::size_t end = format_.bytes().find(']', from);
        if (end == std::string::npos) return input_error("Missing ']' in format string");
        reader_.at = end + 1;
        const std::string key = format_.bytes().substr(from, end - from);
        const auto index = parse_integer(key, 10);
        ESPALIER_TRY(value, run_.item(value, index ? Value::integer(*index) : Value::text(key)));
      } else {
        return value;
      }
    }
  }

  Result<Value> argument(const std::string& name) {
    std::optional<Integer> index;
    if (name.empty()) {
      index = static_cast<Integer>(next_++);
    } else {
      index = parse_integer(name, 10);
    }
    if (index) {
      if (*index < 0 || *index >= static_cast<Integer>(values_.positional.size())) {
        return input_error("Replacement index {} out of range for positional args tuple", *index);
      }
      return values_.positional[static_cast<std::size_t>(*index)];
    }
    for (const auto& [known, value] : values_.named) {
      if (known == name) return value;
    }
    return input_error("{}", quoted(name));
  }

  Status read_spec(Spec& spec, const Value& value) {
    const std::string& bytes = format_.bytes();
    const auto is_align = [](char c) {
      return c != '\0' && std::string_view("<>=^").find(c) != std::string_view::npos;
    };
    if (!reader_.done()) {
      const std::size_t length = character_at(bytes, reader_.at).length;
      const std::size_t after = reader_.at + length;
      if (after < bytes.size() && is_align(bytes[after])) {
        spec.fill = format_.substr(reader_.at, length);
        spec.align = bytes[after];
        reader_.at = after + 1;
      } else if (is_align(reader_.peek())) {
        spec.align = reader_.peek();
        ++reader_.at;
      }
    }
    for (const char sign : {'+', '-', ' '}) {
      if (reader_.skip(sign)) spec.sign = sign;
    }
    spec.alternate = reader_.skip('#');
    if (reader_.skip('0') && spec.align == 0 && value.is_number()) {
      spec.align = '=';
      spec.fill = MarkedText("0", Origin::kTemplate);
    }
    spec.width = reader_.number().value_or(0);
    spec.thousands = reader_.skip(',');
    if (reader_.skip('.')) {
      const auto precision = reader_.number();
      if (!precision) return input_error("Format specifier missing precision");
      spec.precision = as_precision(*precision);
    }
    if (!reader_.done() && reader_.peek() != '}') {
      spec.type = reader_.peek();
      if (std::string_view("bcdeEfFgGnosxX%").find(spec.type) == std::string_view::npos) {
        return input_error("Invalid format specifier");
      }
      ++reader_.at;
    }
    return {};
  }

  Interpreter& run_;
  const MarkedText& format_;
  Reader reader_;
  const Arguments& values_;
  std::size_t next_ = 0;
  TextBuilder builder_;
};

}  // namespace

Result<Value> format_percent(Interpreter& run, const MarkedText& format, const Value& values) {
  return PercentFormat(run, format, values).write();
}

Result<Value> format_braces(Interpreter& run, const MarkedText& format, const Arguments& values) {
  return BraceFormat(run, format, values).write();
}

}  // namespace espalier::text::jinja
