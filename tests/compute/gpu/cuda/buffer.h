// Device memory for the tests of kernels on a real GPU: what emulated::Buffer is to the emulator.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "compute/gpu/cuda/memory.h"

namespace espalier::gpu::cuda {

class Buffer {
 public:
  template <typename T>
  Buffer(std::string name, std::span<const T> values)
      : Buffer(std::move(name), values.size_bytes()) {
    check(copy_to_device(stream_, std::as_bytes(values), memory_.at<void>()));
    check(stream_.wait());
  }
  template <typename T>
  Buffer(std::string name, const std::vector<T>& values)
      : Buffer(std::move(name), std::span<const T>(values)) {}
  // Every byte is kPoison until a kernel writes.
  Buffer(const std::string& name, std::size_t size)
      : stream_(value(Stream::create())),
        memory_(value(DeviceMemory::allocate(size + 1, name))),  // of no bytes would be null
        host_(size) {
    check(fill(stream_, memory_.at<void>(), size, kPoison));
    check(stream_.wait());
  }

  template <typename T>
  [[nodiscard]] T* at() {
    return memory_.at<T>();
  }
  template <typename T>
  [[nodiscard]] std::span<const T> values() const {
    check(copy_to_host(stream_, memory_.at<void>(), host_));
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
  static constexpr std::uint8_t kPoison = 0xa5;

  static void check(const Status& status) {
    if (!status) throw std::runtime_error(status.error().message);
  }
  template <typename T>
  static T value(Result<T> result) {
    if (!result) throw std::runtime_error(result.error().message);
    return std::move(*result);
  }

  mutable Stream stream_;
  DeviceMemory memory_;
  mutable std::vector<std::byte> host_;
};

}  // namespace espalier::gpu::cuda
