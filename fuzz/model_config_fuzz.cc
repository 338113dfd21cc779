// libFuzzer target of model configurations: a config.json, or GGUF metadata, as every architecture
// reads it. The seeds are the config.json of tests/data/models/NAME, each under its NAME.
#include <cstdlib>

#include "model/decoder_config.h"

namespace {

using namespace espalier;

// Tensors of every name, so that no configuration ends at one that is missing.
class AnyWeights final : public model::Weights {
 public:
  const std::string& source() const override { return source_; }
  Result<std::optional<pack::Matrix>> find_matrix(std::string_view) const override {
    return std::optional(pack::Matrix{.rows = 64, .cols = 32});
  }
  Result<std::optional<std::vector<float>>> find_vector(std::string_view) const override {
    return std::optional(std::vector<float>{1, 2, 3});
  }

 private:
  std::string source_ = "fuzz";
};

// A message is one line.
void check(const Result<model::DecoderConfig>& config) {
  if (!config && config.error().message.find('\n') != std::string::npos) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  const AnyWeights weights;
  const auto gguf = file::Gguf::parse(bytes, "fuzz");
  const auto json = file::parse_json(bytes, "fuzz");
  for (const model::Architecture* architecture : model::architectures()) {
    if (gguf) {
      check(architecture->configure(model::Settings(*gguf, architecture->name), weights));
    }
    if (json) {
      check(architecture->configure(model::Settings(file::JsonObject(*json, "fuzz")), weights));
    }
  }
  return 0;
}
