// Device memory for tests on a real GPU: what emulated::Buffer is to the emulator.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace espalier::gpu::cuda {

class Buffer {
 public:
  template <typename T>
  Buffer(std::string name, std::span<const T> values)
      : Buffer(std::move(name), values.size_bytes()) {
    check(cudaMemcpy(bytes_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice));
  }
  template <typename T>
  Buffer(std::string name, const std::vector<T>& values)
      : Buffer(std::move(name), std::span<const T>(values)) {}
  // Every byte is kPoison until a kernel writes.
  Buffer(std::string name, std::size_t size) : name_(std::move(name)), host_(size) {
    check(cudaMalloc(&bytes_, size + 1));  // of no bytes would be null
    check(cudaMemset(bytes_, kPoison, size));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(bytes_); }

  template <typename T>
  [[nodiscard]] T* at() {
    return static_cast<T*>(bytes_);
  }
  template <typename T>
  [[nodiscard]] std::span<const T> values() const {
    check(cudaMemcpy(host_.data(), bytes_, host_.size(), cudaMemcpyDeviceToHost));
    return {reinterpret_cast<const T*>(host_.data()), host_.size() / sizeof(T)};
  }
  // The first four bytes as they were in the beginning.
  [[nodiscard]] std::optional<std::size_t> first_unwritten() const {
    const auto words = values<std::uint32_t>();
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] == kPoison * 0x01010101u) return 4 * i;
    }
    return std::nullopt;
  }

 private:
  // −2.9e-16 as a float. Not all bits set: a GPU's NaN, negated, is that.
  static constexpr std::uint32_t kPoison = 0xa5;

  void check(cudaError_t error) const {
    if (error != cudaSuccess) throw std::runtime_error(name_ + ": " + cudaGetErrorString(error));
  }

  std::string name_;
  mutable std::vector<std::byte> host_;
  void* bytes_ = nullptr;
};

}  // namespace espalier::gpu::cuda
