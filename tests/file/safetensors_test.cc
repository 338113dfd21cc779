#include "file/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>

#include "support/files.h"

namespace espalier::file {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// A file of that header and `data_bytes` zero bytes.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  return file + header + std::string(data_bytes, '\0');
}

// The message with which reading a file fails; "" when it is read.
std::string parse_error(const std::string& file) {
  const auto result = Safetensors::parse(as_bytes(file), "x.safetensors");
  if (result) return "";
  EXPECT_EQ(result.error().kind, ErrorKind::kInput);
  EXPECT_THAT(result.error().message, StartsWith("x.safetensors: "));
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
  return result.error().message;
}

std::string header_error(const std::string& header, std::size_t data_bytes = 0) {
  return parse_error(file_of(header, data_bytes));
}

constexpr const char* kSmall = R"({"__metadata__":{"format":"pt","é":"ü"},)"
                               R"("b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},)"
                               R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                               R"("empty":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]},)"
                               R"("scalar":{"dtype":"BF16","shape":[],"data_offsets":[12,14]}}   )";

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string file = file_of(kSmall, 14);
  const auto read = Safetensors::parse(as_bytes(file), "x");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_THAT(read->metadata(),
              ElementsAre(testing::Pair("format", "pt"), testing::Pair("é", "ü")));
  std::vector<std::string> names;
  for (const SafetensorsTensor& tensor : read->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, ElementsAre("a", "empty", "b", "scalar"));
  const SafetensorsTensor* b = read->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, Dtype::kF32);
  EXPECT_THAT(b->shape, ElementsAre(2, 1));
  EXPECT_EQ(b->data.size(), 8);
  EXPECT_EQ(as_text(b->data).data(), file.data() + file.size() - 10);
  EXPECT_EQ(read->find("scalar")->data.size(), 2);
  EXPECT_EQ(read->find("c"), nullptr);
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  EXPECT_EQ(header_error("{}"), "");
  EXPECT_EQ(header_error(R"({"__metadata__":null})"), "");
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file = file_of(kSmall, 14);
  for (std::size_t length = 0; length < file.size(); ++length) {
    EXPECT_NE(parse_error(file.substr(0, length)), "") << length;
  }
  EXPECT_EQ(parse_error(file), "");
}

TEST(Safetensors, RefusesAHeaderLengthThatLies) {
  std::string file = file_of("{}", 0);
  EXPECT_THAT(parse_error(file.substr(0, 7)), HasSubstr("7 bytes, expected at least 8"));
  file[0] = 3;
  EXPECT_THAT(parse_error(file), HasSubstr("should take 3 bytes, 2 follow"));
  file.replace(0, 8, 8, '\xff');
  EXPECT_THAT(parse_error(file), HasSubstr("take 18446744073709551615 bytes, 2 follow and 1000"));
  EXPECT_THAT(header_error("", 10), HasSubstr("starts with ''"));
}

TEST(Safetensors, RefusesAHeaderThatIsNotAJsonObject) {
  EXPECT_THAT(header_error("[]"), HasSubstr("starts with '[', expected '{'"));
  EXPECT_THAT(header_error(" {}"), HasSubstr("starts with ' '"));
  EXPECT_THAT(header_error("{\"a\":"), HasSubstr("not JSON at its byte 6"));
  EXPECT_THAT(header_error("{} {}"), HasSubstr("not JSON"));
  EXPECT_THAT(header_error(R"({"a":1})"), HasSubstr("tensor 'a' is a number, expected an object"));
  EXPECT_THAT(header_error(R"({"a":null})"), HasSubstr("tensor 'a' is null"));
  EXPECT_THAT(header_error(R"({"__metadata__":"x"})"),
              HasSubstr("'__metadata__' is a string, expected an object"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"k":1}})"),
              HasSubstr("__metadata__: key 'k' is a number, expected a string"));
}

TEST(Safetensors, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(header_error("{\"a\xff\":1}"), HasSubstr("not UTF-8 at its byte"));
}

TEST(Safetensors, RefusesDeepJson) {
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(header_error("{\"a\":" + deep), HasSubstr("tensor 'a' is an array"));
  EXPECT_THAT(header_error("{\"a\":{\"dtype\":" + deep), HasSubstr("dtype is an array"));
  EXPECT_THAT(header_error("{\"a\":{\"shape\":" + deep), HasSubstr("shape holds an array"));
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) objects += "\"a\":{";
  EXPECT_THAT(header_error(objects), HasSubstr("tensor 'a': unknown key 'a'"));
}

