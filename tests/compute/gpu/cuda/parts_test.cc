// Products of several matrices with the same rows, against the definition of each.
#include "compute/gpu/cuda/parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compute/gpu/cuda/packed_products.h"

namespace espalier::gpu::cuda {
namespace {

using testing::HasSubstr;

class CudaParts : public PackedProducts {
 protected:
  void make(std::string_view format, std::initializer_list<std::uint64_t> outputs,
            std::uint64_t inputs) {
    made_.clear();
    weights_.clear();
    for (const std::uint64_t count : outputs) {
      made_.push_back(matrix(*pack::find_format(format), count, inputs));
      weights_.push_back(upload(made_.back()));
    }
  }

  bool joined(std::string_view name) const {
    std::vector<Part> parts;
    for (const DeviceMatrix& weights : weights_) parts.push_back({.weights = &weights});
    const auto joins = kernel_named(name, weights_.front()).joins;
    return joins != nullptr && joins(parts);
  }

  std::string error(const Product& product) {
    const Status status = project(*stream_, kernel_named("portable", weights_.front()), product);
    return status ? "no error" : status.error().message;
  }

  std::vector<pack::Matrix> made_;
  std::vector<DeviceMatrix> weights_;
};

// Parts that fill no tile, tiles that several blocks share, blocks that work for several parts;
// each number of rows, of which the last are other rows of the product than among all.
TEST_F(CudaParts, AreEachWithinTheBoundOfTheKernelThatJoinsThem) {
  struct Case {
    std::string_view format;
    std::uint64_t inputs;
  };
  for (const Case& each : {Case{"Q4_K", 768}, Case{"Q8_0", 1184}, Case{"MXFP4", 96},
                           Case{"NVFP4", 256}, Case{"GPTQ-V1-4-g128", 2048}}) {
    SCOPED_TRACE(each.format);
    make(each.format, {1000, 136, 8, 2200}, each.inputs);
    for (DeviceMatrix& weights : weights_) ASSERT_TRUE(weights.arrange(*stream_));
    ASSERT_TRUE(joined("codes"));
    const auto x = normals(codes::kRows * each.inputs);
    const std::vector<std::vector<float>> biases = {{}, normals(136), {}, normals(2200)};
    const auto all = products("codes", weights_, x, biases);
    for (std::size_t part = 0; part < made_.size(); ++part) {
      auto expected = oracle(made_[part], x);
      const std::size_t outputs = made_[part].rows;
      for (std::size_t i = 0; i < expected.size() && !biases[part].empty(); ++i) {
        expected[i] += biases[part][i % outputs];
      }
      EXPECT_LT(difference(all[part], expected), 5e-4) << "part " << part;
    }
    EXPECT_EQ(all, products("codes", weights_, x, biases)) << "other bits the second time";
    for (std::size_t count = 1; count < codes::kRows; ++count) {
      const std::size_t first = codes::kRows - count;
      const auto some =
          products("codes", weights_, std::span(x).subspan(first * each.inputs), biases);
      for (std::size_t part = 0; part < some.size(); ++part) {
        ASSERT_TRUE(std::equal(some[part].begin(), some[part].end(),
                               all[part].begin() + first * made_[part].rows))
            << count << " rows of part " << part;
      }
    }
  }
}

// Each part has its own rotation of the rows. Sums are exact up to those of slices of 1,024 inputs,
// which are added in order: the other parts change nothing.
TEST_F(CudaParts, OfExl3HaveTheBitsOfEachAlone) {
  for (const std::string_view format : {"EXL3-MUL1-4", "EXL3-MUL1-2.5"}) {
    SCOPED_TRACE(format);
    make(format, {1000, 136, 8, 2200}, 2200);
    for (DeviceMatrix& weights : weights_) ASSERT_TRUE(weights.arrange(*stream_));
    ASSERT_TRUE(joined("exl3-mul1"));
    const std::vector<std::vector<float>> biases = {{}, normals(136), {}, normals(2200)};
    for (const std::size_t rows : {1, 4, 7, 16}) {
      const auto x = normals(rows * 2200);
      const auto all = products("exl3-mul1", weights_, x, biases);
      for (std::size_t part = 0; part < weights_.size(); ++part) {
        EXPECT_EQ(all[part], product("exl3-mul1", weights_[part], x, biases[part]))
            << rows << " rows of part " << part;
      }
      EXPECT_LT(difference(all[2], oracle(made_[2], x)), 5e-4);
    }
  }
}

TEST_F(CudaParts, AreComputedOneByOneByOtherKernels) {
  for (const std::string_view format : {"Q4_0", "EXL3-3INST-3"}) {
    SCOPED_TRACE(format);
    make(format, {100, 130}, 256);
    for (const auto& [name, rows] : {std::pair("portable", 3), std::pair("decoded", 21)}) {
      ASSERT_FALSE(joined(name));
      const auto x = normals(rows * 256);
      const auto found = products(name, weights_, x, {{}, normals(130)});
      EXPECT_EQ(found[0], product(name, weights_[0], x)) << name;
      EXPECT_LT(difference(found[0], oracle(made_[0], x)), 1e-3) << name;
      EXPECT_EQ(found[1].size(), rows * 130);
    }
  }
}

TEST_F(CudaParts, MustBeFewAndOfOneKind) {
  make("Q4_0", {64, 64, 64, 64, 64}, 256);
  std::vector<Part> parts;
  for (const DeviceMatrix& weights : weights_) parts.push_back({.weights = &weights});
  EXPECT_THAT(error({.parts = parts, .rows = 1}), HasSubstr("found 5 parts, expected 1 to 4"));
  EXPECT_THAT(error({.rows = 1}), HasSubstr("found 0 parts, expected 1 to 4"));
  const auto with_another = [&](std::string_view format, std::uint64_t inputs) {
    const DeviceMatrix other = upload(matrix(*pack::find_format(format), 64, inputs));
    const Part two[] = {parts[0], {.weights = &other}};
    return error({.parts = two, .rows = 1});
  };
  EXPECT_EQ(with_another("Q4_0", 512),
            "project: found parts of 256 inputs in Q4_0 and of 512 in Q4_0, expected the same");
  EXPECT_THAT(with_another("Q4_1", 256), HasSubstr("and of 256 in Q4_1"));
  // Those that one launch cannot take, the kernel does not join.
  ASSERT_TRUE(joined("codes") == false) << "five parts";
  const auto status =
      project(*stream_, kernel_named("codes", weights_[0]), {.parts = {&parts[0], 1}, .rows = 1});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "codes: the weights are not arranged");
}

}  // namespace
}  // namespace espalier::gpu::cuda
