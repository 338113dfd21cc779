#include "run/kv_cache.h"

#include <sys/mman.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <utility>

#include "base/bytes.h"

namespace espalier::run {

namespace {

// The bytes that so many take, in whole cache lines; nothing if that overflows.
std::optional<std::uint64_t> product(std::initializer_list<std::uint64_t> factors) {
  std::optional<std::uint64_t> bytes = 1;
  for (const std::uint64_t factor : factors) {
    if (bytes) bytes = checked_mul(*bytes, factor);
  }
  if (bytes) bytes = checked_add(*bytes, 63);
  return bytes ? std::optional(*bytes / 64 * 64) : std::nullopt;
}

}  // namespace

void KvCache::Unmap::operator()(std::byte* memory) const { ::munmap(memory, bytes); }

Result<KvCache> KvCache::create(const model::ModelInfo& model, std::size_t sequences,
                                std::size_t capacity, compute::KvType type) {
  // Bytes of each layer's keys, values, and two states of a recurrence.
  std::vector<std::array<std::uint64_t, 4>> sizes;
  std::optional<std::uint64_t> bytes = 0;
  for (const model::LayerCache& layer : model.layers) {
    const std::size_t head_bytes = compute::kv_row_bytes(type, layer.head_dim);
    const auto half = product({sequences, capacity, layer.kv_heads, head_bytes});
    const auto convolution = product({sequences, layer.convolution_size, sizeof(float)});
    const auto memory = product({sequences, layer.memory_size, sizeof(float)});
    for (const auto& part : {half, half, convolution, memory}) {
      bytes = bytes && part ? checked_add(*bytes, *part) : std::nullopt;
    }
    if (!bytes) {
      return input_error("{}: a cache of {} positions is too large", model.source, capacity);
    }
    sizes.push_back({*half, *half, *convolution, *memory});
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
  const auto take = [&next](std::uint64_t size) { return std::exchange(next, next + size); };
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const model::LayerCache& layer = model.layers[l];
    compute::LayerState state;
    state.kv = {.type = type,
                .keys = take(sizes[l][0]),
                .values = take(sizes[l][1]),
                .kv_heads = layer.kv_heads,
                .head_dim = layer.head_dim,
                .capacity = capacity};
    state.recurrent = {.convolution = reinterpret_cast<float*>(take(sizes[l][2])),
                       .memory = reinterpret_cast<float*>(take(sizes[l][3])),
                       .convolution_size = layer.convolution_size,
                       .memory_size = layer.memory_size};
    cache.layers_.push_back(state);
  }
  return cache;
}

}  // namespace espalier::run
