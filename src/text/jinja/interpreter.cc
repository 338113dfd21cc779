#include "text/jinja/interpreter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"
#include "text/jinja/lexer.h"

namespace espalier::text::jinja {
namespace {

// A macro, or the caller of a call block, with the scope that it was defined in.
class MacroObject final : public Object {
 public:
  MacroObject(const Macro& macro, ScopePtr scope) : macro_(macro), scope_(std::move(scope)) {}

  [[nodiscard]] std::string_view type_name() const override { return "Macro"; }
  [[nodiscard]] bool callable() const override { return true; }
  Result<Value> call(Interpreter& run, Arguments arguments) override {
    const ScopePtr scope = scope_;
    return run.call_macro(macro_, scope, std::move(arguments));
  }
  [[nodiscard]] std::optional<Value> attribute(std::string_view name) const override {
    if (name == "name") return Value::text(macro_.name);
    if (name == "catch_kwargs") return Value::boolean(macro_.uses_kwargs);
    if (name == "catch_varargs") return Value::boolean(macro_.uses_varargs);
    if (name == "caller") return Value::boolean(macro_.uses_caller);
    if (name != "arguments") return std::nullopt;
    std::vector<Value> names;
    for (const std::string& parameter : macro_.parameters) names.push_back(Value::text(parameter));
    const auto tuple = make_sequence(SequenceKind::kTuple, std::move(names));
    return tuple ? std::optional(*tuple) : std::nullopt;
  }
  void release() override { scope_.reset(); }

 private:
  const Macro& macro_;
  ScopePtr scope_;
};

// The variable `loop`.
class LoopObject final : public Object {
 public:
  LoopObject(Value::SequencePtr items, const Statement& statement, ScopePtr scope,
             std::size_t depth)
      : items_(std::move(items)), statement_(statement), scope_(std::move(scope)), depth_(depth) {}

  void go_to(std::size_t index) { index_ = index; }

  [[nodiscard]] std::string_view type_name() const override { return "LoopContext"; }
  [[nodiscard]] const Sequence* items() const override { return items_.get(); }
  [[nodiscard]] bool callable() const override { return true; }

  Result<Value> call(Interpreter& run, Arguments arguments) override {
    if (statement_.recursion == Statement::Recursion::kNo) {
      return input_error("The loop must have the 'recursive' marker to be called recursively.");
    }
    if (arguments.positional.size() != 1 || !arguments.named.empty()) {
      return input_error("loop() takes the items to go through");
    }
    const ScopePtr scope = scope_;
    return run.call_loop(statement_, scope, depth_ + 1, arguments.positional[0]);
  }

  [[nodiscard]] std::optional<Value> attribute(std::string_view name) const override {
    const std::size_t length = items_->items.size();
    if (name == "index") return Value::length(index_ + 1);
    if (name == "index0") return Value::length(index_);
    if (name == "revindex") return Value::length(length - index_);
    if (name == "revindex0") return Value::length(length - index_ - 1);
    if (name == "first") return Value::boolean(index_ == 0);
    if (name == "last") return Value::boolean(index_ + 1 == length);
    if (name == "length") return Value::length(length);
    if (name == "depth") return Value::length(depth_ + 1);
    if (name == "depth0") return Value::length(depth_);
    if (name == "previtem") return neighbour(index_ > 0, index_ - 1, "there is no previous item");
    if (name == "nextitem") {
      return neighbour(index_ + 1 < length, index_ + 1, "there is no next item");
    }
    return std::nullopt;
  }

  Result<Value> cycle(const std::vector<Value>& values) const {
    if (values.empty()) return input_error("no items for cycling given");
    return values[index_ % values.size()];
  }
  bool changed(std::vector<Value> values) {
    const bool same =
        last_ && std::equal(last_->begin(), last_->end(), values.begin(), values.end(), equal);
    last_ = std::move(values);
    return !same;
  }

  void release() override {
    scope_.reset();
    last_.reset();
  }

 private:
  [[nodiscard]] Value neighbour(bool exists, std::size_t index, std::string_view otherwise) const {
    if (exists) return items_->items[index];
    return Value::undefined({.why = Undefined::Why::kHint, .name = std::string(otherwise)});
  }

  Value::SequencePtr items_;
  const Statement& statement_;
  ScopePtr scope_;
  std::size_t depth_;
  std::size_t index_ = 0;
  std::optional<std::vector<Value>> last_;
};

// loop.cycle and loop.changed.
class LoopMethod final : public Object {
 public:
  enum class Which { kCycle, kChanged };
  LoopMethod(std::shared_ptr<LoopObject> loop, Which which)
      : loop_(std::move(loop)), which_(which) {}
  [[nodiscard]] std::string_view type_name() const override { return "method"; }
  [[nodiscard]] bool callable() const override { return true; }
  Result<Value> call(Interpreter& run, Arguments arguments) override {
    for (const Value& value : arguments.positional) ESPALIER_CHECK(run.spend_on(value));
    if (which_ == Which::kCycle) return loop_->cycle(arguments.positional);
    return Value::boolean(loop_->changed(std::move(arguments.positional)));
  }

