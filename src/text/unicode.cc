#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "text/utf8.h"

namespace espalier::text {
namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

// Characters that came after Unicode 11 and have a decomposition.
bool is_later(char32_t code) {
  struct Range {
    char32_t first, last;
  };
  constexpr Range kLater[] = {{0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xab69, 0xab69},
                              {0x10781, 0x107ba}, {0x11938, 0x11938}, {0x1e030, 0x1e06d},
                              {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};
  return std::any_of(std::begin(kLater), std::end(kLater),
                     [&](const Range& range) { return range.first <= code && code <= range.last; });
}

void append_utf8(utf8proc_int32_t code, std::string& text) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const utf8proc_ssize_t length = utf8proc_encode_char(code, bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(length));
}

int combining_class(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

// The library orders marks by exchanging neighbours, which takes quadratic time on long runs.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto is_starter = [](utf8proc_int32_t code) { return combining_class(code) == 0; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    begin = std::find_if_not(begin, codes.end(), is_starter);
    const auto end = std::find_if(begin, codes.end(), is_starter);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = end;
  }
}

// True if nothing before `code` can combine or change places with it: it is no mark, nor a vowel or
// final consonant of Korean, which are composed with what precedes.
bool starts_afresh(utf8proc_int32_t code) {
  return combining_class(code) == 0 && !is_mark(static_cast<char32_t>(code)) &&
         (code < 0x1160 || code > 0x11ff);
}

// Normalizes what lies between two characters that start afresh.
class Normalizer {
 public:
  Normalizer(NormalForm form, std::string_view text, Rewriter& out) : text_(text), out_(out) {
    const bool composed = form == NormalForm::kC || form == NormalForm::kKC;
    const bool compatible = form == NormalForm::kKC || form == NormalForm::kKD;
    options_ = static_cast<utf8proc_option_t>(UTF8PROC_STABLE |
                                              (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                              (compatible ? UTF8PROC_COMPAT : 0));
  }

  void add(char32_t character, std::size_t begin, std::size_t length) {
    const auto code = static_cast<utf8proc_int32_t>(character);
    std::array<utf8proc_int32_t, 32> parts;  // no decomposition is longer than 18
    utf8proc_ssize_t count =
        utf8proc_decompose_char(code, parts.data(), parts.size(), options_, nullptr);
    if (count <= 0 || count > static_cast<utf8proc_ssize_t>(parts.size()) || is_later(character)) {
      parts[0] = code;
      count = 1;
    }
    if (starts_afresh(parts[0])) flush(begin);
    codes_.insert(codes_.end(), parts.begin(), parts.begin() + count);
    end_ = begin + length;
  }

  // Writes what was added; the next character begins at `begin`.
  void flush(std::size_t begin) {
    if (!codes_.empty()) {
      order_marks(codes_);
      utf8proc_ssize_t count = static_cast<utf8proc_ssize_t>(codes_.size());
      if (count > 1) count = utf8proc_normalize_utf32(codes_.data(), count, options_);
      std::string text;
      for (utf8proc_ssize_t i = 0; i < count; ++i) {
        append_utf8(codes_[static_cast<std::size_t>(i)], text);
      }
      if (text == text_.substr(begin_, end_ - begin_)) {
        out_.keep(begin_, text.size());
      } else {
        out_.replace(begin_, end_ - begin_, text);
      }
      codes_.clear();
    }
    begin_ = begin;
  }

 private:
  std::string_view text_;
  Rewriter& out_;
  utf8proc_option_t options_;
  std::vector<utf8proc_int32_t> codes_;
  std::size_t begin_ = 0, end_ = 0;
};

bool is_ascii(char byte) { return static_cast<unsigned char>(byte) < 0x80; }

}  // namespace

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_word_character(char32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Joiners, and letters in circles and squares.
      return code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
             (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
             (code >= 0x1f170 && code <= 0x1f189);
  }
}

bool is_mark(char32_t code) {
  const utf8proc_category_t of = category(code);
  return of == UTF8PROC_CATEGORY_MN || of == UTF8PROC_CATEGORY_MC || of == UTF8PROC_CATEGORY_ME;
}

std::size_t leading_space(std::string_view text) {
  std::size_t end = 0;
  while (const std::size_t length = utf8_character(text.substr(end))) {
    if (!is_white_space(utf8_code_point(text.substr(end), length))) break;
    end += length;
  }
  return end;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t begin = text.size();
  while (const std::size_t length = utf8_last_character(text.substr(0, begin))) {
    if (!is_white_space(utf8_code_point(text.substr(begin - length), length))) break;
    begin -= length;
  }
  return text.size() - begin;
}

std::size_t grapheme_cluster(std::string_view text) {
  std::size_t end = utf8_character(text);
  if (end == 0) return 0;
  auto previous = static_cast<utf8proc_int32_t>(utf8_code_point(text, end));
  utf8proc_int32_t state = 0;
  while (const std::size_t length = utf8_character(text.substr(end))) {
    const auto code = static_cast<utf8proc_int32_t>(utf8_code_point(text.substr(end), length));
    if (utf8proc_grapheme_break_stateful(previous, code, &state)) break;
    previous = code;
    end += length;
  }
  return end;
}

std::string lower_case(char32_t code) {
  if (code == 0x130) return "i\u0307";  // the one whose lower case is two characters
  std::string text;
  append_utf8(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)), text);
  return text;
}

void normalize(NormalForm form, std::string_view text, Rewriter& out) {
  Normalizer normalizer(form, text, out);
  std::size_t begin = 0;
  while (begin < text.size()) {
    // ASCII stays as it is, but for a character that what follows may combine with.
    std::size_t plain = begin;
    while (plain < text.size() && is_ascii(text[plain])) ++plain;
    if (plain < text.size() && plain > begin) --plain;
    if (plain > begin) {
      normalizer.flush(plain);
      out.keep(begin, plain - begin);
      begin = plain;
      continue;
    }
    const std::size_t length = utf8_character(text.substr(begin));
    if (length == 0) {
      normalizer.flush(begin + 1);
      out.keep(begin, 1);
    } else {
      normalizer.add(utf8_code_point(text.substr(begin), length), begin, length);
    }
    begin += std::max<std::size_t>(length, 1);
  }
  normalizer.flush(begin);
}

std::string normalized(NormalForm form, std::string_view text) {
  const MarkedText from{std::string(text), {}};
  Rewriter out(from);
  normalize(form, from.text, out);
  return out.take().text;
}

}  // namespace espalier::text
