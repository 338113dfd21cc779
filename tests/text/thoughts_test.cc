#include "text/thoughts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::text {
namespace {

using Kind = OutputPart::Kind;

struct Split {
  std::string thought, answer;
  bool operator==(const Split&) const = default;
};

void PrintTo(const Split& split, std::ostream* out) {
  *out << "thought '" << split.thought << "', answer '" << split.answer << "'";
}

Split split(const std::vector<std::string>& pieces, std::string_view prompt = "") {
  ThoughtSplitter splitter(prompt);
  Split result;
  const auto collect = [&](const std::vector<OutputPart>& parts) {
    for (const OutputPart& part : parts) {
      (part.kind == Kind::kThought ? result.thought : result.answer) += part.text;
    }
  };
  for (const std::string& piece : pieces) {
    const bool control = piece.starts_with("<|") && piece.ends_with("|>");
    collect(splitter.add(piece, control ? PieceKind::kControl : PieceKind::kText));
  }
  collect(splitter.finish());
  return result;
}

// The same text in pieces of one byte.
std::vector<std::string> bytes(std::string_view text) {
  std::vector<std::string> pieces;
  for (const char byte : text) pieces.emplace_back(1, byte);
  return pieces;
}

TEST(ThoughtSplitter, AnswersWithoutThoughtsPassAsTheyAre) {
  EXPECT_EQ(split({"Hello", ", world"}), (Split{"", "Hello, world"}));
  EXPECT_EQ(split({"  a", " <think> b"}), (Split{"", "  a <think> b"}));
  EXPECT_EQ(split({"<", "b>bold"}), (Split{"", "<b>bold"}));
  EXPECT_EQ(split({"<thi"}), (Split{"", "<thi"}));
  EXPECT_EQ(split({}), (Split{"", ""}));
}

TEST(ThoughtSplitter, ThoughtsAreToldApartHoweverTheTextIsCut) {
  const Split expected = {"\nhm </thin\n", "Yes."};
  const std::string text = "\n<think>\nhm </thin\n</think>\n\nYes.";
  EXPECT_EQ(split({text}), expected);
  EXPECT_EQ(split(bytes(text)), expected);
}

TEST(ThoughtSplitter, APromptCanBeginTheThoughts) {
  EXPECT_EQ(split({"so", "</think>", "Yes"}, "<|assistant|><think>\n"), (Split{"so", "Yes"}));
  EXPECT_EQ(split({"never done"}, "<think>"), (Split{"never done", ""}));
  EXPECT_EQ(split({"Yes"}, "<think>\n\n</think>\n\n"), (Split{"", "Yes"}));
}

TEST(ThoughtSplitter, ControlTokensAreNotShownButCanBeTags) {
  EXPECT_EQ(split({"<|channel|>", "analysis", "<|message|>", "hm", "<|end|>", "<|start|>",
                   "assistant", "<|channel|>", "final", "<|message|>", "Yes", "<|return|>"}),
            (Split{"hm", "Yes"}));
  EXPECT_EQ(split({"<|other|>", "Yes"}), (Split{"", "Yes"}));
}

TEST(ThoughtSplitter, WhatCannotBecomeATagIsGivenAtOnce) {
  ThoughtSplitter splitter("");
  EXPECT_TRUE(splitter.add("<th", PieceKind::kText).empty());
  EXPECT_THAT(splitter.add("e", PieceKind::kText),
              testing::ElementsAre(OutputPart{Kind::kAnswer, "<the"}));
  EXPECT_THAT(splitter.add("n", PieceKind::kText),
              testing::ElementsAre(OutputPart{Kind::kAnswer, "n"}));
}

}  // namespace
}  // namespace espalier::text
