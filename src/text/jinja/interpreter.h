// Runs a parsed template. Everything it does is counted, so that a template that loops for ever,
// recurses or builds gigabytes ends with an error.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja/syntax.h"
#include "text/jinja/value.h"

namespace espalier::text::jinja {

struct Limits {
  std::size_t steps = 5'000'000;               // expressions, statements, and work on long values
  std::size_t bytes = std::size_t{256} << 20;  // of all values made, whether still in use or not
  std::size_t output = std::size_t{32} << 20;
  int depth = 600;  // of expressions, statements and macros inside of each other
};

// Variables by name. The names must outlive the scope.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> variables = {};

  [[nodiscard]] const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  // `now` is what strftime_now() tells.
  Interpreter(const Limits& limits, const std::tm& now)
      : left_(limits), limits_(limits), now_(now) {}
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  ~Interpreter();

  // What `template_body` gives with these variables. Errors begin with "line N: ".
  Result<MarkedText> render(const Statements& template_body,
                            std::vector<std::pair<std::string_view, Value>> variables);

  // ---- for functions, filters and the like

  // Takes from what the template may do; an error where nothing is left.
  Status spend(std::size_t steps);
  Status allocate(std::size_t bytes);
  // The steps for looking at all of `value`.
  Status spend_on(const Value& value);
  [[nodiscard]] std::size_t bytes_left() const { return left_.bytes; }
  [[nodiscard]] const std::tm& now() const { return now_; }

  // Values, counted.
  Result<Value> text(MarkedText text);
  Result<Value> list(std::vector<Value> items, SequenceKind kind = SequenceKind::kList);
  Result<Value> dict(std::vector<std::pair<Value, Value>> items);
  // A value of its own kind that may hold others; it lives as long as the rendering.
  Value keep(Value::ObjectPtr object);

  // str(value); repr(value).
  Result<MarkedText> str(const Value& value);
  Result<MarkedText> repr(const Value& value);

  // What `for` goes through. Taken from a generator, it is gone.
  Result<Value::SequencePtr> items(const Value& value);
  Result<bool> contains(const Value& container, const Value& value);
  Result<bool> equals(const Value& a, const Value& b);
  Result<int> order(const Value& a, const Value& b, std::string_view sign = "<");

  Result<Value> attribute(const Value& value, std::string_view name);
  Result<Value> item(const Value& value, const Value& key);
  Result<Value> call(const Value& callee, Arguments arguments);
  Result<Value> filter(std::string_view name, const Value& value, Arguments arguments);
  Result<bool> test(std::string_view name, const Value& value, Arguments arguments);
  Result<Value> binary(std::string_view sign, const Value& a, const Value& b);

  Result<Value> call_macro(const Macro& macro, const ScopePtr& scope, Arguments arguments);
  // The body of a recursive loop once more, for the items of `value`.
  Result<Value> call_loop(const Statement& loop, const ScopePtr& scope, std::size_t depth,
                          const Value& value);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Nesting;

  Result<Flow> run(const Statements& statements);
  Result<Flow> run(const Statement& statement);
  Result<Flow> run_scoped(const Statements& statements);
  Result<Flow> run_if(const Statement& statement);
  Result<Flow> run_for(const Statement& statement, const Value& iterable, std::size_t depth);
  Status run_with(const Statement& statement);
  Status run_call_block(const Statement& statement);
  Status run_filter_block(const Statement& statement);
  Status run_set_block(const Statement& statement);
  Status assign(const Expression& target, const Value& value);
  Status assign_attribute(const Expression& target, const Value& value);
  Status assign_tuple(const Expression& target, const Value& value);
  // What the statements print.
  Result<MarkedText> captured(const Statements& statements);
  Status print(const MarkedText& text);

  Result<Value> evaluate(const Expression& expression);
  Result<Value> evaluate_node(const Expression& expression);
  Result<Value> evaluate_compare(const Expression& expression);
  Result<Value> evaluate_slice(const Expression& expression);
  Result<Value> evaluate_concatenation(const Expression& expression);
  Result<Value> evaluate_sign(const Expression& expression);
  Result<Value> evaluate_collection(const Expression& expression);
  Result<bool> compare_with(std::string_view sign, const Value& a, const Value& b);
  Result<Arguments> evaluate_arguments(const CallArguments& arguments);
  Result<Value> apply_filters(const Expression& chain, const Value& value);
  Result<bool> holds(const Expression& condition);

  // `error` with the line that is being run, unless it has one.
  [[nodiscard]] Error located(Error error);

  Limits left_;
  const Limits limits_;
  const std::tm now_;
  int depth_ = 0;
  int line_ = 1;
  bool located_ = false;
  MarkedText* out_ = nullptr;
  const Value* block_ = nullptr;  // what the filters of a block start from
  ScopePtr scope_;
  std::vector<Value::ObjectPtr> kept_;
};

// Makes a text piece by piece. What exceeds the interpreter's bytes is dropped, and finish() fails.
class TextBuilder {
 public:
  explicit TextBuilder(Interpreter& run) : run_(run) {}
  void append(const MarkedText& text) { append(text, 0, text.size()); }
  void append(const MarkedText& text, std::size_t begin, std::size_t count) {
    if (room(count)) text_.append(text, begin, count);
  }
  void append(std::string_view text, Origin origin) {
    if (room(text.size())) text_.append(text, origin);
  }
  [[nodiscard]] const MarkedText& so_far() const { return text_; }
  Result<Value> finish() && {
    ESPALIER_CHECK(status_);
    return Value::text(std::move(text_));
  }
  Result<MarkedText> finish_text() && {
    ESPALIER_CHECK(status_);
    return std::move(text_);
  }

 private:
  bool room(std::size_t count) {
    if (status_) status_ = run_.allocate(count);
    return static_cast<bool>(status_);
  }

  Interpreter& run_;
  MarkedText text_;
  Status status_;
};

}  // namespace espalier::text::jinja
