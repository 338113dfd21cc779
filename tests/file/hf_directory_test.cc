#include "file/hf_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "support/data.h"
#include "support/files.h"

namespace espalier::file {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A tensor of zero bytes, or of these.
struct Spec {
  std::string name;
  Dtype dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes = "";
};

class HfDirectories : public testing::Test {
 protected:
  void write(const std::string& file, const std::vector<Spec>& tensors) {
    std::vector<SafetensorsWriter::Declaration> declarations;
    for (const Spec& tensor : tensors) {
      declarations.push_back({tensor.name, tensor.dtype, tensor.shape});
    }
    auto writer = SafetensorsWriter::create(folder_ / file, declarations);
    ASSERT_TRUE(writer) << writer.error().message;
    for (const Spec& tensor : tensors) {
      std::string bytes = tensor.bytes;
      bytes.resize(*tensor_bytes(tensor.dtype, tensor.shape));
      ASSERT_TRUE(writer->write(tensor.name, as_bytes(bytes)));
    }
    ASSERT_TRUE(writer->finish());
  }

  // Text with single quotes for double ones.
  void write_json(const std::string& file, std::string text) {
    std::replace(text.begin(), text.end(), '\'', '"');
    test::write_file(folder_ / file, text);
  }

  std::string open_error() {
    const auto directory = HfDirectory::open(folder_.path());
    if (directory) return "";
    EXPECT_EQ(directory.error().kind, ErrorKind::kInput);
    EXPECT_EQ(directory.error().message.find('\n'), std::string::npos);
    return directory.error().message;
  }

  // Writes a directory of that quantization and one file of tensors, and asks it for module "m".
  Result<std::optional<pack::Matrix>> find(const std::string& quantization,
                                           const std::vector<Spec>& tensors,
                                           const std::string& module = "m") {
    write_json("config.json", quantization);
    write("model.safetensors", tensors);
    auto directory = HfDirectory::open(folder_.path());
    if (!directory) return directory.error();
    directory_.emplace(std::move(*directory));
    return directory_->find_matrix(module);
  }

  std::string find_error(const std::string& quantization, const std::vector<Spec>& tensors) {
    const auto matrix = find(quantization, tensors);
    if (matrix) return "";
    EXPECT_THAT(matrix.error().message, HasSubstr(folder_.path().string()));
    return matrix.error().message;
  }

  test::TemporaryDirectory folder_;
  std::optional<HfDirectory> directory_;
};

// --- Files ---------------------------------------------------------------------------------------

TEST_F(HfDirectories, NeedAConfigAndTensors) {
  EXPECT_THAT(open_error(), HasSubstr("config.json: cannot open"));
  write_json("config.json", "{'a':");
  EXPECT_THAT(open_error(), HasSubstr("config.json: not JSON at byte"));
  write_json("config.json", "{'model_type':'llama'}");
  EXPECT_THAT(open_error(), HasSubstr("holds no *.safetensors file"));
  test::write_file(folder_ / "model.safetensors", "nonsense");
  EXPECT_THAT(open_error(), HasSubstr("model.safetensors: not a safetensors file"));
  const auto file = HfDirectory::open(folder_ / "config.json");
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr("expected a directory"));
}

TEST_F(HfDirectories, ReadTensorsOfOneFile) {
  write_json("config.json", "{'model_type':'llama'}");
  write_json("tokenizer.json", "{}");
  write("model.safetensors", {{"a.weight", Dtype::kF32, {2, 3}, std::string(12, '\0') + "ABCD"},
                              {"b.bias", Dtype::kBF16, {2}, std::string("\x80\x3f\0\xc0", 4)},
                              {"n", Dtype::kI64, {1}},
                              {"e.weight", Dtype::kF16, {4, 2, 3}}});
  const auto directory = HfDirectory::open(folder_.path());
  ASSERT_TRUE(directory) << directory.error().message;
  EXPECT_EQ(**directory->config().string("model_type"), "llama");
  EXPECT_EQ(directory->find_file("tokenizer.json"), folder_ / "tokenizer.json");
  EXPECT_EQ(directory->find_file("generation_config.json"), std::nullopt);
  EXPECT_THAT(directory->modules(), ElementsAre("a", "e"));
  EXPECT_EQ(directory->find("b.bias")->shape.size(), 1);
  EXPECT_EQ(directory->find("c"), nullptr);

  const auto a = directory->find_matrix("a");
  ASSERT_TRUE(a);
  EXPECT_EQ((*a)->format, pack::find_format("F32"));
  EXPECT_EQ((*a)->rows, 2);
  EXPECT_EQ((*a)->cols, 3);
  const auto experts = directory->find_matrix("e");  // stacked: expert e has rows 2e and 2e+1
  EXPECT_EQ((*experts)->rows, 8);
  EXPECT_EQ((*experts)->cols, 3);
  EXPECT_EQ((*directory->find_matrix("e.weight"))->rows, 8);
  EXPECT_EQ(*directory->find_matrix("c"), std::nullopt);

  EXPECT_THAT(**directory->find_values("b.bias"), ElementsAre(1, -2));
  EXPECT_EQ(*directory->find_values("c"), std::nullopt);
  EXPECT_THAT(directory->find_values("n").error().message,
              HasSubstr("tensor 'n' is I64, expected F32, F16 or BF16"));
}

