// Hugging Face directories against float32 logits by Transformers: tests/data/models, cut out of
// larger vocabularies by tests/data/cut_model_fixtures.py; and against double-precision logits of
// weights that tests/data/cut_packed_model_fixtures.py decodes by itself.
#include <gtest/gtest.h>

#include <cmath>

#include "compute/cpu/cpu_ops.h"
#include "compute/reference/reference.h"
#include "model/model.h"
#include "run/generate.h"
#include "support/fixture.h"

namespace espalier::model {
namespace {

struct Errors {
  float largest = 0;        // difference from a golden logit
  double relative_rms = 0;  // root mean square of the differences over that of the logits
};

class HfModels : public ::testing::TestWithParam<const char*> {
 protected:
  static Errors errors_of(compute::Ops& ops, compute::KvType type) {
    const std::string folder = std::string("models/") + GetParam();
    const auto directory = file::HfDirectory::open(test::data_path(folder));
    if (!directory) throw std::runtime_error(directory.error().message);
    const auto loaded = load_model(*directory);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    const test::Fixture golden(folder + "/golden.st");
    const auto tokens = golden.get<std::int32_t>("tokens");
    const auto expected = golden.get<float>("logits");

    auto cache = run::KvCache::create((*loaded)->info(), 1, tokens.size(), type);
    std::vector<float> logits(expected.size());
    run::forward_sequence({**loaded, ops, *cache}, tokens, 0, run::Wanted::kAllLogits,
                          logits.data());
    Errors errors;
    double squares = 0;
    double error_squares = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const float error = logits[i] - expected[i];
      errors.largest = std::max(errors.largest, std::abs(error));
      error_squares += static_cast<double>(error) * error;
      squares += static_cast<double>(expected[i]) * expected[i];
    }
    errors.relative_rms = std::sqrt(error_squares / squares);
    return errors;
  }
};

TEST_P(HfModels, ReferenceLogitsAreTheGoldenOnes) {
  EXPECT_LT(errors_of(*reference::make_ops(), compute::KvType::kF32).largest, 1e-4f);
}

// What 15-bit activations cost, and the half-precision cache on top.
TEST_P(HfModels, CpuLogitsAreNear) {
  EXPECT_LT(errors_of(*cpu::make_ops(2), compute::KvType::kF32).relative_rms, 5e-4);
  EXPECT_LT(errors_of(*cpu::make_ops(2), compute::KvType::kF16).relative_rms, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Directories, HfModels,
                         ::testing::Values("llama-bf16", "gptq-v1-g128-desc_act-asym",
                                           "awq-gemm-g128", "ct-w4a16-asym-g128", "mlx-4-6-g64",
                                           "exl3-mul1-mcg"));

// What exllamav3's own kernels, with half-precision activations, differ by from exact arithmetic is
// up to 7e-4; 1e-3 is the bound for EXL3 on every backend.
class Exl3Models : public HfModels {};

TEST_P(Exl3Models, LogitsAreWithinHalfPrecision) {
  EXPECT_LT(errors_of(*reference::make_ops(), compute::KvType::kF32).relative_rms, 1e-3);
  EXPECT_LT(errors_of(*cpu::make_ops(2), compute::KvType::kF16).relative_rms, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Directories, Exl3Models, ::testing::Values("exl3-mul1-mcg"));

}  // namespace
}  // namespace espalier::model
