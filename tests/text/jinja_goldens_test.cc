// Templates that models ship, and the language itself, against what Transformers' renderer makes of
// them. The data are described in tests/data/templates/README.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "support/zstd.h"
#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace espalier::text::jinja {
namespace {

using nlohmann::ordered_json;

std::vector<ordered_json> lines(const std::string& name) {
  std::vector<ordered_json> result;
  std::istringstream in(test::read_zstd_data("templates/" + name + ".jsonl.zst"));
  for (std::string line; std::getline(in, line);) result.push_back(ordered_json::parse(line));
  return result;
}

// 2026-11-30 12:34:56, the time of all the renderings.
std::tm golden_time() {
  std::tm time = {};
  time.tm_year = 126;
  time.tm_mon = 10;
  time.tm_mday = 30;
  time.tm_hour = 12;
  time.tm_min = 34;
  time.tm_sec = 56;
  time.tm_wday = 1;
  time.tm_yday = 333;
  return time;
}

Variables variables_of(const ordered_json& context) {
  Variables variables;
  for (const auto& [name, value] : context.items()) {
    variables.emplace_back(name, *parse_json(value.dump(), Origin::kMessage, name));
  }
  return variables;
}

// What goes wrong with one rendering, or nothing.
std::string difference(const Result<Template>& parsed, const Variables& variables,
                       const ordered_json& golden) {
  Result<MarkedText> text =
      parsed ? parsed->render(variables, golden_time()) : Result<MarkedText>(parsed.error());
  if (golden.contains("rendered")) {
    if (!text) return text.error().message;
    const std::string expected = golden["rendered"];
    if (text->bytes() == expected) return "";
    return "found:\n" + text->bytes() + "\nexpected:\n" + expected;
  }
  // What Python alone refuses need not be refused; what the template raises must be.
  if (text)
    return golden["raised_by_template"] ? "no error, expected " + golden["error"].dump() : "";
  const std::string expected = printable(golden["error"].get<std::string>(), 2000);
  if (!golden["raised_by_template"] || text.error().message.ends_with(": " + expected)) return "";
  return "error: " + text.error().message + "\nexpected: " + expected;
}

TEST(JinjaGoldens, TheTemplatesOfModelsRenderAsInTransformers) {
  std::map<std::string, Result<Template>> templates;
  for (const ordered_json& entry : lines("templates")) {
    templates.emplace(entry["name"],
                      Template::parse(entry["source"].get<std::string>(), "template"));
  }
  EXPECT_EQ(templates.size(), 46);
  std::size_t count = 0;
  for (const ordered_json& golden : lines("renderings")) {
    ordered_json context = golden["kwargs"];
    for (const char* name : {"messages", "tools", "documents"}) context[name] = golden[name];
    EXPECT_EQ(difference(templates.at(golden["template"]), variables_of(context), golden), "")
        << golden["template"] << " " << golden["label"];
    ++count;
  }
  EXPECT_EQ(count, 1532);
}

TEST(JinjaGoldens, TheLanguageMeansWhatItMeansInTransformers) {
  std::size_t count = 0;
  for (const ordered_json& golden : lines("snippets")) {
    const auto parsed = Template::parse(golden["template"].get<std::string>(), "template");
    EXPECT_EQ(difference(parsed, variables_of(golden["context"]), golden), "")
        << golden["template"];
    ++count;
  }
  EXPECT_EQ(count, 83);
}

}  // namespace
}  // namespace espalier::text::jinja
