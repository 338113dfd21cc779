// Cuts text into the words that a tokenizer's model stays within.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/normalizer.h"

namespace espalier::text {

// What becomes of the matches of a pattern; what lies between them becomes fragments.
enum class Behavior {
  kRemoved,             // nothing
  kIsolated,            // fragments of their own
  kMergedWithPrevious,  // parts of the fragment before, unless that is a match too
  kMergedWithNext,      // parts of the fragment after, unless that is a match too
  kContiguous,          // one fragment for those that touch
};

// Which of the two parts of a text count as matches.
enum class Polarity { kMatches, kRest };

// Cuts by a pattern.
struct Split {
  Pattern pattern;
  Behavior behavior = Behavior::kIsolated;
  Polarity polarity = Polarity::kMatches;
};

// Cuts as Split, and each match three characters at a time, from its end.
struct CutThrees {
  Pattern pattern;
};

// Where a fragment gets a prefix, if it does not begin with it.
enum class PrefixScheme {
  kFirst,   // at the beginning of a text
  kAlways,  // wherever it is
};
struct Prefix {
  std::string text;
  PrefixScheme scheme = PrefixScheme::kAlways;
};

// Puts one text for another.
struct Substitute {
  std::string from, to;
};

// Spells bytes as characters, as GPT-2 does, for the steps that follow; the words that come out
// are bytes again.
struct SpellBytes {};

// Where a fragment lies.
enum class Place { kTextBegin, kLater };

class PreTokenizer {
 public:
  using Step = std::variant<Split, CutThrees, Prefix, Substitute, SpellBytes>;

  // Each step works on the fragments that the one before left.
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  // Calls `visit` with every word, in order. Steps see valid UTF-8 only: a run of bytes that are
  // not is a word, and ends the words beside it. Time is linear in the text for each step.
  void split(std::string_view text, Place place,
             const std::function<void(std::string_view)>& visit) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace espalier::text
