#include "text/jinja/text_functions.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/characters.h"

namespace espalier::text::jinja {
namespace {

// Whether the character at `begin` is one to strip.
bool strips(const std::string& bytes, std::size_t begin, const std::string* characters) {
  const Character c = character_at(bytes, begin);
  if (characters == nullptr) return is_space(c.code);
  const std::string_view one = std::string_view(bytes).substr(begin, c.length);
  for (std::size_t i = 0; i < characters->size();) {
    const std::size_t length = character_at(*characters, i).length;
    if (std::string_view(*characters).substr(i, length) == one) return true;
    i += length;
  }
  return false;
}

// Where the last character of bytes[0, end) begins.
std::size_t last_character(const std::string& bytes, std::size_t end) {
  for (std::size_t back = 2; back <= 4 && back <= end; ++back) {
    if (character_at(bytes, end - back).length == back) return end - back;
  }
  return end - 1;
}

// The digits without white space around and underscores between them.
std::string plain_number(std::string_view text) {
  text.remove_prefix(leading_space(text));
  text.remove_suffix(trailing_space(text));
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && text[i - 1] != '_' && text[i + 1] != '_';
    if (text[i] != '_' || !between) plain += text[i];
  }
  return plain;
}

}  // namespace

Result<Value> map_characters(Interpreter& run, const MarkedText& text,
                             std::string (*change)(char32_t code, char32_t before)) {
  TextBuilder builder(run);
  char32_t before = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Character c = character_at(text.bytes(), i);
    if (c.code == 0xfffd) {
      builder.append(text, i, c.length);
    } else {
      builder.append(change(c.code, before), text.origin(i));
    }
    before = c.code;
    i += c.length;
  }
  return std::move(builder).finish();
}

std::string capitalized(char32_t code, char32_t before) {
  return before == 0 ? title(code) : lower(code);
}

MarkedText stripped(const MarkedText& text, Sides sides, const std::string* characters) {
  const std::string& bytes = text.bytes();
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  if (sides != Sides::kRight) {
    while (begin < end && strips(bytes, begin, characters)) {
      begin += character_at(bytes, begin).length;
    }
  }
  if (sides != Sides::kLeft) {
    while (begin < end) {
      const std::size_t last = last_character(bytes, end);
      if (last < begin || !strips(bytes, last, characters)) break;
      end = last;
    }
  }
  return text.substr(begin, end - begin);
}

std::vector<MarkedText> split_lines(const MarkedText& text, LineBreaks breaks) {
  std::vector<MarkedText> lines;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = line_break(text.bytes(), i);
    if (length == 0) {
      i += character_at(text.bytes(), i).length;
      continue;
    }
    const std::size_t end = breaks == LineBreaks::kKeep ? i + length : i;
    lines.push_back(text.substr(begin, end - begin));
    i += length;
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin, text.size() - begin));
  return lines;
}

Result<Value> replaced(Interpreter& run, const MarkedText& text, const std::string& old,
                       const MarkedText& by, Integer count) {
  TextBuilder builder(run);
  const std::string& bytes = text.bytes();
  std::size_t done = 0;
  for (std::size_t from = 0; count != 0; --count) {
    const std::size_t found = bytes.find(old, from);
    if (found == std::string::npos) break;
    builder.append(text, done, found - done);
    builder.append(by);
    done = found + old.size();
    from = done;
    if (old.empty()) {  // before each character, and at the end
      if (found == bytes.size()) break;
      from = found + character_at(bytes, found).length;
    }
  }
  builder.append(text, done, bytes.size() - done);
  return std::move(builder).finish();
}

Result<Value> joined(Interpreter& run, const MarkedText& separator,
                     const std::vector<Value>& items) {
  TextBuilder builder(run);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) builder.append(separator);
    ESPALIER_TRY(const MarkedText text, run.str(items[i]));
    builder.append(text);
  }
  return std::move(builder).finish();
}

