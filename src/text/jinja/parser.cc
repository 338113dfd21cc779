#include "text/jinja/parser.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/printable.h"
#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"

namespace espalier::text::jinja {
namespace {

using Names = std::vector<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Statements> run() { return statements({}); }

 private:
  // ---- tokens

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  [[nodiscard]] const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  [[nodiscard]] int line() const { return current().line; }
  void advance() {
    if (current().kind != TokenKind::kEnd) ++at_;
  }

  static bool is(const Token& token, TokenKind kind, std::string_view text) {
    return token.kind == kind && token.text == text;
  }
  [[nodiscard]] bool at_operator(std::string_view op) const {
    return is(current(), TokenKind::kOperator, op);
  }
  [[nodiscard]] bool at_name(std::string_view name) const {
    return is(current(), TokenKind::kName, name);
  }
  bool skip_operator(std::string_view op) {
    if (!at_operator(op)) return false;
    advance();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!at_name(name)) return false;
    advance();
    return true;
  }

  static std::string shown(const Token& token) {
    switch (token.kind) {
      case TokenKind::kVariableEnd:
        return "end of print statement";
      case TokenKind::kBlockEnd:
        return "end of statement block";
      case TokenKind::kEnd:
        return "end of template";
      case TokenKind::kText:
        return "text";
      default:
        return printable(token.text, 60);
    }
  }

  [[nodiscard]] Error unexpected() const {
    return error_at(line(), "unexpected '{}'", shown(current()));
  }

  Status expect(TokenKind kind, std::string_view text) {
    if (!is(current(), kind, text)) {
      return error_at(line(), "expected '{}', found '{}'", text, shown(current()));
    }
    advance();
    return {};
  }
  Status expect_operator(std::string_view op) { return expect(TokenKind::kOperator, op); }

  Result<std::string> identifier() {
    if (current().kind != TokenKind::kName) {
      return error_at(line(), "expected a name, found '{}'", shown(current()));
    }
    std::string name = current().text;
    advance();
    return name;
  }

  Status block_end() { return expect(TokenKind::kBlockEnd, "%}"); }

  // ---- depth, which bounds the recursion of everything that walks the tree

  struct Nesting {
    explicit Nesting(int& counter) : depth(counter) { ++depth; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    ~Nesting() { --depth; }
    int& depth;
  };

  [[nodiscard]] Status check_depth(int depth) const {
    if (depth <= kMaxSyntaxDepth) return {};
    return error_at(line(), "nested more than {} deep", kMaxSyntaxDepth);
  }

  // An expression with these parts; chains such as a + b + c nest without recursion here.
  Result<ExpressionPtr> node(ExpressionKind kind, int line, std::vector<ExpressionPtr> children,
                             std::string name = {}) {
    auto expression = std::make_unique<Expression>();
    expression->kind = kind;
    expression->line = line;
    expression->name = std::move(name);
    for (const ExpressionPtr& child : children) deepen(*expression, child);
    expression->children = std::move(children);
    ESPALIER_CHECK(check_depth(expression->depth));
    return expression;
  }

  template <typename... Children>
  Result<ExpressionPtr> node_of(ExpressionKind kind, int line, std::string name,
                                Children... children) {
    std::vector<ExpressionPtr> list;
    (list.push_back(std::move(children)), ...);
    return node(kind, line, std::move(list), std::move(name));
  }

  static void deepen(Expression& parent, const ExpressionPtr& child) {
    if (child != nullptr) parent.depth = std::max(parent.depth, child->depth + 1);
  }

  Result<ExpressionPtr> constant(int line, Value value) {
    ESPALIER_TRY(ExpressionPtr expression, node(ExpressionKind::kConstant, line, {}));
    expression->value = std::move(value);
    return expression;
  }

  // ---- statements

