// Memory of the current GPU, and moving bytes between it and the host.
#pragma once

#include <span>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"
#include "compute/gpu/cuda/stream.h"

namespace espalier::gpu::cuda {

// Bytes on the GPU, given back at its end. CUDA aligns them to 256.
class DeviceMemory {
 public:
  static constexpr std::size_t kAlignment = 256;

  DeviceMemory() = default;  // of no bytes

  // `what_for` is for the message. Errors: not enough is free.
  static Result<DeviceMemory> allocate(std::size_t bytes, std::string_view what_for);

  [[nodiscard]] std::size_t size() const { return size_; }
  // A pointer that is only good on the GPU.
  template <typename T>
  [[nodiscard]] T* at(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(bytes_.get()) + offset);
  }

 private:
  Owned<void*, cudaFree> bytes_;
  std::size_t size_ = 0;
};

// Each is done when the stream gets there, but a host span may be used again at once: bytes that
// are not pinned are read or written before these return.
[[nodiscard]] Status copy_to_device(Stream& stream, Bytes from, void* to);
[[nodiscard]] Status copy_to_host(Stream& stream, const void* from, std::span<std::byte> to);
[[nodiscard]] Status copy_on_device(Stream& stream, const void* from, std::size_t bytes, void* to);
[[nodiscard]] Status fill(Stream& stream, void* memory, std::size_t bytes, std::uint8_t value);

// Brings large arrays to the GPU through two pieces of pinned memory: one is filled by the host
// while the GPU copies the other. What comes from a mapped file is read from the disk meanwhile,
// and the host never holds more of it than these pieces (beside the system's own cache of the
// file).
class Uploader {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

  static Result<Uploader> create(std::size_t piece_bytes = kPieceBytes);

  // `from` may be changed or unmapped once this returns; it is in `to` after finish().
  [[nodiscard]] Status upload(Bytes from, void* to);
  [[nodiscard]] Status finish() { return stream_.wait(); }

  [[nodiscard]] Stream& stream() { return stream_; }

 private:
  struct Piece {
    Owned<void*, cudaFreeHost> bytes;
    Event copied;  // to the GPU
  };

  Uploader(Stream stream, std::size_t piece_bytes)
      : stream_(std::move(stream)), piece_bytes_(piece_bytes) {}

  Stream stream_;
  std::size_t piece_bytes_;
  Piece pieces_[2];
  std::size_t next_ = 0;
};

}  // namespace espalier::gpu::cuda
