// Sizes that no kernel takes are errors before a launch.
#include "compute/gpu/launch.h"

#include <gtest/gtest.h>

namespace espalier::gpu {
namespace {

template <typename T>
std::string error(const Result<T>& result) {
  return result ? "no error" : result.error().message;
}

WeightShape shape_of(std::string_view format, std::uint64_t rows, std::uint64_t cols) {
  const pack::Matrix matrix = {.format = pack::find_format(format), .rows = rows, .cols = cols};
  return *weight_shape(matrix);
}

TEST(GpuLaunch, EveryFormatHasKernels) {
  for (const pack::Format& format : pack::formats()) {
    std::byte scales[2];
    const pack::Matrix matrix = {
        .format = &format, .rows = 1, .cols = format.block_values, .scales = scales};
    EXPECT_TRUE(weight_shape(matrix)) << format.name;
  }
}

TEST(GpuLaunch, ProjectTakesOneToEightRows) {
  const WeightShape shape = shape_of("Q4_0", 33, 64);
  EXPECT_EQ(error(project_grid(0, shape)), "project: found 0 rows, expected 1 to 8");
  EXPECT_EQ(error(project_grid(9, shape)), "project: found 9 rows, expected 1 to 8");
  EXPECT_EQ(project_grid(8, shape)->blocks_x, 9);
  EXPECT_EQ(error(project_grid(1, shape_of("EXL3-EMB-4", 9, 256))),
            "project: found an embedding table of EXL3, expected a matrix");
}

TEST(GpuLaunch, MatricesFitThirtyOneBits) {
  const pack::Format& f32 = *pack::find_format("F32");
  EXPECT_EQ(error(weight_shape({.format = &f32, .rows = 0, .cols = 32})),
            "F32: found 0 output features, expected 1 to 2147483519");
  EXPECT_EQ(error(weight_shape({.format = &f32, .rows = 1, .cols = std::uint64_t{1} << 32})),
            "F32: found 4294967296 input features, expected 1 to 2147483519");
}

TEST(GpuLaunch, RowsAndElements) {
  EXPECT_EQ(error(row_grid("rms_norm", 0, 5)), "rms_norm: found 0 rows, expected 1 to 2147483647");
  EXPECT_EQ(error(row_grid("softmax", 5, 0)),
            "softmax: found 0 features, expected 1 to 2147483647");
  EXPECT_EQ(error(element_grid("add", 0)), "add: found 0 elements, expected 1 to 2147483647");
  EXPECT_EQ(error(embed_grid(70000, shape_of("F16", 9, 9))),
            "embed: found 70000 rows, expected 1 to 65535");
  EXPECT_EQ(error(top_k_grid(1, 10, 11)), "top_k: found 11 places to fill, expected 1 to 10");
  EXPECT_EQ(error(route_grid(1, 4, 8)), "route: found 8 experts a row, expected 1 to 4");
  EXPECT_EQ(error(rope_grid(1, 1, 8, {.frequencies = std::vector<double>(5)})),
            "rope: found 5 pairs, expected 1 to 4");
  EXPECT_EQ(error(rope_grid(1, 70000, 8, {.frequencies = std::vector<double>(4)})),
            "rope: found 70000 heads, expected 1 to 65536");
  EXPECT_EQ(error(element_grid("gate", std::uint64_t{1} << 60)),
            "gate: found 1152921504606846976 elements, expected 1 to 2147483647");
  EXPECT_EQ(error(top_k_grid(1, 10, 0)), "top_k: found 0 places to fill, expected 1 to 10");
  EXPECT_EQ(error(route_grid(0, 4, 2)), "route: found 0 rows, expected 1 to 2147483647");
  EXPECT_EQ(error(exl3_rotate_grid(0, 128)), "exl3_rotate: found 0 rows, expected 1 to 65535");
}

TEST(GpuLaunch, AttentionTakesFourHeadSizes) {
  const compute::Attention attention = {.heads = 8, .kv_heads = 2, .head_dim = 80};
  const compute::KvView cache = {.kv_heads = 2, .head_dim = 80, .capacity = 100};
  EXPECT_EQ(error(attention_shape(1, attention, cache, 10)),
            "attention: found a head size of 80, expected 64, 128, 256 or 512");
}

TEST(GpuLaunch, AttentionChecksItsCache) {
  compute::Attention attention = {.heads = 8, .kv_heads = 2, .head_dim = 64};
  compute::KvView cache = {.kv_heads = 2, .head_dim = 64, .capacity = 100};
  EXPECT_EQ(error(attention_shape(1, attention, cache, 101)),
            "attention: found 101 positions, expected 1 to 100");
  EXPECT_EQ(error(attention_shape(0, attention, cache, 10)),
            "attention: found 0 rows, expected 1 to 268435455");
  attention.heads = 7;
  EXPECT_EQ(error(attention_shape(1, attention, cache, 10)),
            "attention: found 7 heads, expected a multiple of the 2 KV heads");
  attention.heads = 8;
  cache.kv_heads = 4;
  EXPECT_EQ(error(attention_shape(1, attention, cache, 10)),
            "attention: found a cache of 4 KV heads of 64, expected 2 of 64");
}

TEST(GpuLaunch, RecurrentLayers) {
  compute::DeltaRule rule = {.key_heads = 3, .value_heads = 4, .key_dim = 8, .value_dim = 8};
  EXPECT_EQ(error(delta_grid(1, rule)),
            "delta_step: found 4 value heads, expected a multiple of the 3 key heads");
  rule.key_heads = 0;
  EXPECT_EQ(error(delta_grid(1, rule)), "delta_step: found 0 key heads, expected 1 to 4");
  EXPECT_EQ(error(convolution_grid(1, {.channels = 4, .kernel = 0})),
            "causal_convolution: found 0 elements of the kernel, expected 1 to 65536");
}

TEST(GpuLaunch, TurnsAreFractionsOfACircle) {
  EXPECT_EQ(rope_turns(0), 0u);
  EXPECT_EQ(rope_turns(3.141592653589793), std::uint64_t{1} << 63);
  EXPECT_EQ(rope_turns(-1.5707963267948966), std::uint64_t{3} << 62);
}

}  // namespace
}  // namespace espalier::gpu