  // Everything up to a tag that begins with one of `ends`, which stays; with no `ends`, all.
  Result<Statements> statements(const Names& ends) {
    const Nesting nesting(depth_);
    ESPALIER_CHECK(check_depth(depth_));
    const int first_line = line();
    Statements list;
    while (true) {
      switch (current().kind) {
        case TokenKind::kEnd:
          if (ends.empty()) return list;
          return error_at(first_line, "unexpected end of template, expected '{}'", ends.back());
        case TokenKind::kText: {
          auto text = make(StatementKind::kText);
          text->value = Value::text(current().text);
          advance();
          list.push_back(std::move(text));
          break;
        }
        case TokenKind::kVariableBegin: {
          auto print = make(StatementKind::kPrint);
          advance();
          ESPALIER_TRY(print->expression, tuple(Conditionals::kYes));
          ESPALIER_CHECK(expect(TokenKind::kVariableEnd, "}}"));
          list.push_back(std::move(print));
          break;
        }
        default: {
          advance();  // {%
          const bool ended = std::any_of(ends.begin(), ends.end(),
                                         [&](std::string_view end) { return at_name(end); });
          if (ended) return list;
          ESPALIER_TRY(auto statement, tag());
          list.push_back(std::move(statement));
        }
      }
    }
  }

  // The body of a tag and the tag that ends it.
  Result<Statements> body_until(std::string_view end) {
    ESPALIER_CHECK(block_end());
    ESPALIER_TRY(Statements body, statements({end}));
    advance();
    // Blocks may repeat their name at the end.
    if ((end == "endblock" || end == "endmacro") && current().kind == TokenKind::kName) advance();
    ESPALIER_CHECK(block_end());
    return body;
  }

  [[nodiscard]] std::unique_ptr<Statement> make(StatementKind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = line();
    return statement;
  }

  using StatementResult = Result<std::unique_ptr<Statement>>;

  StatementResult tag() {
    using ParseTag = StatementResult (Parser::*)();
    static const std::map<std::string_view, ParseTag> kTags = {
        {"for", &Parser::for_tag},
        {"if", &Parser::if_tag},
        {"set", &Parser::set_tag},
        {"macro", &Parser::macro_tag},
        {"call", &Parser::call_tag},
        {"filter", &Parser::filter_tag},
        {"with", &Parser::with_tag},
        {"print", &Parser::print_tag},
        {"block", &Parser::block_tag},
        {"generation", &Parser::generation_tag},
        {"autoescape", &Parser::autoescape_tag},
        {"break", &Parser::break_tag},
        {"continue", &Parser::continue_tag},
    };
    if (current().kind != TokenKind::kName) {
      return error_at(line(), "expected the name of a tag, found '{}'", shown(current()));
    }
    const auto found = kTags.find(current().text);
    if (found == kTags.end()) {
      constexpr std::string_view kLoading[] = {"include", "import", "from", "extends"};
      const std::string_view name = current().text;
      if (std::find(std::begin(kLoading), std::end(kLoading), name) != std::end(kLoading)) {
        return error_at(line(), "the tag '{}' takes from another template, but there is only one",
                        name);
      }
      return error_at(line(), "Encountered unknown tag '{}'.", shown(current()));
    }
    return (this->*found->second)();
  }

  StatementResult for_tag() {
    auto loop = make(StatementKind::kFor);
    advance();
    ESPALIER_TRY(loop->target, assignment_target(Namespaces::kNo));
    ESPALIER_CHECK(expect(TokenKind::kName, "in"));
    ESPALIER_TRY(loop->expression, tuple(Conditionals::kNo, "recursive"));
    if (skip_name("if")) {
      ESPALIER_TRY(loop->condition, expression());
    }
    if (skip_name("recursive")) loop->recursion = Statement::Recursion::kYes;
    ESPALIER_CHECK(block_end());
    ++loops_;
    auto body = statements({"else", "endfor"});
    --loops_;
    if (!body) return body.error();
    loop->body = std::move(*body);
    if (skip_name("else")) {
      ESPALIER_CHECK(block_end());
      ESPALIER_TRY(loop->otherwise, statements({"endfor"}));
    }
    advance();
    ESPALIER_CHECK(block_end());
    return loop;
  }