 private:
  std::shared_ptr<LoopObject> loop_;
  Which which_;
};

Value no_such(const Value& value, const Value& key) {
  if (const MarkedText* name = key.text()) {
    return Value::undefined(
        {.why = Undefined::Why::kAttribute, .name = name->bytes(), .type = type_name(value)});
  }
  return Value::undefined({.why = Undefined::Why::kElement,
                           .name = to_repr(key, 200).bytes(),
                           .type = type_name(value)});
}

// Methods that would change a list or dict; the sandbox refuses them.
bool changes_value(const Value& value, std::string_view name) {
  static constexpr std::array<std::string_view, 8> kOfLists = {
      "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
  static constexpr std::array<std::string_view, 5> kOfDicts = {"clear", "pop", "popitem",
                                                               "setdefault", "update"};
  if (value.dict() != nullptr) {
    return std::find(kOfDicts.begin(), kOfDicts.end(), name) != kOfDicts.end();
  }
  return value.sequence() != nullptr && value.sequence()->kind == SequenceKind::kList &&
         std::find(kOfLists.begin(), kOfLists.end(), name) != kOfLists.end();
}

// Python's slice(start, stop, step).indices(length), as the indices themselves.
struct SliceBounds {
  Integer start, stop, step;
};

SliceBounds slice_bounds(const std::optional<Integer>& start, const std::optional<Integer>& stop,
                         Integer step, Integer length) {
  const Integer low = step > 0 ? 0 : -1;
  const Integer high = step > 0 ? length : length - 1;
  const auto bound = [&](const std::optional<Integer>& given, Integer otherwise) {
    if (!given) return otherwise;
    const Integer index = *given < 0 ? *given + length : *given;
    return std::clamp(index, low, high);
  };
  return {bound(start, step > 0 ? low : high), bound(stop, step > 0 ? high : low), step};
}

template <typename Visit>
void for_each_index(const SliceBounds& bounds, const Visit& visit) {
  for (Integer i = bounds.start; bounds.step > 0 ? i < bounds.stop : i > bounds.stop;
       i += bounds.step) {
    visit(static_cast<std::size_t>(i));
  }
}

// Where each character of a text begins, and where the last one ends.
std::vector<std::size_t> character_starts(const std::string& bytes) {
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < bytes.size(); i += character_at(bytes, i).length) starts.push_back(i);
  starts.push_back(bytes.size());
  return starts;
}

constexpr std::size_t kBytesOfValue = sizeof(Value);

}  // namespace

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : variables) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

