#include "text/jinja/builtins.h"

#include <algorithm>

namespace espalier::text::jinja {
namespace {

// A method together with the value that it was taken from.
class BoundMethod final : public Object {
 public:
  BoundMethod(Value receiver, const Builtin& method)
      : receiver_(std::move(receiver)), method_(method) {}
  [[nodiscard]] std::string_view type_name() const override { return "builtin_function_or_method"; }
  [[nodiscard]] bool callable() const override { return true; }
  Result<Value> call(Interpreter& run, Arguments arguments) override {
    return call_builtin(method_, run, receiver_, std::move(arguments));
  }

 private:
  Value receiver_;
  const Builtin& method_;
};

struct Parameters {
  std::vector<std::string_view> names;
  std::size_t required = 0;
};

Parameters split_parameters(std::string_view text) {
  Parameters parameters;
  while (!text.empty()) {
    std::string_view name = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), name.size() + 1));
    if (name.ends_with('?')) {
      name.remove_suffix(1);
    } else {
      ++parameters.required;
    }
    parameters.names.push_back(name);
  }
  return parameters;
}

// The steps that go by the size of a value without what lies in it.
std::size_t shallow_weight(const Value& value) {
  if (const MarkedText* text = value.text()) return text->size() / 16;
  if (const Sequence* sequence = value.sequence()) return sequence->items.size() / 4;
  if (const Dict* dict = value.dict()) return dict->items.size() / 4;
  return 0;
}

}  // namespace

Result<Integer> Call::integer(std::size_t i, Integer otherwise) const {
  const Value* value = argument(i);
  if (value == nullptr || value->is_none()) return otherwise;
  if (!value->is_integer()) {
    return input_error("'{}' object cannot be interpreted as an integer", type_name(*value));
  }
  return value->as_integer();
}

Result<MarkedText> Call::text(std::size_t i, std::string_view otherwise) const {
  const Value* value = argument(i);
  if (value == nullptr || value->is_none()) return MarkedText(otherwise, Origin::kTemplate);
  if (value->is_text()) return *value->text();
  return input_error("must be str, not {}", type_name(*value));
}

bool Call::flag(std::size_t i, bool otherwise) const {
  const Value* value = argument(i);
  return value == nullptr ? otherwise : truthy(*value);
}

Result<Value> call_builtin(const Builtin& builtin, Interpreter& run, const Value& self,
                           Arguments arguments) {
  std::size_t steps = 1 + shallow_weight(self);
  for (const Value& value : arguments.positional) steps += shallow_weight(value);
  ESPALIER_CHECK(run.spend(steps));
  Call call{.run = run, .self = self};
  if (builtin.parameters == "*") {
    call.rest = std::move(arguments);
    return builtin.function(call);
  }
  const Parameters parameters = split_parameters(builtin.parameters);
  const std::size_t most = parameters.names.size();
  if (arguments.positional.size() > most) {
    return input_error("{}() takes at most {} argument{} ({} given)", builtin.name, most,
                       most == 1 ? "" : "s", arguments.positional.size());
  }
  call.given.resize(most);
  std::copy(arguments.positional.begin(), arguments.positional.end(), call.given.begin());
  for (auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters.names.begin(), parameters.names.end(), name);
    if (found == parameters.names.end()) {
      return input_error("{}() got an unexpected keyword argument '{}'", builtin.name, name);
    }
    auto& place = call.given[static_cast<std::size_t>(found - parameters.names.begin())];
    if (place) {
      return input_error("{}() got multiple values for argument '{}'", builtin.name, name);
    }
    place = std::move(value);
  }
  for (std::size_t i = 0; i < parameters.required; ++i) {
    if (!call.given[i]) {
      return input_error("{}() missing a required argument: '{}'", builtin.name,
                         parameters.names[i]);
    }
  }
  return builtin.function(call);
}

const Builtin* find(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const Builtin& builtin) { return builtin.name == name; });
  return found == table.end() ? nullptr : &*found;
}

bool is_filter(std::string_view name) { return find(filters(), name) != nullptr; }
bool is_test(std::string_view name) { return find(tests(), name) != nullptr; }

std::optional<Value> find_method(const Value& value, std::string_view name) {
  std::span<const Builtin> table;
  if (value.is_text()) table = text_methods();
  if (value.dict() != nullptr) table = dict_methods();
  if (value.object() != nullptr) table = object_methods(*value.object());
  if (const Sequence* sequence = value.sequence();
      sequence != nullptr &&
      (sequence->kind == SequenceKind::kList || sequence->kind == SequenceKind::kTuple ||
       sequence->kind == SequenceKind::kGroup)) {
    table = sequence_methods();
    // list has what tuple has, and copy.
    if (name == "copy" && sequence->kind != SequenceKind::kList) return std::nullopt;
  }
  const Builtin* method = find(table, name);
  if (method == nullptr) return std::nullopt;
  return Value::object(std::make_shared<BoundMethod>(value, *method));
}

}  // namespace espalier::text::jinja
