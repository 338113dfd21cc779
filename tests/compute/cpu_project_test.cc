// Products on the CPU against the definition of each format, with every instruction set that this
// machine can run.
#include "compute/cpu/project.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <random>

#include "base/half.h"
#include "base/interrupt.h"
#include "compute/cpu/arrange.h"
#include "compute/cpu/targets.h"
#include "compute/reference/reference.h"
#include "hwy/highway.h"
#include "pack/exl3.h"
#include "pack/grouped_int4.h"

namespace espalier::cpu {
namespace {

// A format and where its blocks keep numbers in half precision, which random bytes must not fill.
struct FormatCase {
  std::string_view name;
  std::vector<std::size_t> halves;
  bool coded;            // has a kernel for coded activations
  bool arranged = true;  // and that for arranged weights
};

const FormatCase kFormats[] = {
    {"F32", {}, false},
    {"F16", {}, false},
    {"BF16", {}, false},
    {"Q4_0", {0}, true},
    {"Q4_1", {0, 2}, true},
    {"Q5_0", {0}, true},
    {"Q5_1", {0, 2}, true},
    {"Q8_0", {0}, true},
    {"IQ4_NL", {0}, true},
    {"Q2_K", {80, 82}, true},
    {"Q3_K", {108}, true},
    {"Q4_K", {0, 2}, true},
    {"Q5_K", {0, 2}, true},
    {"Q6_K", {208}, true},
    {"IQ4_XS", {0}, true},
    {"TQ2_0", {64}, true},
    {"NVFP4", {}, true},
    {"MXFP4", {}, true},
    {"IQ1_S", {0}, true, false},
    {"IQ2_XXS", {0}, true, false},
    {"IQ2_XS", {0}, true, false},
    {"IQ2_S", {0}, true, false},
    {"IQ3_XXS", {0}, true, false},
    {"IQ3_S", {0}, true, false},
    {"TQ1_0", {52}, true, false},
};

const Activations kActivations[] = {Activations::kFloat32, Activations::kCoded};

// Runs the rest of a scope with one instruction set.
class UseTarget {
 public:
  explicit UseTarget(std::int64_t target) { hwy::SetSupportedTargetsForTest(target); }
  ~UseTarget() { hwy::SetSupportedTargetsForTest(0); }
};

class CpuProject : public testing::TestWithParam<std::int64_t> {
 protected:
  UseTarget use_{GetParam()};
  std::mt19937 random_{42};

  float uniform() { return std::uniform_real_distribution<float>(-1, 1)(random_); }

  // Random activations of very different magnitude.
  std::vector<float> activations(std::size_t count) {
    std::vector<float> x(count);
    for (float& value : x) value = uniform() * std::exp2(4 * uniform());
    return x;
  }

  std::vector<std::byte> random_bytes(std::size_t count) {
    std::vector<std::byte> bytes(count);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }

  std::vector<std::byte> random_halves(std::size_t count) {
    std::vector<std::byte> halves(count * 2);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t bits = float_to_half(uniform());
      std::memcpy(halves.data() + i * 2, &bits, 2);
    }
    return halves;
  }

