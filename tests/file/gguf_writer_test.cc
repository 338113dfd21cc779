#include "file/gguf_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/files.h"
#include "support/gguf_builder.h"

namespace espalier::file {
namespace {

using test::GgufBuilder;
using test::TemporaryDirectory;
using ::testing::ElementsAre;

const pack::Format* format(std::string_view name) { return pack::find_format(name); }

std::size_t files_in(const TemporaryDirectory& folder) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

GgufMetadata sample_metadata() {
  GgufMetadata metadata;
  metadata.set("general.architecture", std::string("llama"));
  metadata.set("u8", std::uint8_t{200});
  metadata.set("i8", std::int8_t{-3});
  metadata.set("u16", std::uint16_t{60000});
  metadata.set("i16", std::int16_t{-30000});
  metadata.set("u32", std::uint32_t{4000000000});
  metadata.set("i32", std::int32_t{-5});
  metadata.set("u64", std::numeric_limits<std::uint64_t>::max());
  metadata.set("i64", std::numeric_limits<std::int64_t>::min());
  metadata.set("f32", 1e-5f);
  metadata.set("f64", 0.1);
  metadata.set("yes", true);
  metadata.set("no", false);
  metadata.set("strings", std::vector<std::string>{"one", "", "three"});
  metadata.set("ints", std::vector<std::int32_t>{-1, 2});
  metadata.set("bools", std::vector<bool>{true, false});
  metadata.set("empty", std::vector<float>{});
  return metadata;
}

TEST(GgufWriter, WhatIsWrittenIsRead) {
  const TemporaryDirectory folder;
  auto file = create_gguf(folder / "m.gguf", sample_metadata(),
                          {{"q", format("Q4_1"), {64, 3}}, {"b", format("BF16"), {5}}});
  ASSERT_TRUE(file) << file.error().message;
  // In chunks, and the tensors in turns.
  EXPECT_TRUE(file->write("q", as_bytes(std::string(50, 'q'))));
  EXPECT_TRUE(file->write("b", as_bytes("0123456789")));
  EXPECT_TRUE(file->write("q", as_bytes(std::string(70, 'r'))));
  EXPECT_FALSE(std::filesystem::exists(folder / "m.gguf"));
  const Status finished = file->finish();
  ASSERT_TRUE(finished) << finished.error().message;
  EXPECT_EQ(files_in(folder), 1u);

  const auto gguf = Gguf::open(folder / "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ(gguf->version(), 3u);
  const auto described = [&](std::string_view key) { return describe(*gguf->find(key)); };
  EXPECT_EQ(gguf->metadata().size(), 17u);
  EXPECT_EQ(described("general.architecture"), "string 'llama'");
  EXPECT_EQ(described("u8"), "uint8 200");
  EXPECT_EQ(described("i8"), "int8 -3");
  EXPECT_EQ(described("u16"), "uint16 60000");
  EXPECT_EQ(described("i16"), "int16 -30000");
  EXPECT_EQ(described("u32"), "uint32 4000000000");
  EXPECT_EQ(described("i32"), "int32 -5");
  EXPECT_EQ(described("u64"), "uint64 18446744073709551615");
  EXPECT_EQ(described("i64"), "int64 -9223372036854775808");
  EXPECT_EQ(described("f32"), "float32 1e-05");
  EXPECT_EQ(described("f64"), "float64 0.1");
  EXPECT_EQ(described("yes"), "bool true");
  EXPECT_EQ(described("no"), "bool false");
  EXPECT_EQ(described("bools"), "array of 2 × bool");
  EXPECT_EQ(described("empty"), "array of 0 × float32");
  EXPECT_THAT(**gguf->strings("strings"), ElementsAre("one", "", "three"));
  EXPECT_THAT(**gguf->integers("ints"), ElementsAre(-1, 2));

  const GgufTensor* q = gguf->find_tensor("q");
  EXPECT_THAT(q->dims, ElementsAre(64, 3));
  EXPECT_EQ(q->format->name, "Q4_1");
  EXPECT_EQ(as_text(q->data), std::string(50, 'q') + std::string(70, 'r'));
  EXPECT_EQ(as_text(gguf->find_tensor("b")->data), "0123456789");
}

// Everything that one file says, said again by another; also by the same bytes.
TEST(GgufWriter, AFileCopiedKeyByKeyIsTheSame) {
  const TemporaryDirectory folder;
  const std::string nested = test::gguf_array(
      GgufType::kArray, 1, test::gguf_array(GgufType::kString, 1, test::gguf_string("text")));
  GgufBuilder built;
  built.add("u8", std::uint8_t{200}).add("i8", std::int8_t{-3});
  built.add("u16", std::uint16_t{60000}).add("i16", std::int16_t{-30000});
  built.add("u32", std::uint32_t{4000000000}).add("i32", std::int32_t{-5});
  built.add("u64", std::numeric_limits<std::uint64_t>::max());
  built.add("i64", std::numeric_limits<std::int64_t>::min());
  built.add("f32", -1e-5f).add("f64", 0.1).add("yes", true).add("no", false).add("text", "ü\n");
  built.add("strings", std::vector<std::string>{"one", "", "three"});
  built.add_raw("nested", 9, nested);
  built.add("general.alignment", std::uint32_t{64});
  built.alignment = 64;
  built.tensor("x", {3, 2}, {1, 2, 3, 4, 5, 6}).tensor("y", {16}, std::vector<float>(16, 0.5f));

  const auto source = Gguf::open(built.write(folder / "source.gguf"));
  ASSERT_TRUE(source) << source.error().message;
  GgufMetadata metadata;
  for (const auto& [key, value] : source->metadata()) metadata.set(key, value);
  std::vector<GgufDeclaration> tensors;
  for (const GgufTensor& tensor : source->tensors()) {
    tensors.push_back({std::string(tensor.name), tensor.format, tensor.dims});
  }
  auto file = create_gguf(folder / "copy.gguf", metadata, tensors);
  ASSERT_TRUE(file) << file.error().message;
  for (const GgufTensor& tensor : source->tensors()) {
    EXPECT_TRUE(file->write(tensor.name, tensor.data));
  }
  ASSERT_TRUE(file->finish());
  EXPECT_EQ(test::read_file(folder / "copy.gguf"), built.bytes());
}

TEST(GgufWriter, TheLastTensorIsPaddedWithZeros) {
  const TemporaryDirectory folder;
  auto file = create_gguf(folder / "m.gguf", {}, {{"x", format("F32"), {1}}});
  ASSERT_TRUE(file);
  EXPECT_TRUE(file->write("x", as_bytes("1234")));
  ASSERT_TRUE(file->finish());
  const std::string bytes = test::read_file(folder / "m.gguf");
  EXPECT_EQ(bytes.size() % 32, 0u);
  EXPECT_EQ(bytes.substr(bytes.size() - 32), "1234" + std::string(28, '\0'));
}

TEST(GgufWriter, WithoutTensorsThereIsNoPadding) {
  const TemporaryDirectory folder;
  GgufMetadata metadata;
  metadata.set("k", true);
  auto file = create_gguf(folder / "v.gguf", metadata, {});
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->finish());
  EXPECT_EQ(test::read_file(folder / "v.gguf"), GgufBuilder().add("k", true).bytes());
}

TEST(GgufWriter, AKeySetAgainKeepsItsPlace) {
  const TemporaryDirectory folder;
  GgufMetadata metadata;
  metadata.set("a", std::uint32_t{1});
  metadata.set("b", std::uint32_t{2});
  metadata.set("a", std::string("one"));
  auto file = create_gguf(folder / "m.gguf", metadata, {});
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->finish());
  const auto gguf = Gguf::open(folder / "m.gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  ASSERT_EQ(gguf->metadata().size(), 2u);
  EXPECT_EQ(gguf->metadata()[0].first, "a");
  EXPECT_EQ(describe(gguf->metadata()[0].second), "string 'one'");
}

TEST(GgufWriter, NothingIsLeftOfAnUnfinishedFile) {
  const TemporaryDirectory folder;
  test::write_file(folder / "m.gguf", "the old file");
  {
    auto file = create_gguf(folder / "m.gguf", {}, {{"x", format("F32"), {2}}});
    ASSERT_TRUE(file);
    EXPECT_TRUE(file->write("x", as_bytes("1234")));
    EXPECT_EQ(files_in(folder), 2u);
    const Status finished = file->finish();
    ASSERT_FALSE(finished);
    EXPECT_EQ(finished.error().kind, ErrorKind::kWork);
    EXPECT_EQ(finished.error().message,
              (folder / "m.gguf").string() + ": tensor 'x': 4 of its bytes were never written");
  }
  EXPECT_EQ(files_in(folder), 1u);
  EXPECT_EQ(test::read_file(folder / "m.gguf"), "the old file");
}

TEST(GgufWriterWrong, Chunks) {
  const TemporaryDirectory folder;
  auto file = create_gguf(folder / "m.gguf", {}, {{"x", format("F32"), {2}}});
  ASSERT_TRUE(file);
  const std::string path = (folder / "m.gguf").string();
  EXPECT_EQ(file->write("y", as_bytes("1234")).error().message,
            path + ": tensor 'y' was not declared");
  EXPECT_EQ(file->write("x", as_bytes("123456789")).error().message,
            path + ": tensor 'x': 9 bytes given, 8 are left of what was declared");
}

TEST(GgufWriterWrong, Declarations) {
  const TemporaryDirectory folder;
  const auto error = [&](const std::vector<GgufDeclaration>& tensors) -> std::string {
    const auto file = create_gguf(folder / "m.gguf", {}, tensors);
    if (file) return "no error";
    EXPECT_EQ(file.error().kind, ErrorKind::kInput);
    return file.error().message.substr(folder.path().string().size() + 1);
  };
  const pack::Format* f32 = format("F32");
  EXPECT_EQ(error({{"", f32, {1}}}),
            "m.gguf: tensor '': found a name of 0 bytes, expected 1 to 63");
  EXPECT_EQ(error({{std::string(63, 'n'), f32, {1}}}), "no error");
  EXPECT_EQ(
      error({{std::string(64, 'n'), f32, {1}}}),
      "m.gguf: tensor '" + std::string(64, 'n') + "': found a name of 64 bytes, expected 1 to 63");
  EXPECT_EQ(error({{"x", f32, {1}}, {"x", f32, {1}}}), "m.gguf: tensor 'x' comes twice");
  EXPECT_EQ(error({{"x", f32, {}}}), "m.gguf: tensor 'x': found 0 dimensions, expected 1 to 4");
  EXPECT_EQ(error({{"x", f32, {1, 1, 1, 1, 1}}}),
            "m.gguf: tensor 'x': found 5 dimensions, expected 1 to 4");
  EXPECT_EQ(error({{"x", f32, {2, 0}}}),
            "m.gguf: tensor 'x': dimension 1 of 2 is 0, expected at least 1");
  EXPECT_EQ(error({{"x", format("Q4_1"), {33}}}),
            "m.gguf: tensor 'x': 33 values do not fill whole blocks of 32, which Q4_1 needs");
  EXPECT_EQ(error({{"x", f32, {1ull << 40, 1ull << 40}}}),
            "m.gguf: tensor 'x': the product of its dimensions 1099511627776×1099511627776 "
            "overflows");
  EXPECT_EQ(error({{"x", f32, {1ull << 61}}, {"y", f32, {1ull << 61}}, {"z", f32, {1}}}),
            "m.gguf: tensor 'y': the file's size overflows");
  EXPECT_EQ(error({{"x", f32, {1ull << 61}}}), "m.gguf: the file's size overflows");
  const pack::Format unnumbered{.name = "EXL3", .family = pack::Family::kExl3};
  EXPECT_EQ(error({{"x", &unnumbered, {1}}}), "m.gguf: tensor 'x': GGUF has no type for EXL3");
  EXPECT_EQ(files_in(folder), 0u);
}

TEST(GgufWriterWrong, Metadata) {
  const TemporaryDirectory folder;
  const auto error = [&](std::string_view key, const auto& value) -> std::string {
    GgufMetadata metadata;
    metadata.set(key, value);
    const auto file = create_gguf(folder / "m.gguf", metadata, {});
    if (file) return "no error";
    return file.error().message.substr(folder.path().string().size() + 1);
  };
  EXPECT_EQ(error("", true), "m.gguf: metadata key '': found 0 bytes, expected 1 to 65535");
  EXPECT_THAT(error(std::string(65536, 'k'), true),
              testing::HasSubstr("…': found 65536 bytes, expected 1 to 65535"));
  const std::string alignment =
      "m.gguf: metadata key 'general.alignment': expected a power of two as uint32";
  EXPECT_EQ(error("general.alignment", std::uint32_t{0}), alignment);
  EXPECT_EQ(error("general.alignment", std::uint32_t{24}), alignment);
  EXPECT_EQ(error("general.alignment", std::uint64_t{32}), alignment);
  EXPECT_EQ(error("general.alignment", std::string("32")), alignment);
}

TEST(GgufWriterWrong, Places) {
  const TemporaryDirectory folder;
  const auto absent = create_gguf(folder / "absent/m.gguf", {}, {});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().kind, ErrorKind::kWork);
  EXPECT_THAT(absent.error().message,
              testing::EndsWith(": cannot create: No such file or directory"));
  const auto directory = create_gguf(folder.path(), {}, {});
  EXPECT_EQ(directory.error().message,
            folder.path().string() + ": exists and is not a regular file");
  EXPECT_EQ(create_gguf("/dev/null", {}, {}).error().message,
            "/dev/null: exists and is not a regular file");
}

}  // namespace
}  // namespace espalier::file