  StatementResult if_tag() {
    auto choice = make(StatementKind::kIf);
    const int soft = std::exchange(soft_, soft_ + 1);
    while (true) {
      const bool conditional = !at_name("else");
      advance();  // if, elif, else
      Branch branch;
      if (conditional) {
        ESPALIER_TRY(branch.condition, tuple(Conditionals::kNo));
      }
      ESPALIER_CHECK(block_end());
      ESPALIER_TRY(branch.body,
                   statements(conditional ? Names{"elif", "else", "endif"} : Names{"endif"}));
      choice->branches.push_back(std::move(branch));
      if (at_name("endif")) break;
    }
    soft_ = soft;
    advance();
    ESPALIER_CHECK(block_end());
    return choice;
  }

  StatementResult set_tag() {
    auto set = make(StatementKind::kSet);
    advance();
    ESPALIER_TRY(set->target, assignment_target(Namespaces::kYes));
    if (skip_operator("=")) {
      ESPALIER_TRY(set->expression, tuple(Conditionals::kYes));
      ESPALIER_CHECK(block_end());
      return set;
    }
    set->kind = StatementKind::kSetBlock;
    if (at_operator("|")) {
      ESPALIER_TRY(set->expression, filters(nullptr));
    }
    ESPALIER_TRY(set->body, body_until("endset"));
    return set;
  }

  StatementResult macro_tag() {
    auto definition = make(StatementKind::kMacro);
    advance();
    definition->macro = std::make_unique<Macro>();
    ESPALIER_TRY(definition->macro->name, identifier());
    ESPALIER_CHECK(signature(*definition->macro));
    ESPALIER_CHECK(macro_body(*definition->macro, "endmacro"));
    return definition;
  }

  StatementResult call_tag() {
    auto block = make(StatementKind::kCallBlock);
    advance();
    block->macro = std::make_unique<Macro>();
    block->macro->name = "caller";
    if (at_operator("(")) ESPALIER_CHECK(signature(*block->macro));
    ESPALIER_TRY(block->expression, expression());
    if (block->expression->kind != ExpressionKind::kCall) {
      return error_at(block->line, "expected call");
    }
    ESPALIER_CHECK(macro_body(*block->macro, "endcall"));
    return block;
  }

  Status macro_body(Macro& macro, std::string_view end) {
    macros_.push_back(&macro);
    const int loops = std::exchange(loops_, 0);
    auto body = body_until(end);
    loops_ = loops;
    macros_.pop_back();
    if (!body) return body.error();
    macro.body = std::move(*body);
    return {};
  }

  Status signature(Macro& macro) {
    ESPALIER_CHECK(expect_operator("("));
    while (!at_operator(")")) {
      if (!macro.parameters.empty()) ESPALIER_CHECK(expect_operator(","));
      ESPALIER_TRY(std::string name, identifier());
      macro.parameters.push_back(std::move(name));
      if (skip_operator("=")) {
        ESPALIER_TRY(ExpressionPtr value, expression());
        macro.defaults.push_back(std::move(value));
      } else if (!macro.defaults.empty()) {
        return error_at(line(), "non-default argument follows default argument");
      }
    }
    advance();
    return {};
  }

  StatementResult filter_tag() {
    auto block = make(StatementKind::kFilter);
    advance();
    ESPALIER_TRY(ExpressionPtr first, filter(nullptr));
    ESPALIER_TRY(block->expression, filters(std::move(first)));
    ESPALIER_TRY(block->body, body_until("endfilter"));
    return block;
  }

  StatementResult with_tag() {
    auto block = make(StatementKind::kWith);
    advance();
    while (current().kind != TokenKind::kBlockEnd) {
      if (!block->assignments.empty()) ESPALIER_CHECK(expect_operator(","));
      ESPALIER_TRY(ExpressionPtr target, assignment_target(Namespaces::kNo));
      ESPALIER_CHECK(expect_operator("="));
      ESPALIER_TRY(ExpressionPtr value, expression());
      block->assignments.emplace_back(std::move(target), std::move(value));
    }
    ESPALIER_TRY(block->body, body_until("endwith"));
    return block;
  }