  // A matrix of random codes; `scale` gives the half-precision numbers.
  template <typename Scale>
  pack::PackedMatrix matrix(const FormatCase& format, std::size_t rows, std::size_t cols,
                            Scale scale) {
    const pack::Format& f = *pack::find_format(format.name);
    pack::PackedMatrix packed;
    packed.data.resize(rows * cols / f.block_values * f.block_bytes);
    std::byte* at = packed.data.data();
    if (f.block_values == 1) {
      for (std::size_t i = 0; i < rows * cols; ++i) {
        const float value = uniform();
        const std::uint16_t bits =
            format.name == "F16" ? float_to_half(value) : float_to_bfloat(value);
        if (f.block_bytes == 4) std::memcpy(at + i * 4, &value, 4);
        if (f.block_bytes == 2) std::memcpy(at + i * 2, &bits, 2);
      }
    } else {
      for (std::byte& byte : packed.data) byte = static_cast<std::byte>(random_());
      for (; at != packed.data.data() + packed.data.size(); at += f.block_bytes) {
        for (const std::size_t offset : format.halves) {
          const std::uint16_t bits = float_to_half(scale());
          std::memcpy(at + offset, &bits, 2);
        }
        if (format.name == "MXFP4") *at = static_cast<std::byte>(115 + random_() % 16);
      }
    }
    packed.view = *pack::block_matrix(f, rows, cols, packed.data);
    return packed;
  }
  pack::PackedMatrix matrix(const FormatCase& format, std::size_t rows, std::size_t cols) {
    return matrix(format, rows, cols, [this] { return uniform() / 16; });
  }
};

std::vector<float> product(std::size_t threads, const std::vector<float>& x, const pack::Matrix& w,
                           Activations activations, const std::byte* arranged = nullptr) {
  ThreadPool pool(threads);
  compute::Workspace workspace;
  std::vector<float> y(x.size() / w.cols * w.rows, NAN);
  project(pool, workspace, {x.data()}, x.size() / w.cols,
          std::array{Product{&w, arranged, y.data()}}, activations);
  return y;
}

// What an element of a product must be: the sum in double, and what enters the bounds of its error.
struct Expected {
  double sum = 0;
  double coding = 0;
  double magnitude = 0;
};

std::vector<Expected> expected_product(const std::vector<float>& x, const pack::Matrix& w) {
  std::vector<float> weights(w.rows * w.cols);
  pack::decode_rows(w, 0, w.rows, weights.data());
  std::vector<Expected> all(x.size() / w.cols * w.rows);
  for (std::size_t at = 0; at < all.size(); ++at) {
    const float* activations = x.data() + at / w.rows * w.cols;
    const float* row = weights.data() + at % w.rows * w.cols;
    for (std::size_t first = 0; first < w.cols; first += 32) {
      double largest_x = 0;
      double largest_w = 0;
      double sum_x = 0;
      double sum_w = 0;
      for (std::size_t i = first; i < std::min(first + 32, w.cols); ++i) {
        const double weight = row[i];
        const double activation = activations[i];
        all[at].sum += weight * activation;
        largest_x = std::max(largest_x, std::abs(activation));
        largest_w = std::max(largest_w, std::abs(weight));
        sum_x += std::abs(activation);
        sum_w += std::abs(weight);
      }
      all[at].coding += sum_w * largest_x / 32512;
      all[at].magnitude += largest_w * sum_x;
    }
  }
  return all;
}

// Every element within the stated bound.
void expect_within_bounds(const std::vector<Expected>& expected, const pack::Matrix& w, bool coded,
                          const std::vector<float>& y) {
  ASSERT_EQ(y.size(), expected.size());
  for (std::size_t at = 0; at < y.size(); ++at) {
    const auto& [sum, coding, magnitude] = expected[at];
    const double bound = (coded ? 1.0001 * coding : 0) + 0x1p-18 * magnitude + 1e-30;
    ASSERT_NEAR(y[at], sum, bound) << w.format->name << " row " << at / w.rows << " output "
                                   << at % w.rows << " of " << w.rows << " × " << w.cols;
  }
}

void expect_product(const std::vector<float>& x, const pack::Matrix& w, bool coded,
                    const std::vector<float>& y) {
  expect_within_bounds(expected_product(x, w), w, coded, y);
}

TEST_P(CpuProject, IsWithinItsBoundAtAllSizes) {
  for (const FormatCase& format : kFormats) {
    const std::size_t block = pack::find_format(format.name)->block_values;
    for (const std::size_t blocks : {1, 3, 7, 18, 35}) {
      const std::size_t cols = block * blocks;
      for (const std::size_t outputs : {1, 5, 16, 35}) {
        const pack::PackedMatrix w = matrix(format, outputs, cols);
        for (const std::size_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64}) {
          if (rows > 9 && (blocks > 7 || outputs < 35)) continue;
          const std::vector<float> x = activations(rows * cols);
          const std::vector<Expected> expected = expected_product(x, w.view);
          for (const Activations activations : kActivations) {
            expect_within_bounds(expected, w.view,
                                 format.coded && activations == Activations::kCoded,
                                 product(1, x, w.view, activations));
          }
        }
      }
    }
  }
}

TEST_P(CpuProject, ArrangedWeightsGiveTheSameBits) {
  Arranger arranger;
  ThreadPool pool(2);
  for (const FormatCase& format : kFormats) {
    const std::size_t block = pack::find_format(format.name)->block_values;
    for (const std::size_t blocks : {1, 18}) {
      for (const std::size_t outputs : {1, 35, 150}) {
        const pack::PackedMatrix w = matrix(format, outputs, block * blocks);
        const auto arranged = arranger.arrange(pool, w.view);
        ASSERT_EQ(arranged != nullptr, format.coded && format.arranged && w.view.cols % 32 == 0)
            << format.name;
        for (const std::size_t rows : {1, 3, 4, 8, 17}) {
          const std::vector<float> x = activations(rows * w.view.cols);
          ASSERT_EQ(product(2, x, w.view, Activations::kCoded, arranged.get()),
                    product(1, x, w.view, Activations::kCoded))
              << format.name << " " << outputs << " × " << w.view.cols;
        }
      }
    }
  }
}

