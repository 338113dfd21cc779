#include "compute/gpu/devices.h"

namespace espalier::gpu {

Result<Device> choose_device(const Devices& devices, int index) {
  if (!devices.problem.empty()) return work_error("{}", devices.problem);
  for (const Device& device : devices.list) {
    if (device.index != index) continue;
    if (device.problem.empty()) return device;
    return work_error("{}: {}", name_of(device), device.problem);
  }
  return input_error("GPU {}: found {} GPU{}, numbered from 0", index, devices.list.size(),
                     devices.list.size() == 1 ? "" : "s");
}

Status check_room(const Device& device, std::uint64_t bytes, std::string_view what_for) {
  if (bytes <= device.free_bytes) return {};
  return work_error("{}: found {} of {} free, expected {} for {}", name_of(device),
                    gigabytes(device.free_bytes), gigabytes(device.memory_bytes), gigabytes(bytes),
                    what_for);
}

std::string capability_problem(int major, int minor) {
  if (major >= kOldestMajor) return {};
  return fmt::format("found compute capability {}.{}, expected {}.0 (Ampere) or newer", major,
                     minor, kOldestMajor);
}

std::string driver_problem(int driver, int runtime) {
  if (driver == 0) return "no NVIDIA driver: it is not installed, or not visible here";
  if (driver / 1000 < runtime / 1000) {
    return fmt::format("the NVIDIA driver knows CUDA {}, expected {} or newer",
                       cuda_version(driver), cuda_version(runtime / 1000 * 1000));
  }
  return "no NVIDIA GPU: there is none, or CUDA_VISIBLE_DEVICES hides it";
}

std::string cuda_version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string gigabytes(std::uint64_t bytes) {
  return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9);
}

std::string name_of(const Device& device) {
  return fmt::format("GPU {} ({})", device.index, device.name);
}

}  // namespace espalier::gpu
