// The kernels' dialect on a CPU (dialect.h lists the words): a grid runs block by block, each
// thread of a block with a stack of its own, always in the same order. What a GPU leaves undefined
// is an error with the kernel's name, the block and the thread:
//
//   - a barrier or warp operation that not all of the block's, or warp's, threads reach
//   - an access outside of an array or buffer, or one that is not aligned to its size
//   - a read of memory that nobody wrote: shared memory, or an output before it is filled
//   - two threads that touch the same byte, one of them writing, without a barrier between them;
//     threads of different blocks have none
//   - a thread that needs more stack than GPUs have for it (a fault at the guard page)
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/half.h"
#include "base/result.h"
#include "compute/gpu/grid.h"

#define ESPALIER_DIALECT emulated
#define ESPALIER_DEVICE inline
#define ESPALIER_CONSTANT constexpr

namespace espalier::gpu::emulated {

// --- Memory
// ---------------------------------------------------------------------------------------

// Who last wrote and read a byte, and in which stretch of time between two barriers (epoch). Epochs
// count up through all launches; 0 is never.
struct ByteState {
  std::uint32_t written = 0, writer = 0;
  std::uint32_t read = 0, reader = 0;
};

// Bytes whose accesses are checked.
struct Watched {
  std::string name;  // for messages
  std::byte* bytes = nullptr;
  std::vector<ByteState> states;  // one a byte
};

enum class Access { kRead, kWrite };

// Called by the running thread before it touches `size` bytes; does not return if it may not.
void check_access(Watched& memory, std::int64_t offset, std::size_t size, Access access);

// The same for element `index` of `count` of a shared array.
void check_index(std::int64_t index, std::int64_t count);

// The shared memory of the running block.
[[nodiscard]] Watched& shared_memory();

template <typename T>
[[nodiscard]] T checked_load(Watched& memory, std::int64_t offset) {
  check_access(memory, offset, sizeof(T), Access::kRead);
  T value;
  std::memcpy(&value, memory.bytes + offset, sizeof(T));
  return value;
}

// An element of watched memory: what indexing gives.
template <typename T>
class Element {
 public:
  Element(Watched& memory, std::int64_t offset) : memory_(memory), offset_(offset) {}
  Element(const Element&) = default;
  operator T() const { return checked_load<T>(memory_, offset_); }  // NOLINT: stands for a T
  Element& operator=(T value) {
    check_access(memory_, offset_, sizeof(T), Access::kWrite);
    std::memcpy(memory_.bytes + offset_, &value, sizeof(T));
    return *this;
  }
  Element& operator=(const Element& other) { return *this = static_cast<T>(other); }
  Element& operator+=(T value) { return *this = *this + value; }

 private:
  Watched& memory_;
  std::int64_t offset_;
};

template <typename T>
class Global {
 public:
  using Value = std::remove_const_t<T>;

  Global() = default;
  Global(std::nullptr_t) {}  // NOLINT: as a pointer
  Global(Watched& memory, std::int64_t offset) : memory_(&memory), offset_(offset) {}
  operator Global<const T>() const {  // NOLINT: as a pointer
    return memory_ == nullptr ? Global<const T>() : Global<const T>(*memory_, offset_);
  }
  bool operator==(std::nullptr_t) const { return memory_ == nullptr; }

  Global operator+(std::uint64_t count) const {
    Global moved = *this;
    moved.offset_ += static_cast<std::int64_t>(count * sizeof(T));
    return moved;
  }
  auto operator[](std::uint64_t index) const {
    Watched& memory = memory_ == nullptr ? null_memory() : *memory_;
    const std::int64_t offset = offset_ + static_cast<std::int64_t>(index * sizeof(T));
    if constexpr (std::is_const_v<T>) {
      return checked_load<Value>(memory, offset);
    } else {
      return Element<T>(memory, offset);
    }
  }

 private:
  static Watched& null_memory() {
    static Watched none{.name = "a null pointer"};
    return none;
  }

  Watched* memory_ = nullptr;
  std::int64_t offset_ = 0;
};

template <typename T>
class Shared {
 public:
  Shared(Watched& memory, std::int64_t offset, std::int64_t count)
      : memory_(memory), offset_(offset), count_(count) {}

  Element<T> operator[](std::int64_t index) const {
    check_index(index, count_);
    return {memory_, offset_ + index * static_cast<std::int64_t>(sizeof(T))};
  }
  Shared operator+(std::int64_t count) const {
    return {memory_, offset_ + count * static_cast<std::int64_t>(sizeof(T)), count_ - count};
  }

 private:
  Watched& memory_;
  std::int64_t offset_;
  std::int64_t count_;
};

template <typename T, int kCount>
class SharedArray {
 public:
  Element<T> operator[](std::int64_t index) { return Shared<T>(*this)[index]; }
  operator Shared<T>() {  // NOLINT: as an array becomes a pointer
    Watched& memory = shared_memory();
    return {memory, reinterpret_cast<std::byte*>(values_) - memory.bytes, kCount};
  }

