// The functions, filters, tests and methods that templates can call: tables of names, parameters
// and plain functions.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace espalier::text::jinja {

// One call of a builtin: arguments in the order of its parameters, those not given left empty.
struct Call {
  Interpreter& run;
  const Value& self;  // what a filter or test is applied to, or whose method it is
  std::vector<std::optional<Value>> given = {};
  Arguments rest = {};  // of a builtin that takes any arguments

  [[nodiscard]] const Value* argument(std::size_t i) const {
    return given[i] ? &*given[i] : nullptr;
  }
  // An argument of that type, or what stands for one not given (or given as none). Errors: another
  // type.
  [[nodiscard]] Result<Integer> integer(std::size_t i, Integer otherwise) const;
  [[nodiscard]] Result<MarkedText> text(std::size_t i, std::string_view otherwise = "") const;
  // Whether the argument is true.
  [[nodiscard]] bool flag(std::size_t i, bool otherwise = false) const;
  // The receiver of a method or filter of strings: as str() makes it.
  [[nodiscard]] Result<MarkedText> self_text() const { return run.str(self); }
};

struct Builtin {
  std::string_view name;
  // Names with a space between; one that ends in ? can be left out. "*" takes anything into `rest`.
  std::string_view parameters;
  Result<Value> (*function)(Call& call);
};

[[nodiscard]] Result<Value> call_builtin(const Builtin& builtin, Interpreter& run,
                                         const Value& self, Arguments arguments);

[[nodiscard]] std::span<const Builtin> filters();
[[nodiscard]] std::span<const Builtin> tests();
[[nodiscard]] std::span<const Builtin> text_methods();
[[nodiscard]] std::span<const Builtin> sequence_methods();
[[nodiscard]] std::span<const Builtin> dict_methods();
[[nodiscard]] std::span<const Builtin> object_methods(const Object& object);
[[nodiscard]] const std::vector<std::pair<std::string_view, Value>>& globals();

[[nodiscard]] const Builtin* find(std::span<const Builtin> table, std::string_view name);
[[nodiscard]] bool is_filter(std::string_view name);
[[nodiscard]] bool is_test(std::string_view name);

// A method bound to its receiver, or nothing where the type has none of that name.
[[nodiscard]] std::optional<Value> find_method(const Value& value, std::string_view name);

// `format % values` (printf style) and str.format.
[[nodiscard]] Result<Value> format_percent(Interpreter& run, const MarkedText& format,
                                           const Value& values);
[[nodiscard]] Result<Value> format_braces(Interpreter& run, const MarkedText& format,
                                          const Arguments& values);

// `set ns.name = value`. Errors: `target` is no namespace; a name that begins with "_".
[[nodiscard]] Status set_namespace(const Value& target, std::string_view name, const Value& value);

}  // namespace espalier::text::jinja
