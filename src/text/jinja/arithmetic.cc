// The operators + - * / // % **, with Python's meaning.
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/text_functions.h"

namespace espalier::text::jinja {
namespace {

Error too_large() { return input_error("an integer is too large"); }
Error by_zero() { return input_error("division by zero"); }

Result<Value> integer_power(Integer base, Integer exponent) {
  if (exponent < 0) {
    if (base == 0) return input_error("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  Integer result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return too_large();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return too_large();
  }
  return Value::integer(result);
}

// Rounds towards minus infinity, where C++ rounds towards zero.
Result<Value> integer_division(Integer a, Integer b, char sign) {
  if (b == 0) return input_error("integer division or modulo by zero");
  if (b == -1) {  // the one quotient that can overflow
    if (sign == '%') return Value::integer(0);
    Integer quotient = 0;
    if (__builtin_sub_overflow(Integer{0}, a, &quotient)) return too_large();
    return Value::integer(quotient);
  }
  const Integer remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  if (sign == '%') return Value::integer(adjust ? remainder + b : remainder);
  return Value::integer(a / b - (adjust ? 1 : 0));
}

Result<Value> integers(std::string_view sign, Integer a, Integer b) {
  Integer result = 0;
  if (sign == "+")
    return __builtin_add_overflow(a, b, &result) ? Result<Value>(too_large())
                                                 : Value::integer(result);
  if (sign == "-")
    return __builtin_sub_overflow(a, b, &result) ? Result<Value>(too_large())
                                                 : Value::integer(result);
  if (sign == "*")
    return __builtin_mul_overflow(a, b, &result) ? Result<Value>(too_large())
                                                 : Value::integer(result);
  if (sign == "**") return integer_power(a, b);
  if (sign == "//") return integer_division(a, b, '/');
  if (sign == "%") return integer_division(a, b, '%');
  if (b == 0) return by_zero();
  return Value::real(static_cast<double>(a) / static_cast<double>(b));
}

Result<Value> reals(std::string_view sign, double a, double b) {
  if (sign == "+") return Value::real(a + b);
  if (sign == "-") return Value::real(a - b);
  if (sign == "*") return Value::real(a * b);
  if (sign == "**") return Value::real(std::pow(a, b));
  if (b == 0) return by_zero();
  if (sign == "/") return Value::real(a / b);
  if (sign == "//") return Value::real(std::floor(a / b));
  const double remainder = std::fmod(a, b);
  return Value::real(remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder);
}

// A text or sequence `count` times.
Result<Value> repeated(Interpreter& run, const Value& value, Integer count) {
  const MarkedText* text = value.text();
  const Sequence* sequence = value.sequence();
  const std::size_t size = text != nullptr ? text->size() : sequence->items.size();
  if (count < 0 || size == 0) count = 0;
  const auto most = static_cast<Integer>(run.bytes_left());
  if (count > 0 && count > most / static_cast<Integer>(size)) {
    return run.allocate(run.bytes_left() + 1).error();
  }
  const auto times = static_cast<std::size_t>(count);
  if (text != nullptr) {
    TextBuilder builder(run);
    append_times(builder, *text, times);
    return std::move(builder).finish();
  }
  ESPALIER_CHECK(run.allocate(size * times * sizeof(Value)));
  std::vector<Value> items;
  items.reserve(size * times);
  for (std::size_t i = 0; i < times; ++i) {
    items.insert(items.end(), sequence->items.begin(), sequence->items.end());
  }
  return make_sequence(sequence->kind, std::move(items));
}

bool is_list_or_tuple(const Value& value) {
  const Sequence* sequence = value.sequence();
  return sequence != nullptr &&
         (sequence->kind == SequenceKind::kList || sequence->kind == SequenceKind::kTuple);
}

Result<Value> joined_texts(Interpreter& run, const MarkedText& a, const MarkedText& b) {
  const bool html = a.is_html() || b.is_html();
  TextBuilder builder(run);
  for (const MarkedText* text : {&a, &b}) {
    if (html && !text->is_html()) {
      ESPALIER_TRY(const MarkedText escaped, html_escaped(run, *text));
      builder.append(escaped);
    } else {
      builder.append(*text);
    }
  }
  ESPALIER_TRY(MarkedText text, std::move(builder).finish_text());
  return Value::text(html ? std::move(text).as_html() : std::move(text));
}

std::optional<Result<Value>> concatenated(Interpreter& run, const Value& a, const Value& b) {
  if (a.is_text()) {
    if (!b.is_text()) {
      return input_error("can only concatenate str (not \"{}\") to str", type_name(b));
    }
    return joined_texts(run, *a.text(), *b.text());
  }
  if (!is_list_or_tuple(a)) return std::nullopt;
  if (b.sequence() == nullptr || b.sequence()->kind != a.sequence()->kind) {
    return input_error("can only concatenate {} (not \"{}\") to {}", type_name(a), type_name(b),
                       type_name(a));
  }
  const Sequence& left = *a.sequence();
  const Sequence& right = *b.sequence();
  if (Status room = run.allocate((left.items.size() + right.items.size()) * sizeof(Value)); !room) {
    return room.error();
  }
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return make_sequence(left.kind, std::move(items));
}

}  // namespace

Result<Value> Interpreter::binary(std::string_view sign, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (const Undefined* undefined = value->undefined()) {
      return input_error("{}", undefined->message());
    }
  }
  if (sign == "%" && a.is_text()) return format_percent(*this, *a.text(), b);
  if (a.is_integer() && b.is_integer()) return integers(sign, a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) return reals(sign, a.as_real(), b.as_real());
  if (sign == "*") {
    const auto repeats = [](const Value& value) {
      return value.is_text() || is_list_or_tuple(value);
    };
    if (repeats(a) && b.is_integer()) return repeated(*this, a, b.as_integer());
    if (repeats(b) && a.is_integer()) return repeated(*this, b, a.as_integer());
  }
  if (sign == "+") {
    if (auto result = concatenated(*this, a, b)) return std::move(*result);
  }
  return input_error("unsupported operand type(s) for {}: '{}' and '{}'",
                     sign == "**" ? "** or pow()" : sign, type_name(a), type_name(b));
}

}  // namespace espalier::text::jinja