TEST(Safetensors, RefusesNamesThatComeTwice) {
  const std::string tensor = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(header_error("{\"a\":" + tensor + ",\"a\":" + tensor + "}"),
              HasSubstr("tensor 'a' comes twice"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"k":"1","k":"2"}})"),
              HasSubstr("__metadata__: key 'k' comes twice"));
  EXPECT_THAT(header_error(R"({"__metadata__":{},"__metadata__":{}})"),
              HasSubstr("__metadata__ comes twice"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","dtype":"U8"}})"),
              HasSubstr("tensor 'a': dtype comes twice"));
  EXPECT_THAT(header_error(R"({"a":{"shape":[],"shape":[]}})"), HasSubstr("shape comes twice"));
}

TEST(Safetensors, RefusesIncompleteOrMistypedEntries) {
  EXPECT_THAT(header_error(R"({"a":{"shape":[0],"data_offsets":[0,0]}})"),
              HasSubstr("tensor 'a': dtype is missing"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})"),
              HasSubstr("shape is missing"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[0]}})"),
              HasSubstr("data_offsets is missing"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":8}})"), HasSubstr("dtype is a number, expected a str"));
  EXPECT_THAT(header_error(R"({"a":{"shape":8}})"), HasSubstr("shape is a number, expected an ar"));
  EXPECT_THAT(header_error(R"({"a":{"shape":[-1]}})"), HasSubstr("shape holds a negative number"));
  EXPECT_THAT(header_error(R"({"a":{"shape":[1.5]}})"), HasSubstr("not a 64-bit integer"));
  EXPECT_THAT(header_error(R"({"a":{"shape":[18446744073709551616]}})"),
              HasSubstr("not a 64-bit integer"));
  EXPECT_THAT(header_error(R"({"a":{"more":1}})"), HasSubstr("tensor 'a': unknown key 'more'"));
}

TEST(Safetensors, NamesAnUnknownDtype) {
  EXPECT_THAT(header_error(R"({"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("tensor 'a': unknown dtype 'Q9'"));
}

TEST(Safetensors, RefusesSizesThatDisagree) {
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}})", 7),
              HasSubstr("[0, 7] hold 7 bytes, F32 of shape [2] needs 8"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1),
              HasSubstr("F4 of shape [3] is too large or not a whole number of bytes"));
  EXPECT_THAT(
      header_error(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
      HasSubstr("too large or not a whole number of bytes"));
}

TEST(Safetensors, RefusesOffsetsOutsideTheFileOrBackwards) {
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3),
              HasSubstr("data_offsets [0, 4] end outside the file's 3 bytes of data"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4),
              HasSubstr("data_offsets are [4, 0], expected [begin, end]"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,8]}})", 8),
              HasSubstr("data_offsets are [0, 4, 8]"));
}

TEST(Safetensors, RefusesOverlapsAndHoles) {
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})",
                           7),
              HasSubstr("tensors 'a' and 'b' overlap by 1 bytes"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5),
              HasSubstr("1 bytes before tensor 'a' belong to no tensor"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 6),
              HasSubstr("2 bytes after the last tensor belong to no tensor"));
}

