#include "run/kv_cache.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace espalier::run {

void KvCache::Unmap::operator()(std::byte* memory) const { ::munmap(memory, bytes); }

Result<KvCache> KvCache::create(const model::ModelInfo& model, std::size_t sequences,
                                std::size_t capacity, compute::KvType type) {
  std::optional<std::uint64_t> bytes = compute::element_bytes(type);
  for (const std::size_t factor : {sequences, capacity, model.kv_heads, model.head_dim}) {
    if (bytes) bytes = checked_mul(*bytes, factor);
  }
  const std::optional<std::uint64_t> half_layer = bytes;
  if (bytes) bytes = checked_mul(*bytes, 2 * model.layers);
  if (!bytes)
    return input_error("{}: a cache of {} positions is too large", model.source, capacity);

  void* memory = ::mmap(nullptr, *bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return work_error("{}: no memory for a cache of {} positions ({} bytes): {}", model.source,
                      capacity, *bytes, strerror(errno));
  }
  KvCache cache(static_cast<std::byte*>(memory), *bytes);
  cache.capacity_ = capacity;
  for (std::size_t l = 0; l < model.layers; ++l) {
    std::byte* keys = cache.memory_.get() + 2 * l * *half_layer;
    cache.layers_.push_back({.type = type,
                             .keys = keys,
                             .values = keys + *half_layer,
                             .kv_heads = model.kv_heads,
                             .head_dim = model.head_dim,
                             .capacity = capacity});
  }
  return cache;
}

}  // namespace espalier::run