 private:
  T values_[kCount];
};

template <typename S>
using BlockMemory = S*;
template <typename T>
using Private = T*;
template <typename A>
using Arguments = const A&;

// Device memory, with the name that messages give it.
class Buffer {
 public:
  // Holds a copy of `values`.
  template <typename T>
  Buffer(std::string name, std::span<const T> values)
      : Buffer(std::move(name), values.size_bytes()) {
    if (!values.empty()) std::memcpy(bytes_.data(), values.data(), bytes_.size());
    mark_written();
  }
  template <typename T>
  Buffer(std::string name, const std::vector<T>& values)
      : Buffer(std::move(name), std::span<const T>(values)) {}

  // `size` bytes that a kernel has to write before one reads them. Until then all bits are set,
  // which as a number is NaN.
  Buffer(std::string name, std::size_t size);

  Buffer(const Buffer&) = delete;  // kernels' pointers lead here
  Buffer& operator=(const Buffer&) = delete;

  template <typename T>
  [[nodiscard]] Global<T> at() {
    return {watched_, 0};
  }
  template <typename T>
  [[nodiscard]] std::span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

  // The first byte that neither the host nor a kernel has written.
  [[nodiscard]] std::optional<std::size_t> first_unwritten() const;

 private:
  void mark_written();

  std::vector<std::byte> bytes_;
  Watched watched_;
};

// --- Running
// --------------------------------------------------------------------------------------

// A kernel without its types.
struct Kernel {
  std::string_view name;
  std::size_t memory_bytes = 0;
  const void* context = nullptr;
  void (*run)(const void* context, std::uint32_t thread, const Grid& grid, std::uint32_t block_x,
              std::uint32_t block_y, void* memory) = nullptr;
};

// Runs it on every thread of `grid`. Errors: a grid that no GPU takes, and all that the top of this
// file lists.
[[nodiscard]] Status run(const Kernel& kernel, const Grid& grid);

// --- Synchronization and numbers
// ------------------------------------------------------------------

// Where in a kernel threads meet: those that meet must be at the same place.
struct Place {
  const char* operation = "";
  const char* file = "";
  int line = 0;

  bool operator==(const Place& other) const {
    return line == other.line && std::strcmp(operation, other.operation) == 0 &&
           std::strcmp(file, other.file) == 0;
  }
};

void meet_block(const Place& place);
// The bits that lane `from` (beyond the last lane: nobody, all bits set) brings.
[[nodiscard]] std::uint32_t meet_warp(const Place& place, std::uint32_t bits, std::uint32_t from);
// Bit l is the vote of lane l.
[[nodiscard]] std::uint32_t meet_ballot(const Place& place, bool vote);
[[nodiscard]] std::uint32_t running_lane();

inline void barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  meet_block({"barrier", file, line});
}

template <typename T>
T shuffle_from(const Place& place, T value, std::uint32_t from) {
  static_assert(sizeof(T) == 4);
  return std::bit_cast<T>(meet_warp(place, std::bit_cast<std::uint32_t>(value), from));
}
template <typename T>
T shuffle(T value, std::uint32_t lane, const char* file = __builtin_FILE(),
          int line = __builtin_LINE()) {
  return shuffle_from({"shuffle", file, line}, value, lane);
}
template <typename T>
T shuffle_xor(T value, std::uint32_t mask, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  return shuffle_from({"shuffle_xor", file, line}, value, running_lane() ^ mask);
}
template <typename T>
T shuffle_down(T value, std::uint32_t lanes, const char* file = __builtin_FILE(),
               int line = __builtin_LINE()) {
  return shuffle_from({"shuffle_down", file, line}, value, running_lane() + lanes);
}
inline std::uint32_t ballot(bool vote, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  return meet_ballot({"ballot", file, line}, vote);
}

inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
using espalier::float_to_half;
using espalier::half_to_float;

using std::cos;
using std::exp;
using std::fabs;
using std::floor;
using std::fma;
using std::fmax;
using std::fmin;
using std::log;
using std::sin;
using std::sqrt;
using std::tanh;

// Runs `body` as the kernel of that name.
template <typename Memory, typename Thread, typename Args>
Status run_kernel(std::string_view name, void (*body)(Thread, const Args&, Memory*),
                  const Grid& grid, const Args& args) {
  static_assert(sizeof(Memory) <= kMostSharedBytes);
  struct Context {
    void (*body)(Thread, const Args&, Memory*);
    const Args& args;
  };
  const Context context = {body, args};
  return run(
      {.name = name,
       .memory_bytes = sizeof(Memory),
       .context = &context,
       .run =
           [](const void* opaque, std::uint32_t thread, const Grid& shape, std::uint32_t x,
              std::uint32_t y, void* memory) {
             const auto& call = *static_cast<const Context*>(opaque);
             call.body({thread, shape.threads, x, y}, call.args, static_cast<Memory*>(memory));
           }},
      grid);
}

}  // namespace espalier::gpu::emulated

// Defines the function launch::`name`, which runs `body` (last, so that it may hold commas) on a
// Defines the function launch::`name`, which runs `body` (last, so that it may hold commas) on a
// grid.
#define ESPALIER_ENTRY(name, Args, Memory, ...)                           \
  namespace launch {                                                      \
  [[nodiscard]] inline Status name(const Grid& grid, const Args& args) {  \
    return run_kernel<Memory>(#name, &emulated::__VA_ARGS__, grid, args); \
  }                                                                       \
  }
