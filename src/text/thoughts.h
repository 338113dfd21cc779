// Tells what a model thinks from what it answers, while the text streams.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::text {

// A piece of a model's output.
struct OutputPart {
  enum class Kind { kThought, kAnswer } kind = Kind::kAnswer;
  std::string text;
  bool operator==(const OutputPart&) const = default;
};

// Whether a piece is the spelling of a control token, which is not shown.
enum class PieceKind { kText, kControl };

// Thoughts stand at the beginning, between tags such as <think> and </think>; the tags themselves
// belong to neither part. White space between thoughts and answer is dropped.
class ThoughtSplitter {
 public:
  // `prompt` is what the model continues: where it ends in a tag that begins thoughts, the output
  // starts with thoughts.
  explicit ThoughtSplitter(std::string_view prompt);

  // What is settled by now; what may become a tag is kept for later.
  [[nodiscard]] std::vector<OutputPart> add(std::string_view piece, PieceKind kind);
  // The rest, at the end of the output.
  [[nodiscard]] std::vector<OutputPart> finish();

 private:
  enum class State { kStart, kThought, kAfterThought, kAnswer };
  void step(std::vector<OutputPart>& out, bool at_end);
  // Gives out the first `count` bytes of what is pending.
  void release(std::size_t count, std::vector<OutputPart>& out);
  void drop(std::size_t count);

  State state_ = State::kStart;
  std::size_t tag_ = 0;  // the pair of tags around the thoughts
  std::string pending_;
  std::vector<bool> control_;  // of each pending byte: belongs to a control token
};

}  // namespace espalier::text