TEST_P(CpuProject, OnlyPlainMatricesAreArranged) {
  Arranger arranger;
  ThreadPool pool(1);
  EXPECT_EQ(arranger.arrange(pool, {}), nullptr);
  pack::PackedMatrix w = matrix({"Q4_0", {0}, true}, 0, 64);
  EXPECT_EQ(arranger.arrange(pool, w.view), nullptr);
}

// After Ctrl+C, weights stay where they are.
TEST_P(CpuProject, NothingIsArrangedAfterAnInterrupt) {
  Arranger arranger;
  ThreadPool pool(2);
  const pack::PackedMatrix w = matrix({"Q4_0", {0}, true}, 40, 64);
  (void)interrupted();  // installs the handler
  std::raise(SIGINT);
  EXPECT_EQ(arranger.arrange(pool, w.view), nullptr);
  clear_interrupt();
  EXPECT_NE(arranger.arrange(pool, w.view), nullptr);
}

// What was arranged stays when the next piece of memory is begun, and when the arranger is gone.
TEST_P(CpuProject, ArrangedWeightsOutliveTheirArranger) {
  const FormatCase format = {"Q8_0", {0}, true};
  const pack::PackedMatrix small = matrix(format, 3, 64);
  const pack::PackedMatrix large = matrix(format, 4096, 8192);  // more than a piece
  const std::vector<float> x = activations(64);
  ThreadPool pool(2);
  std::shared_ptr<const std::byte> arranged;
  {
    Arranger arranger;
    arranged = arranger.arrange(pool, small.view);
    ASSERT_NE(arranger.arrange(pool, large.view), nullptr);
  }
  EXPECT_EQ(product(1, x, small.view, Activations::kCoded, arranged.get()),
            product(1, x, small.view, Activations::kCoded));
}

// Formats without a kernel go by their definition.
TEST_P(CpuProject, EveryGgufFormat) {
  for (const pack::Format& format : pack::formats()) {
    if (format.family != pack::Family::kGguf) continue;
    const std::size_t cols = 256 * 3;
    std::vector<std::byte> data(18 * cols / format.block_values * format.block_bytes);
    // Wherever a format keeps a scale, this is an ordinary one, in half precision or bfloat16.
    for (std::size_t i = 0; i + 2 <= data.size(); i += 2) {
      const auto bits = static_cast<std::uint16_t>((random_() & 0x83ff) | 0x3800);
      std::memcpy(data.data() + i, &bits, 2);
    }
    // Blocks of odd size keep a power of two in one byte instead: at most 1.
    if (format.block_bytes % 2 != 0) {
      for (std::byte& byte : data) byte &= std::byte{0x7f};
    }
    const pack::Matrix w = *pack::block_matrix(format, 18, cols, data);
    const std::vector<float> x = activations(5 * cols);
    expect_product(x, w, true, product(2, x, w, Activations::kCoded));
  }
}

// Formats of Hugging Face directories: scales and zero points lie apart from the codes.
TEST_P(CpuProject, EveryMlxFormat) {
  for (const pack::Format& format : pack::formats()) {
    if (format.family != pack::Family::kMlx) continue;
    for (const std::size_t outputs : {1, 35}) {
      const std::size_t cols = 640;
      const std::vector<float> values = activations(outputs * cols);
      const auto w = format.encode(format, values, outputs, cols);
      ASSERT_TRUE(w) << w.error().message;
      for (const std::size_t rows : {1, 5}) {
        const std::vector<float> x = activations(rows * cols);
        expect_product(x, w->view, true, product(2, x, w->view, Activations::kCoded));
      }
    }
  }
}