// Counts how deep evaluation is; every recursion passes one.
class Interpreter::Nesting {
 public:
  explicit Nesting(Interpreter& run) : run_(run) { ++run_.depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
  ~Nesting() { --run_.depth_; }

  [[nodiscard]] Status check() const {
    if (run_.depth_ <= run_.limits_.depth) return {};
    return input_error("the template recurses too deeply");
  }

 private:
  Interpreter& run_;
};

// Macros and namespaces can hold what holds them.
Interpreter::~Interpreter() {
  scope_.reset();
  for (const Value::ObjectPtr& object : kept_) object->release();
}

Error Interpreter::located(Error error) {
  if (located_) return error;
  located_ = true;
  return error_at(line_, "{}", error.message);
}

Result<MarkedText> Interpreter::render(const Statements& template_body,
                                       std::vector<std::pair<std::string_view, Value>> variables) {
  const auto library = std::make_shared<Scope>(Scope{.parent = nullptr, .variables = globals()});
  const auto given =
      std::make_shared<Scope>(Scope{.parent = library, .variables = std::move(variables)});
  scope_ = std::make_shared<Scope>(Scope{.parent = given});
  MarkedText out;
  out_ = &out;
  const auto done = run(template_body);
  out_ = nullptr;
  if (!done) return located(done.error());
  return out;
}

Status Interpreter::spend(std::size_t steps) {
  if (steps <= left_.steps) {
    left_.steps -= steps;
    return {};
  }
  left_.steps = 0;
  return input_error("the template takes more than {} steps", limits_.steps);
}

Status Interpreter::allocate(std::size_t bytes) {
  if (bytes <= left_.bytes) {
    left_.bytes -= bytes;
    return {};
  }
  left_.bytes = 0;
  return input_error("the template builds more than {} bytes of values", limits_.bytes);
}

Status Interpreter::spend_on(const Value& value) { return spend(weight(value, left_.steps + 1)); }

Result<Value> Interpreter::text(MarkedText text) {
  ESPALIER_CHECK(allocate(text.size() + kBytesOfValue));
  return Value::text(std::move(text));
}

Result<Value> Interpreter::list(std::vector<Value> items, SequenceKind kind) {
  ESPALIER_CHECK(allocate((items.size() + 2) * kBytesOfValue));
  return make_sequence(kind, std::move(items));
}

Result<Value> Interpreter::dict(std::vector<std::pair<Value, Value>> items) {
  ESPALIER_CHECK(allocate((items.size() + 1) * 4 * kBytesOfValue));
  ESPALIER_CHECK(spend(items.size()));
  return make_dict(std::move(items));
}

Value Interpreter::keep(Value::ObjectPtr object) {
  kept_.push_back(object);
  return Value::object(std::move(object));
}

Result<MarkedText> Interpreter::str(const Value& value) {
  if (const MarkedText* text = value.text()) return *text;
  if (value.is_undefined()) return MarkedText();
  return repr(value);
}

Result<MarkedText> Interpreter::repr(const Value& value) {
  ESPALIER_CHECK(spend_on(value));
  MarkedText text = to_repr(value, left_.bytes);
  ESPALIER_CHECK(allocate(text.size()));
  return text;
}

Result<Value::SequencePtr> Interpreter::items(const Value& value) {
  if (const auto* shared = std::get_if<Value::SequencePtr>(&value.state())) {
    const Sequence& sequence = **shared;
    if (sequence.kind != SequenceKind::kGenerator) return *shared;
    auto rest = std::make_shared<Sequence>();
    rest->items.assign(sequence.items.begin() + static_cast<std::ptrdiff_t>(sequence.consumed),
                       sequence.items.end());
    rest->depth = sequence.depth;
    sequence.consumed = sequence.items.size();
    return Value::SequencePtr(std::move(rest));
  }
  auto made = std::make_shared<Sequence>();
  if (const MarkedText* text = value.text()) {
    ESPALIER_CHECK(spend(text->size()));
    ESPALIER_CHECK(allocate(text->size() * 4 * kBytesOfValue));
    for (std::size_t i = 0; i < text->size();) {
      const std::size_t length = character_at(text->bytes(), i).length;
      made->items.push_back(Value::text(text->substr(i, length)));
      i += length;
    }
  } else if (const Dict* dict = value.dict()) {
    ESPALIER_CHECK(allocate(dict->items.size() * kBytesOfValue));
    for (const auto& [key, member] : dict->items) made->items.push_back(key);
    made->depth = dict->depth;
  } else if (value.object() != nullptr && value.object()->items() != nullptr) {
    made->items = value.object()->items()->items;
    made->depth = value.object()->items()->depth;
  } else if (!value.is_undefined()) {
    return input_error("'{}' object is not iterable", type_name(value));
  }
  return Value::SequencePtr(std::move(made));
}

Result<bool> Interpreter::equals(const Value& a, const Value& b) {
  if (!a.is_number() && !b.is_number()) {
    const std::size_t most = left_.steps + 1;
    ESPALIER_CHECK(spend(std::min(weight(a, most), weight(b, most))));
  }
  return equal(a, b);
}

Result<int> Interpreter::order(const Value& a, const Value& b, std::string_view sign) {
  const std::size_t most = left_.steps + 1;
  ESPALIER_CHECK(spend(std::min(weight(a, most), weight(b, most))));
  return compare(a, b, sign);
}

Result<bool> Interpreter::contains(const Value& container, const Value& value) {
  if (const MarkedText* text = container.text()) {
    if (!value.is_text()) {
      return input_error("'in <string>' requires string as left operand, not {}", type_name(value));
    }
    ESPALIER_CHECK(spend(text->size() / 64));
    return text->bytes().find(value.text()->bytes()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    ESPALIER_CHECK(spend(dict->items.size() / 8));
    ESPALIER_CHECK(spend_on(value));
    return dict->find(value) != nullptr;
  }
  if (container.sequence() == nullptr && container.object() == nullptr &&
      !container.is_undefined()) {
    return input_error("argument of type '{}' is not iterable", type_name(container));
  }
  ESPALIER_TRY(const Value::SequencePtr sequence, items(container));
  for (const Value& candidate : sequence->items) {
    ESPALIER_TRY(const bool same, equals(candidate, value));
    if (same) return true;
  }
  return false;
}

Result<Value> Interpreter::attribute(const Value& value, std::string_view name) {
  if (const Undefined* undefined = value.undefined())
    return input_error("{}", undefined->message());
  if (const auto method = find_method(value, name)) return *method;
  if (changes_value(value, name) || (name.starts_with("__") && name.ends_with("__"))) {
    return Value::undefined(
        {.why = Undefined::Why::kUnsafe, .name = std::string(name), .type = type_name(value)});
  }
  if (Object* object = value.object()) {
    if (auto found = object->attribute(name)) return *found;
    if (const auto loop =
            std::dynamic_pointer_cast<LoopObject>(std::get<Value::ObjectPtr>(value.state()))) {
      using Which = LoopMethod::Which;
      if (name == "cycle") return Value::object(std::make_shared<LoopMethod>(loop, Which::kCycle));
      if (name == "changed")
        return Value::object(std::make_shared<LoopMethod>(loop, Which::kChanged));
    }
  }
  if (const Dict* dict = value.dict()) {
    ESPALIER_CHECK(spend(dict->items.size() / 8));
    if (const Value* found = dict->find(name)) return *found;
  }
  if (const Sequence* group = value.sequence();
      group != nullptr && group->kind == SequenceKind::kGroup) {
    if (name == "grouper") return group->items[0];
    if (name == "list") return group->items[1];
  }
  return no_such(value, Value::text(name));
}

Result<Value> Interpreter::item(const Value& value, const Value& key) {
  if (const Undefined* undefined = value.undefined())
    return input_error("{}", undefined->message());
  if (const Dict* dict = value.dict()) {
    ESPALIER_CHECK(spend(dict->items.size() / 8));
    if (const Value* found = dict->find(key)) return *found;
  } else if (key.is_integer()) {
    const auto at = [&](std::size_t length) {
      const Integer index =
          key.as_integer() < 0 ? key.as_integer() + static_cast<Integer>(length) : key.as_integer();
      return index < 0 || index >= static_cast<Integer>(length)
                 ? std::nullopt
                 : std::optional(static_cast<std::size_t>(index));
    };
    if (const Sequence* sequence = value.sequence();
        sequence != nullptr && can_be_indexed(*sequence)) {
      if (const auto index = at(sequence->items.size())) return sequence->items[*index];
    } else if (const MarkedText* text = value.text()) {
      ESPALIER_CHECK(spend(text->size() / 64));
      if (const auto index = at(count_characters(text->bytes()))) {
        const std::size_t begin = byte_of_character(text->bytes(), *index);
        return this->text(text->substr(begin, character_at(text->bytes(), begin).length));
      }
    }
  }
  if (key.is_text()) return attribute(value, key.text()->bytes());
  return no_such(value, key);
}

Result<Value> Interpreter::call(const Value& callee, Arguments arguments) {
  if (const Undefined* undefined = callee.undefined()) {
    return input_error("{}", undefined->message());
  }
  Object* object = callee.object();
  if (object == nullptr || !object->callable()) {
    return input_error("'{}' object is not callable", type_name(callee));
  }
  // The call may overwrite the variable that `callee` is.
  const Value alive = callee;  // NOLINT(performance-unnecessary-copy-initialization)
  return object->call(*this, std::move(arguments));
}

Result<Value> Interpreter::filter(std::string_view name, const Value& value, Arguments arguments) {
  const Builtin* builtin = find(filters(), name);
  if (builtin == nullptr) return input_error("No filter named {} found.", quoted(name));
  return call_builtin(*builtin, *this, value, std::move(arguments));
}

Result<bool> Interpreter::test(std::string_view name, const Value& value, Arguments arguments) {
  const Builtin* builtin = find(tests(), name);
  if (builtin == nullptr) return input_error("No test named {} found.", quoted(name));
  ESPALIER_TRY(const Value result, call_builtin(*builtin, *this, value, std::move(arguments)));
  return truthy(result);
}

Result<Value> Interpreter::call_macro(const Macro& macro, const ScopePtr& scope,
                                      Arguments arguments) {
  const Nesting nesting(*this);
  ESPALIER_CHECK(nesting.check());
  ESPALIER_CHECK(allocate(sizeof(Scope) + 2 * kBytesOfValue * (macro.parameters.size() + 3)));
  const auto inner = std::make_shared<Scope>(Scope{.parent = scope});
  const ScopePtr outer = std::exchange(scope_, inner);
  const int line = line_;

  const auto bind = [&]() -> Status {
    const auto take_named = [&](std::string_view name) -> std::optional<Value> {
      const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                      [&](const auto& named) { return named.first == name; });
      if (found == arguments.named.end()) return std::nullopt;
      Value value = std::move(found->second);
      arguments.named.erase(found);
      return value;
    };
    const std::size_t required = macro.parameters.size() - macro.defaults.size();
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
      const std::string& name = macro.parameters[i];
      if (i < arguments.positional.size()) {
        inner->set(name, arguments.positional[i]);
      } else if (auto named = take_named(name)) {
        inner->set(name, std::move(*named));
      } else if (i >= required) {
        ESPALIER_TRY(Value value, evaluate(*macro.defaults[i - required]));
        inner->set(name, std::move(value));
      } else {
        inner->set(name, Value::undefined(
                             {.why = Undefined::Why::kHint,
                              .name = fmt::format("parameter {} was not provided", quoted(name))}));
      }
    }
    if (auto caller = take_named("caller")) {
      if (!macro.uses_caller) {
        return input_error(
            "macro {} was invoked with two values for the special caller argument. "
            "This is most likely a bug.",
            quoted(macro.name));
      }
      inner->set("caller", std::move(*caller));
    } else if (macro.uses_caller) {
      inner->set("caller",
                 Value::undefined({.why = Undefined::Why::kHint, .name = "No caller defined"}));
    }
    if (macro.uses_kwargs) {
      std::vector<std::pair<Value, Value>> named;
      for (auto& [name, value] : arguments.named) named.emplace_back(Value::text(name), value);
      ESPALIER_TRY(Value kwargs, dict(std::move(named)));
      inner->set("kwargs", std::move(kwargs));
    } else if (!arguments.named.empty()) {
      return input_error("macro {} takes no keyword argument {}", quoted(macro.name),
                         quoted(arguments.named.front().first));
    }
    const std::size_t known = macro.parameters.size();
    if (macro.uses_varargs) {
      std::vector<Value> extra;
      for (std::size_t i = known; i < arguments.positional.size(); ++i) {
        extra.push_back(arguments.positional[i]);
      }
      ESPALIER_TRY(Value varargs, list(std::move(extra), SequenceKind::kTuple));
      inner->set("varargs", std::move(varargs));
    } else if (arguments.positional.size() > known) {
      return input_error("macro {} takes not more than {} argument(s)", quoted(macro.name), known);
    }
    return {};
  };

