// Kernels keep to the restricted C++ of compute/gpu/dialect/dialect.h, which three compilers
// accept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <sstream>

#include "support/data.h"
#include "support/files.h"

namespace espalier::test {
namespace {

struct Rule {
  const char* what;
  std::regex pattern;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {"the standard library", std::regex(R"(std::|#include <)")},
      {"double precision", std::regex(R"(\bdouble\b|\d\.\d+\b[^f\d])")},
      {"a raw pointer or reference", std::regex(R"([\w>][*&]+([ ,)>]|$))")},
      {"a deduced type", std::regex(R"(\bauto\b)")},
      {"a lambda", std::regex(R"(\[[&=]?\] ?[({])")},
      {"what GPUs have not",
       std::regex(R"(\b(new|delete|virtual|throw|try|goto|static_cast<\w+\*>)\b)")},
      {"a word of one target",
       std::regex(R"(\b(__[a-z]\w*|device|constant|threadgroup|kernel)\b)")},
  };
  return all;
}

// The rules that a line of code breaks.
std::vector<std::string> broken(std::string line) {
  line = line.substr(0, line.find("//"));
  std::vector<std::string> found;
  for (const Rule& rule : rules()) {
    if (std::regex_search(line, rule.pattern)) found.emplace_back(rule.what);
  }
  return found;
}

TEST(GpuKernels, KeepToTheDialect) {
  int lines = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(source_path("src/compute/gpu/kernels"))) {
    std::istringstream text(read_file(entry.path()));
    for (std::string line; std::getline(text, line); ++lines) {
      EXPECT_THAT(broken(line), testing::IsEmpty()) << entry.path().filename() << ": " << line;
    }
  }
  EXPECT_GT(lines, 500);
}

TEST(GpuKernels, BreakingTheDialectIsNoticed) {
  for (const char* line :
       {"  float* x = args.x;", "ESPALIER_DEVICE void f(const float& x) {", "  double sum = 0;",
        "  sum += 0.5;", "  const auto x = args.x[i];", "  std::min(a, b);", "#include <cmath>",
        "  const float y = [&](float x) { return x; }(1);", "  __syncthreads();",
        "  uint32_t kernel;"}) {
    EXPECT_THAT(broken(line), testing::Not(testing::IsEmpty())) << line;
  }
}

}  // namespace
}  // namespace espalier::test
