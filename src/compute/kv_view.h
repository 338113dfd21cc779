// Where attention finds the keys and values of earlier positions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier::compute {

enum class KvType { kF32, kF16 };

[[nodiscard]] constexpr std::size_t element_bytes(KvType type) {
  return type == KvType::kF32 ? 4 : 2;
}

// The cache of one layer: keys and values as [sequences, kv_heads, capacity, head_dim], so that one
// head's past is contiguous.
struct KvView {
  KvType type = KvType::kF32;
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t capacity = 0;  // positions a sequence may have

  // Index of the first element of (sequence, kv_head, position).
  [[nodiscard]] std::size_t index(std::size_t sequence, std::size_t kv_head,
                                  std::size_t position) const {
    return ((sequence * kv_heads + kv_head) * capacity + position) * head_dim;
  }
};

}  // namespace espalier::compute
