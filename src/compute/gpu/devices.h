// The NVIDIA GPUs that this machine has, and whether Espalier can use them. The same in a build
// without CUDA, which finds none and says why.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace espalier::gpu {

struct Device {
  int index = 0;  // as CUDA counts those that are visible
  std::string name;
  int major = 0, minor = 0;  // compute capability
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;
  int multiprocessors = 0;
  std::uint64_t l2_bytes = 0;
  std::string problem;  // why it cannot be used, or empty
};

struct Devices {
  std::vector<Device> list;
  std::string problem;  // why there are none, or empty
  int driver = 0;       // newest CUDA version that the driver knows, 1000 · major + 10 · minor
  int runtime = 0;      // the one that this build holds; 0: none
};

// The oldest compute capability that kernels are compiled for.
inline constexpr int kOldestMajor = 8;

[[nodiscard]] Devices find_devices();

// The device of that index. Errors: there is none, or its problem.
[[nodiscard]] Result<Device> choose_device(const Devices& devices, int index);

// Errors: less than `bytes` free.
[[nodiscard]] Status check_room(const Device& device, std::uint64_t bytes,
                                std::string_view what_for);

// Why a device of this capability cannot be used, or nothing.
[[nodiscard]] std::string capability_problem(int major, int minor);
// Why a driver of that version (0: there is no driver) shows no devices to that runtime.
[[nodiscard]] std::string driver_problem(int driver, int runtime);

// "13.0" of 13000.
[[nodiscard]] std::string cuda_version(int version);
// "143.8 GB": in messages about memory.
[[nodiscard]] std::string gigabytes(std::uint64_t bytes);
// "GPU 0 (NVIDIA H200)".
[[nodiscard]] std::string name_of(const Device& device);

}  // namespace espalier::gpu
