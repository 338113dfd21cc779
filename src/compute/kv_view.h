// Where attention finds the keys and values of earlier positions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier::compute {

// What keys and values are rounded to: see kv_codec.h.
enum class KvType { kF32, kF16, kBF16, kQ8, kQ4 };

// Bytes of one head's key or value.
[[nodiscard]] constexpr std::size_t kv_row_bytes(KvType type, std::size_t head_dim) {
  const std::size_t blocks = (head_dim + 31) / 32;
  switch (type) {
    case KvType::kF32:
      return head_dim * 4;
    case KvType::kF16:
    case KvType::kBF16:
      return head_dim * 2;
    case KvType::kQ8:
      return blocks * 34;
    case KvType::kQ4:
      return blocks * 18;
  }
  return 0;
}

// The cache of one layer: keys and values as [sequences, kv_heads, capacity] rows of a head, so
// that one head's past is contiguous.
struct KvView {
  KvType type = KvType::kF32;
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t capacity = 0;  // positions a sequence may have

  [[nodiscard]] std::size_t row_bytes() const { return kv_row_bytes(type, head_dim); }

  // Where the row of (sequence, kv_head, position) begins, in bytes.
  [[nodiscard]] std::size_t offset(std::size_t sequence, std::size_t kv_head,
                                   std::size_t position) const {
    return ((sequence * kv_heads + kv_head) * capacity + position) * row_bytes();
  }
};

}  // namespace espalier::compute
