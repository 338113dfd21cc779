#include "file/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "support/files.h"
#include "support/gguf_builder.h"

namespace espalier::file {
namespace {

using test::gguf_array;
using test::gguf_string;
using test::GgufBuilder;
using test::le_bytes;
using test::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The message of a wrong file. It must be one line that starts with the file's name.
std::string error_of(std::string_view bytes) {
  const auto gguf = Gguf::parse(as_bytes(bytes), "m.gguf");
  if (gguf) return "no error";
  EXPECT_EQ(gguf.error().kind, ErrorKind::kInput);
  EXPECT_THAT(gguf.error().message, testing::StartsWith("m.gguf: "));
  EXPECT_EQ(gguf.error().message.find('\n'), std::string::npos);
  return gguf.error().message;
}

std::string error_of(const GgufBuilder& file) { return error_of(file.bytes()); }

std::vector<float> ramp(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  return values;
}

// A little of everything; its last tensor ends where the file ends.
GgufBuilder sample() {
  GgufBuilder file;
  file.add("general.architecture", "llama")
      .add("a.u8", std::uint8_t{200})
      .add("a.i8", std::int8_t{-3})
      .add("a.u16", std::uint16_t{60000})
      .add("a.i16", std::int16_t{-30000})
      .add("a.u32", std::uint32_t{4000000000})
      .add("a.i32", std::int32_t{-5})
      .add("a.u64", std::numeric_limits<std::uint64_t>::max())
      .add("a.i64", std::numeric_limits<std::int64_t>::min())
      .add("a.f32", 0.5f)
      .add("a.f64", 0.1)
      .add("a.yes", true)
      .add("a.no", false)
      .add("a.strings", std::vector<std::string>{"one", "", "three"})
      .add("a.ints", std::vector<std::int32_t>{-1, 2})
      .add("a.floats", std::vector<float>{0.25f, 4.0f})
      .add("a.empty", std::vector<std::string>{});
  file.tensor("x", {4, 3}, ramp(12)).tensor("y", {8}, ramp(8));
  return file;
}

// A file whose one tensor is described by `change`.
GgufBuilder with_tensor(const std::function<void(GgufBuilder::Tensor&)>& change) {
  GgufBuilder::Tensor tensor{.name = "x", .dims = {4}, .data = std::string(16, 'd')};
  change(tensor);
  return GgufBuilder().tensor(tensor);
}

TEST(Gguf, ReadsEveryTypeOfMetadata) {
  const std::string bytes = sample().bytes();
  const auto gguf = Gguf::parse(as_bytes(bytes), "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->version(), 3u);
  EXPECT_EQ(gguf->alignment(), 32u);
  EXPECT_EQ(gguf->parts(), 1u);
  EXPECT_EQ(gguf->metadata().size(), 17u);
  EXPECT_EQ(gguf->metadata()[0].first, "general.architecture");

  EXPECT_EQ(**gguf->string("general.architecture"), "llama");
  EXPECT_EQ(**gguf->unsigned_integer("a.u8"), 200u);
  EXPECT_EQ(**gguf->unsigned_integer("a.u16"), 60000u);
  EXPECT_EQ(**gguf->unsigned_integer("a.u32"), 4000000000u);
  EXPECT_EQ(**gguf->unsigned_integer("a.u64"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(**gguf->number("a.i8"), -3);
  EXPECT_EQ(**gguf->number("a.i16"), -30000);
  EXPECT_EQ(**gguf->number("a.i32"), -5);
  EXPECT_EQ(**gguf->number("a.i64"), -0x1p63);
  EXPECT_EQ(**gguf->number("a.f32"), 0.5);
  EXPECT_EQ(**gguf->number("a.f64"), 0.1);
  EXPECT_EQ(**gguf->boolean("a.yes"), true);
  EXPECT_EQ(**gguf->boolean("a.no"), false);
  EXPECT_THAT(**gguf->strings("a.strings"), ElementsAre("one", "", "three"));
  EXPECT_THAT(**gguf->integers("a.ints"), ElementsAre(-1, 2));
  EXPECT_THAT(**gguf->numbers("a.ints"), ElementsAre(-1, 2));
  EXPECT_THAT(**gguf->numbers("a.floats"), ElementsAre(0.25, 4));
  EXPECT_TRUE((*gguf->strings("a.empty"))->empty());

  EXPECT_EQ(*gguf->string("absent"), std::nullopt);
  EXPECT_EQ(*gguf->integers("absent"), std::nullopt);
  EXPECT_EQ(required(*gguf, "absent", gguf->string("absent")).error().message,
            "m.gguf: metadata key 'absent' is missing");
}

TEST(Gguf, ReadsTensors) {
  GgufBuilder file = sample();
  file.tensor({.name = "q", .dims = {32, 2, 1, 3}, .type = 3, .data = std::string(20 * 6, 'q')});
  const std::string bytes = file.bytes();
  const auto gguf = Gguf::parse(as_bytes(bytes), "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  ASSERT_EQ(gguf->tensors().size(), 3u);

  const GgufTensor* x = gguf->find_tensor("x");
  ASSERT_NE(x, nullptr);
  EXPECT_THAT(x->dims, ElementsAre(4, 3));
  const pack::Matrix matrix = x->matrix();
  EXPECT_EQ(matrix.rows, 3u);
  EXPECT_EQ(matrix.cols, 4u);
  std::vector<float> row(4);
  pack::decode_rows(matrix, 2, 1, row.data());
  EXPECT_THAT(row, ElementsAre(8, 9, 10, 11));
  EXPECT_EQ(as_text(x->data), bytes.substr(x->offset, 48));

  EXPECT_EQ(gguf->find_tensor("y")->matrix().rows, 1u);
  const GgufTensor* q = gguf->find_tensor("q");
  EXPECT_EQ(q->format->name, "Q4_1");
  EXPECT_EQ(q->matrix().rows, 6u);
  EXPECT_EQ(as_text(q->data), std::string(20 * 6, 'q'));
  EXPECT_EQ(gguf->find_tensor("z"), nullptr);
}

TEST(Gguf, ReadsVersion2AndOtherAlignments) {
  for (const std::uint32_t alignment : {1u, 8u, 64u, 4096u}) {
    GgufBuilder file = sample().add("general.alignment", alignment);
    file.version = 2;
    file.alignment = alignment;
    const std::string bytes = file.bytes();
    const auto gguf = Gguf::parse(as_bytes(bytes), "m.gguf");
    ASSERT_TRUE(gguf) << gguf.error().message;
    EXPECT_EQ(gguf->version(), 2u);
    EXPECT_EQ(gguf->alignment(), alignment);
    std::vector<float> values(8);
    pack::decode_rows(gguf->find_tensor("y")->matrix(), 0, 1, values.data());
    EXPECT_EQ(values, ramp(8));
  }
}

TEST(Gguf, ReadsFilesWithoutTensorsOrMetadata) {
  const std::string vocabulary = GgufBuilder().add("general.architecture", "llama").bytes();
  EXPECT_TRUE(Gguf::parse(as_bytes(vocabulary), "m.gguf"));
  const std::string empty = GgufBuilder().bytes();
  EXPECT_EQ(empty.size(), 24u);
  EXPECT_TRUE(Gguf::parse(as_bytes(empty), "m.gguf"));
}

TEST(Gguf, ReadsArraysOfArrays) {
  const std::string inner_a =
      gguf_array(GgufType::kInt16, 2, le_bytes<std::int16_t>(1) + le_bytes<std::int16_t>(-2));
  const std::string inner_b = gguf_array(GgufType::kString, 1, gguf_string("text"));
  const std::string bytes =
      GgufBuilder()
          .add_raw("nested", 9, gguf_array(GgufType::kArray, 2, inner_a + inner_b))
          .add("after", std::uint32_t{7})
          .bytes();
  const auto gguf = Gguf::parse(as_bytes(bytes), "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(**gguf->unsigned_integer("after"), 7u);

  GgufElements outer(std::get<GgufArray>(gguf->find("nested")->value));
  const auto a = outer.next();
  const auto b = outer.next();
  EXPECT_FALSE(outer.next());
  GgufElements in_a(std::get<GgufArray>(a->value));
  EXPECT_EQ(std::get<std::int64_t>(in_a.next()->value), 1);
  EXPECT_EQ(std::get<std::int64_t>(in_a.next()->value), -2);
  EXPECT_FALSE(in_a.next());
  GgufElements in_b(std::get<GgufArray>(b->value));
  EXPECT_EQ(std::get<std::string_view>(in_b.next()->value), "text");
  EXPECT_EQ(gguf->integers("nested").error().message,
            "m.gguf: metadata key 'nested': found array of 2 × array with element 0 = array of 2 × "
            "int16, expected an array of integers");
}

TEST(Gguf, MovesWithItsViews) {
  const TemporaryDirectory folder;
  auto opened = Gguf::open(sample().write(folder / "m.gguf"));
  ASSERT_TRUE(opened) << opened.error().message;
  const Gguf moved = std::move(*opened);
  EXPECT_EQ(**moved.string("general.architecture"), "llama");
  EXPECT_EQ(moved.find_tensor("y")->data.size(), 32u);
  EXPECT_EQ(moved.name(), (folder / "m.gguf").string());
}

TEST(GgufTypes, AGetterOfAnotherTypeSaysWhatWasFound) {
  const std::string bytes = sample().bytes();
  const auto gguf = Gguf::parse(as_bytes(bytes), "m.gguf");
  const std::string key = "m.gguf: metadata key ";
  EXPECT_EQ(gguf->unsigned_integer("a.i32").error().message,
            key + "'a.i32': found int32 -5, expected an integer of at least 0");
  EXPECT_EQ(gguf->unsigned_integer("a.f32").error().message,
            key + "'a.f32': found float32 0.5, expected an integer of at least 0");
  EXPECT_EQ(gguf->number("general.architecture").error().message,
            key + "'general.architecture': found string 'llama', expected a number");
  EXPECT_EQ(gguf->number("a.yes").error().message,
            key + "'a.yes': found bool true, expected a number");
  EXPECT_EQ(gguf->boolean("a.u8").error().message,
            key + "'a.u8': found uint8 200, expected a bool");
  EXPECT_EQ(gguf->string("a.ints").error().message,
            key + "'a.ints': found array of 2 × int32, expected a string");
  EXPECT_EQ(gguf->strings("general.architecture").error().message,
            key + "'general.architecture': found string 'llama', expected an array of strings");
  EXPECT_EQ(gguf->strings("a.ints").error().message,
            key +
                "'a.ints': found array of 2 × int32 with element 0 = int32 -1, expected an array "
                "of strings");
  EXPECT_EQ(gguf->integers("a.floats").error().message,
            key +
                "'a.floats': found array of 2 × float32 with element 0 = float32 0.25, expected "
                "an array of integers");
  EXPECT_FALSE(gguf->numbers("a.strings"));
}

TEST(GgufTypes, IntegersThatDoNotFitAreRefused) {
  const std::string bytes =
      GgufBuilder()
          .add("k", std::vector<std::uint64_t>{1, std::numeric_limits<std::uint64_t>::max()})
          .bytes();
  const auto gguf = Gguf::parse(as_bytes(bytes), "m.gguf");
  EXPECT_THAT(gguf->integers("k").error().message,
              HasSubstr("element 1 = uint64 18446744073709551615"));
}

TEST(GgufWrong, NotAGguf) {
  EXPECT_EQ(error_of(""), "m.gguf: not a GGUF file: starts with '', expected 'GGUF'");
  EXPECT_EQ(error_of("PK\x03\x04 and more"),
            "m.gguf: not a GGUF file: starts with 'PK\\x03\\x04', expected 'GGUF'");
  EXPECT_EQ(error_of("GGML and more and more and more"),
            "m.gguf: not a GGUF file: starts with 'GGML', expected 'GGUF'");
}

TEST(GgufWrong, EveryTruncationIsNoticed) {
  const std::string bytes = sample().bytes();
  ASSERT_EQ(error_of(bytes), "no error");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    // A copy of exactly that size, so that the address sanitizer sees a read past its end.
    const std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_NE(error_of(std::string_view(cut.data(), cut.size())), "no error") << length;
  }
  EXPECT_EQ(error_of(bytes.substr(0, 10)),
            "m.gguf: the file ends in the header: expected at least 24 bytes, found 10");
  EXPECT_EQ(error_of(bytes.substr(0, bytes.size() - 1)),
            fmt::format("m.gguf: tensor 'y': its 32 bytes at offset 64 of the data reach outside "
                        "the file, which has {} bytes",
                        bytes.size() - 1));
}

TEST(GgufWrong, EveryChangedByteIsReadOrRefused) {
  const std::string bytes = sample().bytes();
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ change);
      error_of(changed);  // checks that there is one line, or none
    }
  }
}

TEST(GgufWrong, Version) {
  GgufBuilder file = sample();
  for (const std::uint32_t version : {0u, 1u, 4u, 99u}) {
    file.version = version;
    EXPECT_EQ(error_of(file),
              fmt::format("m.gguf: found GGUF version {}, expected 2 or 3", version));
  }
  file.version = 0x03000000;
  EXPECT_EQ(error_of(file), "m.gguf: found big-endian GGUF version 3, expected little-endian");
}

TEST(GgufWrong, CountsLargerThanTheFile) {
  for (const std::uint64_t count :
       {std::uint64_t{1000}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    GgufBuilder keys = sample();
    keys.key_count = count;
    EXPECT_THAT(error_of(keys),
                HasSubstr(fmt::format("found a count of {} metadata keys, more than the ", count)));
    GgufBuilder tensors = sample();
    tensors.tensor_count = count;
    EXPECT_THAT(error_of(tensors),
                HasSubstr(fmt::format("found a count of {} tensors, more than the ", count)));
    EXPECT_THAT(
        error_of(GgufBuilder().add_raw("k", 9, gguf_array(GgufType::kInt8, count, "ab"))),
        HasSubstr(fmt::format(
            "metadata key 'k': found an array of {} × int8, more than the 2 bytes left can hold",
            count)));
    EXPECT_THAT(error_of(GgufBuilder().add_raw("k", 8, le_bytes(count) + "abcdef")),
                HasSubstr(fmt::format(
                    "metadata key 'k': the file ends in a string: expected {} more bytes, found 6",
                    count)));
  }
}

TEST(GgufWrong, Keys) {
  EXPECT_EQ(error_of(GgufBuilder().add("a", true).add("", "nameless")),
            "m.gguf: metadata key 2 of 2: found a key of 0 bytes, expected 1 to 65535");
  EXPECT_EQ(error_of(GgufBuilder().add(std::string(65536, 'k'), true)),
            "m.gguf: metadata key 1 of 1: found a key of 65536 bytes, expected 1 to 65535");
  EXPECT_EQ(error_of(GgufBuilder().add(std::string(65535, 'k'), true)), "no error");
  EXPECT_EQ(error_of(sample().add("a.u8", "again")),
            "m.gguf: metadata key 'a.u8' is there twice, expected once");
}

TEST(GgufWrong, NamesInMessagesAreEscaped) {
  const std::string message = error_of(GgufBuilder().add_raw("a\n\x1b[2J", 13, "12345678"));
  EXPECT_EQ(
      message,
      "m.gguf: metadata key 'a\\n\\x1b[2J': the value's type 13 is unknown, expected 0 to 12");
}

TEST(GgufWrong, Values) {
  EXPECT_EQ(error_of(GgufBuilder().add_raw("k", 7, "\x02")),
            "m.gguf: metadata key 'k': found bool 2, expected 0 or 1");
  EXPECT_EQ(error_of(GgufBuilder().add_raw("k", 9, gguf_array(GgufType::kBool, 2, "\x01\xff"))),
            "m.gguf: metadata key 'k': found bool 255, expected 0 or 1");
  EXPECT_EQ(error_of(GgufBuilder().add_raw("k", 9, le_bytes(77u) + le_bytes<std::uint64_t>(0))),
            "m.gguf: metadata key 'k': the array's element type 77 is unknown, expected 0 to 12");
}

TEST(GgufWrong, NestedArrays) {
  std::string value = gguf_array(GgufType::kUint8, 0, "");
  for (int depth = 2; depth <= 4; ++depth) value = gguf_array(GgufType::kArray, 1, value);
  EXPECT_EQ(error_of(GgufBuilder().add_raw("k", 9, value)), "no error");
  value = gguf_array(GgufType::kArray, 1, value);
  EXPECT_EQ(error_of(GgufBuilder().add_raw("k", 9, value)),
            "m.gguf: metadata key 'k': arrays are nested too deep, expected at most 4 levels");

  // A hundred thousand levels: refused before the stack feels it.
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += gguf_array(GgufType::kArray, 1, "");
  EXPECT_THAT(error_of(GgufBuilder().add_raw("k", 9, deep)), HasSubstr("nested too deep"));
}

TEST(GgufWrong, Alignment) {
  for (const std::uint32_t alignment : {0u, 3u, 48u}) {
    EXPECT_EQ(
        error_of(sample().add("general.alignment", alignment)),
        fmt::format("m.gguf: metadata key 'general.alignment': found {}, expected a power of two",
                    alignment));
  }
  EXPECT_EQ(
      error_of(sample().add("general.alignment", "32")),
      "m.gguf: metadata key 'general.alignment': found string '32', expected an integer of at "
      "least 0");
  EXPECT_EQ(error_of(sample().add("general.alignment", std::int32_t{-32})),
            "m.gguf: metadata key 'general.alignment': found int32 -32, expected an integer of at "
            "least 0");
  // The data would start far outside the file.
  EXPECT_THAT(error_of(sample().add("general.alignment", std::uint64_t{1} << 63)),
              HasSubstr("reach outside the file"));
}

TEST(GgufWrong, TensorNames) {
  EXPECT_EQ(error_of(sample().tensor("", {1}, {0.0f})),
            "m.gguf: tensor 3 of 3: found a name of 0 bytes, expected 1 to 127");
  EXPECT_EQ(error_of(sample().tensor(std::string(127, 'n'), {1}, {0.0f})), "no error");
  EXPECT_EQ(error_of(sample().tensor(std::string(128, 'n'), {1}, {0.0f})),
            "m.gguf: tensor 3 of 3: found a name of 128 bytes, expected 1 to 127");
  EXPECT_EQ(error_of(sample().tensor("x", {1}, {0.0f})),
            "m.gguf: tensor 'x' is there twice, expected once");
}

TEST(GgufWrong, Dimensions) {
  using Tensor = GgufBuilder::Tensor;
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) { x.dims = {}, x.data.resize(64); })),
            "m.gguf: tensor 'x': found 0 dimensions, expected 1 to 4");
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) {
              x.dims = {1, 1, 1, 1, 4};
            })),
            "m.gguf: tensor 'x': found 5 dimensions, expected 1 to 4");
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) {
              x.dims = {4, 0};
            })),
            "m.gguf: tensor 'x': dimension 1 of 2 is 0, expected at least 1");
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) {
              x.dims = {1ull << 32, 1ull << 32, 4};
            })),
            "m.gguf: tensor 'x': the product of its dimensions 4294967296×4294967296×4 overflows");
  EXPECT_EQ(
      error_of(with_tensor([](Tensor& x) {
        x.dims = {2, 1ull << 32, 1ull << 32, 1};
      })),
      "m.gguf: tensor 'x': the product of its dimensions 2×4294967296×4294967296×1 overflows");
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) { x.dims = {1ull << 62}; })),
            "m.gguf: tensor 'x': 4611686018427387904 values of F32 overflow a size");
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) {
              x.dims = {48, 2}, x.type = 2;
            })),
            "m.gguf: tensor 'x': 48 values do not fill whole blocks of 32, which Q4_0 needs");
}

