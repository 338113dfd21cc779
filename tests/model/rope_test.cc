// RoPE by its formulas, and as config.json describes it against what Transformers 5.24 computes
// (its modeling_rope_utils, in double precision) for the same keys.
#include "model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace espalier::model {
namespace {

constexpr std::size_t kDims = 128;

std::vector<double> frequencies(double base, const RopeScaling& scaling,
                                std::span<const float> factors = {}) {
  return make_rope(kDims, base, scaling, factors).frequencies;
}

TEST(Rope, PlainFrequenciesAreAGeometricSeries) {
  const auto plain = frequencies(10000, {});
  ASSERT_EQ(plain.size(), kDims / 2);
  EXPECT_EQ(plain[0], 1);
  EXPECT_NEAR(plain[32], 0.01, 1e-15);
  EXPECT_NEAR(plain[63], std::pow(10000, -126.0 / 128), 1e-15);
}

TEST(Rope, LinearScalingDividesEveryFrequency) {
  const auto plain = frequencies(10000, {});
  const auto scaled = frequencies(10000, {.kind = RopeScalingKind::kLinear, .factor = 4});
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 4);
}

TEST(Rope, FactorsOfTheFileDivide) {
  std::vector<float> factors(kDims / 2, 1);
  factors[5] = 8;
  const auto plain = frequencies(500000, {});
  const auto scaled = frequencies(500000, {}, factors);
  EXPECT_EQ(scaled[4], plain[4]);
  EXPECT_DOUBLE_EQ(scaled[5], plain[5] / 8);
}

// Llama 3.1's own parameters; wavelengths below 8192/4 stay, above 8192/1 are stretched by 8.
TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const RopeScaling scaling = {.kind = RopeScalingKind::kLlama3,
                               .factor = 8,
                               .original_context = 8192,
                               .low_frequency_factor = 1,
                               .high_frequency_factor = 4};
  const auto plain = frequencies(500000, {});
  const auto scaled = frequencies(500000, scaling);
  int kept = 0, stretched = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * M_PI / plain[i];
    if (wavelength < 8192 / 4.0) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wavelength > 8192) {
      EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 8);
      ++stretched;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(scaled[i], (1 - smooth) * plain[i] / 8 + smooth * plain[i], 1e-15);
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
}

TEST(Rope, YarnStretchesLongWavesAndRaisesTheMagnitude) {
  const RopeScaling scaling = {
      .kind = RopeScalingKind::kYarn, .factor = 16, .original_context = 4096};
  const auto plain = frequencies(10000, {});
  const auto rope = make_rope(kDims, 10000, scaling, {});
  EXPECT_DOUBLE_EQ(rope.magnitude, 0.1 * std::log(16.0) + 1);
  EXPECT_DOUBLE_EQ(rope.frequencies.front(), plain.front());
  EXPECT_DOUBLE_EQ(rope.frequencies.back(), plain.back() / 16);
  // Pairs that turn 32 times and once over 4,096 positions: 20.9 and 45.02, rounded outwards.
  EXPECT_DOUBLE_EQ(rope.frequencies[20], plain[20]);
  EXPECT_LT(rope.frequencies[21], plain[21]);
  EXPECT_GT(rope.frequencies[45], plain[45] / 16);
  EXPECT_DOUBLE_EQ(rope.frequencies[46], plain[46] / 16);
}

// --- What config.json says -----------------------------------------------------------------------

class NoWeights final : public Weights {
 public:
  const std::string& source() const override { return name_; }
  Result<std::optional<pack::Matrix>> find_matrix(std::string_view) const override {
    return std::optional<pack::Matrix>();
  }
  Result<std::optional<std::vector<float>>> find_vector(std::string_view) const override {
    return std::optional<std::vector<float>>();
  }

 private:
  std::string name_ = "dir";
};

// A head of 16 elements and a context of 128.
constexpr RopeShape kShape = {.head_dim = 16, .context_length = 128};

