#include "text/oniguruma.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "text/utf8.h"

namespace espalier::text {
namespace {

constexpr int kMaxSetDepth = 32;
constexpr std::string_view kAnyCharacter = "(?s:.)";

// Members of the sets that have an escape of their own, to stand between brackets. None begins or
// ends with a character that a hyphen beside it would make a range of. White space is Unicode's
// White_Space: PCRE2 also counts U+180E, which was one until Unicode 6.3.
struct Escape {
  char letter;
  std::string_view members;
};
constexpr Escape kEscapes[] = {
    {'s', R"(\p{Zs}\t-\r\x{85}\p{Zl}\p{Zp})"},
    {'d', R"(\p{Nd})"},
    {'w', R"(\p{L}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})"
          R"(\p{M}\p{Nd}\p{Nl}\p{Pc})"},
    {'h', R"(\p{Nd}a-fA-F)"},
};

// Names of properties that are not scripts, with what PCRE2 calls them; names of one or two letters
// are the same in both.
constexpr std::array<std::string_view, 2> kProperties[] = {
    {"any", R"(\p{Any})"},
    {"alpha", R"(\p{L}\p{Nl}\x{24B6}-\x{24E9}\p{M})"},
    {"alphabetic", R"(\p{L}\p{Nl}\x{24B6}-\x{24E9}\p{M})"},
    {"alnum", R"(\p{L}\p{Nl}\x{24B6}-\x{24E9}\p{M}\p{Nd})"},
    {"digit", R"(\p{Nd})"},
    {"lower", R"(\p{Lowercase})"},
    {"upper", R"(\p{Uppercase})"},
    {"punct", R"(\p{P}$+<=>^`|~\p{P})"},
    {"space", kEscapes[0].members},
    {"whitespace", kEscapes[0].members},
    {"word", kEscapes[2].members},
    {"letter", R"(\p{L})"},
    {"uppercaseletter", R"(\p{Lu})"},
    {"lowercaseletter", R"(\p{Ll})"},
    {"titlecaseletter", R"(\p{Lt})"},
    {"modifierletter", R"(\p{Lm})"},
    {"otherletter", R"(\p{Lo})"},
    {"mark", R"(\p{M})"},
    {"nonspacingmark", R"(\p{Mn})"},
    {"spacingmark", R"(\p{Mc})"},
    {"enclosingmark", R"(\p{Me})"},
    {"number", R"(\p{N})"},
    {"decimalnumber", R"(\p{Nd})"},
    {"letternumber", R"(\p{Nl})"},
    {"othernumber", R"(\p{No})"},
    {"punctuation", R"(\p{P})"},
    {"connectorpunctuation", R"(\p{Pc})"},
    {"dashpunctuation", R"(\p{Pd})"},
    {"openpunctuation", R"(\p{Ps})"},
    {"closepunctuation", R"(\p{Pe})"},
    {"initialpunctuation", R"(\p{Pi})"},
    {"finalpunctuation", R"(\p{Pf})"},
    {"otherpunctuation", R"(\p{Po})"},
    {"symbol", R"(\p{S})"},
    {"mathsymbol", R"(\p{Sm})"},
    {"currencysymbol", R"(\p{Sc})"},
    {"modifiersymbol", R"(\p{Sk})"},
    {"othersymbol", R"(\p{So})"},
    {"separator", R"(\p{Z})"},
    {"spaceseparator", R"(\p{Zs})"},
    {"lineseparator", R"(\p{Zl})"},
    {"paragraphseparator", R"(\p{Zp})"},
    {"other", R"(\p{C})"},
    {"control", R"(\p{Cc})"},
    {"format", R"(\p{Cf})"},
    {"privateuse", R"(\p{Co})"},
    {"unassigned", R"(\p{Cn})"},
    {"emoji", R"(\p{Emoji})"},
    {"extendedpictographic", R"(\p{Extended_Pictographic})"},
};

// Something that matches one character: members to stand between brackets, and alternatives to
// them.
struct Set {
  std::string members;
  std::vector<std::string> alternatives;

