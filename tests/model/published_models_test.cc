// Published models, which scripts/fetch-model fetches, against float32 logits and greedy texts by
// another implementation: Transformers on the weights as the gguf package decodes them.
// tests/data/smollm2 and tests/data/gemma3-270m have them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "compute/cpu/cpu_ops.h"
#include "compute/reference/reference.h"
#include "run/generate.h"
#include "support/default_model.h"
#include "support/fixture.h"

namespace espalier::run {
namespace {

constexpr std::size_t kGreedyTokens = 64;  // of every golden text

struct Published {
  const char* file;    // the model
  const char* folder;  // of tests/data
  int prompt;
  std::size_t reference_steps;  // of greedy text that the reference backend, which is slow, makes
};

class PublishedModel : public ::testing::TestWithParam<Published> {
 protected:
  PublishedModel() : golden_(std::string(GetParam().folder) + "/golden.safetensors") {
    auto opened = file::Gguf::open(test::fetched_model(GetParam().file));
    if (!opened) throw std::runtime_error(opened.error().message);
    gguf_ = std::make_unique<file::Gguf>(std::move(*opened));
    auto loaded = model::load_model(*gguf_);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    model_ = std::move(*loaded);
  }

  template <typename T>
  [[nodiscard]] std::span<const T> golden(const std::string& name) const {
    return golden_.get<T>(fmt::format("{}.{}", name, GetParam().prompt));
  }

  // What is checked of a backend.
  struct Bounds {
    float logits;  // the largest difference
    float margin;  // the greedy text is the golden one up to the first step less sure than this
    std::size_t steps = kGreedyTokens;
  };

  // Runs the prompt, comparing the positions whose logits the golden file has, and goes on
  // greedily.
  void check(compute::Ops& ops, compute::KvType type, const Bounds& bounds) {
    const auto tokens = golden<TokenId>("tokens");
    const auto positions = golden<std::int32_t>("positions");
    auto cache = KvCache::create(model_->info(), 1, tokens.size() + kGreedyTokens, type);
    ASSERT_TRUE(cache);
    const Session session = {*model_, ops, *cache};
    std::vector<float> logits(model_->info().vocab_size);
    float largest = 0;
    std::size_t done = 0;
    for (std::size_t p = 0; p < positions.size(); ++p) {
      const auto end = static_cast<std::size_t>(positions[p]) + 1;
      while (done < end) {
        const std::size_t count = std::min(kPrefillRows, end - done);
        forward_sequence(session, tokens.subspan(done, count), done, Wanted::kLastLogits,
                         logits.data());
        done += count;
      }
      largest = std::max(largest, difference(logits, p, positions.size()));
    }
    ASSERT_EQ(done, tokens.size());
    EXPECT_LT(largest, bounds.logits);
    RecordProperty("largest_difference", std::to_string(largest));

    const auto greedy_text = golden<TokenId>("greedy");
    const auto margin = golden<float>("margin");
    Sampler greedy({.temperature = 0});
    for (std::size_t step = 0; step < bounds.steps && margin[step] >= bounds.margin; ++step) {
      const TokenId next = greedy.sample(logits, {});
      ASSERT_EQ(next, greedy_text[step]) << "at step " << step;
      forward_sequence(session, {&next, 1}, tokens.size() + step, Wanted::kLastLogits,
                       logits.data());
    }
  }

  std::unique_ptr<file::Gguf> gguf_;
  std::unique_ptr<model::Model> model_;

 private:
  // From the golden logits of the position of that index, which may be those of some ids alone.
  [[nodiscard]] float difference(const std::vector<float>& logits, std::size_t index,
                                 std::size_t count) const {
    const auto expected = golden<float>("logits");
    const bool all = !golden_.has(fmt::format("ids.{}", GetParam().prompt));
    const std::size_t kept = expected.size() / count;
    float largest = 0;
    for (std::size_t i = index * kept; i < (index + 1) * kept; ++i) {
      const std::size_t id =
          all ? i - index * kept : static_cast<std::size_t>(golden<std::int32_t>("ids")[i]);
      largest = std::max(largest, std::abs(logits[id] - expected[i]));
    }
    return largest;
  }

  test::Fixture golden_;
};

class ReferencePublishedModel : public PublishedModel {};
class FloatPublishedModel : public PublishedModel {};

TEST_P(ReferencePublishedModel, LogitsAndGreedyTextAreTheGoldenOnes) {
  check(*reference::make_ops(), compute::KvType::kF32,
        {.logits = 2e-3f, .margin = 0, .steps = GetParam().reference_steps});
}

// With float activations the CPU backend is as near, and takes seconds where the reference takes
// minutes.
TEST_P(FloatPublishedModel, LogitsAndGreedyTextAreTheGoldenOnes) {
  check(*cpu::make_ops(2, cpu::Activations::kFloat32), compute::KvType::kF32,
        {.logits = 2e-3f, .margin = 2e-3f});
}

// The CPU backend by default computes with activations of 15 bits and a half-precision cache: it
// may differ where two tokens are about equally likely.
TEST_P(PublishedModel, CpuGreedyTextIsTheGoldenOneWhereTheModelIsSure) {
  const auto ops = cpu::make_ops(2);
  model_->prepare(*ops);
  check(*ops, compute::KvType::kF16, {.logits = 0.1f, .margin = 0.25f});
}

std::vector<Published> smollm2(const std::vector<int>& prompts) {
  std::vector<Published> all;
  for (const int prompt : prompts) {
    all.push_back({"SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2", prompt, kGreedyTokens});
  }
  return all;
}

// Prompt 4 has 659 tokens, more than the window of 512.
std::vector<Published> gemma3(const std::vector<int>& prompts) {
  std::vector<Published> all;
  for (const int prompt : prompts) {
    all.push_back({"gemma-3-270m-q4_k_m.gguf", "gemma3-270m", prompt, 0});
  }
  return all;
}

std::string prompt_name(const ::testing::TestParamInfo<Published>& published) {
  return "Prompt" + std::to_string(published.param.prompt);
}

INSTANTIATE_TEST_SUITE_P(SmolLm2, ReferencePublishedModel,
                         ::testing::ValuesIn(smollm2({0, 1, 2, 4, 5})), prompt_name);
INSTANTIATE_TEST_SUITE_P(SmolLm2, PublishedModel, ::testing::ValuesIn(smollm2({0, 1, 2, 4, 5})),
                         prompt_name);
INSTANTIATE_TEST_SUITE_P(Gemma3, ReferencePublishedModel, ::testing::ValuesIn(gemma3({0, 5})),
                         prompt_name);
INSTANTIATE_TEST_SUITE_P(Gemma3, FloatPublishedModel, ::testing::ValuesIn(gemma3({0, 4})),
                         prompt_name);
INSTANTIATE_TEST_SUITE_P(Gemma3, PublishedModel, ::testing::ValuesIn(gemma3({0, 1, 2, 4, 5})),
                         prompt_name);

}  // namespace
}  // namespace espalier::run