  StatementResult print_tag() {
    auto print = make(StatementKind::kPrint);
    advance();
    ESPALIER_TRY(print->expression, tuple(Conditionals::kYes));
    ESPALIER_CHECK(block_end());
    return print;
  }

  // Without inheritance, a block is what stands in it.
  StatementResult block_tag() {
    auto block = make(StatementKind::kScope);
    advance();
    ESPALIER_CHECK(identifier());
    ESPALIER_TRY(block->body, body_until("endblock"));
    return block;
  }

  // Marks what an assistant said, for training.
  StatementResult generation_tag() {
    auto block = make(StatementKind::kScope);
    advance();
    ESPALIER_TRY(block->body, body_until("endgeneration"));
    return block;
  }

  StatementResult autoescape_tag() {
    auto block = make(StatementKind::kScope);
    advance();
    ESPALIER_TRY(const ExpressionPtr on, expression());
    if (on->kind != ExpressionKind::kConstant || truthy(on->value)) {
      return error_at(block->line, "only 'autoescape false' is known");
    }
    ESPALIER_TRY(block->body, body_until("endautoescape"));
    return block;
  }

  StatementResult break_tag() { return jump(StatementKind::kBreak); }
  StatementResult continue_tag() { return jump(StatementKind::kContinue); }
  StatementResult jump(StatementKind kind) {
    auto statement = make(kind);
    if (loops_ == 0) return error_at(line(), "'{}' outside loop", current().text);
    advance();
    ESPALIER_CHECK(block_end());
    return statement;
  }

  // ---- expressions, loosest binding first

  enum class Conditionals { kNo, kYes };  // whether `a if b else c` may stand there
  enum class Namespaces { kNo, kYes };    // whether `ns.name` may be assigned

  Result<ExpressionPtr> expression(Conditionals conditionals = Conditionals::kYes) {
    const Nesting nesting(depth_);
    ESPALIER_CHECK(check_depth(depth_));
    return conditionals == Conditionals::kYes ? conditional() : or_expression();
  }

  Result<ExpressionPtr> conditional() {
    ESPALIER_TRY(ExpressionPtr value, or_expression());
    while (at_name("if")) {
      const int at = line();
      advance();
      const int soft = std::exchange(soft_, soft_ + 1);
      ESPALIER_TRY(ExpressionPtr condition, or_expression());
      ExpressionPtr otherwise;
      if (skip_name("else")) {
        ESPALIER_TRY(otherwise, expression());
      }
      soft_ = soft;
      ESPALIER_TRY(value, node_of(ExpressionKind::kConditional, at, {}, std::move(condition),
                                  std::move(value), std::move(otherwise)));
    }
    return value;
  }

  using Parse = Result<ExpressionPtr> (Parser::*)();

  // Operands of the next level with operators between them, from the left.
  Result<ExpressionPtr> chain(Parse operand, std::initializer_list<std::string_view> operators) {
    ESPALIER_TRY(ExpressionPtr left, (this->*operand)());
    while (current().kind == TokenKind::kOperator &&
           std::find(operators.begin(), operators.end(), current().text) != operators.end()) {
      const Token op = current();
      advance();
      ESPALIER_TRY(ExpressionPtr right, (this->*operand)());
      ESPALIER_TRY(left, node_of(ExpressionKind::kBinary, op.line, op.text, std::move(left),
                                 std::move(right)));
    }
    return left;
  }

  Result<ExpressionPtr> logical(Parse operand, std::string_view word, ExpressionKind kind) {
    ESPALIER_TRY(ExpressionPtr left, (this->*operand)());
    while (at_name(word)) {
      const int at = line();
      advance();
      ESPALIER_TRY(ExpressionPtr right, (this->*operand)());
      ESPALIER_TRY(left, node_of(kind, at, {}, std::move(left), std::move(right)));
    }
    return left;
  }

  Result<ExpressionPtr> or_expression() {
    return logical(&Parser::and_expression, "or", ExpressionKind::kOr);
  }
  Result<ExpressionPtr> and_expression() {
    return logical(&Parser::not_expression, "and", ExpressionKind::kAnd);
  }

