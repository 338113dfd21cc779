// What the layers of a model remember of sequences: keys and values of all positions, and the
// states of recurrences.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "compute/layer_state.h"
#include "model/model.h"

namespace espalier::run {

class KvCache {
 public:
  // Room for `sequences` sequences of `capacity` positions of `model`. The memory is reserved at
  // once and becomes resident as positions are written.
  static Result<KvCache> create(const model::ModelInfo& model, std::size_t sequences,
                                std::size_t capacity, compute::KvType type);

  // One per layer.
  [[nodiscard]] std::span<const compute::LayerState> layers() const { return layers_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };

  KvCache(std::byte* memory, std::size_t bytes) : memory_(memory, Unmap{bytes}) {}

  std::unique_ptr<std::byte, Unmap> memory_;
  std::vector<compute::LayerState> layers_;
  std::size_t capacity_ = 0;
};

}  // namespace espalier::run