TEST(GgufWrong, Types) {
  using Tensor = GgufBuilder::Tensor;
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) { x.type = 99; })),
            "m.gguf: tensor 'x': type 99 is unknown");
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) { x.type = 0xffffffff; })),
            "m.gguf: tensor 'x': type 4294967295 is unknown");
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) { x.type = 4; })),
            "m.gguf: tensor 'x': type 4 (Q4_2) is not supported");
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) { x.type = 31; })),
            "m.gguf: tensor 'x': type 31 (Q4_0_4_4) is not supported");
}

TEST(GgufWrong, Offsets) {
  using Tensor = GgufBuilder::Tensor;
  EXPECT_EQ(error_of(with_tensor([](Tensor& x) { x.offset = 8; })),
            "m.gguf: tensor 'x': found offset 8, expected a multiple of 32");
  EXPECT_EQ(
      error_of(with_tensor([](Tensor& x) { x.offset = 32; })),
      "m.gguf: tensor 'x': its 16 bytes at offset 32 of the data reach outside the file, which "
      "has 80 bytes");
  EXPECT_THAT(error_of(with_tensor([](Tensor& x) { x.offset = ~std::uint64_t{31}; })),
              HasSubstr("reach outside the file"));
  const std::string two(8, '2');
  EXPECT_EQ(error_of(GgufBuilder()
                         .tensor({.name = "a", .dims = {10}, .data = std::string(40, 'a')})
                         .tensor({.name = "b", .dims = {2}, .data = two, .offset = 32})),
            "m.gguf: tensor 'b' at byte 128 overlaps tensor 'a', which ends at byte 136");
  // Listed in another order than they lie in, with a gap, is fine.
  EXPECT_EQ(
      error_of(GgufBuilder()
                   .tensor({.name = "a", .dims = {2}, .data = two, .offset = 64})
                   .tensor({.name = "b", .dims = {2}, .data = std::string(40, 'b'), .offset = 0})),
      "no error");
}