TEST_P(CpuProject, EveryFormatOf4BitIntegers) {
  for (const pack::Format& format : pack::formats()) {
    const bool tensors = format.family == pack::Family::kCompressedTensors;
    if (!tensors && format.family != pack::Family::kGptq && format.family != pack::Family::kAwq) {
      continue;
    }
    const std::size_t cols = 640;
    const std::size_t outputs = 40;
    const std::size_t groups = format.name.ends_with("-row") ? 1 : cols / format.block_values;
    const std::vector<std::byte> codes = random_bytes(outputs * cols / 2);
    const bool symmetric = format.name.starts_with("CT-SYM");
    const std::vector<std::byte> zeros = random_bytes(symmetric ? 0 : outputs / 8 * groups * 4);
    const std::vector<std::byte> scales = random_halves(outputs * groups);
    for (const bool ordered : {true, false}) {
      // Act-order: each input has a group of its own.
      std::vector<std::int32_t> group_of(cols);
      for (std::int32_t& group : group_of) {
        group = static_cast<std::int32_t>(random_() % groups);
      }
      if (!ordered && format.family != pack::Family::kGptq) continue;
      const auto w =
          pack::int4_matrix(format, outputs, cols, codes, scales, pack::ScaleType::kF16, zeros,
                            ordered ? Bytes() : std::as_bytes(std::span(group_of)));
      ASSERT_TRUE(w) << w.error().message;
      const std::vector<float> x = activations(5 * cols);
      expect_product(x, *w, true, product(2, x, *w, Activations::kCoded));
    }
  }
}

// Integer kernels leave out that a MUL1 weight is rounded to half precision: 2^-12 of it at most.
TEST_P(CpuProject, Exl3WithItsRotations) {
  for (const pack::Format& format : pack::formats()) {
    if (!format.name.starts_with("EXL3-") || format.dequantize_rows == nullptr) continue;
    const std::size_t rows = 200;  // padded to 256
    const std::size_t cols = 250;  // the same
    const std::vector<std::byte> trellis = random_bytes(256 * format.block_bytes);
    const std::vector<std::byte> suh = random_halves(pack::exl3_padded(cols));
    const std::vector<std::byte> svh = random_halves(pack::exl3_padded(rows));
    const auto w = pack::exl3_matrix(format, rows, cols, trellis, suh, svh);
    ASSERT_TRUE(w) << w.error().message;
    const std::vector<float> x = activations(6 * cols);
    std::vector<float> expected(6 * rows);
    reference::project(6, x.data(), *w, expected.data());
    const std::vector<float> y = product(2, x, *w, Activations::kCoded);
    for (std::size_t r = 0; r < 6; ++r) {
      double error = 0;
      double norm = 0;
      for (std::size_t o = r * rows; o < (r + 1) * rows; ++o) {
        error += std::pow(y[o] - expected[o], 2);
        norm += std::pow(expected[o], 2);
      }
      EXPECT_LT(std::sqrt(error / norm), 4e-4) << format.name;
      const std::vector<float> one(x.begin() + static_cast<std::ptrdiff_t>(r * cols),
                                   x.begin() + static_cast<std::ptrdiff_t>((r + 1) * cols));
      const std::vector<float> alone(y.begin() + static_cast<std::ptrdiff_t>(r * rows),
                                     y.begin() + static_cast<std::ptrdiff_t>((r + 1) * rows));
      EXPECT_EQ(product(1, one, *w, Activations::kCoded), alone) << format.name;
    }
    Arranger arranger;
    ThreadPool pool(2);
    const auto arranged = arranger.arrange(pool, *w);
    if (arranged == nullptr) continue;  // formats and instruction sets without a kernel
    EXPECT_EQ(product(2, x, *w, Activations::kCoded, arranged.get()), y) << format.name;
  }
}

TEST_P(CpuProject, RowsHaveTheSameBitsInAnyCompany) {
  constexpr std::size_t kRows = 64;
  for (const FormatCase& format : kFormats) {
    const std::size_t cols = 5 * 256;
    const pack::PackedMatrix w = matrix(format, 37, cols);
    const std::vector<float> x = activations(kRows * cols);
    for (const Activations activations : kActivations) {
      const std::vector<float> all = product(1, x, w.view, activations);
      for (const std::size_t threads : {2, 3}) {
        EXPECT_EQ(product(threads, x, w.view, activations), all) << format.name;
      }
      for (const std::size_t rows : {1, 2, 3, 5, 7, 8, 9, 16}) {
        for (std::size_t first = 0; first + rows <= kRows; first += rows) {
          const std::vector<float> some(x.begin() + first * cols,
                                        x.begin() + (first + rows) * cols);
          const std::vector<float> expected(all.begin() + first * w.view.rows,
                                            all.begin() + (first + rows) * w.view.rows);
          ASSERT_EQ(product(1, some, w.view, activations), expected) << format.name << " " << rows;
        }
      }
    }
  }
}

