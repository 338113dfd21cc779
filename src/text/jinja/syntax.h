// What a template is made of once it is parsed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace espalier::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind : std::uint8_t {
  kConstant,   // value
  kName,       // name
  kList,       // children
  kTuple,      // children
  kDict,       // children: key, value, key, value, …
  kAttribute,  // children[0].name
  kItem,       // children[0][children[1]]
  kSlice,      // children[0][children[1] : children[2] : children[3]], where null means left out
  kCall,       // children[0](arguments)
  kFilter,     // children[0] | name(arguments); without a child what a block holds
  kTest,       // children[0] is name(arguments)
  kNot,        // of children[0]
  kNegative,
  kPositive,
  kBinary,   // children[0] name children[1]
  kCompare,  // children[0] operators[0] children[1] operators[1] children[2] …
  kAnd,      // children[0] and children[1]
  kOr,
  kConcatenate,  // children, with ~ between
  kConditional,  // children[1] if children[0] else children[2], which may be null
};

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr list, dict;  // *list, **dict
};

struct Expression {
  ExpressionKind kind;
  int line;
  int depth = 1;  // 1 + that of the deepest part
  std::string name = {};
  Value value = {};
  std::vector<ExpressionPtr> children = {};
  std::vector<std::string> operators = {};
  CallArguments arguments = {};
};

struct Statement;
using Statements = std::vector<std::unique_ptr<Statement>>;

enum class StatementKind : std::uint8_t {
  kText,       // value
  kPrint,      // expression
  kIf,         // branches: the first whose condition holds, or is left out
  kFor,        // target in expression, if condition; body, otherwise
  kSet,        // target = expression
  kSetBlock,   // target = what the body gives, through the filters of expression, if there is one
  kMacro,      // macro
  kCallBlock,  // expression, a call, whose caller is macro
  kFilter,     // expression, filters over what the body gives
  kWith,       // assignments, then body in a scope of its own
  kScope,      // body in a scope of its own
  kBody,       // body
  kBreak,
  kContinue,
};

struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  Statements body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Branch {
  ExpressionPtr condition;
  Statements body;
};

struct Statement {
  StatementKind kind;
  int line;
  Value value = {};
  ExpressionPtr target = {}, expression = {}, condition = {};
  std::vector<Branch> branches = {};
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments = {};
  Statements body = {}, otherwise = {};
  std::unique_ptr<Macro> macro = {};
  enum class Recursion { kNo, kYes } recursion = Recursion::kNo;
};

}  // namespace espalier::text::jinja