// Millions of elements in a file of a few megabytes: linear time, or this test runs for hours.
TEST(Gguf, ManyTinyThingsAreReadInLinearTime) {
  std::string strings, arrays;
  constexpr std::uint64_t kCount = 300000;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    strings += gguf_string("");
    arrays += gguf_array(GgufType::kArray, 0, "");
  }
  GgufBuilder file;
  file.add_raw("strings", 9, gguf_array(GgufType::kString, kCount, strings));
  file.add_raw("arrays", 9, gguf_array(GgufType::kArray, kCount, arrays));
  for (int i = 0; i < 20000; ++i) {
    file.add(fmt::format("key.{}", i), true);
    file.tensor({.name = std::to_string(i), .dims = {1}, .data = "1234"});
  }
  const std::string bytes = file.bytes();
  const auto gguf = Gguf::parse(as_bytes(bytes), "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ((*gguf->strings("strings"))->size(), kCount);
}

// The parts of a split model, of which tests spoil one.
struct Split {
  TemporaryDirectory folder;
  std::vector<GgufBuilder> parts;

  explicit Split(std::uint16_t count = 3) {
    for (std::uint16_t p = 0; p < count; ++p) {
      GgufBuilder part;
      if (p == 0) part.add("general.architecture", "llama");
      part.add("split.no", p)
          .add("split.count", count)
          .add("split.tensors.count", std::int32_t{count});
      part.tensor(fmt::format("t{}", p), {4}, std::vector<float>(4, p));
      parts.push_back(part);
    }
  }

