// espalier bench as a user calls it: what it reports, not how fast anything is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command.h"
#include "support/files.h"
#include "support/tiny_llama.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

class BenchVerb : public ::testing::Test {
 protected:
  static test::CommandResult bench(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {ESPALIER_BINARY, "bench", "-t", "2", "-r", "2"});
    return test::run_command(arguments, "");
  }
};

TEST_F(BenchVerb, TimesAModel) {
  const test::TemporaryDirectory folder;
  const std::string model = folder / "tiny.gguf";
  test::tiny_llama().write(model);
  const auto result = bench({"-m", model, "-p", "9", "-n", "4", "-d", "3", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_GT(report["read_bandwidth"], 0);
  EXPECT_GT(report["weight_bytes"], 0);
  ASSERT_EQ(report["results"].size(), 2);
  EXPECT_EQ(report["results"][0]["test"], "pp9 @ 3");
  EXPECT_EQ(report["results"][1]["test"], "tg4 @ 3");
  const auto exact = bench({"-m", model, "-p", "2", "-n", "1", "--exact"});
  EXPECT_EQ(exact.exit_code, 0) << exact.err;
  for (const auto& line : report["results"]) {
    EXPECT_LE(line["least"], line["median"]);
    EXPECT_LE(line["median"], line["most"]);
  }
  const auto markdown = bench({"-m", model, "-p", "0", "-n", "2", "-o", "md"});
  EXPECT_THAT(markdown.out, HasSubstr("| tg2 |"));
  EXPECT_THAT(markdown.out, ::testing::Not(HasSubstr("| pp")));
}

TEST_F(BenchVerb, TimesAProduct) {
  const auto result =
      bench({"--op", "project", "--format", "Q4_K", "--shape", "4096x4096", "--rows", "3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("rows 3"));
  EXPECT_THAT(result.out, HasSubstr("floor"));
}

TEST_F(BenchVerb, SaysWhatIsWrong) {
  const auto error = [](const std::vector<std::string>& arguments) {
    const auto result = bench(arguments);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error({}), HasSubstr("give either --model or --op"));
  EXPECT_THAT(error({"--op", "project", "--format", "Q9"}), HasSubstr("--format 'Q9'"));
  EXPECT_THAT(error({"--op", "project", "--shape", "12"}), HasSubstr("--shape '12'"));
  EXPECT_THAT(error({"--op", "project", "--shape", "12x33"}), HasSubstr("multiple of 32"));
  EXPECT_THAT(error({"--op", "project", "--shape", "12x32+8x32"}),
              HasSubstr("on the CPU: expected shapes of one matrix"));
  EXPECT_THAT(error({"--op", "project", "--shape", "0x32"}), HasSubstr("at most 2^40"));
  EXPECT_THAT(error({"--op", "project", "--format", "EXL3-EMB-4", "--shape", "128x256"}),
              HasSubstr("a table to look up"));
}

TEST_F(BenchVerb, SaysWhatIsWrongWithGpuOperators) {
  const auto error = [](const std::vector<std::string>& arguments) {
    const auto result = bench(arguments);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error({"--op", "project", "--device", "cuda:x"}), HasSubstr("--device 'cuda:x'"));
  EXPECT_THAT(error({"--op", "project", "--device", "cuda:"}), HasSubstr("cuda or cuda:N"));
  EXPECT_THAT(error({"--op", "project", "--tune"}),
              HasSubstr("expected --op project and --device"));
  EXPECT_THAT(error({"--op", "rope", "--device", "cuda", "--tune"}), HasSubstr("--op project"));
  EXPECT_THAT(error({"-m", "no.gguf", "--device", "cuda"}),
              HasSubstr("models run on the CPU only"));
  EXPECT_THAT(error({"--op", "project", "--device", "cuda", "--format", "Q4_0,Q9"}),
              HasSubstr("--format 'Q9'"));
  EXPECT_THAT(error({"--op", "rope", "--device", "cuda", "--format", "F32"}),
              HasSubstr("--format: rope has none"));
  EXPECT_THAT(error({"--op", "attention", "--device", "cuda", "--format", "Q4_0"}),
              HasSubstr("--format 'Q4_0'"));
  EXPECT_THAT(
      error({"--op", "attention", "--device", "cuda", "--shape", "32x8x128"}),
      HasSubstr(
          "--shape '32x8x128': expected HEADSxKV_HEADSxHEAD_DIMxPOSITIONS, as 32x8x128x8192"));
  for (const std::string shape : {"12x32+", "12x32+8", "12+8x32", "1x2+1x2+1x2+1x2+1x2"}) {
    EXPECT_THAT(error({"--op", "project", "--device", "cuda", "--shape", shape}),
                HasSubstr("--shape '" + shape +
                          "': expected OUTPUTSxINPUTS, as 4096x14336, or up "
                          "to 4 with a + between them"));
  }
  EXPECT_THAT(error({"--op", "project", "--device", "cuda", "--shape", "12x32+12x64"}),
              HasSubstr("found matrices of 32 and 64 inputs, expected the same"));
  EXPECT_THAT(error({"--op", "project", "--device", "cuda", "--tune", "--shape", "1x32+1x32"}),
              HasSubstr("--tune: expected shapes of one matrix"));
  EXPECT_THAT(error({"--op", "rope", "--device", "cuda", "--shape", "32x128+32x128"}),
              HasSubstr("expected HEADSxHEAD_DIM, as 32x128\n"));
  EXPECT_THAT(error({"--op", "rope"}), HasSubstr("on the CPU there is only project"));
  EXPECT_THAT(error({"--op", "project", "--rows", "1,2"}), HasSubstr("one --format"));
  EXPECT_THAT(error({"--op", "project", "--check"}), HasSubstr("for GPUs"));
}

// Where there is a GPU, it is timed; elsewhere one line says why there is none.
TEST_F(BenchVerb, TimesAProductOnAGpuOrSaysWhyNot) {
  const auto devices =
      nlohmann::json::parse(test::run_command({ESPALIER_BINARY, "devices", "-o", "json"}).out);
  const auto result = bench({"--op", "project", "--device", "cuda", "--shape",
                             "128x256,128x256+64x256", "--rows", "1,2", "--check", "-o", "json"});
  const auto& problem = devices["cuda"]["problem"];
  if (problem.is_null()) {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto lines = nlohmann::json::parse(result.out)["results"];
    ASSERT_EQ(lines.size(), 4);
    EXPECT_TRUE(lines[1]["apart_seconds"].is_null());
    EXPECT_EQ(lines[3]["parts"], 2);
    EXPECT_GT(lines[3]["apart_seconds"], 0);
  } else {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(problem.get<std::string>()));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(ProfileVerb, SaysWhatEachOperatorDid) {
  const test::TemporaryDirectory folder;
  const std::string model = folder / "tiny.gguf";
  test::tiny_llama().write(model);
  const auto result = test::run_command(
      {ESPALIER_BINARY, "profile", "-m", model, "-p", "5", "-n", "3", "-d", "2"}, "");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("prefill of 5 tokens: "));
  EXPECT_THAT(result.out, HasSubstr("decoding of 3 tokens: "));
  EXPECT_THAT(result.out,
              ::testing::ContainsRegex("project +[0-9]+ +[0-9.]+ +[0-9.]+% +[0-9.]+ GB/s"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("attention +[0-9]+ "));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("delta_rule"))) << "what a model has not";
}

}  // namespace
}  // namespace espalier