// Tensors of safetensors files lie at any byte.
TEST_P(CpuProject, WeightsAtOddAddresses) {
  for (const FormatCase& format : kFormats) {
    const pack::PackedMatrix w = matrix(format, 21, 256);
    std::vector<std::byte> shifted(w.data.size() + 1);
    std::memcpy(shifted.data() + 1, w.data.data(), w.data.size());
    pack::Matrix odd = w.view;
    odd.data = std::span(shifted).subspan(1);
    const std::vector<float> x = activations(3 * 256);
    for (const Activations activations : kActivations) {
      EXPECT_EQ(product(1, x, odd, activations), product(1, x, w.view, activations)) << format.name;
    }
  }
}

TEST_P(CpuProject, NothingToDo) {
  const pack::PackedMatrix w = matrix(kFormats[3], 5, 64);
  EXPECT_TRUE(product(2, {}, w.view, Activations::kCoded).empty());
}

TEST_P(CpuProject, RowsOfZerosGiveZero) {
  for (const FormatCase& format : kFormats) {
    const pack::PackedMatrix w = matrix(format, 19, 512);
    const std::vector<float> x(3 * 512, 0.0f);
    for (const Activations activations : kActivations) {
      for (const float y : product(2, x, w.view, activations)) ASSERT_EQ(y, 0) << format.name;
    }
  }
}

// Scales that are zero, subnormal, and as large as half precision has them.
TEST_P(CpuProject, ScalesAtTheEdgeOfHalfPrecision) {
  for (const FormatCase& format : kFormats) {
    if (format.halves.empty()) continue;
    for (const float scale : {0.0f, 0x1p-24f, -0x1p-24f, 0x1.8p-16f, 65504.0f, -65504.0f}) {
      const pack::PackedMatrix w = matrix(format, 17, 768, [scale] { return scale; });
      const std::vector<float> x = activations(5 * 768);
      for (const Activations activations : kActivations) {
        expect_product(x, w.view, activations == Activations::kCoded,
                       product(2, x, w.view, activations));
      }
    }
  }
}

// Codes at their extremes against activations at theirs: sums that overflow 16 bits where pairs of
// products are added in 16 bits.
TEST_P(CpuProject, ExtremeCodesDoNotSaturate) {
  for (const FormatCase& format : kFormats) {
    if (format.halves.empty()) continue;
    const pack::Format& f = *pack::find_format(format.name);
    for (const int fill : {0x00, 0xff, 0x80, 0x7f}) {
      pack::PackedMatrix w = matrix(format, 9, 512);
      for (std::size_t i = 0; i < w.data.size(); ++i) {
        const std::size_t in_block = i % f.block_bytes;
        const bool in_half = std::any_of(format.halves.begin(), format.halves.end(),
                                         [&](std::size_t h) { return in_block / 2 == h / 2; });
        if (!in_half) w.data[i] = static_cast<std::byte>(fill);
      }
      for (const float sign : {1.0f, -1.0f}) {
        const std::vector<float> x(4 * 512, sign * 3.5f);
        expect_product(x, w.view, true, product(1, x, w.view, Activations::kCoded));
      }
    }
  }
}

// One huge activation costs its group precision, and no other.
TEST_P(CpuProject, OneHugeActivationAmongTinyOnes) {
  for (const FormatCase& format : kFormats) {
    const pack::PackedMatrix w = matrix(format, 19, 1024);
    std::vector<float> x(2 * 1024);
    for (float& value : x) value = uniform() * 1e-3f;
    x[100] = 1e6f;
    x[1024 + 1023] = -3e4f;
    for (const Activations activations : kActivations) {
      expect_product(x, w.view, format.coded && activations == Activations::kCoded,
                     product(2, x, w.view, activations));
    }
  }
}

TEST_P(CpuProject, ActivationsBelowAnyUsefulMagnitude) {
  for (const FormatCase& format : kFormats) {
    const pack::PackedMatrix w = matrix(format, 3, 256);
    for (const float tiny : {1e-45f, 1e-40f, 0x1p-101f, 0x1p-99f}) {
      const std::vector<float> x(256, tiny);
      for (const float y : product(1, x, w.view, Activations::kCoded)) {
        ASSERT_LE(std::abs(y), 256 * 64 * 0x1p-99) << format.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuProject,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return hwy::TargetName(target.param); });

}  // namespace
}  // namespace espalier::cpu
