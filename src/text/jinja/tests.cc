// The tests of Jinja: `x is defined`.
#include <array>

#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"

namespace espalier::text::jinja {
namespace {

Result<Value> yes_or_no(bool value) { return Value::boolean(value); }

Result<Integer> integer_self(const Call& call) {
  if (!call.self.is_integer()) {
    return input_error("not all arguments converted during string formatting");
  }
  return call.self.as_integer();
}

Result<Value> remainder_is(const Call& call, Integer divisor, Integer remainder) {
  ESPALIER_TRY(const Integer value, integer_self(call));
  if (divisor == 0) return input_error("integer division or modulo by zero");
  return yes_or_no((value % divisor + divisor) % divisor == remainder);
}

// Whether the letters of a text all pass, and there is one.
Result<Value> letters_are(const Call& call, bool (*wanted)(char32_t), bool (*unwanted)(char32_t)) {
  ESPALIER_TRY(const MarkedText text, call.self_text());
  bool any = false;
  for (std::size_t i = 0; i < text.size();) {
    const Character c = character_at(text.bytes(), i);
    if (unwanted(c.code)) return yes_or_no(false);
    any |= wanted(c.code);
    i += c.length;
  }
  return yes_or_no(any);
}

Result<Value> ordered(const Call& call, std::string_view sign, bool less, bool same, bool more) {
  ESPALIER_TRY(const int order, call.run.order(call.self, *call.argument(0), sign));
  return yes_or_no(order < 0 ? less : order == 0 ? same : more);
}

Result<Value> is_equal(Call& call) {
  ESPALIER_TRY(const bool same, call.run.equals(call.self, *call.argument(0)));
  return yes_or_no(same);
}

Result<Value> is_different(Call& call) {
  ESPALIER_TRY(const bool same, call.run.equals(call.self, *call.argument(0)));
  return yes_or_no(!same);
}

Result<Value> is_in(Call& call) {
  ESPALIER_TRY(const bool inside, call.run.contains(*call.argument(0), call.self));
  return yes_or_no(inside);
}

Result<Value> is_greater(Call& call) { return ordered(call, ">", false, false, true); }
Result<Value> is_at_least(Call& call) { return ordered(call, ">=", false, true, true); }
Result<Value> is_less(Call& call) { return ordered(call, "<", true, false, false); }
Result<Value> is_at_most(Call& call) { return ordered(call, "<=", true, true, false); }

bool is_sequence(const Value& value) {
  if (value.is_text() || value.dict() != nullptr || value.is_undefined()) return true;
  const Sequence* sequence = value.sequence();
  return sequence != nullptr && can_be_indexed(*sequence);
}

bool is_iterable(const Value& value) {
  return is_sequence(value) || value.sequence() != nullptr ||
         (value.object() != nullptr && value.object()->items() != nullptr);
}

// Python's `is`: one and the same object. Of values without identity here, equal ones are.
bool is_same(const Value& a, const Value& b) {
  if (a.state().index() != b.state().index()) return false;
  if (a.sequence() != nullptr) return a.sequence() == b.sequence();
  if (a.dict() != nullptr) return a.dict() == b.dict();
  return equal(a, b);
}

constexpr auto kTests = std::to_array<Builtin>({
    {"!=", "other", is_different},
    {"<", "other", is_less},
    {"<=", "other", is_at_most},
    {"==", "other", is_equal},
    {">", "other", is_greater},
    {">=", "other", is_at_least},
    {"boolean", "", [](Call& call) { return yes_or_no(call.self.is_boolean()); }},
    {"callable", "",
     [](Call& call) {
       return yes_or_no(call.self.object() != nullptr && call.self.object()->callable());
     }},
    {"defined", "", [](Call& call) { return yes_or_no(!call.self.is_undefined()); }},
    {"divisibleby", "num",
     [](Call& call) -> Result<Value> {
       ESPALIER_TRY(const Integer divisor, call.integer(0, 0));
       return remainder_is(call, divisor, 0);
     }},
    {"eq", "other", is_equal},
    {"equalto", "other", is_equal},
    {"escaped", "",
     [](Call& call) { return yes_or_no(call.self.is_text() && call.self.text()->is_html()); }},
    {"even", "", [](Call& call) { return remainder_is(call, 2, 0); }},
    {"false", "",
     [](Call& call) { return yes_or_no(call.self.is_boolean() && !truthy(call.self)); }},
    {"filter", "",
     [](Call& call) {
       return yes_or_no(call.self.is_text() && is_filter(call.self.text()->bytes()));
     }},
    {"float", "", [](Call& call) { return yes_or_no(call.self.is_real()); }},
    {"ge", "other", is_at_least},
    {"greaterthan", "other", is_greater},
    {"gt", "other", is_greater},
    {"in", "seq", is_in},
    {"integer", "",
     [](Call& call) { return yes_or_no(call.self.is_integer() && !call.self.is_boolean()); }},
    {"iterable", "", [](Call& call) { return yes_or_no(is_iterable(call.self)); }},
    {"le", "other", is_at_most},
    {"lessthan", "other", is_less},
    {"lower", "", [](Call& call) { return letters_are(call, is_lower, is_upper); }},
    {"lt", "other", is_less},
    {"mapping", "", [](Call& call) { return yes_or_no(call.self.dict() != nullptr); }},
    {"ne", "other", is_different},
    {"none", "", [](Call& call) { return yes_or_no(call.self.is_none()); }},
    {"number", "", [](Call& call) { return yes_or_no(call.self.is_number()); }},
    {"odd", "", [](Call& call) { return remainder_is(call, 2, 1); }},
    {"sameas", "other",
     [](Call& call) { return yes_or_no(is_same(call.self, *call.argument(0))); }},
    {"sequence", "", [](Call& call) { return yes_or_no(is_sequence(call.self)); }},
    {"string", "", [](Call& call) { return yes_or_no(call.self.is_text()); }},
    {"test", "",
     [](Call& call) {
       return yes_or_no(call.self.is_text() && is_test(call.self.text()->bytes()));
     }},
    {"true", "", [](Call& call) { return yes_or_no(call.self.is_boolean() && truthy(call.self)); }},
    {"undefined", "", [](Call& call) { return yes_or_no(call.self.is_undefined()); }},
    {"upper", "", [](Call& call) { return letters_are(call, is_upper, is_lower); }},
});

}  // namespace

std::span<const Builtin> tests() { return kTests; }

}  // namespace espalier::text::jinja
