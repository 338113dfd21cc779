// The default model against float32 logits and greedy texts by another implementation
// (tests/data/smollm2: Transformers on the weights as the gguf package decodes them).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "compute/cpu/cpu_ops.h"
#include "compute/reference/reference.h"
#include "file/safetensors.h"
#include "run/generate.h"
#include "support/data.h"
#include "support/default_model.h"

namespace espalier::run {
namespace {

constexpr std::size_t kGreedyTokens = 64;

// One prompt of the golden file.
struct Golden {
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> positions;  // whose logits are there
  std::vector<float> logits;            // [positions, vocabulary]
  std::vector<TokenId> greedy;
  std::vector<float> margin;  // most likely minus second logit at each greedy step
};

template <typename T>
std::vector<T> read(const file::Safetensors& file, const std::string& name) {
  const file::SafetensorsTensor* tensor = file.find(name);
  if (tensor == nullptr) throw std::runtime_error(name + " is missing");
  std::vector<T> values(tensor->data.size() / sizeof(T));
  std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(T));
  return values;
}

Golden read_golden(const std::string& prompt) {
  const auto file = file::Safetensors::open(test::data_path("smollm2/golden.safetensors"));
  if (!file) throw std::runtime_error(file.error().message);
  return {read<TokenId>(*file, "tokens." + prompt),
          read<std::int32_t>(*file, "positions." + prompt), read<float>(*file, "logits." + prompt),
          read<TokenId>(*file, "greedy." + prompt), read<float>(*file, "margin." + prompt)};
}

class SmolLm2 : public ::testing::TestWithParam<const char*> {
 protected:
  SmolLm2() {
    auto opened = file::Gguf::open(test::default_model());
    if (!opened) throw std::runtime_error(opened.error().message);
    gguf_ = std::make_unique<file::Gguf>(std::move(*opened));
    auto loaded = model::load_model(*gguf_);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    model_ = std::move(*loaded);
  }

  // Runs the prompt in one batch, checks the golden positions' logits where `tolerance` is not 0,
  // and decodes greedily. The text must be the golden one up to the first step whose margin is
  // below `margin`.
  void check(compute::Ops& ops, compute::KvType type, float tolerance, float margin) {
    const Golden golden = read_golden(GetParam());
    const std::size_t vocab = model_->info().vocab_size;
    auto cache = KvCache::create(model_->info(), 1, golden.tokens.size() + kGreedyTokens, type);
    ASSERT_TRUE(cache);
    const Session session = {*model_, ops, *cache};
    std::vector<float> logits(golden.tokens.size() * vocab);
    forward_sequence(session, golden.tokens, 0, Wanted::kAllLogits, logits.data());
    if (tolerance != 0) {
      float largest = 0;
      for (std::size_t p = 0; p < golden.positions.size(); ++p) {
        const float* ours = logits.data() + static_cast<std::size_t>(golden.positions[p]) * vocab;
        for (std::size_t i = 0; i < vocab; ++i) {
          largest = std::max(largest, std::abs(ours[i] - golden.logits[p * vocab + i]));
        }
      }
      EXPECT_LT(largest, tolerance);
      RecordProperty("largest_difference", std::to_string(largest));
    }

    Sampler greedy({.temperature = 0});
    std::vector<float> last(logits.end() - static_cast<std::ptrdiff_t>(vocab), logits.end());
    for (std::size_t step = 0; step < kGreedyTokens && golden.margin[step] >= margin; ++step) {
      const TokenId next = greedy.sample(last, {});
      ASSERT_EQ(next, golden.greedy[step]) << "at step " << step;
      forward_sequence(session, {&next, 1}, golden.tokens.size() + step, Wanted::kLastLogits,
                       last.data());
    }
  }

  std::unique_ptr<file::Gguf> gguf_;
  std::unique_ptr<model::Model> model_;
};

TEST_P(SmolLm2, ReferenceLogitsAndGreedyTextAreTheGoldenOnes) {
  check(*reference::make_ops(), compute::KvType::kF32, 2e-3f, 0);
}

// The CPU backend computes with 8-bit activations and a half-precision cache: it may differ where
// two tokens are about equally likely.
TEST_P(SmolLm2, CpuGreedyTextIsTheGoldenOneWhereTheModelIsSure) {
  check(*cpu::make_ops(2), compute::KvType::kF16, 0, 0.25f);
}

INSTANTIATE_TEST_SUITE_P(Prompts, SmolLm2, ::testing::Values("0", "1", "2", "4", "5"),
                         [](const auto& prompt) { return std::string("Prompt") + prompt.param; });

}  // namespace
}  // namespace espalier::run
