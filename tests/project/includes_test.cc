// Includes between the rooms of src/ go downwards only (docs/architecture.md).
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "support/data.h"
#include "support/files.h"

namespace espalier::test {
namespace {

// Each room, and which others it may include; itself always.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {}},
    {"pack", {"base"}},
    {"file", {"base", "pack"}},
    {"hub", {"base", "file"}},
    {"text", {"base", "pack", "file"}},
    {"compute", {"base", "pack"}},
    {"model", {"base", "pack", "file", "compute"}},
    {"run", {"base", "pack", "file", "text", "compute", "model"}},
    {"convert", {"base", "pack", "file", "text", "model"}},
    {"measure", {"base", "pack", "file", "text", "compute", "model", "run"}},
};

TEST(Includes, GoDownwardsOnly) {
  const std::filesystem::path src = test::source_path("src");
  int seen = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(src)) {
    if (!entry.is_regular_file()) continue;
    const std::filesystem::path file = entry.path().lexically_relative(src);
    const auto room = kMayInclude.find(*file.begin());
    ASSERT_NE(room, kMayInclude.end()) << "src/" << file.string() << " is in no room of the table";

    std::istringstream lines(read_file(entry.path()));
    for (std::string line; std::getline(lines, line);) {
      constexpr std::string_view kInclude = "#include \"";
      if (!line.starts_with(kInclude)) continue;
      const std::string target = line.substr(kInclude.size(), line.rfind('"') - kInclude.size());
      if (target.starts_with("hwy/")) continue;  // Highway's own way of being included
      const std::string target_room = *std::filesystem::path(target).begin();
      EXPECT_TRUE(target_room == room->first || room->second.contains(target_room))
          << "src/" << file.string() << " includes \"" << target << "\", which " << room->first
          << "/ may not";
      EXPECT_TRUE(std::filesystem::exists(src / target))
          << "src/" << file.string() << " includes \"" << target
          << "\", which is not a path from src/";
      ++seen;
    }
  }
  EXPECT_GT(seen, 20);
}

}  // namespace
}  // namespace espalier::test