TEST_F(HfDirectories, StayValidWhenMoved) {
  write_json("config.json", "{'k':1}");
  write("a.safetensors", {{"a", Dtype::kF32, {1}}});
  write("b.safetensors", {{"b", Dtype::kF32, {1}}});
  auto first = HfDirectory::open(folder_.path());
  ASSERT_TRUE(first);
  const HfDirectory directory = std::move(*first);
  EXPECT_EQ(*directory.config().integer("k"), 1);
  EXPECT_EQ(directory.find("a")->name, "a");
  EXPECT_EQ(directory.files()[1].find("b"), directory.find("b"));
}

TEST_F(HfDirectories, TakeAllFilesWithoutAnIndex) {
  write_json("config.json", "{}");
  write("one.safetensors", {{"a", Dtype::kF32, {1}}});
  write("two.safetensors", {{"b", Dtype::kF32, {1}}});
  const auto directory = HfDirectory::open(folder_.path());
  ASSERT_TRUE(directory);
  EXPECT_EQ(directory->files().size(), 2);
  EXPECT_NE(directory->find("a"), nullptr);
  EXPECT_NE(directory->find("b"), nullptr);
  write("three.safetensors", {{"a", Dtype::kF32, {1}}});
  EXPECT_THAT(open_error(), HasSubstr("three.safetensors: tensor 'a' is in "));
}

TEST_F(HfDirectories, FollowTheIndex) {
  write_json("config.json", "{}");
  write("m-1.safetensors", {{"a", Dtype::kF32, {1}}});
  write("m-2.safetensors", {{"b", Dtype::kF32, {1}}, {"extra", Dtype::kF32, {1}}});
  write("other.safetensors", {{"a", Dtype::kF32, {1}}});
  write("ngram_embedding.safetensors", {{"t", Dtype::kF32, {1}}});
  const auto index = [&](const std::string& map) {
    write_json("model.safetensors.index.json", "{'weight_map':" + map + "}");
  };
  index("{'a':'m-1.safetensors','b':'m-2.safetensors'}");
  const auto directory = HfDirectory::open(folder_.path());
  ASSERT_TRUE(directory) << directory.error().message;
  EXPECT_EQ(directory->files().size(), 3);  // the index's and the n-gram table's
  EXPECT_NE(directory->find("extra"), nullptr);
  EXPECT_NE(directory->find("t"), nullptr);

  index("{'a':'m-1.safetensors','b':'m-3.safetensors'}");
  EXPECT_THAT(open_error(), HasSubstr("index.json: the file 'm-3.safetensors' that it names is "
                                      "missing"));
  index("{'a':'m-2.safetensors','b':'m-1.safetensors'}");
  EXPECT_THAT(open_error(), HasSubstr("index.json: tensor 'a' should be in 'm-2.safetensors', "
                                      "found "));
  index("{'a':'m-1.safetensors','c':'m-1.safetensors'}");
  EXPECT_THAT(open_error(), HasSubstr("tensor 'c' should be in 'm-1.safetensors', found nowhere"));
  index("{'a':7}");
  EXPECT_THAT(open_error(), HasSubstr("tensor 'a' is in an integer, expected the name of a file"));
  index("[]");
  EXPECT_THAT(open_error(), HasSubstr("key 'weight_map' is an array, expected an object"));
  index("{}");
  EXPECT_THAT(open_error(), HasSubstr("names no file"));
  write_json("model.safetensors.index.json", "{}");
  EXPECT_THAT(open_error(), HasSubstr("key 'weight_map' is missing"));
}

