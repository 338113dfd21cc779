// Hugging Face directories against float32 logits by Transformers: tests/data/models, cut out of
// larger vocabularies by tests/data/cut_model_fixtures.py.
#include <gtest/gtest.h>

#include <cmath>

#include "compute/cpu/cpu_ops.h"
#include "compute/reference/reference.h"
#include "model/model.h"
#include "run/generate.h"
#include "support/fixture.h"

namespace espalier::model {
namespace {

class HfModels : public ::testing::TestWithParam<const char*> {
 protected:
  // The largest difference from the golden logits.
  static float error_of(compute::Ops& ops, compute::KvType type) {
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
    float largest = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      largest = std::max(largest, std::abs(logits[i] - expected[i]));
    }
    return largest;
  }
};

TEST_P(HfModels, ReferenceLogitsAreTheGoldenOnes) {
  EXPECT_LT(error_of(*reference::make_ops(), compute::KvType::kF32), 1e-4f);
}

// 8-bit activations, where the format has a kernel for them, and a half-precision cache.
TEST_P(HfModels, CpuLogitsAreNear) {
  EXPECT_LT(error_of(*cpu::make_ops(2), compute::KvType::kF16), 2e-2f);
}

INSTANTIATE_TEST_SUITE_P(Directories, HfModels,
                         ::testing::Values("llama-bf16", "gptq-v1-g128-desc_act-asym",
                                           "awq-gemm-g128", "ct-w4a16-asym-g128"));

}  // namespace
}  // namespace espalier::model
