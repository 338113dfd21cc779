// espalier devices as a user calls it, on a machine with GPUs or without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/command.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(DevicesVerb, ListsTheProcessor) {
  const auto result = test::run_command({ESPALIER_BINARY, "devices", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_GT(report["cpu"]["threads"], 0);
  EXPECT_GT(report["cpu"]["memory_bytes"], 0);
  EXPECT_LE(report["cpu"]["free_bytes"], report["cpu"]["memory_bytes"]);
  EXPECT_FALSE(report["cpu"]["instruction_sets"].empty());
  const auto table = test::run_command({ESPALIER_BINARY, "devices"});
  EXPECT_THAT(table.out, HasSubstr("cpu"));
  EXPECT_THAT(table.out, HasSubstr(report["cpu"]["name"]));
}

// There are GPUs, or one line says why there are none.
TEST(DevicesVerb, ListsGpusOrSaysWhyThereAreNone) {
  const auto report =
      nlohmann::json::parse(test::run_command({ESPALIER_BINARY, "devices", "-o", "json"}).out);
  const auto table = test::run_command({ESPALIER_BINARY, "devices"}).out;
  EXPECT_EQ(report["cuda"]["problem"].is_null(), !report["gpus"].empty());
  if (report["cuda"]["problem"].is_null()) {
    EXPECT_THAT(table, HasSubstr("cuda:0"));
  } else {
    const std::string problem = report["cuda"]["problem"];
    EXPECT_THAT(table, HasSubstr("no GPUs: " + problem + "\n"));
    EXPECT_EQ(problem.starts_with("this build has no CUDA"), !report["cuda"]["built"].get<bool>());
  }
}

TEST(DevicesVerb, KnowsTwoWaysToPrint) {
  EXPECT_EQ(test::run_command({ESPALIER_BINARY, "devices", "-o", "xml"}).exit_code, 2);
}

}  // namespace
}  // namespace espalier
