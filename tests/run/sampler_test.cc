#include "run/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace espalier::run {
namespace {

// Options that keep every token and change nothing.
SamplerOptions plain() {
  return {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .seed = 7};
}

std::map<std::int32_t, int> histogram(const SamplerOptions& options, std::vector<float> logits,
                                      std::vector<std::int32_t> past = {}) {
  Sampler sampler(options);
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < 20000; ++i) ++counts[sampler.sample(logits, past)];
  return counts;
}

TEST(Sampler, TemperatureZeroTakesTheMostLikelyAndTheLowerIdOnTies) {
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 2}, {}), 1);
}

TEST(Sampler, DrawsInProportion) {
  const auto counts = histogram(plain(), {std::log(1.f), std::log(2.f), std::log(5.f)});
  EXPECT_NEAR(counts.at(0) / 20000.0, 0.125, 0.01);
  EXPECT_NEAR(counts.at(1) / 20000.0, 0.25, 0.01);
  EXPECT_NEAR(counts.at(2) / 20000.0, 0.625, 0.01);
}

TEST(Sampler, LowTemperatureSharpens) {
  SamplerOptions options = plain();
  options.temperature = 0.5f;
  const auto counts = histogram(options, {std::log(1.f), std::log(2.f)});
  EXPECT_NEAR(counts.at(1) / 20000.0, 0.8, 0.01);
}

TEST(Sampler, TopKKeepsTheKMostLikely) {
  SamplerOptions options = plain();
  options.top_k = 2;
  const auto counts = histogram(options, {0, 1, 2, 1.5f});
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_TRUE(counts.contains(2));
  EXPECT_TRUE(counts.contains(3));
}

TEST(Sampler, TopPKeepsTheTokenThatReachesP) {
  SamplerOptions options = plain();
  const std::vector<float> logits = {std::log(5.f), std::log(3.f), std::log(2.f)};
  options.top_p = 0.45f;
  EXPECT_EQ(histogram(options, logits).size(), 1u);
  options.top_p = 0.55f;
  EXPECT_EQ(histogram(options, logits).size(), 2u);
  options.top_p = 0.85f;
  EXPECT_EQ(histogram(options, logits).size(), 3u);
  options.top_p = 0;
  EXPECT_EQ(histogram(options, logits).size(), 1u);
}

TEST(Sampler, MinPDropsWhatIsMuchLessLikelyThanTheFirst) {
  SamplerOptions options = plain();
  options.min_p = 0.5f;
  const auto counts = histogram(options, {std::log(10.f), std::log(6.f), std::log(4.f)});
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_FALSE(counts.contains(2));
}

TEST(Sampler, RepeatPenaltyLowersLogitsOfBothSigns) {
  Sampler sampler({.temperature = 0, .repeat_penalty = 2});
  EXPECT_EQ(sampler.sample(std::vector<float>{3, 2}, std::vector<std::int32_t>{0}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-1, -1.5f}, std::vector<std::int32_t>{0}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{3, 1}, std::vector<std::int32_t>{0, 0, 0}), 0)
      << "a token that came three times is penalized once";
}

TEST(Sampler, OnlyTheLastTokensArePenalized) {
  Sampler sampler({.temperature = 0, .repeat_penalty = 2, .repeat_window = 1});
  EXPECT_EQ(sampler.sample(std::vector<float>{3, 2}, std::vector<std::int32_t>{0, 1}), 0);
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  const std::vector<float> logits(50, 0.f);
  Sampler a(plain()), b(plain());
  SamplerOptions other = plain();
  other.seed = 8;
  Sampler c(other);
  int differences = 0;
  for (int i = 0; i < 100; ++i) {
    const std::int32_t id = a.sample(logits, {});
    EXPECT_EQ(id, b.sample(logits, {}));
    differences += id != c.sample(logits, {});
  }
  EXPECT_GT(differences, 50);
}

}  // namespace
}  // namespace espalier::run
