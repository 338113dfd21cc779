#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/printable.h"
#include "text/oniguruma.h"
#include "text/utf8.h"

namespace espalier::text {
namespace {

// Matching is tried on so many bytes, and within so many steps of backtracking, first. An attempt
// that reaches the end of its bytes, or takes more steps, gets four times as many.
constexpr std::size_t kFirstWindow = 256;
constexpr std::size_t kFirstSteps = 512;
constexpr std::size_t kMaxSteps = 0xffffffff;

// What such attempts may cost in all, for each byte of the text and at least. More bytes cost one
// each, and more steps as many, since a step may look at many bytes.
constexpr std::size_t kCostPerByte = 16;
constexpr std::size_t kLeastCost = std::size_t{1} << 20;
constexpr std::size_t kBytesPerStep = 256;

constexpr std::uint32_t kHeapKibibytes = 512 << 10;

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;

std::size_t end_of_character(std::string_view text, std::size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
};

Regex::Regex(std::string pattern, std::unique_ptr<Code> code)
    : pattern_(std::move(pattern)), code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  const auto wrong = [&](std::string_view why) {
    return input_error("the pattern '{}' cannot be used: {}", printable(pattern), why);
  };
  if (pattern.size() > kMaxPatternBytes) {
    return wrong(
        fmt::format("it has {} bytes, at most {} are read", pattern.size(), kMaxPatternBytes));
  }
  const auto translated = pcre2_from_oniguruma(pattern);
  if (!translated) return wrong(translated.error().message);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) return work_error("PCRE2: out of memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE where = 0;
  auto code = std::make_unique<Code>();
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()),
                                 translated->size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                                 &error, &where, context.get()));
  if (!code->code) {
    std::array<PCRE2_UCHAR, 128> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return wrong(reinterpret_cast<const char*>(message.data()));
  }
  // Without a just-in-time compiler the library interprets the pattern.
  (void)pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return Regex(std::string(pattern), std::move(code));
}

std::string Regex::quote(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view(R"(\^$.[]|()?*+{}-&)").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

struct RegexSearch::State {
  MatchData data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};

  // Runs the pattern on text[begin, begin + window); an attempt that reaches the end of that where
  // it is not the end of the text gives PCRE2_ERROR_PARTIAL.
  int run(const pcre2_code* code, std::string_view text, std::size_t begin, std::size_t window,
          std::size_t steps, std::uint32_t options) {
    const std::size_t end = end_of_window(text, begin, window);
    pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(std::min(steps, kMaxSteps)));
    if (end < text.size()) options |= PCRE2_PARTIAL_HARD;
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), end, begin,
                       options | PCRE2_NO_UTF_CHECK, data.get(), context.get());
  }

  // The bounds of what the last run found. \K can put the beginning behind the end, which nobody
  // gains by.
  [[nodiscard]] Regex::Match found() const {
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    return {std::min(bounds[0], bounds[1]), bounds[1]};
  }

  static std::size_t end_of_window(std::string_view text, std::size_t begin, std::size_t window) {
    return end_of_character(text, std::min(text.size(), begin + window));
  }
};

RegexSearch::RegexSearch(const Regex& regex, std::string_view text)
    : regex_(regex),
      text_(text),
      state_(std::make_unique<State>()),
      budget_(kCostPerByte * text.size() + kLeastCost) {
  if (state_->data && state_->context) {
    pcre2_set_heap_limit(state_->context.get(), kHeapKibibytes);
  } else {
    give_up();  // no memory
  }
}

RegexSearch::~RegexSearch() = default;

void RegexSearch::give_up() {
  spdlog::warn("the pattern '{}' takes too long on this text; the rest of it is one word",
               printable(regex_.pattern()));
  from_ = text_.size() + 1;
}

// The match that begins at `begin`. Whether an attempt takes long shows in how far it looks: only
// one that has reached the end of its window, or used up its steps, gets more of both, and that is
// taken from the budget.
std::optional<Regex::Match> RegexSearch::match_at(std::size_t begin) {
  std::uint32_t options = PCRE2_ANCHORED;
  std::size_t window = kFirstWindow, steps = kFirstSteps;
  while (true) {
    const int count = state_->run(regex_.code_->code.get(), text_, begin, window, steps, options);

    if (count >= 0) return state_->found();
    if (count == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (count == PCRE2_ERROR_JIT_STACKLIMIT && (options & PCRE2_NO_JIT) == 0) {
      options |= PCRE2_NO_JIT;  // which keeps its state on the heap
      continue;
    }
    std::size_t cost = budget_ + 1;  // of anything else: no memory
    if (count == PCRE2_ERROR_PARTIAL) cost = window *= 4;
    if (count == PCRE2_ERROR_MATCHLIMIT) {
      steps *= 4;
      cost = steps * (std::min(window, text_.size() - begin) / kBytesPerStep + 1);
    }
    if (cost > budget_) {
      give_up();
      return std::nullopt;
    }
    budget_ -= cost;
  }
}

// The first match at or after from_, which moves past places where there is none.
std::optional<Regex::Match> RegexSearch::find() {
  while (from_ <= text_.size()) {
    // One run for all places of a window, as long as it gets along with that window.
    const std::size_t end = State::end_of_window(text_, from_, kFirstWindow);
    const int count =
        state_->run(regex_.code_->code.get(), text_, from_, kFirstWindow, kFirstSteps, 0);

    if (count >= 0 && (end == text_.size() || state_->found().begin < end)) return state_->found();
    if (count >= 0 || count == PCRE2_ERROR_NOMATCH) {
      from_ = end == text_.size() ? end + 1 : end;
      continue;
    }
    if (count == PCRE2_ERROR_PARTIAL) from_ = pcre2_get_startchar(state_->data.get());
    if (const auto match = match_at(from_)) return match;
    from_ = end_of_character(text_, from_ + 1);
  }
  return std::nullopt;
}

std::optional<Regex::Match> RegexSearch::next() {
  while (const std::optional<Regex::Match> match = find()) {
    const bool repeated = match->end == match->begin && last_end_ == match->end;
    last_end_ = match->end;
    from_ = repeated ? end_of_character(text_, match->end + 1) : match->end;
    if (!repeated) return match;
  }
  return std::nullopt;
}

}  // namespace espalier::text
