#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>

#include "base/printable.h"
#include "text/jinja/characters.h"

namespace espalier::text::jinja {
namespace {

// Any newline becomes \n, and one at the end goes.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool is_digit_of(char c, int base) {
  const int value = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : 99;
  return value < base;
}

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

bool continues_name(char c) { return begins_name(c) || is_digit_of(c, 10); }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) ESPALIER_CHECK(text_and_tag());
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  struct Tag {
    std::string_view open, close;
  };
  static constexpr Tag kBlock = {"{%", "%}"};
  static constexpr Tag kVariable = {"{{", "}}"};
  static constexpr Tag kComment = {"{#", "#}"};

  [[nodiscard]] std::string_view rest() const { return std::string_view(source_).substr(at_); }

  void add(TokenKind kind, std::string text) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
  }

  // Goes on by `count` bytes.
  void advance(std::size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + count),
                                         '\n'));
    at_ += count;
  }

  bool skip(std::string_view expected) {
    if (!rest().starts_with(expected)) return false;
    advance(expected.size());
    return true;
  }

  void skip_space() { advance(leading_space(rest())); }

  // Text up to the next tag, then the tag.
  Status text_and_tag() {
    std::size_t begin = source_.find('{', at_);
    while (begin != std::string::npos && begin + 1 < source_.size() &&
           std::string_view("%{#").find(source_[begin + 1]) == std::string_view::npos) {
      begin = source_.find('{', begin + 1);
    }
    if (begin == std::string::npos || begin + 1 >= source_.size()) {
      add_text(source_.size() - at_);
      return {};
    }
    const char kind = source_[begin + 1];
    const char sign = begin + 2 < source_.size() ? source_[begin + 2] : ' ';
    const std::size_t end = begin;
    add_text(text_length(end, sign, kind == '{' ? Strip::kNo : Strip::kLine));
    advance(end - at_);
    if (kind == '#') return comment();
    if (kind == '{') return variable();
    return block();
  }

  enum class Strip { kNo, kLine };

  // How much of the text before a tag at `end` stays: `-` takes all white space, lstrip_blocks that
  // between the start of the line and the tag.
  [[nodiscard]] std::size_t text_length(std::size_t end, char sign, Strip strip) const {
    const std::string_view text = std::string_view(source_).substr(at_, end - at_);
    if (sign == '-') return text.size() - trailing_space(text);
    if (sign == '+' || strip == Strip::kNo) return text.size();
    const std::size_t newline = text.rfind('\n');
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    const bool starts_line = line > 0 || at_ == 0 || source_[at_ - 1] == '\n';
    const std::string_view indent = text.substr(line);
    return starts_line && leading_space(indent) == indent.size() ? line : text.size();
  }

  void add_text(std::size_t length) {
    if (length > 0) add(TokenKind::kText, source_.substr(at_, length));
    advance(length);
  }

  // After a tag that may end in "-": the white space behind it; after others but variables: one
  // newline.
  bool close(const Tag& tag) {
    if (rest().starts_with('-') && rest().substr(1).starts_with(tag.close)) {
      advance(1 + tag.close.size());
      skip_space();
      return true;
    }
    const bool variable = tag.close == kVariable.close;
    if (!variable && rest().starts_with('+') && rest().substr(1).starts_with(tag.close)) {
      advance(1 + tag.close.size());
      return true;
    }
    if (!skip(tag.close)) return false;
    if (!variable) skip("\n");
    return true;
  }

  Status comment() {
    const int line = line_;
    advance(kComment.open.size());
    const std::size_t end = source_.find(kComment.close, at_);
    if (end == std::string::npos) return error_at(line, "a comment has no end");
    const bool signed_end = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    advance(end - at_ - (signed_end ? 1 : 0));
    close(kComment);
    return {};
  }

  Status variable() {
    add(TokenKind::kVariableBegin, "{{");
    advance(2);
    if (!skip("-")) skip("+");
    return inside(kVariable, TokenKind::kVariableEnd);
  }

  Status block() {
    const int line = line_;
    advance(2);
    if (!skip("-")) skip("+");
    const std::size_t tag = at_;
    skip_space();
    if (skip("raw") && (rest().empty() || !continues_name(rest()[0]))) {
      skip_space();
      if (rest().starts_with("-%}")) {
        advance(3);
        skip_space();
        return raw(line);
      }
      if (skip("%}")) return raw(line);
    }
    // Not raw after all: the tag is read again from its beginning.
    at_ = tag;
    line_ = line;
    add(TokenKind::kBlockBegin, "{%");
    return inside(kBlock, TokenKind::kBlockEnd);
  }

  // Everything up to {% endraw %}, as it is.
  Status raw(int line) {
    for (std::size_t end = source_.find("{%", at_); end != std::string::npos;
         end = source_.find("{%", end + 1)) {
      std::size_t name = end + 2;
      const char sign = name < source_.size() ? source_[name] : ' ';
      if (sign == '-' || sign == '+') ++name;
      const std::string_view after =
          std::string_view(source_).substr(std::min(name, source_.size()));
      const std::size_t space = leading_space(after);
      if (!after.substr(space).starts_with("endraw")) continue;
      add_text(text_length(end, sign, Strip::kLine));
      advance(name + space + 6 - at_);
      skip_space();
      if (!close(kBlock)) return error_at(line_, "expected '%}}' after 'endraw'");
      return {};
    }
    return error_at(line, "'raw' has no 'endraw'");
  }

  // The tokens of a tag, and its end.
  Status inside(const Tag& tag, TokenKind end) {
    const int line = line_;
    std::string brackets;  // those that are open: }} may close two of them instead of the tag
    while (true) {
      skip_space();
      if (at_ == source_.size()) return error_at(line, "'{}' has no '{}'", tag.open, tag.close);
      if (brackets.empty()) {
        const int end_line = line_;
        if (close(tag)) {
          tokens_.push_back({.kind = end, .line = end_line, .text = std::string(tag.close)});
          return {};
        }
      }
      ESPALIER_CHECK(token(brackets));
    }
  }

  Status token(std::string& brackets) {
    const char c = source_[at_];
    if (begins_name(c)) {
      std::size_t length = 1;
      while (length < rest().size() && continues_name(rest()[length])) ++length;
      add(TokenKind::kName, std::string(rest().substr(0, length)));
      advance(length);
      return {};
    }
    if (is_digit_of(c, 10)) return number();
    if (c == '\'' || c == '"') return string();
    return operator_token(brackets);
  }

  Status operator_token(std::string& brackets) {
    static constexpr std::array<std::string_view, 26> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    const auto found = std::find_if(kOperators.begin(), kOperators.end(),
                                    [&](std::string_view op) { return rest().starts_with(op); });
    if (found == kOperators.end()) {
      return error_at(line_, "unexpected character '{}'", printable(rest().substr(0, 1)));
    }
    const std::string_view op = *found;
    if (op == "(" || op == "[" || op == "{") brackets += op;
    if (op == ")" || op == "]" || op == "}") {
      const char opening = op == ")" ? '(' : op == "]" ? '[' : '{';
      if (brackets.empty()) return error_at(line_, "unexpected '{}'", op);
      if (brackets.back() != opening) {
        return error_at(line_, "unexpected '{}' where '{}' is open", op, brackets.back());
      }
      brackets.pop_back();
    }
    add(TokenKind::kOperator, std::string(op));
    advance(op.size());
    return {};
  }

  // The digits at the cursor, with single underscores between them, which are left out.
  std::string digits(int base) {
    std::string text;
    std::size_t i = at_;
    while (i < source_.size()) {
      if (is_digit_of(source_[i], base)) {
        text += source_[i++];
      } else if (source_[i] == '_' && i + 1 < source_.size() && is_digit_of(source_[i + 1], base)) {
        ++i;
      } else {
        break;
      }
    }
    at_ = i;
    return text;
  }

  Status number() {
    int base = 10;
    if (source_[at_] == '0' && at_ + 2 < source_.size()) {
      const char mark = static_cast<char>(source_[at_ + 1] | 0x20);
      const int other = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      if (other != 10 && is_digit_of(source_[at_ + 2], other)) base = other;
    }
    if (base != 10) at_ += 2;
    std::string text = digits(base);
    if (base == 10) {
      const std::string fraction = fraction_and_exponent();
      if (!fraction.empty()) {
        text += fraction;
        add(TokenKind::kReal, text);
        tokens_.back().number = Value::real(std::strtod(text.c_str(), nullptr));
        return {};
      }
    }
    Integer value = 0;
    for (const char digit : text) {
      const int d = digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10;
      if (__builtin_mul_overflow(value, Integer{base}, &value) ||
          __builtin_add_overflow(value, Integer{d}, &value)) {
        return error_at(line_, "the integer {} is too large", printable(text, 40));
      }
    }
    add(TokenKind::kInteger, text);
    tokens_.back().number = Value::integer(value);
    return {};
  }

  // ".5", "e-3", ".5e3" or nothing at the cursor.
  std::string fraction_and_exponent() {
    std::string text;
    const auto digit_at = [&](std::size_t i) {
      return i < source_.size() && is_digit_of(source_[i], 10);
    };
    if (rest().starts_with('.') && digit_at(at_ + 1)) {
      ++at_;
      text = '.';
      text += digits(10);
    }
    if (at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
      const bool sign =
          at_ + 1 < source_.size() && (source_[at_ + 1] == '-' || source_[at_ + 1] == '+');
      if (digit_at(at_ + 1 + (sign ? 1 : 0))) {
        text += 'e';
        if (sign) text += source_[at_ + 1];
        at_ += 1 + (sign ? 1 : 0);
        text += digits(10);
      }
    }
    return text;
  }

  Status string() {
    const int line = line_;
    const char quote = source_[at_];
    std::string text;
    std::size_t i = at_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] != '\\') {
        text += source_[i++];
      } else {
        i = escape(i + 1, text);
      }
    }
    if (i >= source_.size()) return error_at(line, "a string has no end");
    add(TokenKind::kString, std::move(text));
    advance(i + 1 - at_);
    return {};
  }

  // Appends what the escape whose backslash lies before `i` stands for; gives where it ends.
  std::size_t escape(std::size_t i, std::string& text) const {
    static constexpr std::string_view kFrom = "\\'\"abfnrtv";
    static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    if (i >= source_.size()) return i;
    const char c = source_[i];
    if (c == '\n') return i + 1;
    if (const std::size_t known = kFrom.find(c); known != std::string_view::npos) {
      text += kTo[known];
      return i + 1;
    }
    const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (const auto code = code_point(i + 1, count, 16)) {
      return surrogate_pair(i + 1 + count, *code, text);
    }
    if (c >= '0' && c <= '7') {
      std::size_t length = 1;
      while (length < 3 && i + length < source_.size() && is_digit_of(source_[i + length], 8)) {
        ++length;
      }
      append_utf8(text, code_point(i, length, 8).value_or(0));
      return i + length;
    }
    text += '\\';
    return i;
  }

  // `count` digits at `i` as a number.
  [[nodiscard]] std::optional<char32_t> code_point(std::size_t i, std::size_t count,
                                                   int base) const {
    if (count == 0 || i + count > source_.size()) return std::nullopt;
    std::uint32_t code = 0;
    const char* end = source_.data() + i + count;
    const auto [stopped, problem] = std::from_chars(source_.data() + i, end, code, base);
    if (problem != std::errc() || stopped != end) return std::nullopt;
    return code;
  }

  // Appends `code`; if it is the first half of a pair whose second follows at `i`, the pair.
  std::size_t surrogate_pair(std::size_t i, char32_t code, std::string& text) const {
    if (code >= 0xd800 && code < 0xdc00 && source_.compare(i, 2, "\\u") == 0) {
      const auto low = code_point(i + 2, 4, 16);
      if (low && *low >= 0xdc00 && *low < 0xe000) {
        append_utf8(text, 0x10000 + ((code - 0xd800) << 10) + (*low - 0xdc00));
        return i + 6;
      }
    }
    append_utf8(text, code);
    return i;
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(normalized(source)).run();
}

}  // namespace espalier::text::jinja
