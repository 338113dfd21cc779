#include "text/pre_tokenizer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "text/utf8.h"
#include "text/vocabulary.h"

namespace espalier::text {
namespace {

// A stretch of a text: a match of a pattern, or what lies between two.
struct Segment {
  std::size_t begin, end;
  bool is_match;
};

std::vector<Segment> segments(const Split& split, std::string_view text) {
  std::vector<Segment> result;
  for_each_match(split.pattern, text, [&](std::size_t begin, std::size_t length, bool is_match) {
    result.push_back({begin, begin + length, is_match == (split.polarity == Polarity::kMatches)});
  });
  return result;
}

// Joins each segment with the one before it where `joins(previous, segment)` says so. Whether a
// joined segment is a match is what its last part is.
template <typename Joins>
void join(std::vector<Segment>& all, const Joins& joins) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (kept > 0 && joins(all[kept - 1], all[i])) {
      all[kept - 1].end = all[i].end;
      all[kept - 1].is_match = all[i].is_match;
    } else {
      all[kept++] = all[i];
    }
  }
  all.resize(kept);
}

std::vector<Segment> cut(const Split& split, std::string_view text) {
  std::vector<Segment> all = segments(split, text);
  switch (split.behavior) {
    case Behavior::kIsolated:
      break;
    case Behavior::kRemoved:
      std::erase_if(all, [](const Segment& segment) { return segment.is_match; });
      break;
    case Behavior::kContiguous:
      join(all, [](const Segment& a, const Segment& b) { return a.is_match == b.is_match; });
      break;
    case Behavior::kMergedWithPrevious:
      join(all, [](const Segment& a, const Segment& b) { return !a.is_match && b.is_match; });
      break;
    case Behavior::kMergedWithNext:
      join(all, [](const Segment& a, const Segment& b) { return a.is_match && !b.is_match; });
      break;
  }
  return all;
}

class Splitter {
 public:
  using Steps = std::span<const PreTokenizer::Step>;

  explicit Splitter(const std::function<void(std::string_view)>& visit) : visit_(visit) {}

  // Cuts valid UTF-8 by `steps`.
  void split(std::string_view text, Place place, Steps steps) {
    if (text.empty()) return;
    if (steps.empty()) return visit_(text);
    std::visit([&](const auto& step) { apply(step, text, place, steps.subspan(1)); }, steps[0]);
  }

 private:
  void apply(const Split& step, std::string_view text, Place place, Steps rest) {
    for (const Segment& segment : cut(step, text)) {
      split(text.substr(segment.begin, segment.end - segment.begin),
            segment.begin == 0 ? place : Place::kLater, rest);
    }
  }

  void apply(const CutThrees& step, std::string_view text, Place place, Steps rest) {
    for (const Segment& segment : segments(Split{step.pattern}, text)) {
      std::string_view found = text.substr(segment.begin, segment.end - segment.begin);
      if (!segment.is_match) {
        split(found, segment.begin == 0 ? place : Place::kLater, rest);
        continue;
      }
      std::size_t characters = 0;
      for (const char byte : found) {
        characters += (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
      }
      while (characters > 0) {
        const std::size_t group = characters % 3 == 0 ? 3 : characters % 3;
        std::size_t length = 0;
        for (std::size_t i = 0; i < group; ++i) length += utf8_character(found.substr(length));
        split(found.substr(0, length), found.data() == text.data() ? place : Place::kLater, rest);
        found.remove_prefix(length);
        characters -= group;
      }
    }
  }

  void apply(const Prefix& step, std::string_view text, Place place, Steps rest) {
    const bool applies = step.scheme == PrefixScheme::kAlways || place == Place::kTextBegin;
    if (!applies || text.starts_with(step.text)) return split(text, place, rest);
    std::string prefixed = step.text;
    prefixed += text;
    split(prefixed, place, rest);
  }

  void apply(const Substitute& step, std::string_view text, Place place, Steps rest) {
    std::string changed;
    for_each_match(Pattern(step.from), text,
                   [&](std::size_t begin, std::size_t length, bool is_match) {
                     changed += is_match ? step.to : text.substr(begin, length);
                   });
    split(changed, place, rest);
  }

  void apply(const SpellBytes&, std::string_view text, Place place, Steps rest) {
    if (rest.empty()) return visit_(text);
    const std::function<void(std::string_view)> visit_bytes = [&](std::string_view word) {
      visit_(spelled_bytes(word, Spelling::kByteLevel).value_or(std::string(word)));
    };
    Splitter(visit_bytes).split(byte_level_spelling(text), place, rest);
  }

  const std::function<void(std::string_view)>& visit_;
};

}  // namespace

void PreTokenizer::split(std::string_view text, Place place,
                         const std::function<void(std::string_view)>& visit) const {
  Splitter splitter(visit);
  while (!text.empty()) {
    const std::string_view run = text.substr(0, utf8_run(text));
    if (utf8_character(run) > 0) {
      splitter.split(run, place, steps_);
    } else {
      visit(run);
    }
    text.remove_prefix(run.size());
    place = Place::kLater;
  }
}

}  // namespace espalier::text
