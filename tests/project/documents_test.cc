// What the documents tell a reader to type exists.
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "support/data.h"
#include "support/files.h"

namespace espalier::test {
namespace {

const std::filesystem::path kRoot = test::source_path("");

// What the first group of `pattern` matches anywhere in `text`.
std::set<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    found.insert((*it)[1]);
  }
  return found;
}

class Documents : public testing::TestWithParam<const char*> {
 protected:
  const std::string text_ = read_file(kRoot / GetParam());
};

TEST_P(Documents, NameOnlyMakeTargetsThatExist) {
  const std::set<std::string> targets = matches(read_file(kRoot / "Makefile"), "\n([a-z]+):(?!=)");
  ASSERT_TRUE(targets.contains("build"));
  for (const std::string& target : matches(text_, "(?:`|\\n)make ([a-z]+)")) {
    EXPECT_TRUE(targets.contains(target)) << "make " << target;
  }
}

TEST_P(Documents, NameOnlyVerbsThatExist) {
  for (const std::string& verb : matches(text_, "(?:[`/]|\\n|\\| )espalier ([a-z]+)")) {
    EXPECT_TRUE(std::filesystem::exists(kRoot / "apps/espalier" / (verb + ".cc")))
        << "espalier " << verb;
  }
}

TEST_P(Documents, LinkOnlyToFilesThatExist) {
  const std::filesystem::path folder = (kRoot / GetParam()).parent_path();
  for (const std::string& link : matches(text_, "\\]\\(([^)#:]+)\\)")) {
    EXPECT_TRUE(std::filesystem::exists(folder / link)) << link;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Documents,
                         testing::Values("README.md", "CONTRIBUTING.md", "docs/architecture.md",
                                         "docs/notes/README.md"),
                         [](const auto& document) {
                           std::string name = document.param;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

}  // namespace
}  // namespace espalier::test