  Result<ExpressionPtr> not_expression() {
    if (!at_name("not")) return comparison();
    const Nesting nesting(depth_);
    ESPALIER_CHECK(check_depth(depth_));
    const int at = line();
    advance();
    ESPALIER_TRY(ExpressionPtr operand, not_expression());
    return node_of(ExpressionKind::kNot, at, {}, std::move(operand));
  }

  // The comparison operator at the cursor, taken, or nothing.
  std::string comparison_operator() {
    static constexpr std::array<std::string_view, 6> kSigns = {"==", "!=", "<", "<=", ">", ">="};
    if (current().kind == TokenKind::kOperator &&
        std::find(kSigns.begin(), kSigns.end(), current().text) != kSigns.end()) {
      std::string sign = current().text;
      advance();
      return sign;
    }
    if (skip_name("in")) return "in";
    if (at_name("not") && is(next(), TokenKind::kName, "in")) {
      advance();
      advance();
      return "not in";
    }
    return {};
  }

  Result<ExpressionPtr> comparison() {
    const int at = line();
    std::vector<ExpressionPtr> operands;
    std::vector<std::string> operators;
    ESPALIER_TRY(ExpressionPtr first, sum());
    operands.push_back(std::move(first));
    for (std::string sign = comparison_operator(); !sign.empty(); sign = comparison_operator()) {
      operators.push_back(std::move(sign));
      ESPALIER_TRY(ExpressionPtr operand, sum());
      operands.push_back(std::move(operand));
    }
    if (operators.empty()) return std::move(operands.front());
    ESPALIER_TRY(ExpressionPtr compare, node(ExpressionKind::kCompare, at, std::move(operands)));
    compare->operators = std::move(operators);
    return compare;
  }

  Result<ExpressionPtr> sum() { return chain(&Parser::concatenation, {"+", "-"}); }

  Result<ExpressionPtr> concatenation() {
    const int at = line();
    ESPALIER_TRY(ExpressionPtr first, product());
    if (!at_operator("~")) return first;
    std::vector<ExpressionPtr> parts;
    parts.push_back(std::move(first));
    while (skip_operator("~")) {
      ESPALIER_TRY(ExpressionPtr part, product());
      parts.push_back(std::move(part));
    }
    return node(ExpressionKind::kConcatenate, at, std::move(parts));
  }

  Result<ExpressionPtr> product() { return chain(&Parser::power, {"*", "/", "//", "%"}); }
  Result<ExpressionPtr> power() { return chain(&Parser::signed_with_filters, {"**"}); }

  Result<ExpressionPtr> signed_with_filters() {
    ESPALIER_TRY(ExpressionPtr value, signed_value());
    return filters(std::move(value));
  }

  // A sign binds tighter than a filter: -1|abs is 1.
  Result<ExpressionPtr> signed_value() {
    const int at = line();
    const bool negative = at_operator("-");
    if (!negative && !at_operator("+")) {
      ESPALIER_TRY(ExpressionPtr value, primary());
      return postfix(std::move(value));
    }
    const Nesting nesting(depth_);
    ESPALIER_CHECK(check_depth(depth_));
    advance();
    ESPALIER_TRY(ExpressionPtr operand, signed_value());
    return node_of(negative ? ExpressionKind::kNegative : ExpressionKind::kPositive, at, {},
                   std::move(operand));
  }

  Result<ExpressionPtr> primary() {
    const Token token = current();
    switch (token.kind) {
      case TokenKind::kName:
        advance();
        return name_or_constant(token);
      case TokenKind::kString: {
        std::string text;
        for (; current().kind == TokenKind::kString; advance()) text += current().text;
        return constant(token.line, Value::text(text));
      }
      case TokenKind::kInteger:
      case TokenKind::kReal:
        advance();
        return constant(token.line, token.number);
      case TokenKind::kOperator:
        if (token.text == "(") return parenthesized();
        if (token.text == "[") return list();
        if (token.text == "{") return dict();
        break;
      default:
        break;
    }
    return unexpected();
  }

