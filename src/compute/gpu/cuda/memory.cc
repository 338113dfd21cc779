#include "compute/gpu/cuda/memory.h"

#include <algorithm>
#include <cstring>

#include "compute/gpu/cuda/error.h"
#include "compute/gpu/devices.h"

namespace espalier::gpu::cuda {

Result<DeviceMemory> DeviceMemory::allocate(std::size_t bytes, std::string_view what_for) {
  DeviceMemory memory;
  if (bytes == 0) return memory;
  void* handle = nullptr;
  const cudaError_t error = cudaMalloc(&handle, bytes);
  if (error != cudaSuccess) {
    std::size_t free = 0;
    std::size_t total = 0;
    static_cast<void>(cudaGetLastError());
    static_cast<void>(cudaMemGetInfo(&free, &total));
    return check(error, "taking {} bytes of GPU memory for {}, where {} of {} are free", bytes,
                 what_for, gigabytes(free), gigabytes(total))
        .error();
  }
  memory.bytes_.reset(handle);
  memory.size_ = bytes;
  return memory;
}

Status copy_to_device(Stream& stream, Bytes from, void* to) {
  if (from.empty()) return {};
  return check(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream.get()),
               "copying {} bytes to the GPU", from.size());
}

Status copy_to_host(Stream& stream, const void* from, std::span<std::byte> to) {
  if (to.empty()) return {};
  ESPALIER_CHECK(
      check(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream.get()),
            "copying {} bytes from the GPU", to.size()));
  return stream.wait();
}

Status copy_on_device(Stream& stream, const void* from, std::size_t bytes, void* to) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()),
               "copying {} bytes on the GPU", bytes);
}

Status fill(Stream& stream, void* memory, std::size_t bytes, std::uint8_t value) {
  if (bytes == 0) return {};
  return check(cudaMemsetAsync(memory, value, bytes, stream.get()), "filling {} bytes on the GPU",
               bytes);
}

Result<Uploader> Uploader::create(std::size_t piece_bytes) {
  ESPALIER_TRY(Stream stream, Stream::create());
  Uploader uploader(std::move(stream), piece_bytes);
  for (Piece& piece : uploader.pieces_) {
    void* handle = nullptr;
    ESPALIER_CHECK(check(cudaMallocHost(&handle, piece_bytes),
                         "taking {} bytes of pinned host memory to upload through", piece_bytes));
    piece.bytes.reset(handle);
    ESPALIER_TRY(piece.copied, Event::create());
  }
  return uploader;
}

Status Uploader::upload(Bytes from, void* to) {
  auto* target = static_cast<std::byte*>(to);
  while (!from.empty()) {
    const std::size_t count = std::min(from.size(), piece_bytes_);
    Piece& piece = pieces_[next_];
    ESPALIER_CHECK(piece.copied.wait());  // at once where it was never recorded
    std::memcpy(piece.bytes.get(), from.data(), count);
    ESPALIER_CHECK(
        copy_to_device(stream_, Bytes(static_cast<std::byte*>(piece.bytes.get()), count), target));
    ESPALIER_CHECK(piece.copied.record(stream_));
    next_ = 1 - next_;
    from = from.subspan(count);
    target += count;
  }
  return {};
}

}  // namespace espalier::gpu::cuda
