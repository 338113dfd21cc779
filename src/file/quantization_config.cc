#include "file/quantization_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/printable.h"

namespace espalier::file {
namespace {

std::string lower_case(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

// The value of a key that must be there.
template <typename T>
Result<T> required(const JsonObject& object, std::string_view key, Result<std::optional<T>> value) {
  if (!value) return std::move(value.error());
  if (!*value) return input_error("{}: key '{}' is missing", object.where(), key);
  return std::move(**value);
}

// Integer 4 bits only; what else these methods can hold has other decoders.
Status check_four_bits(const JsonObject& object, std::string_view key) {
  ESPALIER_TRY(const std::int64_t bits, required(object, key, object.integer(key)));
  if (bits == 4) return {};
  return input_error("{}: {} is {}, expected 4, the only width of this method that is read",
                     object.where(), key, bits);
}

// A group size that has a format; −1 is one group a row.
Result<std::uint64_t> group_size(const JsonObject& object, std::string_view key) {
  ESPALIER_TRY(const std::int64_t size, required(object, key, object.integer(key)));
  if (size == -1) return pack::kWholeRow;
  for (const std::int64_t known : {32, 64, 128}) {
    if (size == known) return static_cast<std::uint64_t>(known);
  }
  return input_error("{}: {} is {}, expected 32, 64, 128 or -1 for whole rows", object.where(), key,
                     size);
}

// An absent key passes; a present one must be this text, whatever its case.
Status check_text(const JsonObject& object, std::string_view key, std::string_view expected) {
  ESPALIER_TRY(const auto text, object.string(key));
  if (!text || lower_case(*text) == expected) return {};
  return input_error("{}: {} is '{}', expected '{}', the only kind that is read", object.where(),
                     key, printable(*text), expected);
}

Status read_exl3(const JsonObject& object, Exl3Config& config) {
  ESPALIER_TRY(const auto bits, object.number("bits"));
  ESPALIER_TRY(const auto head_bits, object.number("head_bits"));
  config = {.bits = bits.value_or(0), .head_bits = head_bits.value_or(0)};
  return {};
}

struct MlxModeInfo {
  std::string_view name;
  MlxScheme standard;  // what mlx takes where bits or group_size are not given
};

constexpr auto kMlxModes = std::to_array<MlxModeInfo>({
    {"affine", {MlxMode::kAffine, 4, 64}},
    {"mxfp4", {MlxMode::kMxfp4, 4, 32}},
    {"mxfp8", {MlxMode::kMxfp8, 8, 32}},
    {"nvfp4", {MlxMode::kNvfp4, 4, 16}},
});

Result<MlxScheme> parse_mlx_scheme(const JsonObject& object) {
  ESPALIER_TRY(const auto mode, object.string("mode"));
  const auto info = std::find_if(kMlxModes.begin(), kMlxModes.end(), [&](const MlxModeInfo& known) {
    return known.name == mode.value_or("affine");
  });
  if (info == kMlxModes.end()) {
    return input_error("{}: mode is '{}', expected affine, mxfp4, mxfp8 or nvfp4", object.where(),
                       printable(*mode));
  }
  ESPALIER_TRY(const auto bits, object.unsigned_integer("bits"));
  ESPALIER_TRY(const auto size, object.unsigned_integer("group_size"));
  MlxScheme scheme = info->standard;
  scheme.bits = bits.value_or(scheme.bits);
  scheme.group_size = size.value_or(scheme.group_size);
  const bool possible =
      scheme.mode == MlxMode::kAffine
          ? scheme.bits >= 1 && scheme.bits <= 8 && scheme.bits != 7 &&
                (scheme.group_size == 32 || scheme.group_size == 64 || scheme.group_size == 128)
          : scheme.bits == info->standard.bits && scheme.group_size == info->standard.group_size;
  if (possible) return scheme;
  return input_error("{}: {} bits in groups of {} are not possible in mode {}", object.where(),
                     scheme.bits, scheme.group_size, info->name);
}

Status read_mlx(const JsonObject& object, MlxConfig& config) {
  ESPALIER_TRY(config.standard, parse_mlx_scheme(object));
  for (const auto& [key, value] : object.json().items()) {
    if (!value.is_object()) continue;  // `false`, an unquantized module, has no scales either
    ESPALIER_TRY(const auto module, object.object(key));
    ESPALIER_TRY(config.overrides[key], parse_mlx_scheme(*module));
  }
  return {};
}

Status read_gptq(const JsonObject& object, GptqConfig& config) {
  ESPALIER_CHECK(check_four_bits(object, "bits"));
  ESPALIER_CHECK(check_text(object, "pack_dtype", "int32"));
  ESPALIER_TRY(config.group_size, group_size(object, "group_size"));
  ESPALIER_TRY(const auto act_order, object.boolean("desc_act"));
  config.act_order = act_order.value_or(false);
  ESPALIER_TRY(const auto marlin, object.boolean("is_marlin_format"));
  // Named checkpoint_format since AutoGPTQ 0.7, format in some files of GPTQModel.
  ESPALIER_TRY(auto layout, object.string("checkpoint_format"));
  if (!layout) {
    ESPALIER_TRY(layout, object.string("format"));
  }
  const std::string name = marlin.value_or(false) ? "marlin" : layout.value_or("gptq");
  if (name != "gptq" && name != "gptq_v2") {
    return input_error("{}: checkpoint_format is '{}', expected 'gptq' or 'gptq_v2'",
                       object.where(), printable(name));
  }
  config.layout = name == "gptq" ? pack::Int4Layout::kGptqV1 : pack::Int4Layout::kGptqV2;
  return {};
}

Status read_awq(const JsonObject& object, AwqConfig& config) {
  ESPALIER_CHECK(check_four_bits(object, object.find("bits") != nullptr ? "bits" : "w_bit"));
  ESPALIER_CHECK(
      check_text(object, object.find("version") != nullptr ? "version" : "format", "gemm"));
  ESPALIER_TRY(const auto zero_point, object.boolean("zero_point"));
  if (!zero_point.value_or(true)) {
    return input_error("{}: zero_point is false, expected true", object.where());
  }
  ESPALIER_TRY(
      config.group_size,
      group_size(object, object.find("group_size") != nullptr ? "group_size" : "q_group_size"));
  return {};
}

Result<CompressedTensorsConfig::Group> parse_compressed_group(const JsonObject& object) {
  ESPALIER_CHECK(check_text(object, "format", "pack-quantized"));
  for (const std::string_view key : {"input_activations", "output_activations"}) {
    if (object.find(key) != nullptr) {
      return input_error("{}: {} are quantized, expected weights only (W4A16)", object.where(),
                         key);
    }
  }
  ESPALIER_TRY(const JsonObject weights, required(object, "weights", object.object("weights")));
  ESPALIER_CHECK(check_four_bits(weights, "num_bits"));
  ESPALIER_CHECK(check_text(weights, "type", "int"));
  ESPALIER_TRY(const auto symmetric, weights.boolean("symmetric"));
  ESPALIER_TRY(const auto strategy, weights.string("strategy"));
  const bool has_group_size = weights.find("group_size") != nullptr;
  const std::string kind = strategy.value_or(has_group_size ? "group" : "channel");
  CompressedTensorsConfig::Group group;
  group.layout =
      symmetric.value_or(true) ? pack::Int4Layout::kCtSymmetric : pack::Int4Layout::kCtAsymmetric;
  if (kind == "group") {
    ESPALIER_TRY(group.group_size, group_size(weights, "group_size"));
  } else if (kind == "channel") {
    group.group_size = pack::kWholeRow;
  } else {
    return input_error("{}: strategy is '{}', expected 'group' or 'channel'", weights.where(),
                       printable(kind));
  }
  return group;
}

Status read_compressed_tensors(const JsonObject& object, CompressedTensorsConfig& config) {
  ESPALIER_TRY(const auto format, object.string("format"));
  if (format && *format != "pack-quantized" && *format != "mixed-precision") {
    return input_error("{}: format is '{}', expected 'pack-quantized' (W4A16)", object.where(),
                       printable(*format));
  }
  ESPALIER_CHECK(check_text(object, "quantization_status", "compressed"));
  // Both change what a weight means; neither is written by a plain W4A16 recipe.
  for (const std::string_view key : {"sparsity_config", "transform_config"}) {
    ESPALIER_TRY(const auto part, object.object(key));
    if (!part || part->json().empty()) continue;
    if (key == "sparsity_config") {
      ESPALIER_CHECK(check_text(*part, "format", "dense"));
    } else if (const Json* groups = part->find("config_groups"); groups && !groups->empty()) {
      return input_error("{}: transforms are not supported", part->where());
    }
  }
  ESPALIER_TRY(const JsonObject groups,
               required(object, "config_groups", object.object("config_groups")));
  for (const auto& [key, value] : groups.json().items()) {
    ESPALIER_TRY(const JsonObject group, required(groups, key, groups.object(key)));
    ESPALIER_TRY(const auto parsed, parse_compressed_group(group));
    config.groups.push_back(parsed);
  }
  if (config.groups.empty()) return input_error("{}: is empty", groups.where());
  return {};
}

Status read_mxfp4(const JsonObject&, Mxfp4Config&) { return {}; }

// Reads the object of one method into its struct.
template <typename Config, Status (*kRead)(const JsonObject&, Config&)>
Result<QuantizationConfig> read_as(const JsonObject& object) {
  Config config;
  ESPALIER_CHECK(kRead(object, config));
  return QuantizationConfig(std::move(config));
}

struct Method {
  std::string_view name;
  Result<QuantizationConfig> (*read)(const JsonObject& object);
};

constexpr auto kMethods = std::to_array<Method>({
    {"exl3", read_as<Exl3Config, read_exl3>},
    {"mlx", read_as<MlxConfig, read_mlx>},
    {"gptq", read_as<GptqConfig, read_gptq>},
    {"awq", read_as<AwqConfig, read_awq>},
    {"compressed-tensors", read_as<CompressedTensorsConfig, read_compressed_tensors>},
    {"mxfp4", read_as<Mxfp4Config, read_mxfp4>},
});

// Reads an object of the method of that name.
Result<QuantizationConfig> read_method(const JsonObject& object, std::string_view name) {
  for (const Method& method : kMethods) {
    if (method.name == name) return method.read(object);
  }
  return input_error(
      "{}: quant_method '{}' is not supported: take the unquantized weights, a GGUF file, or a "
      "pack in EXL3, MLX, GPTQ, AWQ, MXFP4 or compressed-tensors (W4A16) form",
      object.where(), printable(name));
}

}  // namespace

const MlxScheme& MlxConfig::scheme(std::string_view module) const {
  const auto found = overrides.find(module);
  return found == overrides.end() ? standard : found->second;
}

Result<QuantizationConfig> parse_quantization_config(const JsonObject& config) {
  // MLX writes its own key first and repeats it under the common one.
  ESPALIER_TRY(const auto mlx, config.object("quantization"));
  if (mlx) return read_method(*mlx, "mlx");
  ESPALIER_TRY(auto object, config.object("quantization_config"));
  if (!object) {
    ESPALIER_TRY(object, config.object("compression_config"));
  }
  if (!object) return QuantizationConfig();
  ESPALIER_TRY(const std::string name,
               required(*object, "quant_method", object->string("quant_method")));
  return read_method(*object, name);
}

Result<QuantizationConfig> parse_gptq_config(const JsonObject& config) {
  return read_method(config, "gptq");
}

}  // namespace espalier::file
