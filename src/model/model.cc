#include "model/model.h"

#include "model/gguf_weights.h"
#include "model/llama.h"

namespace espalier::model {
namespace {

Result<std::unique_ptr<Model>> load_gguf_llama(const file::Gguf& gguf, const Weights& weights) {
  ESPALIER_TRY(const LlamaConfig config, llama_config(gguf, weights));
  return load_llama(config, weights, kGgufLlamaNames);
}

struct Architecture {
  std::string_view name;  // general.architecture
  Result<std::unique_ptr<Model>> (*load)(const file::Gguf& gguf, const Weights& weights);
};

constexpr Architecture kArchitectures[] = {
    {"llama", load_gguf_llama},
};

}  // namespace

Result<std::unique_ptr<Model>> load_model(const file::Gguf& gguf) {
  ESPALIER_TRY(const std::string_view name,
               required(gguf, "general.architecture", gguf.string("general.architecture")));
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture.load(gguf, *gguf_weights(gguf));
  }
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
  }
  return input_error("{}: architecture '{}' is not supported; supported: {}", gguf.name(), name,
                     known);
}

}  // namespace espalier::model