TEST_F(HfDirectories, RefuseShardsOutsideTheDirectory) {
  write_json("config.json", "{}");
  write("m.safetensors", {{"a", Dtype::kF32, {1}}});
  for (const std::string name :
       {"../m.safetensors", "/etc/passwd", "..", ".", "", "x/m.safetensors",
        "m.safetensors\\u0000.x", "x\\\\m.safetensors"}) {
    write_json("model.safetensors.index.json", "{'weight_map':{'a':'" + name + "'}}");
    EXPECT_THAT(open_error(), HasSubstr("expected the name of a file in this directory")) << name;
  }
}

TEST_F(HfDirectories, RefuseUnsupportedQuantization) {
  write_json("config.json", "{'quantization_config':{'quant_method':'bitsandbytes'}}");
  write("m.safetensors", {{"a", Dtype::kF32, {1}}});
  EXPECT_THAT(open_error(), HasSubstr("config.json: quantization_config: quant_method "
                                      "'bitsandbytes' is not supported: take "));
}

TEST_F(HfDirectories, FindTheConfigOfOlderGptq) {
  write_json("config.json", "{}");
  write_json("quantize_config.json", "{'bits':4,'group_size':32,'desc_act':false}");
  write("m.safetensors", {{"a", Dtype::kF32, {1}}});
  const auto directory = HfDirectory::open(folder_.path());
  ASSERT_TRUE(directory) << directory.error().message;
  EXPECT_EQ(std::get<GptqConfig>(directory->quantization()).group_size, 32);
}

// --- Forms of weights ----------------------------------------------------------------------------

constexpr const char* kPlain = "{}";
constexpr const char* kMlx = "{'quantization':{'bits':4,'group_size':32,'x':{'bits':6}}}";
constexpr const char* kMxfp4 = "{'quantization':{'mode':'mxfp4'}}";
constexpr const char* kNvfp4 = "{'quantization':{'mode':'nvfp4'}}";
constexpr const char* kExl3 = "{'quantization_config':{'quant_method':'exl3'}}";
constexpr const char* kGptq =
    "{'quantization_config':{'quant_method':'gptq','bits':4,'group_size':32}}";
constexpr const char* kGptqActOrder =
    "{'quantization_config':{'quant_method':'gptq','bits':4,'group_size':32,'desc_act':true}}";
constexpr const char* kAwq =
    "{'quantization_config':{'quant_method':'awq','bits':4,'group_size':32}}";
constexpr const char* kCompressed =
    "{'quantization_config':{'quant_method':'compressed-tensors','config_groups':{'g':{'weights':"
    "{'num_bits':4,'symmetric':false,'group_size':32}}}}}";

// `tensors` with the one of that name replaced, or removed.
std::vector<Spec> with(std::vector<Spec> tensors, const Spec& changed) {
  for (Spec& tensor : tensors) {
    if (tensor.name == changed.name) tensor = changed;
  }
  return tensors;
}

std::vector<Spec> without(std::vector<Spec> tensors, const std::string& name) {
  std::erase_if(tensors, [&](const Spec& tensor) { return tensor.name == name; });
  return tensors;
}

TEST_F(HfDirectories, RefuseWeightsOfOtherTypes) {
  EXPECT_THAT(
      find_error(kPlain, {{"m.weight", Dtype::kF8E4M3, {2, 2}}}),
      HasSubstr("tensor 'm.weight' is F8_E4M3, expected F32, F16 or BF16, or a packed form"));
  EXPECT_THAT(find_error(kPlain, {{"m.weight", Dtype::kF32, {0, 2}}}), HasSubstr("is empty"));
  EXPECT_THAT(find_error(kPlain, {{"m.weight", Dtype::kF32, {1}}, {"m.trellis", Dtype::kI16, {1}}}),
              HasSubstr("module 'm' has both .weight and .trellis"));
  const std::uint64_t huge = 1ull << 63;  // allowed in a tensor of no bytes
  EXPECT_THAT(find_error(kPlain, {{"m.weight", Dtype::kF32, {0, huge, huge}}}),
              HasSubstr("is empty"));
}

