#include "run/kv_cache.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace espalier::run {

void KvCache::Unmap::operator()(std::byte* memory) const { ::munmap(memory, bytes); }

Result<KvCache> KvCache::create(const model::ModelInfo& model, std::size_t sequences,
                                std::size_t capacity, compute::KvType type) {
  std::vector<std::uint64_t> half_layers;  // bytes of a layer's keys, and again of its values
  std::optional<std::uint64_t> bytes = 0;
  for (const model::LayerCache& layer : model.layers) {
    std::optional<std::uint64_t> half = compute::element_bytes(type);
    for (const std::size_t factor : {sequences, capacity, layer.kv_heads, layer.head_dim}) {
      if (half) half = checked_mul(*half, factor);
    }
    if (bytes && half) bytes = checked_add(*bytes, *half);
    if (bytes && half) bytes = checked_add(*bytes, *half);
    if (!bytes || !half) {
      return input_error("{}: a cache of {} positions is too large", model.source, capacity);
    }
    half_layers.push_back(*half);
  }

  void* memory = ::mmap(nullptr, *bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return work_error("{}: no memory for a cache of {} positions ({} bytes): {}", model.source,
                      capacity, *bytes, strerror(errno));
  }
  KvCache cache(static_cast<std::byte*>(memory), *bytes);
  cache.capacity_ = capacity;
  std::byte* next = cache.memory_.get();
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    cache.layers_.push_back({.type = type,
                             .keys = next,
                             .values = next + half_layers[l],
                             .kv_heads = model.layers[l].kv_heads,
                             .head_dim = model.layers[l].head_dim,
                             .capacity = capacity});
    next += 2 * half_layers[l];
  }
  return cache;
}

}  // namespace espalier::run
