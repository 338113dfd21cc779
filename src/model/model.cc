#include "model/model.h"

#include <algorithm>

#include "base/printable.h"
#include "model/container_weights.h"
#include "model/decoder.h"
#include "model/settings.h"

namespace espalier::model {
namespace {

const Architecture* find_by_model_type(std::string_view type) {
  if (type.empty()) return nullptr;
  for (const Architecture* architecture : architectures()) {
    const auto& types = architecture->model_types;
    if (std::find(std::begin(types), std::end(types), type) != std::end(types)) return architecture;
  }
  return nullptr;
}

Error unsupported(std::string_view name, const std::string& source) {
  std::string known;
  for (const Architecture* architecture : architectures()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture->name);
  }
  return input_error("{}: architecture '{}' is not supported; supported: {}", source,
                     printable(name), known);
}

Result<std::unique_ptr<Model>> load(const Architecture& architecture, const Settings& settings,
                                    const Weights& weights) {
  ESPALIER_TRY(DecoderConfig config, architecture.configure(settings, weights));
  return load_decoder(architecture, std::move(config), weights, settings.convention());
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(const file::Gguf& gguf) {
  ESPALIER_TRY(const std::string_view name,
               required(gguf, "general.architecture", gguf.string("general.architecture")));
  for (const Architecture* architecture : architectures()) {
    if (architecture->name == name) {
      return load(*architecture, Settings(gguf, name), *container_weights(gguf));
    }
  }
  return unsupported(name, gguf.name());
}

Result<std::unique_ptr<Model>> load_model(const file::HfDirectory& directory) {
  const file::JsonObject config = directory.config();
  ESPALIER_TRY(const auto name, config.string("model_type"));
  if (!name) return input_error("{}: key 'model_type' is missing", config.where());
  // The language model of a multimodal one has its own part, and may be of a kind of its own.
  ESPALIER_TRY(const auto text_config, config.object("text_config"));
  const Architecture* architecture = find_by_model_type(*name);
  if (architecture == nullptr && text_config) {
    ESPALIER_TRY(const auto text_type, text_config->string("model_type"));
    architecture = find_by_model_type(text_type.value_or(*name));
  }
  if (architecture == nullptr) return unsupported(*name, directory.name());
  return load(*architecture, Settings(text_config ? *text_config : config),
              *container_weights(directory));
}

}  // namespace espalier::model