  std::filesystem::path path(std::size_t part) const {
    return folder / fmt::format("m-{:05}-of-{:05}.gguf", part + 1, parts.size());
  }

  Result<Gguf> open(std::size_t part = 0) const {
    for (std::size_t p = 0; p < parts.size(); ++p) parts[p].write(path(p));
    return Gguf::open(path(part));
  }

  // The message of opening it, without the folder's name.
  std::string error(std::size_t part = 0) const {
    const auto gguf = open(part);
    if (gguf) return "no error";
    std::string message = gguf.error().message;
    const std::string prefix = folder.path().string() + "/";
    for (std::size_t at; (at = message.find(prefix)) != std::string::npos;) {
      message.erase(at, prefix.size());
    }
    return message;
  }
};

GgufBuilder part_that_says(std::uint16_t number, std::uint16_t count, const std::string& tensor) {
  return GgufBuilder()
      .add("split.no", number)
      .add("split.count", count)
      .tensor(tensor, {1}, {0.0f});
}

TEST(GgufSplit, OpensAllPartsAsOne) {
  const Split split;
  const auto gguf = split.open();
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->parts(), 3u);
  EXPECT_EQ(**gguf->string("general.architecture"), "llama");
  ASSERT_EQ(gguf->tensors().size(), 3u);
  for (std::size_t p = 0; p < 3; ++p) {
    const GgufTensor* tensor = gguf->find_tensor(fmt::format("t{}", p));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->part, p);
    EXPECT_EQ(load<float>(tensor->data.data()), static_cast<float>(p));
  }
}

