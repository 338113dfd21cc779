#include "file/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::file {
namespace {

using testing::HasSubstr;

std::string parse_error(const std::string& text) {
  const auto result = parse_json(as_bytes(text), "c.json");
  if (result) return "";
  EXPECT_THAT(result.error().message, testing::StartsWith("c.json: "));
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
  return result.error().message;
}

TEST(Json, RefusesWhatIsNotAnObject) {
  EXPECT_EQ(parse_error(R"({"a": [1, {"b": "]]]\"{{"}]})"), "");
  EXPECT_THAT(parse_error("[]"), HasSubstr("the document is an array, expected an object"));
  EXPECT_THAT(parse_error(""), HasSubstr("not JSON at byte 1"));
  EXPECT_THAT(parse_error("{\"a\": 1"), HasSubstr("not JSON at byte 8"));
  EXPECT_THAT(parse_error("{\"a\": NaN}"), HasSubstr("not JSON"));
  EXPECT_THAT(parse_error("{\"a\": \"\xff\"}"), HasSubstr("not UTF-8"));
  EXPECT_THAT(parse_error("{\"a\": 1e999}"), HasSubstr("out of range"));
}

TEST(Json, RefusesDeepNesting) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_EQ(parse_error(nested(kMaxJsonDepth)), "");
  EXPECT_THAT(parse_error(nested(kMaxJsonDepth + 1)), HasSubstr("nested 65 deep, at most 64"));
  EXPECT_THAT(parse_error(std::string(5'000'000, '[')), HasSubstr("nested 5000000 deep"));
  // A bracket that a string or a stray quote hides from the count is no bracket to the parser.
  EXPECT_THAT(parse_error("\"" + std::string(5'000'000, '[')), HasSubstr("not JSON"));
}

TEST(JsonObject, GivesTypedValues) {
  const auto document = parse_json(
      as_bytes(R"({"n":-3,"u":7,"f":1.5,"b":true,"s":"text","o":{"x":1},"null":null})"), "c.json");
  ASSERT_TRUE(document);
  const JsonObject object(*document, "c.json");
  EXPECT_EQ(*object.integer("n"), -3);
  EXPECT_EQ(*object.integer("u"), 7);
  EXPECT_EQ(*object.unsigned_integer("u"), 7u);
  EXPECT_EQ(*object.number("f"), 1.5);
  EXPECT_EQ(*object.number("u"), 7.0);
  EXPECT_EQ(*object.boolean("b"), true);
  EXPECT_EQ(*object.string("s"), "text");
  EXPECT_EQ((*object.object("o"))->where(), "c.json: o");
  EXPECT_EQ(*(*object.object("o"))->integer("x"), 1);
  EXPECT_EQ(*object.integer("absent"), std::nullopt);
  EXPECT_EQ(*object.string("null"), std::nullopt);
}

TEST(JsonObject, NamesKeyAndTypeInErrors) {
  const auto document =
      parse_json(as_bytes(R"({"n":-3,"f":1.5,"s":"text","big":18446744073709551615})"), "c.json");
  ASSERT_TRUE(document);
  const JsonObject object(*document, "c.json");
  EXPECT_EQ(object.unsigned_integer("n").error().message,
            "c.json: key 'n' is a negative integer, expected an integer from 0 up");
  EXPECT_THAT(object.integer("f").error().message, HasSubstr("'f' is a fraction, expected an int"));
  EXPECT_THAT(object.integer("big").error().message, HasSubstr("'big' is 18446744073709551615"));
  EXPECT_THAT(object.number("s").error().message, HasSubstr("'s' is a string, expected a number"));
  EXPECT_THAT(object.boolean("n").error().message, HasSubstr("expected a boolean"));
  EXPECT_THAT(object.string("n").error().message, HasSubstr("expected a string"));
  EXPECT_THAT(object.object("s").error().message, HasSubstr("expected an object"));
}

}  // namespace
}  // namespace espalier::file
