// A loaded model: rows of tokens in, logits out.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "compute/layer_state.h"
#include "compute/ops.h"
#include "file/gguf.h"
#include "file/hf_directory.h"

namespace espalier::model {

// What a layer needs to keep of earlier positions: keys and values of `kv_heads` heads of
// `head_dim` elements, for as many positions as it looks back, itself included; and the floats of a
// recurrence, whatever the number of positions.
struct LayerCache {
  std::size_t kv_heads = 0;  // 0: it keeps none
  std::size_t head_dim = 0;
  std::size_t window = 0;  // 0: all positions
  std::size_t convolution_size = 0;
  std::size_t memory_size = 0;
};

// What the cache and the generation loop need to know of a model.
struct ModelInfo {
  std::string source;        // the file or directory, for messages
  std::string architecture;  // "llama"
  std::size_t vocab_size = 0;
  std::size_t context_length = 0;  // positions the model was made for
  std::vector<LayerCache> layers;

  // Whether a sequence can go back to an earlier position than its last. A recurrence keeps no past
  // to return to: such a sequence can only begin anew, at position 0.
  [[nodiscard]] bool can_rewind() const {
    return std::all_of(layers.begin(), layers.end(),
                       [](const LayerCache& layer) { return layer.memory_size == 0; });
  }
};

class Model {
 public:
  virtual ~Model() = default;

  [[nodiscard]] const ModelInfo& info() const { return info_; }

  // Lets the backend that forward() is to be called with put weights in the order it likes best.
  virtual void prepare(compute::Ops& ops) = 0;

  // Runs `rows` through the model. cache[l] is layer l's state; rows of one sequence come in order
  // of position, and all earlier positions are in the cache. logits [wanted.size(), vocab_size]
  // gets the logits of the rows whose indices `wanted` lists. Tokens must be in [0, vocab_size).
  virtual void forward(compute::Ops& ops, std::span<const compute::Row> rows,
                       std::span<const compute::LayerState> cache,
                       std::span<const std::size_t> wanted, float* logits) const = 0;

 protected:
  ModelInfo info_;
};

// The model in a GGUF file, which must outlive it. Errors: an unknown architecture, missing or
// contradictory metadata, missing tensors or tensors of the wrong shape.
[[nodiscard]] Result<std::unique_ptr<Model>> load_model(const file::Gguf& gguf);

// The model in a Hugging Face directory, which must outlive it. Errors: the same.
[[nodiscard]] Result<std::unique_ptr<Model>> load_model(const file::HfDirectory& directory);

}  // namespace espalier::model
