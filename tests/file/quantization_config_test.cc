#include "file/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::file {
namespace {

using testing::HasSubstr;

Result<QuantizationConfig> parse(const std::string& text) {
  ESPALIER_TRY(const Json document, parse_json(as_bytes(text), "config.json"));
  return parse_quantization_config(JsonObject(document, "config.json"));
}

// Parses an object of that key of config.json, with single quotes for double ones.
Result<QuantizationConfig> parse_object(std::string object,
                                        const std::string& key = "quantization_config") {
  for (char& c : object) {
    if (c == '\'') c = '"';
  }
  return parse("{\"" + key + "\":" + object + "}");
}

std::string error_of(const std::string& object, const std::string& key = "quantization_config") {
  const auto result = parse_object(object, key);
  if (result) return "";
  EXPECT_THAT(result.error().message, testing::StartsWith("config.json"));
  EXPECT_EQ(result.error().kind, ErrorKind::kInput);
  return result.error().message;
}

template <typename T>
T config_of(const std::string& object, const std::string& key = "quantization_config") {
  const auto result = parse_object(object, key);
  EXPECT_TRUE(result) << result.error().message;
  EXPECT_TRUE(std::holds_alternative<T>(*result));
  return std::get<T>(*result);
}

TEST(QuantizationConfig, IsNothingForPlainModels) {
  EXPECT_TRUE(std::holds_alternative<std::monostate>(*parse("{}")));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(*parse(R"({"quantization_config":null})")));
}

TEST(QuantizationConfig, SaysWhatToDoAboutOtherMethods) {
  for (const std::string method : {"bitsandbytes", "fp8", "hqq"}) {
    EXPECT_THAT(error_of("{'quant_method':'" + method + "'}"),
                HasSubstr("quant_method '" + method + "' is not supported: take the unquantized"));
  }
  EXPECT_THAT(error_of("{}"), HasSubstr("key 'quant_method' is missing"));
  EXPECT_THAT(error_of("{'quant_method':4}"), HasSubstr("'quant_method' is an integer"));
  EXPECT_THAT(error_of("[]"), HasSubstr("'quantization_config' is an array, expected an object"));
}

TEST(QuantizationConfig, ReadsMxfp4) {
  config_of<Mxfp4Config>("{'quant_method':'mxfp4','modules_to_not_convert':['lm_head']}");
}

TEST(QuantizationConfig, ReadsExl3) {
  const auto config = config_of<Exl3Config>("{'quant_method':'exl3','bits':2.5,'head_bits':6}");
  EXPECT_EQ(config.bits, 2.5);
  EXPECT_EQ(config.head_bits, 6);
  EXPECT_THAT(error_of("{'quant_method':'exl3','bits':'x'}"), HasSubstr("'bits' is a string"));
}

TEST(QuantizationConfig, ReadsMlxWithOverrides) {
  const auto config = config_of<MlxConfig>(
      "{'group_size':64,'bits':4,'mode':'affine','a.b':{'bits':6,'group_size':32},'c':false,"
      "'d':{'mode':'nvfp4'},'e':{}}",
      "quantization");
  EXPECT_EQ(config.scheme("other").bits, 4);
  EXPECT_EQ(config.scheme("other").group_size, 64);
  EXPECT_EQ(config.scheme("a.b").bits, 6);
  EXPECT_EQ(config.scheme("a.b").group_size, 32);
  EXPECT_EQ(config.scheme("d").mode, MlxMode::kNvfp4);
  EXPECT_EQ(config.scheme("d").group_size, 16);
  EXPECT_EQ(config.scheme("e").bits, 4);
  EXPECT_THAT(error_of("{'bits':7,'group_size':64}", "quantization"),
              HasSubstr("7 bits in groups of 64 are not possible in mode affine"));
  EXPECT_THAT(error_of("{'bits':4,'group_size':64,'mode':'mxfp4'}", "quantization"),
              HasSubstr("groups of 64 are not possible in mode mxfp4"));
  EXPECT_THAT(error_of("{'mode':'q9'}", "quantization"),
              HasSubstr("mode is 'q9', expected affine"));
  EXPECT_THAT(error_of("{'x.y':{'bits':-1}}", "quantization"),
              HasSubstr("quantization: x.y: key 'bits' is a negative integer"));
}