TEST(GgufSplit, APartMayHoldNoTensors) {
  Split split(2);
  split.parts[0] =
      GgufBuilder().add("split.no", std::uint16_t{0}).add("split.count", std::uint16_t{2});
  const auto gguf = split.open();
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->tensors().size(), 1u);
}

TEST(GgufSplit, OnePartIsAWholeFile) {
  const TemporaryDirectory folder;
  const auto path = part_that_says(0, 1, "t").write(folder / "any-name.gguf");
  EXPECT_TRUE(Gguf::open(path));
}

TEST(GgufSplitWrong, MissingPart) {
  const Split split;
  ASSERT_TRUE(split.open());
  std::filesystem::remove(split.path(1));
  const auto gguf = Gguf::open(split.path(0));
  ASSERT_FALSE(gguf);
  EXPECT_EQ(gguf.error().kind, ErrorKind::kInput);
  EXPECT_EQ(gguf.error().message, split.path(0).string() +
                                      ": part 2 of 3 is missing: " + split.path(1).string() +
                                      ": cannot open: No such file or directory");
}

TEST(GgufSplitWrong, OpenedInTheMiddle) {
  EXPECT_EQ(Split().error(1),
            "m-00002-of-00003.gguf: is part 2 of 3 of a split model, expected the first: open "
            "m-00001-of-00003.gguf");
}

