#include "compute/gpu/devices.h"

#include "compute/gpu/cuda/device.h"
#include "compute/gpu/cuda/error.h"

namespace espalier::gpu {
namespace {

// Puts the current device, which is a thread's own, back.
class KeepCurrentDevice {
 public:
  KeepCurrentDevice() { static_cast<void>(cudaGetDevice(&device_)); }
  ~KeepCurrentDevice() { static_cast<void>(cudaSetDevice(device_)); }
  KeepCurrentDevice(const KeepCurrentDevice&) = delete;
  KeepCurrentDevice& operator=(const KeepCurrentDevice&) = delete;

 private:
  int device_ = 0;
};

Device describe(int index) {
  Device device = {.index = index, .name = "unknown"};
  cudaDeviceProp properties = {};
  if (Status read = cuda::check(cudaGetDeviceProperties(&properties, index), "reading about it");
      !read) {
    device.problem = read.error().message;
    return device;
  }
  device.name = properties.name;
  device.major = properties.major;
  device.minor = properties.minor;
  device.memory_bytes = properties.totalGlobalMem;
  device.multiprocessors = properties.multiProcessorCount;
  device.l2_bytes = static_cast<std::uint64_t>(properties.l2CacheSize);
  device.problem = capability_problem(device.major, device.minor);
  if (!device.problem.empty()) return device;
  // How much is free, a device says only to those that use it.
  std::size_t free = 0;
  std::size_t total = 0;
  Status used = cuda::check(cudaSetDevice(index), "using it");
  if (used) used = cuda::check(cudaMemGetInfo(&free, &total), "asking for its memory");
  if (!used) device.problem = used.error().message;
  device.free_bytes = free;
  return device;
}

}  // namespace

Devices find_devices() {
  Devices devices;
  static_cast<void>(cudaDriverGetVersion(&devices.driver));
  static_cast<void>(cudaRuntimeGetVersion(&devices.runtime));
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
      (error == cudaSuccess && count == 0)) {
    static_cast<void>(cudaGetLastError());
    devices.problem = driver_problem(devices.driver, devices.runtime);
    return devices;
  }
  if (Status counted = cuda::check(error, "looking for GPUs"); !counted) {
    devices.problem = counted.error().message;
    return devices;
  }
  const KeepCurrentDevice keep;
  for (int index = 0; index < count; ++index) devices.list.push_back(describe(index));
  return devices;
}

namespace cuda {

Result<Device> use_device(int index) {
  ESPALIER_TRY(Device device, choose_device(find_devices(), index));
  ESPALIER_CHECK(check(cudaSetDevice(index), "{}", name_of(device)));
  return device;
}

}  // namespace cuda
}  // namespace espalier::gpu