TEST(Safetensors, ShowsHostileNamesOnOneLine) {
  EXPECT_THAT(header_error(R"({"a\n\u001b[2J":1})"), HasSubstr(R"(tensor 'a\n\x1b[2J')"));
  EXPECT_LT(header_error("{\"" + std::string(100'000, 'n') + "\":1}").size(), 400);
}

TEST(Dtypes, KeepTheirNamesAndSizes) {
  for (int i = 0; i <= static_cast<int>(Dtype::kC64); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(find_dtype(dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(find_dtype("f32"), std::nullopt);
  EXPECT_EQ(tensor_bytes(Dtype::kF6E2M3, std::vector<std::uint64_t>{4, 5}), 15);
  EXPECT_EQ(tensor_bytes(Dtype::kF4, std::vector<std::uint64_t>{2, 5}), 5);
  EXPECT_EQ(dtype_bits(Dtype::kC64), 64);
}

class SafetensorsWriting : public testing::Test {
 protected:
  std::filesystem::path path() const { return folder_ / "out.safetensors"; }
  std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), {});
  }

  test::TemporaryDirectory folder_;
};

TEST_F(SafetensorsWriting, RoundTripsInChunksAndAnyOrder) {
  auto writer = SafetensorsWriter::create(path(),
                                          {{"odd", Dtype::kU8, {3}},
                                           {"logits", Dtype::kF32, {2, 2}},
                                           {"\"quoted\\ é\n", Dtype::kF64, {1}},
                                           {"nothing", Dtype::kI32, {0}},
                                           {"scalar", Dtype::kBF16, {}}},
                                          {{"format", "pt"}, {"made by", "ü\""}});
  ASSERT_TRUE(writer) << writer.error().message;
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_TRUE(writer->write("logits", as_bytes("abcde")));
  EXPECT_TRUE(writer->write("odd", as_bytes("xyz")));
  EXPECT_TRUE(writer->write("scalar", as_bytes("ss")));
  EXPECT_TRUE(writer->write("logits", as_bytes("fghijklmnop")));
  EXPECT_TRUE(writer->write("\"quoted\\ é\n", as_bytes("12345678")));
  const Status status = writer->finish();
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(files(), 1);

  const auto read = Safetensors::open(path());
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->tensors().size(), 5);
  EXPECT_EQ(read->metadata().at("made by"), "ü\"");
  EXPECT_EQ(as_text(read->find("logits")->data), "abcdefghijklmnop");
  EXPECT_THAT(read->find("logits")->shape, ElementsAre(2, 2));
  EXPECT_EQ(as_text(read->find("odd")->data), "xyz");
  EXPECT_EQ(as_text(read->find("\"quoted\\ é\n")->data), "12345678");
  EXPECT_TRUE(read->find("scalar")->shape.empty());
  for (const SafetensorsTensor& tensor : read->tensors()) {
    const auto address = reinterpret_cast<std::uintptr_t>(tensor.data.data());
    EXPECT_EQ(address % (dtype_bits(tensor.dtype) / 8), 0) << tensor.name;
  }
}

TEST_F(SafetensorsWriting, LeavesNothingBehindWhenUnfinished) {
  test::write_file(path(), "old");
  {
    auto writer = SafetensorsWriter::create(path(), {{"a", Dtype::kU8, {3}}});
    ASSERT_TRUE(writer);
    EXPECT_TRUE(writer->write("a", as_bytes("xy")));
    const Status status = writer->finish();
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr("tensor 'a': 1 of its bytes were never written"));
    EXPECT_EQ(files(), 2);
  }
  EXPECT_EQ(files(), 1);
  EXPECT_EQ(test::read_file(path()), "old");
}

TEST_F(SafetensorsWriting, RefusesWhatTheFormatCannotHold) {
  const auto error = [&](std::vector<SafetensorsWriter::Declaration> tensors) {
    const auto writer = SafetensorsWriter::create(path(), std::move(tensors));
    return writer ? "" : writer.error().message;
  };
  EXPECT_THAT(error({{"a", Dtype::kU8, {1}}, {"a", Dtype::kU8, {1}}}),
              HasSubstr("'a' comes twice"));
  EXPECT_THAT(error({{"__metadata__", Dtype::kU8, {1}}}), HasSubstr("cannot have the name"));
  EXPECT_THAT(error({{"a\xff", Dtype::kU8, {1}}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(error({{"a", Dtype::kF4, {1}}}), HasSubstr("not a whole number of bytes"));
  EXPECT_THAT(error({{"a", Dtype::kU8, {1ull << 61}}}), HasSubstr("too large"));
  std::vector<SafetensorsWriter::Declaration> together;
  for (int i = 0; i < 17; ++i) together.push_back({std::to_string(i), Dtype::kU8, {1ull << 60}});
  EXPECT_THAT(error(together), HasSubstr("tensor '15'"));
  EXPECT_EQ(files(), 0);
}

TEST_F(SafetensorsWriting, RefusesTooManyBytesAndUnknownTensors) {
  auto writer = SafetensorsWriter::create(path(), {{"a", Dtype::kU8, {3}}});
  ASSERT_TRUE(writer);
  EXPECT_THAT(writer->write("a", as_bytes("1234")).error().message, HasSubstr("4 bytes given, 3"));
  EXPECT_THAT(writer->write("b", as_bytes("1")).error().message, HasSubstr("'b' was not declared"));
}

TEST_F(SafetensorsWriting, RefusesAPathThatIsNoFile) {
  const auto over_folder = SafetensorsWriter::create(folder_.path(), {});
  ASSERT_FALSE(over_folder);
  EXPECT_THAT(over_folder.error().message, HasSubstr("not a regular file"));
  const auto nowhere = SafetensorsWriter::create(path() / "x", {});
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().kind, ErrorKind::kWork);
}

}  // namespace
}  // namespace espalier::file