TEST_F(HfDirectories, ReadMlx) {
  const std::vector<Spec> good = {{"m.weight", Dtype::kU32, {5, 8}},
                                  {"m.scales", Dtype::kBF16, {5, 2}},
                                  {"m.biases", Dtype::kBF16, {5, 2}}};
  const auto matrix = find(kMlx, good);
  ASSERT_TRUE(matrix) << matrix.error().message;
  EXPECT_EQ((*matrix)->format, pack::find_format("MLX-4-g32"));
  EXPECT_EQ((*matrix)->rows, 5);
  EXPECT_EQ((*matrix)->cols, 64);
  EXPECT_EQ((*matrix)->scale_type, pack::ScaleType::kBF16);

  EXPECT_THAT(find_error(kPlain, good), HasSubstr("config.json has no MLX quantization"));
  EXPECT_THAT(find_error(kMlx, with(good, {"m.weight", Dtype::kU32, {5, 7}})),
              HasSubstr("does not hold rows of whole groups of 32 codes of 4 bits"));
  EXPECT_THAT(find_error(kMlx, with(good, {"m.weight", Dtype::kU32, {}})),
              HasSubstr("does not hold rows of whole groups"));
  EXPECT_THAT(find_error(kMlx, with(good, {"m.scales", Dtype::kBF16, {5, 3}})),
              HasSubstr("tensor 'm.scales' has shape [5, 3], expected [5, 2]"));
  EXPECT_THAT(find_error(kMlx, with(good, {"m.biases", Dtype::kF16, {5, 2}})),
              HasSubstr("tensor 'm.biases' is F16, expected BF16"));
  EXPECT_THAT(find_error(kMlx, with(good, {"m.scales", Dtype::kU8, {5, 2}})),
              HasSubstr("'m.scales' is U8, expected F16 or BF16 or F32"));
  EXPECT_THAT(find_error(kMlx, without(good, "m.biases")),
              HasSubstr("tensor 'm.biases' is missing"));
}

TEST_F(HfDirectories, ReadMlxOverridesExpertsAndModes) {
  const auto wider = find(kMlx,
                          {{"x.weight", Dtype::kU32, {3, 5, 12}},
                           {"x.scales", Dtype::kF16, {3, 5, 2}},
                           {"x.biases", Dtype::kF16, {3, 5, 2}}},
                          "x");
  // 12 words are 64 codes of the module's own 6 bits, in the default group of that override: 64.
  ASSERT_FALSE(wider);
  EXPECT_THAT(wider.error().message, HasSubstr("has shape [3, 5, 2], expected [3, 5, 1]"));
  const auto experts = find(kMlx, {{"m.weight", Dtype::kU32, {3, 5, 8}},
                                   {"m.scales", Dtype::kF16, {3, 5, 2}},
                                   {"m.biases", Dtype::kF16, {3, 5, 2}}});
  ASSERT_TRUE(experts) << experts.error().message;
  EXPECT_EQ((*experts)->rows, 15);

  const auto mxfp4 =
      find(kMxfp4, {{"m.weight", Dtype::kU32, {5, 8}}, {"m.scales", Dtype::kU8, {5, 2}}});
  ASSERT_TRUE(mxfp4) << mxfp4.error().message;
  EXPECT_EQ((*mxfp4)->format, pack::find_format("MLX-MXFP4"));
  const float global = 2688;
  const std::string bytes(reinterpret_cast<const char*>(&global), sizeof(global));
  const std::vector<Spec> nvfp4 = {{"m.weight", Dtype::kU32, {5, 2}},
                                   {"m.scales", Dtype::kU8, {5, 1}},
                                   {"m.global_scale", Dtype::kF32, {}, bytes}};
  const auto scaled = find(kNvfp4, nvfp4);
  ASSERT_TRUE(scaled) << scaled.error().message;
  EXPECT_EQ((*scaled)->global_scale, 1.0f);
  EXPECT_THAT(find_error(kNvfp4, with(nvfp4, {"m.global_scale", Dtype::kF32, {2}})),
              HasSubstr("'m.global_scale' is F32 of shape [2], expected one F32"));
}