  Result<ExpressionPtr> name_or_constant(const Token& token) {
    static const std::map<std::string_view, Value> kConstants = {
        {"true", Value::boolean(true)},
        {"True", Value::boolean(true)},
        {"false", Value::boolean(false)},
        {"False", Value::boolean(false)},
        {"none", Value()},
        {"None", Value()},
    };
    if (const auto found = kConstants.find(token.text); found != kConstants.end()) {
      return constant(token.line, found->second);
    }
    for (Macro* macro : macros_) {
      macro->uses_varargs |= token.text == "varargs";
      macro->uses_kwargs |= token.text == "kwargs";
      macro->uses_caller |= token.text == "caller";
    }
    return node(ExpressionKind::kName, token.line, {}, token.text);
  }

  Result<ExpressionPtr> parenthesized() {
    advance();
    ESPALIER_TRY(ExpressionPtr value, tuple(Conditionals::kYes, {}, Empty::kAllowed));
    ESPALIER_CHECK(expect_operator(")"));
    return value;
  }

  Result<ExpressionPtr> list() {
    const int at = line();
    advance();
    std::vector<ExpressionPtr> items;
    while (!at_operator("]")) {
      if (!items.empty()) ESPALIER_CHECK(expect_operator(","));
      if (at_operator("]")) break;
      ESPALIER_TRY(ExpressionPtr item, expression());
      items.push_back(std::move(item));
    }
    advance();
    return node(ExpressionKind::kList, at, std::move(items));
  }

  Result<ExpressionPtr> dict() {
    const int at = line();
    advance();
    std::vector<ExpressionPtr> items;
    while (!at_operator("}")) {
      if (!items.empty()) ESPALIER_CHECK(expect_operator(","));
      if (at_operator("}")) break;
      ESPALIER_TRY(ExpressionPtr key, expression());
      ESPALIER_CHECK(expect_operator(":"));
      ESPALIER_TRY(ExpressionPtr value, expression());
      items.push_back(std::move(key));
      items.push_back(std::move(value));
    }
    advance();
    return node(ExpressionKind::kDict, at, std::move(items));
  }

  enum class Empty { kRefused, kAllowed };

  // One expression, or several with commas. `end` is a word that ends it.
  Result<ExpressionPtr> tuple(Conditionals conditionals, std::string_view end = {},
                              Empty empty = Empty::kRefused) {
    const int at = line();
    std::vector<ExpressionPtr> items;
    bool is_tuple = false;
    while (!ends_tuple(end)) {
      ESPALIER_TRY(ExpressionPtr item, expression(conditionals));
      items.push_back(std::move(item));
      if (!skip_operator(",")) break;
      is_tuple = true;
    }
    if (items.size() == 1 && !is_tuple) return std::move(items.front());
    if (items.empty() && empty == Empty::kRefused) return unexpected();
    return node(ExpressionKind::kTuple, at, std::move(items));
  }

  [[nodiscard]] bool ends_tuple(std::string_view end) const {
    return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
           at_operator(")") || (!end.empty() && at_name(end));
  }

  Result<ExpressionPtr> assignment_target(Namespaces namespaces) {
    const int at = line();
    std::vector<ExpressionPtr> items;
    bool is_tuple = false;
    const bool parenthesized = skip_operator("(");
    while (current().kind == TokenKind::kName && !at_name("in")) {
      static constexpr std::array<std::string_view, 6> kReserved = {"true",  "True", "false",
                                                                    "False", "none", "None"};
      const Token name = current();
      if (std::find(kReserved.begin(), kReserved.end(), name.text) != kReserved.end()) {
        return error_at(name.line, "can't assign to '{}'", name.text);
      }
      advance();
      ESPALIER_TRY(ExpressionPtr item, node(ExpressionKind::kName, name.line, {}, name.text));
      if (namespaces == Namespaces::kYes && skip_operator(".")) {
        ESPALIER_TRY(std::string attribute, identifier());
        ESPALIER_TRY(item, node_of(ExpressionKind::kAttribute, name.line, std::move(attribute),
                                   std::move(item)));
      }
      items.push_back(std::move(item));
      if (!skip_operator(",")) break;
      is_tuple = true;
    }
    if (items.empty()) return unexpected();
    if (parenthesized) ESPALIER_CHECK(expect_operator(")"));
    if (items.size() == 1 && !is_tuple) return std::move(items.front());
    return node(ExpressionKind::kTuple, at, std::move(items));
  }