TEST(GgufSplitWrong, NameWithoutNumbers) {
  const TemporaryDirectory folder;
  auto opened = Gguf::open(part_that_says(0, 3, "t").write(folder / "m.gguf"));
  EXPECT_EQ(opened.error().message, (folder / "m.gguf").string() +
                                        ": is part 1 of 3 of a split model, expected a name that "
                                        "ends in '-00001-of-00003.gguf'");
  opened = Gguf::open(part_that_says(2, 3, "t").write(folder / "m.gguf"));
  EXPECT_EQ(opened.error().message,
            (folder / "m.gguf").string() + ": is part 3 of 3 of a split model, expected the first");
}

TEST(GgufSplitWrong, NumbersDisagree) {
  Split split;
  split.parts[1] = part_that_says(2, 3, "t1");
  EXPECT_EQ(split.error(),
            "m-00002-of-00003.gguf: found split.no 2 and split.count 3, expected 1 and 3");
  split.parts[1] = part_that_says(1, 4, "t1");
  EXPECT_EQ(split.error(),
            "m-00002-of-00003.gguf: found split.no 1 and split.count 4, expected 1 and 3");
  split.parts[1] = GgufBuilder().tensor("t1", {1}, {0.0f});
  EXPECT_EQ(split.error(), "m-00002-of-00003.gguf: metadata key 'split.no' is missing");
  split.parts[0] = part_that_says(7, 3, "t0");
  EXPECT_EQ(split.error(),
            "m-00001-of-00003.gguf: metadata key 'split.no': found 7, expected less than "
            "split.count, 3");
  split.parts[0] = GgufBuilder().add("split.count", std::uint16_t{3});
  EXPECT_EQ(split.error(), "m-00001-of-00003.gguf: metadata key 'split.no' is missing");
  split.parts[0] = GgufBuilder().add("split.count", "3");
  EXPECT_EQ(split.error(),
            "m-00001-of-00003.gguf: metadata key 'split.count': found string '3', expected an "
            "integer of at least 0");
}