// gpt-oss: 3 experts of 5 rows, whose nibbles are consecutive values.
TEST_F(HfDirectories, ReadStackedMxfp4) {
  const std::string method = "{'quantization_config': {'quant_method': 'mxfp4'}}";
  std::string codes(3 * 5 * 2 * 16, '\0');
  codes[16 * 2 * 5] = '\x21';  // expert 1: 0.5, 1
  std::string scales(3 * 5 * 2, '\x7f');
  scales[2 * 5] = '\x81';  // 4
  const std::vector<Spec> good = {{"m_blocks", Dtype::kU8, {3, 5, 2, 16}, codes},
                                  {"m_scales", Dtype::kU8, {3, 5, 2}, scales}};
  const auto experts = find(method, good);
  ASSERT_TRUE(experts) << experts.error().message;
  EXPECT_EQ((*experts)->format, pack::find_format("MLX-MXFP4"));
  EXPECT_EQ((*experts)->rows, 15u);
  EXPECT_EQ((*experts)->cols, 64u);
  std::vector<float> row(64);
  pack::decode_rows(**experts, 5, 1, row.data());
  EXPECT_EQ(row[0], 2);
  EXPECT_EQ(row[1], 4);
  EXPECT_EQ(row[2], 0);

  EXPECT_THAT(find_error(method, without(good, "m_scales")),
              HasSubstr("tensor 'm_scales' is missing"));
  EXPECT_THAT(find_error(method, with(good, {"m_scales", Dtype::kU8, {3, 5, 1}})),
              HasSubstr("'m_scales' has shape [3, 5, 1], expected [3, 5, 2]"));
  EXPECT_THAT(find_error(method, with(good, {"m_blocks", Dtype::kU8, {3, 5, 2, 8}})),
              HasSubstr("'m_blocks' has shape [3, 5, 2, 8], expected blocks of 16 bytes"));
}

TEST_F(HfDirectories, ReadGptq) {
  const std::vector<Spec> good = {{"m.qweight", Dtype::kI32, {8, 16}},
                                  {"m.qzeros", Dtype::kI32, {2, 2}},
                                  {"m.scales", Dtype::kF16, {2, 16}},
                                  {"m.g_idx", Dtype::kI32, {64}}};
  const auto all_in_group_0 = find(kGptq, good);
  ASSERT_TRUE(all_in_group_0) << all_in_group_0.error().message;
  EXPECT_EQ((*all_in_group_0)->format, pack::find_format("GPTQ-V1-4-g32"));
  EXPECT_EQ((*all_in_group_0)->rows, 16);
  EXPECT_EQ((*all_in_group_0)->cols, 64);
  EXPECT_FALSE((*all_in_group_0)->input_group.empty());
  std::string in_order(64 * 4, '\0');
  for (std::size_t col = 32; col < 64; ++col) in_order[col * 4] = 1;
  EXPECT_TRUE(
      (*find(kGptq, with(good, {"m.g_idx", Dtype::kI32, {64}, in_order})))->input_group.empty());
  EXPECT_TRUE(find(kGptq, without(good, "m.g_idx")));

  EXPECT_THAT(find_error(kPlain, good), HasSubstr("config.json has no GPTQ or AWQ quantization"));
  EXPECT_THAT(find_error(kGptqActOrder, without(good, "m.g_idx")),
              HasSubstr("tensor 'm.g_idx' is missing"));
  in_order[0] = 2;
  EXPECT_THAT(find_error(kGptq, with(good, {"m.g_idx", Dtype::kI32, {64}, in_order})),
              HasSubstr("input feature 0 is in group 2, expected 0 to 1"));
  EXPECT_THAT(find_error(kGptq, with(good, {"m.g_idx", Dtype::kI32, {63}})),
              HasSubstr("'m.g_idx' has shape [63], expected [64]"));
  EXPECT_THAT(find_error(kGptq, with(good, {"m.qweight", Dtype::kI32, {128}})),
              HasSubstr("'m.qweight' has shape [128], expected 2 dimensions"));
  EXPECT_THAT(find_error(kGptq, with(good, {"m.qweight", Dtype::kI16, {8, 16}})),
              HasSubstr("'m.qweight' is I16, expected I32 or U32"));
  EXPECT_THAT(find_error(kGptq, with(good, {"m.qweight", Dtype::kI32, {0, 16}})),
              HasSubstr("of shape [0, 16] is empty"));
  EXPECT_THAT(find_error(kGptq, with(good, {"m.scales", Dtype::kF16, {1, 16}})),
              HasSubstr("'m.scales' has shape [1, 16], expected [2, 16]"));
  EXPECT_THAT(find_error(kGptq, with(good, {"m.qzeros", Dtype::kI32, {2, 3}})),
              HasSubstr("'m.qzeros' has shape [2, 3], expected [2, 2]"));
  EXPECT_THAT(find_error(kGptq, {{"m.qweight", Dtype::kI32, {9, 16}},
                                 {"m.qzeros", Dtype::kI32, {2, 2}},
                                 {"m.scales", Dtype::kF16, {2, 16}}}),
              HasSubstr("16 rows × 72 columns, expected columns in whole groups of 32"));
}