  // Attributes, items and calls after a value.
  Result<ExpressionPtr> postfix(ExpressionPtr value) {
    while (true) {
      if (at_operator(".")) {
        ESPALIER_TRY(value, attribute(std::move(value)));
      } else if (at_operator("[")) {
        ESPALIER_TRY(value, subscript(std::move(value)));
      } else if (at_operator("(")) {
        ESPALIER_TRY(value, call(std::move(value)));
      } else {
        return value;
      }
    }
  }

  Result<ExpressionPtr> attribute(ExpressionPtr value) {
    const int at = line();
    advance();
    if (current().kind == TokenKind::kInteger) {
      ESPALIER_TRY(ExpressionPtr index, constant(at, current().number));
      advance();
      return node_of(ExpressionKind::kItem, at, {}, std::move(value), std::move(index));
    }
    ESPALIER_TRY(std::string name, identifier());
    return node_of(ExpressionKind::kAttribute, at, std::move(name), std::move(value));
  }

  Result<ExpressionPtr> subscript(ExpressionPtr value) {
    const int at = line();
    advance();
    std::array<ExpressionPtr, 3> parts;
    std::size_t colons = 0;
    std::vector<ExpressionPtr> items;
    while (!at_operator("]")) {
      if (colons < 2 && skip_operator(":")) {
        ++colons;
      } else if (colons == 0 && skip_operator(",")) {
        if (parts[0] == nullptr) return unexpected();
        items.push_back(std::move(parts[0]));
      } else if (parts[colons] != nullptr || (colons > 0 && !items.empty())) {
        return unexpected();
      } else {
        ESPALIER_TRY(parts[colons], expression());
      }
    }
    advance();
    if (colons > 0) {
      return node_of(ExpressionKind::kSlice, at, {}, std::move(value), std::move(parts[0]),
                     std::move(parts[1]), std::move(parts[2]));
    }
    ExpressionPtr index = std::move(parts[0]);
    if (!items.empty()) {
      if (index != nullptr) items.push_back(std::move(index));
      ESPALIER_TRY(index, node(ExpressionKind::kTuple, at, std::move(items)));
    }
    if (index == nullptr) return unexpected();
    return node_of(ExpressionKind::kItem, at, {}, std::move(value), std::move(index));
  }

  Result<ExpressionPtr> call(ExpressionPtr value) {
    const int at = line();
    ESPALIER_TRY(CallArguments arguments, call_arguments());
    ESPALIER_TRY(ExpressionPtr result, node_of(ExpressionKind::kCall, at, {}, std::move(value)));
    return with_arguments(std::move(result), std::move(arguments));
  }

  Result<ExpressionPtr> with_arguments(ExpressionPtr owner, CallArguments arguments) {
    for (const ExpressionPtr& argument : arguments.positional) deepen(*owner, argument);
    for (const auto& [name, argument] : arguments.named) deepen(*owner, argument);
    deepen(*owner, arguments.list);
    deepen(*owner, arguments.dict);
    owner->arguments = std::move(arguments);
    ESPALIER_CHECK(check_depth(owner->depth));
    return owner;
  }

  Result<CallArguments> call_arguments() {
    CallArguments arguments;
    ESPALIER_CHECK(expect_operator("("));
    for (bool first = true; !at_operator(")"); first = false) {
      if (!first) ESPALIER_CHECK(expect_operator(","));
      if (at_operator(")")) break;
      ESPALIER_CHECK(call_argument(arguments));
    }
    advance();
    return arguments;
  }

