// The keys and values of all positions that sequences have seen.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "compute/kv_view.h"
#include "model/model.h"

namespace espalier::run {

class KvCache {
 public:
  // Room for `sequences` sequences of `capacity` positions of `model`. The memory is reserved at
  // once and becomes resident as positions are written.
  static Result<KvCache> create(const model::ModelInfo& model, std::size_t sequences,
                                std::size_t capacity, compute::KvType type);

  // One view per layer.
  [[nodiscard]] std::span<const compute::KvView> layers() const { return layers_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const;
  };

  KvCache(std::byte* memory, std::size_t bytes) : memory_(memory, Unmap{bytes}) {}

  std::unique_ptr<std::byte, Unmap> memory_;
  std::vector<compute::KvView> layers_;
  std::size_t capacity_ = 0;
};

}  // namespace espalier::run
