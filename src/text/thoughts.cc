#include "text/thoughts.h"

#include <algorithm>
#include <array>

namespace espalier::text {
namespace {

struct Tags {
  std::string_view open, close;
};

// As the models' own templates write them.
constexpr std::array<Tags, 6> kTags = {{
    {"<think>", "</think>"},            // DeepSeek, Qwen, GLM and most others
    {"<seed:think>", "</seed:think>"},  // Seed-OSS
    {"[THINK]", "[/THINK]"},            // Magistral
    {"<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|channel>thought", "<channel|>"},
    {"<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"},  // gpt-oss
}};

constexpr std::string_view kSpace = " \t\r\n";

std::size_t leading(std::string_view text) {
  return std::min(text.find_first_not_of(kSpace), text.size());
}

bool may_become(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

}  // namespace

ThoughtSplitter::ThoughtSplitter(std::string_view prompt) {
  const std::size_t end = prompt.find_last_not_of(kSpace);
  const std::string_view written = prompt.substr(0, end == std::string_view::npos ? 0 : end + 1);
  for (std::size_t i = 0; i < kTags.size(); ++i) {
    if (!written.ends_with(kTags[i].open)) continue;
    state_ = State::kThought;
    tag_ = i;
  }
}

std::vector<OutputPart> ThoughtSplitter::add(std::string_view piece, PieceKind kind) {
  pending_ += piece;
  control_.resize(pending_.size(), kind == PieceKind::kControl);
  std::vector<OutputPart> out;
  step(out, false);
  return out;
}

std::vector<OutputPart> ThoughtSplitter::finish() {
  std::vector<OutputPart> out;
  step(out, true);
  return out;
}

void ThoughtSplitter::step(std::vector<OutputPart>& out, bool at_end) {
  if (state_ == State::kStart) {
    const std::string_view text = std::string_view(pending_).substr(leading(pending_));
    bool undecided = text.empty();
    for (std::size_t i = 0; i < kTags.size() && state_ == State::kStart; ++i) {
      undecided |= may_become(text, kTags[i].open);
      if (!text.starts_with(kTags[i].open)) continue;
      drop(leading(pending_) + kTags[i].open.size());
      state_ = State::kThought;
      tag_ = i;
    }
    if (state_ == State::kStart && undecided && !at_end) return;
    if (state_ == State::kStart) state_ = State::kAnswer;
  }
  if (state_ == State::kThought) {
    const std::string_view close = kTags[tag_].close;
    const std::size_t found = pending_.find(close);
    if (found != std::string::npos) {
      release(found, out);
      drop(close.size());
      state_ = State::kAfterThought;
    } else {
      std::size_t settled = pending_.size();
      const std::size_t longest = at_end ? 0 : std::min(close.size() - 1, pending_.size());
      for (std::size_t held = longest; held > 0; --held) {
        if (!close.starts_with(std::string_view(pending_).substr(pending_.size() - held))) continue;
        settled = pending_.size() - held;
        break;
      }
      release(settled, out);
      return;
    }
  }
  if (state_ == State::kAfterThought) {
    drop(leading(pending_));
    if (pending_.empty()) return;
    state_ = State::kAnswer;
  }
  release(pending_.size(), out);
}

void ThoughtSplitter::release(std::size_t count, std::vector<OutputPart>& out) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    if (!control_[i]) text += pending_[i];
  }
  drop(count);
  if (text.empty()) return;
  const auto kind =
      state_ == State::kThought ? OutputPart::Kind::kThought : OutputPart::Kind::kAnswer;
  out.push_back({kind, std::move(text)});
}

void ThoughtSplitter::drop(std::size_t count) {
  pending_.erase(0, count);
  control_.erase(control_.begin(), control_.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace espalier::text