Result<MarkedText> html_escaped(Interpreter& run, const MarkedText& text) {
  if (text.is_html()) return text;
  ESPALIER_TRY(const Value escaped,
               map_characters(run, text, [](char32_t c, char32_t) -> std::string {
                 if (c == '&') return "&amp;";
                 if (c == '<') return "&lt;";
                 if (c == '>') return "&gt;";
                 if (c == '\'') return "&#39;";
                 if (c == '"') return "&#34;";
                 std::string same;
                 append_utf8(same, c);
                 return same;
               }));
  return MarkedText(*escaped.text()).as_html();
}

Result<std::size_t> checked_width(Interpreter& run, Integer width) {
  const auto most = static_cast<Integer>(run.bytes_left());
  if (width > most) return run.allocate(run.bytes_left() + 1).error();
  return static_cast<std::size_t>(std::max<Integer>(width, 0));
}

void append_times(TextBuilder& builder, const MarkedText& text, std::size_t times) {
  if (text.empty()) return;
  constexpr std::size_t kPiece = 4096;
  const std::size_t in_piece = std::min(times, std::max<std::size_t>(kPiece / text.size(), 1));
  MarkedText piece;
  for (std::size_t i = 0; i < in_piece; ++i) piece.append(text);
  for (; times > in_piece; times -= in_piece) builder.append(piece);
  builder.append(piece, 0, times * text.size());
}

Result<Value> padded(Interpreter& run, const MarkedText& text, Integer width,
                     const MarkedText& fill, Sides pad) {
  ESPALIER_TRY(const std::size_t wanted, checked_width(run, width));
  if (count_characters(fill.bytes()) != 1) {
    return input_error("The fill character must be exactly one character long");
  }
  const std::size_t have = count_characters(text.bytes());
  const std::size_t missing = wanted > have ? wanted - have : 0;
  // As Python centers: the odd one goes left where the width is odd.
  std::size_t left = missing / 2 + (missing & wanted & 1);
  if (pad != Sides::kBoth) left = pad == Sides::kLeft ? missing : 0;
  TextBuilder builder(run);
  append_times(builder, fill, left);
  builder.append(text);
  append_times(builder, fill, missing - left);
  return std::move(builder).finish();
}

std::optional<Integer> parse_integer(std::string_view text, int base) {
  std::string digits = plain_number(text);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = static_cast<char>(digits[1] | 0x20);
    const int prefixed = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (prefixed != 0 && (base == prefixed || base == 0)) {
      base = prefixed;
      digits.erase(0, 2);
    }
  }
  if (base == 0) base = 10;
  if (digits.empty()) return std::nullopt;
  Integer value = 0;
  for (const char c : digits) {
    const char low = static_cast<char>(c | 0x20);
    const int digit = c >= '0' && c <= '9'       ? c - '0'
                      : low >= 'a' && low <= 'z' ? low - 'a' + 10
                                                 : 99;
    if (digit >= base || __builtin_mul_overflow(value, Integer{base}, &value) ||
        __builtin_add_overflow(value, Integer{digit}, &value)) {
      return std::nullopt;
    }
  }
  return negative ? -value : value;
}

std::optional<double> parse_real(std::string_view text) {
  std::string digits = plain_number(text);
  std::transform(digits.begin(), digits.end(), digits.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  std::string_view rest = digits;
  const bool negative = rest.starts_with('-');
  if (negative || rest.starts_with('+')) rest.remove_prefix(1);
  const bool spelled = rest == "inf" || rest == "infinity" || rest == "nan";
  if (rest.empty() ||
      (!spelled && rest.find_first_not_of("0123456789.e+-") != std::string_view::npos)) {
    return std::nullopt;
  }
  double value = 0;
  const char* end = rest.data() + rest.size();
  const auto [stopped, problem] = std::from_chars(rest.data(), end, value);
  if (stopped != end || problem == std::errc::invalid_argument) return std::nullopt;
  if (problem == std::errc::result_out_of_range) value = std::strtod(digits.c_str(), nullptr);
  return negative && problem == std::errc() ? -value : value;
}

}  // namespace espalier::text::jinja