TEST_F(HfDirectories, ReadAwq) {
  const std::vector<Spec> good = {{"m.qweight", Dtype::kI32, {64, 2}},
                                  {"m.qzeros", Dtype::kI32, {2, 2}},
                                  {"m.scales", Dtype::kF16, {2, 16}}};
  const auto matrix = find(kAwq, good);
  ASSERT_TRUE(matrix) << matrix.error().message;
  EXPECT_EQ((*matrix)->format, pack::find_format("AWQ-4-g32"));
  EXPECT_EQ((*matrix)->rows, 16);
  EXPECT_EQ((*matrix)->cols, 64);
  EXPECT_THAT(find_error(kAwq, without(good, "m.qzeros")), HasSubstr("'m.qzeros' is missing"));
  EXPECT_THAT(find_error(kAwq, with(good, {"m.qweight", Dtype::kI32, {64, 3}})),
              HasSubstr("'m.scales' has shape [2, 16], expected [2, 24]"));
}

TEST_F(HfDirectories, ReadCompressedTensors) {
  const std::string shape("\x05\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0", 16);
  const std::vector<Spec> good = {{"m.weight_packed", Dtype::kI32, {5, 8}},
                                  {"m.weight_scale", Dtype::kBF16, {5, 2}},
                                  {"m.weight_zero_point", Dtype::kI32, {1, 2}},
                                  {"m.weight_shape", Dtype::kI64, {2}, shape}};
  const auto matrix = find(kCompressed, good);
  ASSERT_TRUE(matrix) << matrix.error().message;
  EXPECT_EQ((*matrix)->format, pack::find_format("CT-ASYM-4-g32"));
  EXPECT_EQ((*matrix)->rows, 5);
  EXPECT_EQ((*matrix)->cols, 64);

  EXPECT_THAT(find_error(kPlain, good), HasSubstr("no compressed-tensors quantization"));
  EXPECT_THAT(find_error(kCompressed, with(good, {"m.weight_shape", Dtype::kI64, {2}})),
              HasSubstr("'m.weight_shape' says [0, 0], the packed codes are [5, 64]"));
  EXPECT_THAT(find_error(kCompressed, without(good, "m.weight_shape")),
              HasSubstr("'m.weight_shape' is missing"));
  EXPECT_THAT(find_error(kCompressed, without(good, "m.weight_zero_point")),
              HasSubstr("2 scales a row for 64 columns and no zero points are in no group"));
  EXPECT_THAT(find_error(kCompressed, with(good, {"m.weight_scale", Dtype::kBF16, {5, 4}})),
              HasSubstr("4 scales a row for 64 columns and with zero points are in no group"));
  EXPECT_THAT(find_error(kCompressed, with(good, {"m.weight_scale", Dtype::kBF16, {4, 2}})),
              HasSubstr("'m.weight_scale' has shape [4, 2], expected [5, 2]"));
  EXPECT_THAT(find_error(kCompressed, with(good, {"m.weight_zero_point", Dtype::kI32, {5, 2}})),
              HasSubstr("'m.weight_zero_point' has shape [5, 2], expected [1, 2]"));
}

