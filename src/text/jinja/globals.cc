// The functions that every template can call, Jinja's and those that Transformers adds.
#include <algorithm>
#include <array>
#include <iterator>

#include "text/jinja/builtins.h"

namespace espalier::text::jinja {

class Namespace final : public Object {
 public:
  explicit Namespace(std::vector<std::pair<std::string, Value>> members)
      : members_(std::move(members)) {}
  [[nodiscard]] std::string_view type_name() const override { return "Namespace"; }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name) const override {
    for (const auto& [known, value] : members_) {
      if (known == name) return value;
    }
    return std::nullopt;
  }
  void set(std::string_view name, const Value& value) {
    for (auto& [known, old] : members_) {
      if (known == name) {
        old = value;
        return;
      }
    }
    members_.emplace_back(name, value);
  }
  void release() override { members_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> members_;
};

namespace {

// A builtin as a value.
class Function final : public Object {
 public:
  explicit Function(const Builtin& builtin) : builtin_(builtin) {}
  [[nodiscard]] std::string_view type_name() const override { return "function"; }
  [[nodiscard]] bool callable() const override { return true; }
  Result<Value> call(Interpreter& run, Arguments arguments) override {
    return call_builtin(builtin_, run, Value(), std::move(arguments));
  }

 private:
  const Builtin& builtin_;
};

// `self`: the blocks of a template that another one extends. Here there are none.
class Blocks final : public Object {
 public:
  [[nodiscard]] std::string_view type_name() const override { return "TemplateReference"; }
};

// cycler('a', 'b'): one after the other with each next().
class Cycler final : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  [[nodiscard]] std::string_view type_name() const override { return "Cycler"; }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name) const override {
    if (name == "current") return items_[at_];
    return std::nullopt;
  }
  Value next() { return items_[std::exchange(at_, (at_ + 1) % items_.size())]; }
  void reset() { at_ = 0; }

 private:
  std::vector<Value> items_;
  std::size_t at_ = 0;
};

