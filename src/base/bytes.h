// Bounds-checked reading of little-endian bytes, and arithmetic that notices overflow: all that a
// parser of untrusted files needs to never read or allocate out of bounds.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace espalier {

static_assert(std::endian::native == std::endian::little, "model files are mapped, not swapped");

using Bytes = std::span<const std::byte>;

// a·b, or nothing when the product does not fit.
[[nodiscard]] inline std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// a+b, or nothing when the sum does not fit.
[[nodiscard]] inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// Reads a T from possibly unaligned memory.
template <typename T>
[[nodiscard]] T load(const void* from) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Walks a byte range from front to back. Every read is checked; a read past the end gives nothing
// and leaves the cursor where it was.
class Cursor {
 public:
  explicit Cursor(Bytes bytes) : bytes_(bytes) {}

  [[nodiscard]] std::uint64_t offset() const { return offset_; }
  [[nodiscard]] std::uint64_t remaining() const { return bytes_.size() - offset_; }

  template <typename T>
  [[nodiscard]] std::optional<T> read() {
    if (remaining() < sizeof(T)) return std::nullopt;
    const T value = load<T>(bytes_.data() + offset_);
    offset_ += sizeof(T);
    return value;
  }

  // The next `count` bytes, in place.
  [[nodiscard]] std::optional<Bytes> take(std::uint64_t count) {
    if (remaining() < count) return std::nullopt;
    const Bytes taken = bytes_.subspan(offset_, count);
    offset_ += count;
    return taken;
  }

 private:
  Bytes bytes_;
  std::uint64_t offset_ = 0;
};

[[nodiscard]] inline std::string_view as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

[[nodiscard]] inline Bytes as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace espalier
