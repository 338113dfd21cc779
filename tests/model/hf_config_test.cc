// config.json that is incomplete, contradicts itself or the tensors, or asks for what there is not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "model/model.h"
#include "support/data.h"

namespace espalier::model {
namespace {

using file::Json;

// The error of loading models/NAME after `changes` to its config.json; a change to null erases.
std::string load_error(const std::string& name, const char* changes) {
  const std::string folder = "models/" + name;
  auto config = file::read_json(test::data_path(folder + "/config.json"));
  auto weights = MappedFile::open(test::data_path(folder + "/model.safetensors"));
  if (!config || !weights) throw std::runtime_error(folder + " is missing");
  config->merge_patch(Json::parse(changes));
  const std::string text = config->dump();
  const Bytes files[] = {weights->bytes()};
  const auto directory = file::HfDirectory::parse(as_bytes(text), files, "dir");
  if (!directory) return directory.error().message;
  const auto model = load_model(*directory);
  return model ? "" : model.error().message;
}

TEST(HfConfig, NeedsAnArchitectureItKnows) {
  EXPECT_EQ(load_error("llama", "{}"), "");
  EXPECT_EQ(load_error("llama", R"({"model_type": null})"),
            "dir/config.json: key 'model_type' is missing");
  EXPECT_THAT(
      load_error("llama", R"({"model_type": "lamb\n"})"),
      testing::StartsWith("dir: architecture 'lamb\\n' is not supported; supported: llama, "));
}

TEST(HfConfig, CountsMustBeThereAndFit) {
  EXPECT_EQ(load_error("llama", R"({"num_hidden_layers": null})"),
            "dir/config.json: key 'num_hidden_layers' is missing");
  EXPECT_EQ(load_error("llama", R"({"num_attention_heads": 0})"),
            "dir/config.json: key 'num_attention_heads': found 0, expected 1 to 65536");
  EXPECT_EQ(load_error("llama", R"({"hidden_size": "wide"})"),
            "dir/config.json: key 'hidden_size' is a string, expected an integer from 0 up");
  EXPECT_EQ(
      load_error("llama", R"({"num_key_value_heads": 3})"),
      "dir/config.json: key 'num_key_value_heads': found 3, which does not divide the 4 heads");
  EXPECT_EQ(load_error("llama", R"({"rms_norm_eps": 0})"),
            "dir/config.json: key 'rms_norm_eps': found 0, expected a positive number");
}

TEST(HfConfig, ALayerCountThatLiesIsFound) {
  EXPECT_EQ(load_error("llama", R"({"num_hidden_layers": 5})"),
            "dir: tensor 'model.layers.4.input_layernorm.weight' is missing");
  EXPECT_EQ(load_error("llama", R"({"num_hidden_layers": 3})"),
            "dir: has tensor 'model.layers.3.input_layernorm.weight', but its configuration says 3 "
            "layers; it is cut short");
  EXPECT_EQ(load_error("gemma2", R"({"layer_types": ["full_attention"]})"),
            "dir/config.json: key 'layer_types' lists 1 layers, but num_hidden_layers is 4");
  EXPECT_EQ(load_error("smollm3", R"({"no_rope_layers": [1, 1, 0]})"),
            "dir/config.json: key 'no_rope_layers' lists 3 layers, expected 4");
}

TEST(HfConfig, SizesMustBeThoseOfTheTensors) {
  EXPECT_EQ(load_error("llama", R"({"head_dim": 8})"),
            "dir: the weight of 'model.layers.0.self_attn.q_proj' is 64 × 32, expected 32 × 32");
  EXPECT_EQ(load_error("llama", R"({"head_dim": 15})"),
            "dir/config.json: key 'head_dim': found 15, expected an even number");
  EXPECT_EQ(load_error("qwen3", R"({"vocab_size": 65})"),
            "dir: the weight of 'model.embed_tokens' is 64 × 32, expected 65 × 32");
  EXPECT_EQ(load_error("phi3", R"({"intermediate_size": 47})"),
            "dir: the weight of 'model.layers.0.mlp.gate_up_proj' is 96 × 32, expected 94 × 32");
}

TEST(HfConfig, LayersAndActivationsAreOfKnownKinds) {
  EXPECT_EQ(load_error("gemma2", R"({"layer_types": ["full_attention", 3]})"),
            "dir/config.json: key 'layer_types' has an integer, expected an array of strings");
  EXPECT_EQ(
      load_error("gemma2", R"({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]})"),
      "dir/config.json: key 'layer_types': found 'chunked_attention', expected full_attention, "
      "sliding_attention or linear_attention");
  EXPECT_EQ(load_error("llama", R"({"hidden_act": "gelu"})"),
            "dir/config.json: key 'hidden_act': found 'gelu', expected silu");
  EXPECT_EQ(load_error("gemma3", R"({"hidden_activation": "gelu"})"),
            "dir/config.json: key 'hidden_activation': found 'gelu', expected gelu_pytorch_tanh");
}

TEST(HfConfig, RopeIsOfAKnownTypeAndComplete) {
  EXPECT_EQ(load_error("llama", R"({"rope_parameters": {"rope_type": "dynamic"}})"),
            "dir/config.json: rope_parameters: key 'rope_type': found 'dynamic'; RoPE of the types "
            "default, linear, llama3, yarn and longrope is supported");
  EXPECT_EQ(load_error("llama", R"({"rope_parameters": {"high_freq_factor": 0.5}})"),
            "dir/config.json: rope_parameters: key 'high_freq_factor': found 0.5, expected more "
            "than low_freq_factor 1");
  EXPECT_EQ(load_error("llama", R"({"rope_parameters": {"factor": -2}})"),
            "dir/config.json: rope_parameters: key 'factor': found -2, expected a positive number");
  EXPECT_EQ(load_error("llama", R"({"rope_parameters": {"partial_rotary_factor": 1.5}})"),
            "dir/config.json: rope_parameters: key 'partial_rotary_factor': found 1.5, expected at "
            "most 1");
  EXPECT_EQ(load_error("phi3", R"({"rope_parameters": {"long_factor": [1, 2]}})"),
            "dir/config.json: rope_parameters: key 'long_factor' has 2 values, expected 3");
  EXPECT_EQ(load_error("phi3", R"({"rope_parameters": {"short_factor": [1, 0, 2]}})"),
            "dir/config.json: rope_parameters: key 'short_factor' has the value 0, expected "
            "positive numbers");
  EXPECT_EQ(load_error("phi3", R"({"rope_parameters": {"short_factor": null}})"),
            "dir/config.json: rope_parameters: key 'short_factor' has 0 values, expected 3");
}

TEST(HfConfig, AHeadThatIsPromisedIsThere) {
  EXPECT_EQ(load_error("qwen3", R"({"tie_word_embeddings": false})"),
            "dir: the weight of 'lm_head' is missing");
}

// A null is the absence of a window or a bound, a missing key its usual value.
TEST(HfConfig, NullIsAnAnswer) {
  EXPECT_EQ(load_error("gemma2", R"({"attn_logit_softcapping": -1})"),
            "dir/config.json: key 'attn_logit_softcapping': found -1, expected a positive number");
  EXPECT_EQ(
      load_error("mistral", R"({"sliding_window": 99999999999})"),
      "dir/config.json: key 'sliding_window': found 99999999999, expected at most 2147483648");
}

}  // namespace
}  // namespace espalier::model