  Status bound = bind();
  if (!bound) return bound.error();  // the whole rendering ends, whatever the scope
  ESPALIER_TRY(MarkedText result, captured(macro.body));
  scope_ = outer;
  line_ = line;
  return text(std::move(result));
}

Result<Value> Interpreter::call_loop(const Statement& loop, const ScopePtr& scope,
                                     std::size_t depth, const Value& value) {
  const Nesting nesting(*this);
  ESPALIER_CHECK(nesting.check());
  const ScopePtr outer = std::exchange(scope_, scope);
  MarkedText text;
  MarkedText* const out = std::exchange(out_, &text);
  ESPALIER_CHECK(run_for(loop, value, depth));
  out_ = out;
  scope_ = outer;
  return this->text(std::move(text));
}

// ---- statements

Result<Interpreter::Flow> Interpreter::run(const Statements& statements) {
  for (const auto& statement : statements) {
    ESPALIER_TRY(const Flow flow, run(*statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::run(const Statement& statement) {
  const Nesting nesting(*this);
  line_ = statement.line;
  ESPALIER_CHECK(nesting.check());
  ESPALIER_CHECK(spend(1));
  switch (statement.kind) {
    case StatementKind::kText:
      ESPALIER_CHECK(print(*statement.value.text()));
      break;
    case StatementKind::kPrint: {
      ESPALIER_TRY(const Value value, evaluate(*statement.expression));
      ESPALIER_TRY(const MarkedText text, str(value));
      ESPALIER_CHECK(print(text));
      break;
    }
    case StatementKind::kIf:
      return run_if(statement);
    case StatementKind::kFor: {
      ESPALIER_TRY(const Value iterable, evaluate(*statement.expression));
      line_ = statement.line;
      return run_for(statement, iterable, 0);
    }
    case StatementKind::kSet: {
      ESPALIER_TRY(const Value value, evaluate(*statement.expression));
      ESPALIER_CHECK(assign(*statement.target, value));
      break;
    }
    case StatementKind::kSetBlock:
      ESPALIER_CHECK(run_set_block(statement));
      break;
    case StatementKind::kMacro:
      ESPALIER_CHECK(allocate(sizeof(MacroObject)));
      scope_->set(statement.macro->name,
                  keep(std::make_shared<MacroObject>(*statement.macro, scope_)));
      break;
    case StatementKind::kCallBlock:
      ESPALIER_CHECK(run_call_block(statement));
      break;
    case StatementKind::kFilter:
      ESPALIER_CHECK(run_filter_block(statement));
      break;
    case StatementKind::kWith:
      ESPALIER_CHECK(run_with(statement));
      break;
    case StatementKind::kScope:
      return run_scoped(statement.body);
    case StatementKind::kBody:
      return run(statement.body);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

// On errors, scopes and outputs are left as they are: nothing runs after one.
Result<Interpreter::Flow> Interpreter::run_scoped(const Statements& statements) {
  ESPALIER_CHECK(allocate(sizeof(Scope)));
  const ScopePtr outer = scope_;
  scope_ = std::make_shared<Scope>(Scope{.parent = outer});
  ESPALIER_TRY(const Flow flow, run(statements));
  scope_ = outer;
  return flow;
}

Result<Interpreter::Flow> Interpreter::run_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    bool taken = branch.condition == nullptr;
    if (!taken) {
      ESPALIER_TRY(taken, holds(*branch.condition));
    }
    if (taken) return run(branch.body);
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::run_for(const Statement& statement, const Value& iterable,
                                               std::size_t depth) {
  ESPALIER_TRY(Value::SequencePtr sequence, items(iterable));
  const ScopePtr outer = scope_;
  if (statement.condition != nullptr) {
    auto chosen = std::make_shared<Sequence>();
    chosen->depth = sequence->depth;
    for (const Value& item : sequence->items) {
      scope_ = std::make_shared<Scope>(Scope{.parent = outer});
      ESPALIER_CHECK(allocate(sizeof(Scope) + 2 * kBytesOfValue));
      ESPALIER_CHECK(assign(*statement.target, item));
      ESPALIER_TRY(const bool taken, holds(*statement.condition));
      if (taken) chosen->items.push_back(item);
    }
    scope_ = outer;
    sequence = std::move(chosen);
  }
  if (sequence->items.empty()) return run_scoped(statement.otherwise);

  ESPALIER_CHECK(allocate(sizeof(LoopObject)));
  const auto loop = std::make_shared<LoopObject>(
      sequence, statement, statement.recursion == Statement::Recursion::kYes ? outer : nullptr,
      depth);
  // Only a recursive loop has the scope that it is a variable in.
  const bool recursive = statement.recursion == Statement::Recursion::kYes;
  const Value variable = recursive ? keep(loop) : Value::object(loop);
  for (std::size_t i = 0; i < sequence->items.size(); ++i) {
    ESPALIER_CHECK(spend(1));
    ESPALIER_CHECK(allocate(sizeof(Scope) + 4 * kBytesOfValue));
    loop->go_to(i);
    scope_ = std::make_shared<Scope>(Scope{.parent = outer});
    scope_->set("loop", variable);
    ESPALIER_CHECK(assign(*statement.target, sequence->items[i]));
    ESPALIER_TRY(const Flow flow, run(statement.body));
    if (flow == Flow::kBreak) break;
  }
  scope_ = outer;
  return Flow::kNext;
}

Status Interpreter::run_with(const Statement& statement) {
  const ScopePtr outer = scope_;
  const auto inner = std::make_shared<Scope>(Scope{.parent = outer});
  ESPALIER_CHECK(allocate(sizeof(Scope)));
  for (const auto& [target, expression] : statement.assignments) {
    ESPALIER_TRY(const Value value, evaluate(*expression));
    scope_ = inner;
    ESPALIER_CHECK(assign(*target, value));
    scope_ = outer;
  }
  scope_ = inner;
  ESPALIER_CHECK(run(statement.body));
  scope_ = outer;
  return {};
}

Status Interpreter::run_call_block(const Statement& statement) {
  ESPALIER_CHECK(allocate(sizeof(MacroObject)));
  const Expression& expression = *statement.expression;
  ESPALIER_TRY(const Value callee, evaluate(*expression.children[0]));
  ESPALIER_TRY(Arguments arguments, evaluate_arguments(expression.arguments));
  arguments.named.emplace_back("caller",
                               keep(std::make_shared<MacroObject>(*statement.macro, scope_)));
  ESPALIER_TRY(const Value value, call(callee, std::move(arguments)));
  ESPALIER_TRY(const MarkedText text, str(value));
  return print(text);
}

Result<Value> Interpreter::apply_filters(const Expression& chain, const Value& value) {
  const Value* const outer = std::exchange(block_, &value);
  ESPALIER_TRY(Value result, evaluate(chain));
  block_ = outer;
  return result;
}

Status Interpreter::run_filter_block(const Statement& statement) {
  const ScopePtr outer = scope_;
  scope_ = std::make_shared<Scope>(Scope{.parent = outer});
  ESPALIER_TRY(MarkedText body, captured(statement.body));
  scope_ = outer;
  ESPALIER_TRY(const Value value, text(std::move(body)));
  ESPALIER_TRY(const Value result, apply_filters(*statement.expression, value));
  ESPALIER_TRY(const MarkedText printed, str(result));
  return print(printed);
}

Status Interpreter::run_set_block(const Statement& statement) {
  const ScopePtr outer = scope_;
  scope_ = std::make_shared<Scope>(Scope{.parent = outer});
  ESPALIER_TRY(MarkedText body, captured(statement.body));
  scope_ = outer;
  ESPALIER_TRY(Value value, text(std::move(body)));
  if (statement.expression != nullptr) {
    const Value unfiltered = value;
    ESPALIER_TRY(value, apply_filters(*statement.expression, unfiltered));
  }
  return assign(*statement.target, value);
}

Status Interpreter::assign(const Expression& target, const Value& value) {
  switch (target.kind) {
    case ExpressionKind::kTuple:
      return assign_tuple(target, value);
    case ExpressionKind::kAttribute:
      return assign_attribute(target, value);
    default:
      scope_->set(target.name, value);
      return {};
  }
}

Status Interpreter::assign_attribute(const Expression& target, const Value& value) {
  const std::string& name = target.children[0]->name;
  const Value* object = scope_->find(name);
  if (object == nullptr) return input_error("{} is undefined", quoted(name));
  return set_namespace(*object, target.name, value);
}

Status Interpreter::assign_tuple(const Expression& target, const Value& value) {
  ESPALIER_TRY(const Value::SequencePtr sequence, items(value));
  const std::size_t expected = target.children.size();
  const std::size_t found = sequence->items.size();
  if (found < expected) {
    return input_error("not enough values to unpack (expected {}, got {})", expected, found);
  }
  if (found > expected) return input_error("too many values to unpack (expected {})", expected);
  for (std::size_t i = 0; i < expected; ++i) {
    ESPALIER_CHECK(assign(*target.children[i], sequence->items[i]));
  }
  return {};
}

Result<MarkedText> Interpreter::captured(const Statements& statements) {
  MarkedText text;
  MarkedText* const outer = std::exchange(out_, &text);
  ESPALIER_CHECK(run(statements));
  out_ = outer;
  return text;
}

Status Interpreter::print(const MarkedText& text) {
  ESPALIER_CHECK(allocate(text.size()));
  if (text.size() > limits_.output - std::min(limits_.output, out_->size())) {
    return input_error("the template prints more than {} bytes", limits_.output);
  }
  out_->append(text);
  return {};
}

// ---- expressions

Result<bool> Interpreter::holds(const Expression& condition) {
  ESPALIER_TRY(const Value value, evaluate(condition));
  return truthy(value);
}

Result<Value> Interpreter::evaluate(const Expression& expression) {
  const Nesting nesting(*this);
  line_ = expression.line;
  ESPALIER_CHECK(nesting.check());
  ESPALIER_CHECK(spend(1));
  return evaluate_node(expression);
}

Result<Value> Interpreter::evaluate_node(const Expression& expression) {
  const auto& children = expression.children;
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.value;
    case ExpressionKind::kName: {
      if (const Value* found = scope_->find(expression.name)) return *found;
      return Value::undefined({.why = Undefined::Why::kName, .name = expression.name});
    }
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
    case ExpressionKind::kDict:
      return evaluate_collection(expression);
    case ExpressionKind::kSlice:
      return evaluate_slice(expression);
    case ExpressionKind::kCompare:
      return evaluate_compare(expression);
    case ExpressionKind::kConcatenate:
      return evaluate_concatenation(expression);
    case ExpressionKind::kNegative:
    case ExpressionKind::kPositive:
      return evaluate_sign(expression);
    case ExpressionKind::kNot: {
      ESPALIER_TRY(const bool value, holds(*children[0]));
      return Value::boolean(!value);
    }
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      ESPALIER_TRY(Value left, evaluate(*children[0]));
      const bool decided = truthy(left) == (expression.kind == ExpressionKind::kOr);
      return decided ? left : evaluate(*children[1]);
    }
    case ExpressionKind::kConditional: {
      ESPALIER_TRY(const bool chosen, holds(*children[0]));
      if (chosen) return evaluate(*children[1]);
      if (children[2] != nullptr) return evaluate(*children[2]);
      return Value::undefined(
          {.why = Undefined::Why::kHint,
           .name = "the inline if-expression evaluated to false and no else section was defined."});
    }
    default:
      break;
  }

  Value value;
  if (children.empty()) {
    value = *block_;  // the first filter of a block
  } else {
    ESPALIER_TRY(value, evaluate(*children[0]));
  }
  switch (expression.kind) {
    case ExpressionKind::kAttribute:
      line_ = expression.line;
      return attribute(value, expression.name);
    case ExpressionKind::kItem: {
      ESPALIER_TRY(const Value key, evaluate(*children[1]));
      line_ = expression.line;
      return item(value, key);
    }
    case ExpressionKind::kBinary: {
      ESPALIER_TRY(const Value right, evaluate(*children[1]));
      line_ = expression.line;
      return binary(expression.name, value, right);
    }
    default:
      break;
  }
  ESPALIER_TRY(Arguments arguments, evaluate_arguments(expression.arguments));
  line_ = expression.line;
  if (expression.kind == ExpressionKind::kCall) return call(value, std::move(arguments));
  if (expression.kind == ExpressionKind::kFilter) {
    return filter(expression.name, value, std::move(arguments));
  }
  ESPALIER_TRY(const bool holds, test(expression.name, value, std::move(arguments)));
  return Value::boolean(holds);
}

Result<Value> Interpreter::evaluate_collection(const Expression& expression) {
  std::vector<Value> values;
  values.reserve(expression.children.size());
  for (const ExpressionPtr& child : expression.children) {
    ESPALIER_TRY(Value value, evaluate(*child));
    values.push_back(std::move(value));
  }
  if (expression.kind == ExpressionKind::kList) return list(std::move(values));
  if (expression.kind == ExpressionKind::kTuple) {
    return list(std::move(values), SequenceKind::kTuple);
  }
  std::vector<std::pair<Value, Value>> items;
  for (std::size_t i = 0; i < values.size(); i += 2) items.emplace_back(values[i], values[i + 1]);
  return dict(std::move(items));
}

Result<Value> Interpreter::evaluate_slice(const Expression& expression) {
  ESPALIER_TRY(const Value value, evaluate(*expression.children[0]));
  std::array<std::optional<Integer>, 3> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ExpressionPtr& part = expression.children[i + 1];
    if (part == nullptr) continue;
    ESPALIER_TRY(const Value index, evaluate(*part));
    if (index.is_integer()) {
      constexpr Integer kFar = Integer{1} << 62;  // more than any length
      parts[i] = std::clamp(index.as_integer(), -kFar, kFar);
    } else if (!index.is_none()) {
      return no_such(value, Value::text("slice"));
    }
  }
  const Integer step = parts[2].value_or(1);
  if (step == 0) return input_error("slice step cannot be zero");

  if (const Undefined* undefined = value.undefined())
    return input_error("{}", undefined->message());
  if (const MarkedText* text = value.text()) {
    ESPALIER_CHECK(spend(text->size() / 8));
    ESPALIER_CHECK(allocate(text->size() * sizeof(std::size_t)));
    const std::vector<std::size_t> starts = character_starts(text->bytes());
    const auto bounds =
        slice_bounds(parts[0], parts[1], step, static_cast<Integer>(starts.size()) - 1);
    if (step == 1) {
      const auto begin = starts[static_cast<std::size_t>(bounds.start)];
      const auto end = starts[static_cast<std::size_t>(std::max(bounds.start, bounds.stop))];
      return this->text(text->substr(begin, end - begin));
    }
    TextBuilder builder(*this);
    for_each_index(bounds, [&](std::size_t i) {
      builder.append(*text, starts[i], starts[i + 1] - starts[i]);
    });
    return std::move(builder).finish();
  }
  const Sequence* sequence = value.sequence();
  if (sequence == nullptr || !can_be_indexed(*sequence)) {
    return Value::undefined(
        {.why = Undefined::Why::kElement, .name = "slice(…)", .type = type_name(value)});
  }
  ESPALIER_CHECK(spend(sequence->items.size() / 8));
  std::vector<Value> chosen;
  for_each_index(
      slice_bounds(parts[0], parts[1], step, static_cast<Integer>(sequence->items.size())),
      [&](std::size_t i) { chosen.push_back(sequence->items[i]); });
  const bool tuple = sequence->kind == SequenceKind::kGroup;
  return list(std::move(chosen), tuple ? SequenceKind::kTuple : sequence->kind);
}

Result<bool> Interpreter::compare_with(std::string_view sign, const Value& a, const Value& b) {
  if (sign == "==") return equals(a, b);
  if (sign == "!=") {
    ESPALIER_TRY(const bool same, equals(a, b));
    return !same;
  }
  if (sign == "in") return contains(b, a);
  if (sign == "not in") {
    ESPALIER_TRY(const bool inside, contains(b, a));
    return !inside;
  }
  ESPALIER_TRY(const int order, this->order(a, b, sign));
  if (a.is_real() || b.is_real()) {  // nothing compares with NaN
    if (std::isnan(a.as_real()) || std::isnan(b.as_real())) return false;
  }
  if (sign == "<") return order < 0;
  if (sign == "<=") return order <= 0;
  if (sign == ">") return order > 0;
  return order >= 0;
}

Result<Value> Interpreter::evaluate_compare(const Expression& expression) {
  ESPALIER_TRY(Value left, evaluate(*expression.children[0]));
  for (std::size_t i = 0; i < expression.operators.size(); ++i) {
    ESPALIER_TRY(Value right, evaluate(*expression.children[i + 1]));
    line_ = expression.line;
    ESPALIER_TRY(const bool holds, compare_with(expression.operators[i], left, right));
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<Value> Interpreter::evaluate_concatenation(const Expression& expression) {
  TextBuilder builder(*this);
  for (const ExpressionPtr& child : expression.children) {
    ESPALIER_TRY(const Value value, evaluate(*child));
    ESPALIER_TRY(const MarkedText text, str(value));
    builder.append(text);
  }
  return std::move(builder).finish();
}

Result<Value> Interpreter::evaluate_sign(const Expression& expression) {
  ESPALIER_TRY(const Value value, evaluate(*expression.children[0]));
  const bool negative = expression.kind == ExpressionKind::kNegative;
  if (value.is_integer()) {
    Integer result = value.as_integer();
    if (negative && __builtin_sub_overflow(Integer{0}, result, &result)) {
      return input_error("an integer is too large");
    }
    return Value::integer(result);
  }
  if (value.is_real()) return Value::real(negative ? -value.as_real() : value.as_real());
  if (const Undefined* undefined = value.undefined())
    return input_error("{}", undefined->message());
  return input_error("bad operand type for unary {}: '{}'", negative ? "-" : "+", type_name(value));
}

Result<Arguments> Interpreter::evaluate_arguments(const CallArguments& arguments) {
  Arguments values;
  for (const ExpressionPtr& argument : arguments.positional) {
    ESPALIER_TRY(Value value, evaluate(*argument));
    values.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : arguments.named) {
    ESPALIER_TRY(Value value, evaluate(*argument));
    values.named.emplace_back(name, std::move(value));
  }
  if (arguments.list != nullptr) {
    ESPALIER_TRY(const Value list, evaluate(*arguments.list));
    ESPALIER_TRY(const Value::SequencePtr sequence, items(list));
    ESPALIER_CHECK(allocate(sequence->items.size() * kBytesOfValue));
    values.positional.insert(values.positional.end(), sequence->items.begin(),
                             sequence->items.end());
  }
  if (arguments.dict != nullptr) {
    ESPALIER_TRY(const Value dict, evaluate(*arguments.dict));
    if (dict.dict() == nullptr) {
      return input_error("argument after ** must be a mapping, not {}", type_name(dict));
    }
    for (const auto& [name, value] : dict.dict()->items) {
      if (!name.is_text()) return input_error("keywords must be strings");
      ESPALIER_CHECK(allocate(name.text()->size() + 2 * kBytesOfValue));
      values.named.emplace_back(name.text()->bytes(), value);
    }
  }
  return values;
}

}  // namespace espalier::text::jinja