TEST(GgufSplitWrong, TensorsMissingOrTwice) {
  Split split;
  split.parts[2] =
      GgufBuilder().add("split.no", std::uint16_t{2}).add("split.count", std::uint16_t{3});
  EXPECT_EQ(split.error(),
            "m-00001-of-00003.gguf: metadata key 'split.tensors.count': found 3, expected the 2 of "
            "all parts");
  split.parts[2] = part_that_says(2, 3, "t1");
  EXPECT_EQ(split.error(),
            "m-00003-of-00003.gguf: tensor 't1' is in part 2 already, expected once");
}

TEST(GgufSplitWrong, ABrokenPartIsNamed) {
  Split split;
  split.parts[2].version = 1;
  EXPECT_EQ(split.error(), "m-00003-of-00003.gguf: found GGUF version 1, expected 2 or 3");
}

TEST(GgufSplitWrong, CountsBeyondAllFiles) {
  const TemporaryDirectory folder;
  const auto path = GgufBuilder()
                        .add("split.no", std::uint16_t{0})
                        .add("split.count", std::numeric_limits<std::uint64_t>::max())
                        .write(folder / "m-00001-of-18446744073709551615.gguf");
  EXPECT_THAT(Gguf::open(path).error().message,
              HasSubstr("part 2 of 18446744073709551615 is missing"));
}

TEST(GgufOpen, MissingFilesAndFolders) {
  const TemporaryDirectory folder;
  EXPECT_EQ(Gguf::open(folder / "absent.gguf").error().message,
            (folder / "absent.gguf").string() + ": cannot open: No such file or directory");
  EXPECT_EQ(Gguf::open(folder.path()).error().message,
            folder.path().string() + ": expected a file, found a directory");
  test::write_file(folder / "empty.gguf", "");
  EXPECT_EQ(Gguf::open(folder / "empty.gguf").error().message,
            (folder / "empty.gguf").string() + ": expected a file, found an empty file");
}

}  // namespace
}  // namespace espalier::file