  // As a pattern of its own.
  [[nodiscard]] std::string pattern() const {
    if (alternatives.empty()) return members.empty() ? "(?!)" : fmt::format("[{}]", members);
    std::string all = "(?:";
    if (!members.empty()) all += fmt::format("[{}]|", members);
    for (std::size_t i = 0; i < alternatives.size(); ++i) {
      if (i > 0) all += '|';
      all += alternatives[i];
    }
    all += ')';
    return all;
  }
};

std::string complement(const Set& set) {
  // A property alone has one of its own.
  if (set.members.starts_with(R"(\p{)") && set.members.find('}') + 1 == set.members.size() &&
      set.alternatives.empty()) {
    return fmt::format(R"(\P{})", set.members.substr(2));
  }
  if (set.members.empty() && set.alternatives.empty()) return std::string(kAnyCharacter);
  if (set.alternatives.empty()) return fmt::format("[^{}]", set.members);
  return fmt::format("(?:(?!{}){})", set.pattern(), kAnyCharacter);
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  Result<std::string> translate() {
    while (!rest_.empty()) {
      switch (rest_[0]) {
        case '\\':
          escape();
          break;
        case '[': {
          rest_.remove_prefix(1);
          ESPALIER_TRY(const std::string set, bracket(1));
          atom(set);
          break;
        }
        case '(':
          open_group();
          break;
        case ')':
          close_group();
          break;
        case '{':
          interval();
          break;
        case '*':
        case '+':
        case '?':
        case '|':
          out_ += take(1);
          break;
        default:
          atom(take(std::max<std::size_t>(utf8_character(rest_), 1)));
      }
    }
    return out_;
  }

 private:
  std::string_view take(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  void atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  void open_group() {
    groups_.push_back(out_.size());
    if (!rest_.starts_with("(?") || rest_.starts_with("(?#")) {
      out_ += rest_.starts_with("(?#") ? take(std::max(rest_.find(')'), std::size_t{3})) : take(1);
      return;
    }
    out_ += take(2);
    // Options: Ruby's m is Perl's s.
    const std::size_t end = rest_.find_first_not_of("imx-");
    if (end == 0 || end == std::string_view::npos || (rest_[end] != ':' && rest_[end] != ')')) {
      return;
    }
    for (const char option : take(end)) out_ += option == 'm' ? 's' : option;
  }

  void close_group() {
    out_ += take(1);
    if (groups_.empty()) return;  // the compiler will complain
    atom_ = groups_.back();
    groups_.pop_back();
  }

  // {n,m}, which may lack a number. Anything else in braces is text.
  void interval() {
    const std::size_t end = rest_.find_first_not_of("0123456789,", 1);
    if (end == std::string_view::npos || rest_[end] != '}' || end == 1) return atom(take(1));
    const std::string_view bounds = take(end + 1).substr(1);
    out_ += bounds.starts_with(',') ? "{0" : "{";
    out_ += bounds;
    if (rest_.starts_with('+'))
      out_ = fmt::format("{}(?:{})", out_.substr(0, atom_), out_.substr(atom_));
  }

  // The members of an escape that is a set: \s, \p{…}. Nothing if it is none.
  std::optional<Set> set_escape() {
    const char letter = rest_.size() > 1 ? rest_[1] : '\0';
    if (letter == 'p' || letter == 'P') return property();
    for (const Escape& escape : kEscapes) {
      const bool same = letter == escape.letter;
      if (!same && letter != static_cast<char>(escape.letter - 'a' + 'A')) continue;
      rest_.remove_prefix(2);
      const Set set{std::string(escape.members), {}};
      return same ? set : Set{"", {complement(set)}};
    }
    return std::nullopt;
  }

  Set property() {
    const bool capital = rest_[1] == 'P';
    const std::size_t end = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || end == std::string_view::npos) {
      return {std::string(take(2)), {}};  // Oniguruma has no \pL, the compiler may
    }
    std::string_view name = rest_.substr(3, end - 3);
    rest_.remove_prefix(end + 1);
    const bool caret = name.starts_with('^');
    if (caret) name.remove_prefix(1);
    const Set set{named(name), {}};
    return capital == caret ? set : Set{"", {complement(set)}};
  }

  static std::string named(std::string_view name) {
    std::string plain;
    for (const char c : name) {
      if (c == ' ' || c == '_' || c == '-') continue;
      plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    for (const auto& [known, members] : kProperties) {
      if (plain == known) return std::string(members);
    }
    // What remains are scripts; PCRE2 would take a script's name for its extensions too.
    const bool script = plain.size() > 2 && name.find_first_of(":=&") == std::string_view::npos;
    return fmt::format(R"(\p{{{}{}}})", script ? "sc:" : "", name);
  }

  // A character that is written with a backslash, as PCRE2 writes it.
  std::string character_escape() {
    const char letter = rest_.size() > 1 ? rest_[1] : '\0';
    if (letter == 'u' && rest_.size() >= 6) {
      rest_.remove_prefix(2);
      return fmt::format(R"(\x{{{}}})", take(4));
    }
    if (letter == 'v') {
      rest_.remove_prefix(2);
      return R"(\x0b)";
    }
    if (letter == 'x') {
      const std::size_t brace = rest_.substr(2).starts_with('{') ? rest_.find('}') : 0;
      if (brace == std::string_view::npos) return std::string(take(2));
      return std::string(take(brace > 0 ? brace + 1 : 4));
    }
    std::string escaped(take(1));
    return escaped.append(take(std::max<std::size_t>(utf8_character(rest_), 1)));
  }

  void escape() {
    if (const std::optional<Set> set = set_escape()) return atom(set->pattern());
    const char letter = rest_.size() > 1 ? rest_[1] : '\0';
    if (letter == 'b' || letter == 'B') {
      const std::string word = fmt::format("[{}]", kEscapes[2].members);
      rest_.remove_prefix(2);
      const bool at = letter == 'b';
      return atom(fmt::format("(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", word, at ? '!' : '=',
                              at ? '=' : '!'));
    }
    if (letter == 'O') {
      rest_.remove_prefix(2);
      return atom(kAnyCharacter);
    }
    if (letter == 'k' || letter == 'g') return atom(take(2));  // a name follows
    atom(character_escape());
  }

  // What is between brackets, the first of them taken already, as a pattern.
  Result<std::string> bracket(int depth) {
    if (depth > kMaxSetDepth) {
      return input_error("sets nest more than {} deep", kMaxSetDepth);
    }
    const bool negated = rest_.starts_with('^');
    if (negated) rest_.remove_prefix(1);
    std::vector<Set> operands(1);
    bool first = true;
    while (first || !rest_.starts_with(']')) {
      if (rest_.empty()) return input_error("a set has no closing bracket");
      if (rest_.starts_with("&&")) {
        rest_.remove_prefix(2);
        operands.emplace_back();
      } else {
        ESPALIER_CHECK(add_member(operands.back(), depth));
      }
      first = false;
    }
    rest_.remove_prefix(1);
    Set all = std::move(operands.back());
    if (operands.size() > 1) {
      std::string both = "(?:";
      for (std::size_t i = 0; i + 1 < operands.size(); ++i) {
        both += fmt::format("(?={})", operands[i].pattern());
      }
      all = Set{"", {fmt::format("{}{})", both, all.pattern())}};
    }
    return negated ? complement(all) : all.pattern();
  }

  Status add_member(Set& set, int depth) {
    if (rest_.starts_with("[:")) {
      if (const std::size_t end = rest_.find(":]"); end != std::string_view::npos) {
        std::string_view name = rest_.substr(2, end - 2);
        const bool negated = name.starts_with('^');
        if (negated) name.remove_prefix(1);
        rest_.remove_prefix(end + 2);
        const Set members{named(name), {}};
        negated ? set.alternatives.push_back(complement(members))
                : static_cast<void>(set.members += members.members);
        return {};
      }
    }
    if (rest_.starts_with('[')) {
      rest_.remove_prefix(1);
      ESPALIER_TRY(std::string inner, bracket(depth + 1));
      set.alternatives.push_back(std::move(inner));
      return {};
    }
    if (rest_.starts_with('\\')) {
      if (std::optional<Set> members = set_escape()) {
        if (members->alternatives.size() == 1 && members->alternatives[0].starts_with('\\')) {
          set.members += members->alternatives[0];
          return {};
        }
        set.members += members->members;
        for (std::string& other : members->alternatives) {
          set.alternatives.push_back(std::move(other));
        }
        return {};
      }
    }
    set.members += member();
    // A hyphen makes a range unless it is the last member.
    if (rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']') {
      rest_.remove_prefix(1);
      set.members += '-';
      set.members += member();
    }
    return {};
  }

  // One character of a set, such that PCRE2 sees nothing else in it.
  std::string member() {
    if (rest_.starts_with('\\')) return character_escape();
    const std::string_view character = take(std::max<std::size_t>(utf8_character(rest_), 1));
    const bool plain = character.find_first_of(R"(-[]^\&)") == std::string_view::npos;
    return fmt::format("{}{}", plain ? "" : "\\", character);
  }

  std::string_view rest_;
  std::string out_;
  std::size_t atom_ = 0;             // where the last atom begins in out_
  std::vector<std::size_t> groups_;  // where the open groups begin
};

}  // namespace

Result<std::string> pcre2_from_oniguruma(std::string_view pattern) {
  return Translator(pattern).translate();
}

}  // namespace espalier::text