Result<LayerRope> read(const char* config) {
  const file::Json json = file::Json::parse(config);
  return read_rope(Settings(file::JsonObject(json, "config.json")), NoWeights(), kShape);
}

void expect_rope(const compute::Rope& rope, double magnitude,
                 const std::vector<double>& frequencies) {
  EXPECT_NEAR(rope.magnitude, magnitude, 1e-11);
  ASSERT_EQ(rope.frequencies.size(), frequencies.size());
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    EXPECT_NEAR(rope.frequencies[i] / frequencies[i], 1, 1e-11) << i;
  }
}

// Both spellings of `keys`, the newer and the older.
void expect_rope(const std::string& keys, double magnitude,
                 const std::vector<double>& frequencies) {
  for (const char* begin : {R"({"rope_parameters": {"rope_theta": 10000, "rope_type": )",
                            R"({"rope_theta": 10000.0, "rope_scaling": {"type": )"}) {
    SCOPED_TRACE(begin + keys + "}}");
    const auto read_rope = read((begin + keys + "}}").c_str());
    ASSERT_TRUE(read_rope) << read_rope.error().message;
    expect_rope(read_rope->rope, magnitude, frequencies);
    EXPECT_TRUE(read_rope->long_rope.frequencies.empty());
  }
}

TEST(RopeConfig, YarnsMagnitudeIsGivenWeightedOrDerived) {
  const std::vector<double> frequencies = {1,      0.197642353761,    0.025,   0.00790569415042,
                                           0.0025, 0.000790569415042, 0.00025, 7.90569415042e-05};
  const std::string yarn =
      R"("yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4)";
  expect_rope(yarn, 1.13862943611, frequencies);
  expect_rope(yarn + R"(, "mscale": 1.0, "mscale_all_dim": 0.8)", 1.0249579608, frequencies);
  expect_rope(yarn + R"(, "mscale": 0.707, "mscale_all_dim": 0.707)", 1, frequencies);
  // One of the two weights alone means nothing.
  expect_rope(yarn + R"(, "mscale": 0.707)", 1.13862943611, frequencies);
  expect_rope(yarn + R"(, "mscale": 1.0, "mscale_all_dim": 0.0)", 1.13862943611, frequencies);
  expect_rope(yarn + R"(, "attention_factor": 1.5, "mscale": 1.0, "mscale_all_dim": 0.8)", 1.5,
              frequencies);
}

TEST(RopeConfig, YarnWithoutAFactorStretchesToTheContext) {
  const std::vector<double> frequencies = {1,      0.197642353761,    0.025,   0.00790569415042,
                                           0.0025, 0.000790569415042, 0.00025, 7.90569415042e-05};
  const std::string yarn =
      R"("yarn", "factor": null, "original_max_position_embeddings": 32, "beta_fast": 4)";
  expect_rope(yarn, 1.13862943611, frequencies);
  expect_rope(yarn + R"(, "mscale": 1.0, "mscale_all_dim": 0.8)", 1.0249579608, frequencies);
}

TEST(RopeConfig, YarnsRampLiesInTheElementsThatTurn) {
  const std::string yarn =
      R"("yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4)";
  expect_rope(yarn + R"(, "truncate": false)", 1.13862943611,
              {1, 0.160589134867, 0.025, 0.00790569415042, 0.0025, 0.000790569415042, 0.00025,
               7.90569415042e-05});
  expect_rope(yarn + R"(, "partial_rotary_factor": 0.5)", 1.13862943611,
              {1, 0.025, 0.0025, 0.00025});
}

// The original context outside of rope_scaling goes before the one within.
TEST(RopeConfig, TheOriginalContextMayStandOutside) {
  const auto rope = read(R"({"rope_theta": 10000.0, "original_max_position_embeddings": 16,
      "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 4,
                       "original_max_position_embeddings": 32}})");
  ASSERT_TRUE(rope) << rope.error().message;
  expect_rope(rope->rope, 1.13862943611,
              {1, 0.0790569415042, 0.025, 0.00790569415042, 0.0025, 0.000790569415042, 0.00025,
               7.90569415042e-05});
}

