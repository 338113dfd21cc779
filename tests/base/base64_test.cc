#include "base/base64.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(Base64, DecodesTheVectorsOfRfc4648) {
  EXPECT_EQ(base64_decode(""), "");
  EXPECT_EQ(base64_decode("Zg=="), "f");
  EXPECT_EQ(base64_decode("Zm8="), "fo");
  EXPECT_EQ(base64_decode("Zm9v"), "foo");
  EXPECT_EQ(base64_decode("Zm9vYg=="), "foob");
  EXPECT_EQ(base64_decode("Zm9vYmFy"), "foobar");
  EXPECT_EQ(base64_decode("+/8A"), std::string("\xfb\xff\x00", 3));
}

TEST(Base64, AnythingElseIsNothing) {
  for (const char* text : {"Z", "Zg", "Zg=", "Zm9v\n", "Zm-_", "Z===", "=Zm9", "Zm9\xff"}) {
    EXPECT_EQ(base64_decode(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace espalier
