// The values that a template computes with: Python's, as far as templates can tell. Containers are
// immutable (as in Transformers' sandbox) and know their depth, so that recursion over them is
// bounded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/jinja/marked_text.h"

namespace espalier::text::jinja {

class Interpreter;
class Value;

// Python's integers have no bound; templates compute with indices and lengths.
__extension__ using Integer = __int128;

struct None {};

// What stands where nothing was found. Printing it gives nothing; most other uses are errors.
struct Undefined {
  enum class Why {
    kName,       // no variable of that name
    kAttribute,  // `type` has no attribute of that name
    kElement,    // `type` has no element of that index
    kUnsafe,     // an attribute that would change a value or reach into the interpreter
    kHint,       // `name` is the message
  };
  Why why = Why::kName;
  std::string name;
  std::string_view type = {};  // of what was looked into

  [[nodiscard]] std::string message() const;
};

enum class SequenceKind : std::uint8_t {
  kList,
  kTuple,
  kRange,
  kKeys,  // dict views
  kValues,
  kItems,
  kGenerator,  // of map, select and others: it can be gone through once
  kGroup,      // (grouper, list) of groupby
};

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  std::uint32_t depth = 1;           // 1 + that of the deepest item
  mutable std::size_t consumed = 0;  // items of a generator that are gone
};

// Whether sequence[i] is defined: not of views and generators.
[[nodiscard]] bool can_be_indexed(const Sequence& sequence);

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion, keys differ
  std::uint32_t depth = 1;

  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Everything with behaviour of its own: functions, macros, namespaces, loops.
class Object {
 public:
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  [[nodiscard]] virtual std::string_view type_name() const = 0;
  // An attribute, or nothing where there is none of that name.
  [[nodiscard]] virtual std::optional<Value> attribute(std::string_view name) const;
  [[nodiscard]] virtual bool callable() const { return false; }
  [[nodiscard]] virtual Result<Value> call(Interpreter& run, Arguments arguments);
  // What iteration gives, where the object can be iterated.
  [[nodiscard]] virtual const Sequence* items() const { return nullptr; }
  // Lets go of everything that may lead back to this object.
  virtual void release() {}
};

class Value {
 public:
  using Text = std::shared_ptr<const MarkedText>;
  using SequencePtr = std::shared_ptr<const Sequence>;
  using DictPtr = std::shared_ptr<const Dict>;
  using ObjectPtr = std::shared_ptr<Object>;
  using UndefinedPtr = std::shared_ptr<const Undefined>;
  using Variant = std::variant<None, bool, Integer, double, Text, SequencePtr, DictPtr, ObjectPtr,
                               UndefinedPtr>;

  Value() : state_(None()) {}
  Value(Variant state) : state_(std::move(state)) {}  // NOLINT: implicit, as the types below
  static Value boolean(bool value) { return Variant(std::in_place_type<bool>, value); }
  static Value integer(Integer value) { return Variant(std::in_place_type<Integer>, value); }
  static Value length(std::size_t value) { return integer(static_cast<Integer>(value)); }
  static Value real(double value) { return Variant(std::in_place_type<double>, value); }
  static Value text(MarkedText text) {
    return Variant(std::make_shared<const MarkedText>(std::move(text)));
  }
  static Value text(std::string_view bytes, Origin origin = Origin::kTemplate) {
    return text(MarkedText(bytes, origin));
  }
  static Value undefined(Undefined why) {
    return Variant(std::make_shared<const Undefined>(std::move(why)));
  }
  static Value object(ObjectPtr object) { return Variant(std::move(object)); }

  [[nodiscard]] bool is_none() const { return std::holds_alternative<None>(state_); }
  [[nodiscard]] bool is_undefined() const { return undefined() != nullptr; }
  [[nodiscard]] bool is_text() const { return text() != nullptr; }
  [[nodiscard]] bool is_boolean() const { return std::holds_alternative<bool>(state_); }
  [[nodiscard]] bool is_real() const { return std::holds_alternative<double>(state_); }
  // Python's bool is an int.
  [[nodiscard]] bool is_integer() const {
    return is_boolean() || std::holds_alternative<Integer>(state_);
  }
  [[nodiscard]] bool is_number() const { return is_integer() || is_real(); }

  [[nodiscard]] const MarkedText* text() const { return get<MarkedText, Text>(); }
  [[nodiscard]] const Sequence* sequence() const { return get<Sequence, SequencePtr>(); }
  [[nodiscard]] const Dict* dict() const { return get<Dict, DictPtr>(); }
  [[nodiscard]] const Undefined* undefined() const { return get<Undefined, UndefinedPtr>(); }
  [[nodiscard]] Object* object() const {
    const auto* pointer = std::get_if<ObjectPtr>(&state_);
    return pointer == nullptr ? nullptr : pointer->get();
  }
  // Of a number: as an integer (a boolean counts as 0 or 1) or as a double.
  [[nodiscard]] Integer as_integer() const;
  [[nodiscard]] double as_real() const;

  [[nodiscard]] const Variant& state() const { return state_; }

 private:
  template <typename T, typename Pointer>
  [[nodiscard]] const T* get() const {
    const auto* pointer = std::get_if<Pointer>(&state_);
    return pointer == nullptr ? nullptr : pointer->get();
  }

  Variant state_;
};

// How deep containers may lie in each other.
inline constexpr std::uint32_t kMaxValueDepth = 200;

// Containers of the given items. Errors: nested deeper than kMaxValueDepth; of a dict, also keys
// that cannot be hashed. Of equal keys the last value counts, at the place of the first.
[[nodiscard]] Result<Value> make_sequence(SequenceKind kind, std::vector<Value> items);
[[nodiscard]] Result<Value> make_dict(std::vector<std::pair<Value, Value>> items);

// Python's name of the value's type, as in "'NoneType' object is not iterable".
[[nodiscard]] std::string_view type_name(const Value& value);
// The same as Jinja writes it in messages: "dict object", "None".
[[nodiscard]] std::string type_repr(const Value& value);

[[nodiscard]] bool truthy(const Value& value);
[[nodiscard]] bool equal(const Value& a, const Value& b);

// Less than zero, zero, or more: the order of two values that Python can order; an error that names
// `sign`, such as "<", otherwise.
[[nodiscard]] Result<int> compare(const Value& a, const Value& b, std::string_view sign);

// How many things equal(), compare(), to_json() and the like look at: the number of values inside
// of `value`, counted as often as they appear, and one for each 64 bytes of text. No more than
// `most`.
[[nodiscard]] std::size_t weight(const Value& value, std::size_t most);

// str(value) and repr(value). They stop after about `most` bytes.
[[nodiscard]] MarkedText to_text(const Value& value, std::size_t most);
[[nodiscard]] MarkedText to_repr(const Value& value, std::size_t most);

// repr() of a string, without its origin.
[[nodiscard]] std::string quoted(std::string_view text);

// repr() of a float: the shortest digits that read back as the same number.
[[nodiscard]] std::string real_repr(double value);

}  // namespace espalier::text::jinja
