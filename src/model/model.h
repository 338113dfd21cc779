// A loaded model: rows of tokens in, logits out.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "compute/ops.h"
#include "file/gguf.h"
#include "file/hf_directory.h"

namespace espalier::model {

// What a layer needs to keep of earlier positions: keys and values of `kv_heads` heads of
// `head_dim` elements, for as many positions as it looks back, itself included.
struct LayerCache {
  std::size_t kv_heads = 0;  // 0: it keeps none
  std::size_t head_dim = 0;
  std::size_t window = 0;  // 0: all positions
};

// What the cache and the generation loop need to know of a model.
struct ModelInfo {
  std::string source;        // the file or directory, for messages
  std::string architecture;  // "llama"
  std::size_t vocab_size = 0;
  std::size_t context_length = 0;  // positions the model was made for
  std::vector<LayerCache> layers;
};

class Model {
 public:
  virtual ~Model() = default;

  [[nodiscard]] const ModelInfo& info() const { return info_; }

  // Runs `rows` through the model. cache[l] is layer l's cache; rows of one sequence come in order
  // of position, and all earlier positions are in the cache. logits [wanted.size(), vocab_size]
  // gets the logits of the rows whose indices `wanted` lists. Tokens must be in [0, vocab_size).
  virtual void forward(compute::Ops& ops, std::span<const compute::Row> rows,
                       std::span<const compute::KvView> cache, std::span<const std::size_t> wanted,
                       float* logits) const = 0;

 protected:
  ModelInfo info_;
};

// The model in a GGUF file, which must outlive it. Errors: an unknown architecture, missing or
// contradictory metadata, missing tensors or tensors of the wrong shape.
[[nodiscard]] Result<std::unique_ptr<Model>> load_model(const file::Gguf& gguf);

// The model in a Hugging Face directory, which must outlive it. Errors: the same.
[[nodiscard]] Result<std::unique_ptr<Model>> load_model(const file::HfDirectory& directory);

}  // namespace espalier::model