TEST_F(HfDirectories, ReadExl3) {
  const std::vector<Spec> good = {{"m.trellis", Dtype::kI16, {8, 16, 40}},
                                  {"m.suh", Dtype::kF16, {128}},
                                  {"m.svh", Dtype::kF16, {256}},
                                  {"m.mul1", Dtype::kI32, {}}};
  const auto matrix = find(kExl3, good);
  ASSERT_TRUE(matrix) << matrix.error().message;
  EXPECT_EQ((*matrix)->format, pack::find_format("EXL3-MUL1-2.5"));
  EXPECT_EQ((*matrix)->rows, 256);
  EXPECT_EQ((*matrix)->cols, 128);
  EXPECT_EQ(without_padding(**matrix, 200, 100)->rows, 200);
  EXPECT_EQ(without_padding(**matrix, 200, 100)->cols, 100);
  EXPECT_EQ(without_padding(**matrix, 128, 128), std::nullopt);
  EXPECT_EQ(without_padding(**matrix, 257, 128), std::nullopt);

  EXPECT_THAT(find_error(kExl3, with(good, {"m.suh", Dtype::kF16, {256}})),
              HasSubstr("'m.suh' has shape [256], expected [128]"));
  EXPECT_THAT(find_error(kExl3, with(good, {"m.svh", Dtype::kF32, {256}})),
              HasSubstr("'m.svh' is F32, expected F16"));
  EXPECT_THAT(find_error(kExl3, without(good, "m.suh")), HasSubstr("'m.suh' is missing"));
  EXPECT_THAT(find_error(kExl3, without(good, "m.mul1")),
              HasSubstr("tiles of 40 words have no 3INST format"));
  EXPECT_THAT(find_error(kExl3, with(good, {"m.trellis", Dtype::kI16, {8, 16, 41}})),
              HasSubstr("tiles of 41 words have no MUL1 format"));
  std::vector<Spec> two_books = good;
  two_books.push_back({"m.mcg", Dtype::kI32, {}});
  EXPECT_THAT(find_error(kExl3, two_books), HasSubstr("both .mcg and .mul1"));
}

TEST_F(HfDirectories, ReadTheSignsOfOlderExl3) {
  const std::vector<Spec> good = {{"m.trellis", Dtype::kI16, {8, 8, 32}},
                                  {"m.su", Dtype::kI16, {8}, "\x02"},
                                  {"m.sv", Dtype::kI16, {8}}};
  const auto matrix = find(kExl3, good);
  ASSERT_TRUE(matrix) << matrix.error().message;
  EXPECT_EQ((*matrix)->format, pack::find_format("EXL3-3INST-2"));
  EXPECT_EQ(load<std::uint16_t>((*matrix)->input_scale.data()), 0x3c00);
  EXPECT_EQ(load<std::uint16_t>((*matrix)->input_scale.data() + 2), 0xbc00);
  EXPECT_THAT(find_error(kExl3, with(good, {"m.su", Dtype::kI16, {7}})),
              HasSubstr("'m.su' has shape [7], expected [8]"));
}

TEST_F(HfDirectories, ReadExl3Tables) {
  const std::vector<Spec> table = {{"m.trellis", Dtype::kI16, {10, 2 * 49}},
                                   {"m.signs", Dtype::kF16, {2, 256}}};
  const auto embedding = find(kExl3, table);
  ASSERT_TRUE(embedding) << embedding.error().message;
  EXPECT_EQ((*embedding)->format, pack::find_format("EXL3-EMB-3"));
  EXPECT_EQ((*embedding)->cols, 512);
  EXPECT_EQ(without_padding(**embedding, 10, 384)->cols, 384);
  EXPECT_EQ(without_padding(**embedding, 9, 384), std::nullopt);
  EXPECT_THAT(find_error(kExl3, with(table, {"m.signs", Dtype::kF16, {3, 256}})),
              HasSubstr("does not hold rows of 3 rings of 256 values"));

  const std::vector<Spec> shards = {{"m.shard_0.trellis", Dtype::kI16, {4, 41}},
                                    {"m.shard_1.trellis", Dtype::kI16, {3, 41}},
                                    {"m.head_bias", Dtype::kF16, {2, 160}},
                                    {"m.head_offsets", Dtype::kI64, {2}}};
  const auto ngrams = find(kExl3, shards);
  ASSERT_TRUE(ngrams) << ngrams.error().message;
  EXPECT_EQ((*ngrams)->format, pack::find_format("EXL3-NGRAM-4"));
  EXPECT_EQ((*ngrams)->rows, 7);
  EXPECT_EQ((*ngrams)->cols, 160);
  EXPECT_THAT(directory_->modules(), ElementsAre("m"));
  EXPECT_THAT(find_error(kExl3, with(shards, {"m.shard_1.trellis", Dtype::kI16, {3, 42}})),
              HasSubstr("'m.shard_1.trellis' of shape [3, 42], expected 41 words a row"));
  EXPECT_THAT(find_error(kExl3, with(shards, {"m.head_offsets", Dtype::kI64, {3}})),
              HasSubstr("'m.head_offsets' has shape [3], expected [2]"));
}

}  // namespace
}  // namespace espalier::file