// joiner(', '): nothing at the first call, the separator after.
class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  [[nodiscard]] std::string_view type_name() const override { return "Joiner"; }
  [[nodiscard]] bool callable() const override { return true; }
  Result<Value> call(Interpreter& /*run*/, Arguments /*arguments*/) override {
    return std::exchange(used_, true) ? separator_ : Value::text("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

Status check_member_name(std::string_view name) {
  if (!name.starts_with('_')) return {};
  return input_error(
      "Chat templates cannot store underscore-prefixed attributes on a namespace, but got {}. "
      "Please rename the attribute.",
      quoted(name));
}

// The members that dict(...) and namespace(...) take: of a mapping or of pairs, then the named.
Result<std::vector<std::pair<Value, Value>>> members(Call& call) {
  std::vector<std::pair<Value, Value>> members;
  const auto& positional = call.rest.positional;
  if (positional.size() > 1) {
    return input_error("dict expected at most 1 argument, got {}", positional.size());
  }
  if (!positional.empty() && positional[0].dict() != nullptr) {
    members = positional[0].dict()->items;
  } else if (!positional.empty()) {
    ESPALIER_TRY(const Value::SequencePtr pairs, call.run.items(positional[0]));
    for (const Value& pair : pairs->items) {
      ESPALIER_TRY(const Value::SequencePtr parts, call.run.items(pair));
      if (parts->items.size() != 2) {
        return input_error("dictionary update sequence element has length {}; 2 is required",
                           parts->items.size());
      }
      members.emplace_back(parts->items[0], parts->items[1]);
    }
  }
  for (auto& [name, value] : call.rest.named) {
    members.emplace_back(Value::text(name), std::move(value));
  }
  return members;
}

Result<Value> make_namespace(Call& call) {
  ESPALIER_TRY(const auto given, members(call));
  ESPALIER_TRY(const Value unique, call.run.dict(given));
  std::vector<std::pair<std::string, Value>> named;
  for (const auto& [name, value] : unique.dict()->items) {
    if (!name.is_text()) return input_error("the names in a namespace must be strings");
    ESPALIER_CHECK(check_member_name(name.text()->bytes()));
    named.emplace_back(name.text()->bytes(), value);
  }
  return call.run.keep(std::make_shared<Namespace>(std::move(named)));
}

Result<Value> make_dictionary(Call& call) {
  ESPALIER_TRY(auto given, members(call));
  return call.run.dict(std::move(given));
}

// At most this many items, as in Jinja's sandbox.
constexpr Integer kMaxRange = 100000;

Result<Value> range(Call& call) {
  ESPALIER_TRY(const Integer first, call.integer(0, 0));
  const bool only_stop = call.argument(1) == nullptr;
  ESPALIER_TRY(const Integer second, call.integer(1, 0));
  ESPALIER_TRY(const Integer step, call.integer(2, 1));
  if (step == 0) return input_error("range() arg 3 must not be zero");
  constexpr Integer kFar = Integer{1} << 100;  // so that the differences below fit
  const Integer start = std::clamp(only_stop ? 0 : first, -kFar, kFar);
  const Integer stop = std::clamp(only_stop ? first : second, -kFar, kFar);
  const Integer span = step > 0 ? stop - start : start - stop;
  const Integer stride = step > 0 ? std::min(step, kFar) : std::min(-std::max(step, -kFar), kFar);
  const Integer count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > kMaxRange) {
    return input_error("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).",
                       kMaxRange);
  }
  ESPALIER_CHECK(call.run.spend(static_cast<std::size_t>(count)));
  std::vector<Value> items;
  for (Integer i = 0; i < count; ++i) {
    items.push_back(Value::integer(start + (step > 0 ? i * stride : -i * stride)));
  }
  return call.run.list(std::move(items), SequenceKind::kRange);
}

Result<Value> raise_exception(Call& call) {
  ESPALIER_TRY(const MarkedText message, call.run.str(*call.argument(0)));
  return input_error("{}", message.bytes());
}

// strftime() of the time that the rendering was given, in the C locale's words.
Result<Value> strftime_now(Call& call) {
  ESPALIER_TRY(const MarkedText format, call.text(0));
  constexpr std::size_t kLongestDate = 4096;
  if (format.size() > kLongestDate / 4) return input_error("strftime_now: the format is too long");
  std::string text(kLongestDate, '\0');
  const std::string c_format = format.bytes() + " ";  // so that no result is empty
  std::tm now = call.run.now();
  const std::size_t length = std::strftime(text.data(), text.size(), c_format.c_str(), &now);
  if (length == 0) return input_error("strftime_now: the date is too long");
  text.resize(length - 1);
  return call.run.text(MarkedText(text, format.weakest_origin()));
}

Result<Value> make_cycler(Call& call) {
  if (call.rest.positional.empty()) return input_error("at least one item has to be provided");
  ESPALIER_CHECK(call.run.allocate(call.rest.positional.size() * sizeof(Value)));
  return call.run.keep(std::make_shared<Cycler>(std::move(call.rest.positional)));
}

Result<Value> make_joiner(Call& call) {
  const Value* separator = call.argument(0);
  return call.run.keep(
      std::make_shared<Joiner>(separator == nullptr ? Value::text(", ") : *separator));
}

Result<Value> lipsum(Call& /*call*/) {
  return input_error("lipsum() is random, and templates must give the same text each time");
}

constexpr auto kFunctions = std::to_array<Builtin>({
    {"cycler", "*", make_cycler},
    {"dict", "*", make_dictionary},
    {"joiner", "sep?", make_joiner},
    {"lipsum", "*", lipsum},
    {"namespace", "*", make_namespace},
    {"raise_exception", "message", raise_exception},
    {"range", "start stop? step?", range},
    {"strftime_now", "format", strftime_now},
});

// The methods of a cycler, which change it.
constexpr auto kCyclerMethods = std::to_array<Builtin>({
    {"next", "",
     [](Call& call) -> Result<Value> { return dynamic_cast<Cycler&>(*call.self.object()).next(); }},
    {"reset", "",
     [](Call& call) -> Result<Value> {
       dynamic_cast<Cycler&>(*call.self.object()).reset();
       return Value();
     }},
});

}  // namespace

std::span<const Builtin> object_methods(const Object& object) {
  if (dynamic_cast<const Cycler*>(&object) != nullptr) return kCyclerMethods;
  return {};
}

Status set_namespace(const Value& target, std::string_view name, const Value& value) {
  auto* space = dynamic_cast<Namespace*>(target.object());
  if (space == nullptr) {
    return input_error("cannot assign attribute on non-namespace object");
  }
  ESPALIER_CHECK(check_member_name(name));
  space->set(name, value);
  return {};
}

const std::vector<std::pair<std::string_view, Value>>& globals() {
  static const std::vector<std::pair<std::string_view, Value>> all = [] {
    std::vector<std::pair<std::string_view, Value>> list;
    list.reserve(std::size(kFunctions) + 1);
    for (const Builtin& function : kFunctions) {
      list.emplace_back(function.name, Value::object(std::make_shared<Function>(function)));
    }
    list.emplace_back("self", Value::object(std::make_shared<Blocks>()));
    return list;
  }();
  return all;
}

}  // namespace espalier::text::jinja