struct LongRopeCase {
  const char* outside;
  const char* inside;
  double magnitude;
  std::size_t original_context;
};

TEST(RopeConfig, LongRopeHasTwoSetsOfFactorsAndOneMagnitude) {
  constexpr LongRopeCase kCases[] = {
      {R"("original_max_position_embeddings": 32)", "", 1.18321595662, 32},
      {R"("original_max_position_embeddings": 32)", R"(, "factor": 8.0)", 1.26491106407, 32},
      {R"("original_max_position_embeddings": 32)", R"(, "attention_factor": 1.25)", 1.25, 32},
      {R"("hidden_size": 64)", R"(, "factor": 8.0, "original_max_position_embeddings": 64)",
       1.22474487139, 64},
      {R"("hidden_size": 64)", "", 1, 128},
  };
  for (const LongRopeCase& one : kCases) {
    SCOPED_TRACE(std::string(one.outside) + one.inside);
    const std::string config = std::string(R"({"partial_rotary_factor": 0.5, )") + one.outside +
                               R"(, "rope_scaling": {"type": "longrope",
        "short_factor": [1.0, 1.25, 1.5, 2.0], "long_factor": [1.0, 2.0, 8.0, 20.0])" +
                               one.inside + "}}";
    const auto rope = read(config.c_str());
    ASSERT_TRUE(rope) << rope.error().message;
    const std::vector<double> short_ones = {1, 0.08, 0.00666666666667, 0.0005};
    expect_rope(rope->at(one.original_context), one.magnitude, short_ones);
    expect_rope(rope->at(one.original_context + 1), one.magnitude, {1, 0.05, 0.00125, 5e-05});
  }
}

// For text, the three axes of an image are the position: each section turns as it would alone.
TEST(RopeConfig, SectionsOfImagesDoNotChangeText) {
  const auto plain = read(R"({"rope_theta": 10000, "partial_rotary_factor": 0.5})");
  ASSERT_TRUE(plain);
  for (const char* config :
       {R"({"rope_theta": 10000, "partial_rotary_factor": 0.5,
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}})",
        R"({"rope_theta": 10000, "partial_rotary_factor": 0.5,
            "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default",
                             "type": "default"}})",
        R"({"rope_parameters": {"mrope_interleaved": true, "mrope_section": [2, 1, 1],
            "partial_rotary_factor": 0.5, "rope_theta": 10000, "rope_type": "default"}})"}) {
    const auto rope = read(config);
    ASSERT_TRUE(rope) << rope.error().message;
    EXPECT_EQ(rope->rope.frequencies, plain->rope.frequencies);
    EXPECT_EQ(rope->rope.magnitude, 1);
  }
}

TEST(RopeConfig, WrongMagnitudesAndSlidingLayersAreErrors) {
  const auto message = [](const char* config) {
    const auto rope = read(config);
    return rope ? "" : rope.error().message;
  };
  EXPECT_EQ(message(R"({"rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 0}})"),
            "config.json: rope_scaling: key 'attention_factor': found 0, expected a positive "
            "number");
  EXPECT_THAT(message(R"({"rope_scaling": {"type": "yarn", "factor": 4, "mscale": -9,
                                           "mscale_all_dim": 1}})"),
              testing::HasSubstr("expected a positive number"));

  const file::Json json = file::Json::parse(
      R"({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 8}}})");
  const auto sliding = read_sliding_rope(Settings(file::JsonObject(json, "config.json")), kShape);
  ASSERT_FALSE(sliding);
  EXPECT_EQ(sliding.error().message,
            "config.json: rope_parameters: sliding_attention: key 'rope_type': RoPE of sliding "
            "layers is scaled, expected the type default");
}

}  // namespace
}  // namespace espalier::model
