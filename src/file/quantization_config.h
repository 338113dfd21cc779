// How a Hugging Face directory says that its weights are quantized, one struct per method. What
// the tensors' shapes tell, such as EXL3's bits, is read from them and not from here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "file/json.h"
#include "pack/grouped_int4.h"

namespace espalier::file {

struct Exl3Config {
  double bits = 0;       // average of the matrices
  double head_bits = 0;  // of the output head; both 0 where the file does not say
};

enum class MlxMode { kAffine, kMxfp4, kMxfp8, kNvfp4 };

struct MlxScheme {
  MlxMode mode = MlxMode::kAffine;
  std::uint64_t bits = 0;
  std::uint64_t group_size = 0;
};

struct MlxConfig {
  MlxScheme standard;
  std::map<std::string, MlxScheme, std::less<>> overrides;  // by module

  [[nodiscard]] const MlxScheme& scheme(std::string_view module) const;
};

// 4 bits. group_size is pack::kWholeRow where a row is one group.
struct GptqConfig {
  pack::Int4Layout layout = pack::Int4Layout::kGptqV1;
  std::uint64_t group_size = 0;
  bool act_order = false;
};

struct AwqConfig {
  std::uint64_t group_size = 0;
};

struct CompressedTensorsConfig {
  struct Group {
    pack::Int4Layout layout = pack::Int4Layout::kCtSymmetric;
    std::uint64_t group_size = 0;
  };
  std::vector<Group> groups;  // a module is in one of these; its tensors show in which
};

// gpt-oss's form of MXFP4: blocks and scales of stacked experts. It has no parameters.
struct Mxfp4Config {};

// std::monostate: not quantized.
using QuantizationConfig = std::variant<std::monostate, Exl3Config, MlxConfig, GptqConfig,
                                        AwqConfig, CompressedTensorsConfig, Mxfp4Config>;

// The quantization that `config`, a parsed config.json, describes. Errors: a method that Espalier
// does not read, parameters that it does not support or that are missing.
[[nodiscard]] Result<QuantizationConfig> parse_quantization_config(const JsonObject& config);

// The same from the contents of quantize_config.json, where older GPTQ directories keep it.
[[nodiscard]] Result<QuantizationConfig> parse_gptq_config(const JsonObject& config);

}  // namespace espalier::file