  Status call_argument(CallArguments& arguments) {
    const bool stars = at_operator("*") || at_operator("**");
    if (stars) {
      ExpressionPtr& target = at_operator("*") ? arguments.list : arguments.dict;
      if (target != nullptr || (arguments.dict != nullptr)) {
        return error_at(line(), "invalid syntax for function call expression");
      }
      advance();
      ESPALIER_TRY(target, expression());
      return {};
    }
    if (current().kind == TokenKind::kName && is(next(), TokenKind::kOperator, "=")) {
      std::string name = current().text;
      advance();
      advance();
      ESPALIER_TRY(ExpressionPtr value, expression());
      arguments.named.emplace_back(std::move(name), std::move(value));
      return {};
    }
    if (!arguments.named.empty() || arguments.list != nullptr || arguments.dict != nullptr) {
      return error_at(line(), "invalid syntax for function call expression");
    }
    ESPALIER_TRY(ExpressionPtr value, expression());
    arguments.positional.push_back(std::move(value));
    return {};
  }

  // Filters, tests and calls after a value. `value` is null for the filters of a block.
  Result<ExpressionPtr> filters(ExpressionPtr value) {
    while (true) {
      if (skip_operator("|")) {
        ESPALIER_TRY(value, filter(std::move(value)));
      } else if (value != nullptr && skip_name("is")) {
        ESPALIER_TRY(value, test(std::move(value)));
      } else if (value != nullptr && at_operator("(")) {
        ESPALIER_TRY(value, call(std::move(value)));
      } else {
        return value;
      }
    }
  }

  Result<ExpressionPtr> filter(ExpressionPtr value) {
    const int at = line();
    ESPALIER_TRY(std::string name, identifier());
    while (skip_operator(".")) {
      ESPALIER_TRY(const std::string part, identifier());
      name += fmt::format(".{}", part);
    }
    if (soft_ == 0 && !is_filter(name)) {
      return error_at(at, "No filter named {}.", quoted(name));
    }
    CallArguments arguments;
    if (at_operator("(")) {
      ESPALIER_TRY(arguments, call_arguments());
    }
    std::vector<ExpressionPtr> children;
    if (value != nullptr) children.push_back(std::move(value));
    ESPALIER_TRY(ExpressionPtr result,
                 node(ExpressionKind::kFilter, at, std::move(children), std::move(name)));
    return with_arguments(std::move(result), std::move(arguments));
  }

  Result<ExpressionPtr> test(ExpressionPtr value) {
    const int at = line();
    const bool negated = skip_name("not");
    ESPALIER_TRY(std::string name, identifier());
    while (skip_operator(".")) {
      ESPALIER_TRY(const std::string part, identifier());
      name += fmt::format(".{}", part);
    }
    if (soft_ == 0 && !is_test(name)) return error_at(at, "No test named {}.", quoted(name));
    CallArguments arguments;
    if (at_operator("(")) {
      ESPALIER_TRY(arguments, call_arguments());
    } else if (begins_test_argument()) {
      if (at_name("is")) return error_at(line(), "You cannot chain multiple tests with is");
      ESPALIER_TRY(ExpressionPtr argument, primary());
      ESPALIER_TRY(argument, postfix(std::move(argument)));
      arguments.positional.push_back(std::move(argument));
    }
    ESPALIER_TRY(ExpressionPtr result,
                 node_of(ExpressionKind::kTest, at, std::move(name), std::move(value)));
    ESPALIER_TRY(result, with_arguments(std::move(result), std::move(arguments)));
    if (!negated) return result;
    return node_of(ExpressionKind::kNot, at, {}, std::move(result));
  }

  // `x is divisibleby 3`: a value right after the name of the test.
  [[nodiscard]] bool begins_test_argument() const {
    switch (current().kind) {
      case TokenKind::kName:
        return !at_name("else") && !at_name("or") && !at_name("and");
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kReal:
        return true;
      case TokenKind::kOperator:
        return at_operator("[") || at_operator("{");
      default:
        return false;
    }
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;               // that a break here could leave
  int soft_ = 0;                // conditions around: what they skip may name unknown filters
  std::vector<Macro*> macros_;  // whose body this is
};

}  // namespace

Result<Statements> parse(std::string_view source) {
  ESPALIER_TRY(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace espalier::text::jinja