TEST(QuantizationConfig, ReadsGptq) {
  const auto v1 = config_of<GptqConfig>("{'quant_method':'gptq','bits':4,'group_size':128}");
  EXPECT_EQ(v1.layout, pack::Int4Layout::kGptqV1);
  EXPECT_EQ(v1.group_size, 128);
  EXPECT_FALSE(v1.act_order);
  const auto v2 = config_of<GptqConfig>(
      "{'quant_method':'gptq','bits':4,'group_size':-1,'desc_act':true,"
      "'checkpoint_format':'gptq_v2','pack_dtype':'int32'}");
  EXPECT_EQ(v2.layout, pack::Int4Layout::kGptqV2);
  EXPECT_EQ(v2.group_size, pack::kWholeRow);
  EXPECT_TRUE(v2.act_order);

  const std::string front = "{'quant_method':'gptq',";
  EXPECT_THAT(error_of(front + "'group_size':128}"), HasSubstr("key 'bits' is missing"));
  EXPECT_THAT(error_of(front + "'bits':8,'group_size':128}"), HasSubstr("bits is 8, expected 4"));
  EXPECT_THAT(error_of(front + "'bits':4}"), HasSubstr("key 'group_size' is missing"));
  EXPECT_THAT(error_of(front + "'bits':4,'group_size':0}"), HasSubstr("group_size is 0, expected"));
  EXPECT_THAT(error_of(front + "'bits':4,'group_size':128,'checkpoint_format':'marlin'}"),
              HasSubstr("checkpoint_format is 'marlin'"));
  EXPECT_THAT(error_of(front + "'bits':4,'group_size':128,'is_marlin_format':true}"),
              HasSubstr("checkpoint_format is 'marlin'"));
  EXPECT_THAT(error_of(front + "'bits':4,'group_size':128,'pack_dtype':'int8'}"),
              HasSubstr("pack_dtype is 'int8', expected 'int32'"));
}

TEST(QuantizationConfig, ReadsAwq) {
  EXPECT_EQ(config_of<AwqConfig>("{'quant_method':'awq','bits':4,'group_size':64,'version':'GEMM'}")
                .group_size,
            64);
  EXPECT_EQ(config_of<AwqConfig>("{'quant_method':'awq','w_bit':4,'q_group_size':128}").group_size,
            128);
  const std::string front = "{'quant_method':'awq','bits':4,'group_size':128,";
  EXPECT_THAT(error_of(front + "'version':'gemv'}"),
              HasSubstr("version is 'gemv', expected 'gemm'"));
  EXPECT_THAT(error_of(front + "'zero_point':false}"), HasSubstr("zero_point is false"));
}

std::string compressed(const std::string& weights, const std::string& more = "") {
  return "{'quant_method':'compressed-tensors','format':'pack-quantized'," + more +
         "'config_groups':{'group_0':{'weights':" + weights + "}}}";
}

TEST(QuantizationConfig, ReadsCompressedTensors) {
  const auto config = config_of<CompressedTensorsConfig>(
      "{'quant_method':'compressed-tensors','format':'pack-quantized','config_groups':{"
      "'a':{'weights':{'num_bits':4,'type':'int','symmetric':false,'group_size':128}},"
      "'b':{'weights':{'num_bits':4,'strategy':'channel'},'input_activations':null}}}");
  ASSERT_EQ(config.groups.size(), 2);
  EXPECT_EQ(config.groups[0].layout, pack::Int4Layout::kCtAsymmetric);
  EXPECT_EQ(config.groups[0].group_size, 128);
  EXPECT_EQ(config.groups[1].layout, pack::Int4Layout::kCtSymmetric);
  EXPECT_EQ(config.groups[1].group_size, pack::kWholeRow);

  EXPECT_THAT(error_of("{'quant_method':'compressed-tensors'}"),
              HasSubstr("key 'config_groups' is missing"));
  EXPECT_THAT(error_of("{'quant_method':'compressed-tensors','config_groups':{}}"),
              HasSubstr("config_groups: is empty"));
  EXPECT_THAT(error_of("{'quant_method':'compressed-tensors','format':'float-quantized'}"),
              HasSubstr("format is 'float-quantized', expected 'pack-quantized'"));
  EXPECT_THAT(error_of(compressed("{'num_bits':8}")),
              HasSubstr("config_groups: group_0: weights: num_bits is 8, expected 4"));
  EXPECT_THAT(error_of(compressed("{'num_bits':4,'type':'float'}")),
              HasSubstr("type is 'float', expected 'int'"));
  EXPECT_THAT(error_of(compressed("{'num_bits':4,'strategy':'block'}")),
              HasSubstr("strategy is 'block', expected 'group' or 'channel'"));
  EXPECT_THAT(error_of(compressed("null")), HasSubstr("key 'weights' is missing"));
  EXPECT_THAT(error_of(compressed("{'num_bits':4,'strategy':'group','group_size':128},"
                                  "'input_activations':{'num_bits':8}")),
              HasSubstr("input_activations are quantized, expected weights only"));
  EXPECT_THAT(error_of(compressed("{}", "'quantization_status':'frozen',")),
              HasSubstr("quantization_status is 'frozen'"));
  EXPECT_THAT(error_of(compressed("{}", "'sparsity_config':{'format':'sparse-24'},")),
              HasSubstr("sparsity_config: format is 'sparse-24'"));
  EXPECT_THAT(error_of(compressed("{}", "'transform_config':{'config_groups':{'R1':{}}},")),
              HasSubstr("transform_config: transforms are not supported"));
}

}  // namespace
}  // namespace espalier::file
