#include "model/model.h"

#include "model/container_weights.h"
#include "model/llama.h"

namespace espalier::model {
namespace {

Result<std::unique_ptr<Model>> load_gguf_llama(const file::Gguf& gguf, const Weights& weights) {
  ESPALIER_TRY(const LlamaConfig config, llama_config(gguf, weights));
  return load_llama(config, weights, kGgufLlamaNames);
}

Result<std::unique_ptr<Model>> load_hf_llama(const file::HfDirectory& directory,
                                             const Weights& weights) {
  ESPALIER_TRY(const LlamaConfig config, llama_config(directory.config()));
  return load_llama(config, weights, kHfLlamaNames);
}

struct Architecture {
  std::string_view name;  // general.architecture of GGUF, model_type of config.json
  Result<std::unique_ptr<Model>> (*load_gguf)(const file::Gguf& gguf, const Weights& weights);
  Result<std::unique_ptr<Model>> (*load_hf)(const file::HfDirectory& directory,
                                            const Weights& weights);
};

constexpr Architecture kArchitectures[] = {
    {"llama", load_gguf_llama, load_hf_llama},
};

Result<Architecture> find_architecture(std::string_view name, const std::string& source) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.name);
  }
  return input_error("{}: architecture '{}' is not supported; supported: {}", source, name, known);
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(const file::Gguf& gguf) {
  ESPALIER_TRY(const std::string_view name,
               required(gguf, "general.architecture", gguf.string("general.architecture")));
  ESPALIER_TRY(const Architecture architecture, find_architecture(name, gguf.name()));
  return architecture.load_gguf(gguf, *container_weights(gguf));
}

Result<std::unique_ptr<Model>> load_model(const file::HfDirectory& directory) {
  ESPALIER_TRY(const auto name, directory.config().string("model_type"));
  if (!name) return input_error("{}: key 'model_type' is missing", directory.config().where());
  ESPALIER_TRY(const Architecture architecture, find_architecture(*name, directory.name()));
  return architecture.load_hf(directory, *container_weights(directory));
}

}  // namespace espalier::model
