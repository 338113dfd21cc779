// What is said about GPUs that cannot be used; no GPU is needed for that.
#include "compute/gpu/devices.h"

#include <gtest/gtest.h>

namespace espalier::gpu {
namespace {

template <typename T>
std::string error(const Result<T>& result) {
  return result ? "no error" : result.error().message;
}

Devices two_devices() {
  Devices devices;
  devices.list = {
      {.index = 0,
       .name = "NVIDIA H200",
       .major = 9,
       .memory_bytes = 143771000000,
       .free_bytes = 3100000000},
      {.index = 1, .name = "Tesla T4", .major = 7, .minor = 5, .problem = capability_problem(7, 5)},
  };
  return devices;
}

TEST(GpuDevices, AreChosenByIndex) {
  const Devices devices = two_devices();
  EXPECT_EQ(choose_device(devices, 0)->name, "NVIDIA H200");
  EXPECT_EQ(error(choose_device(devices, 2)), "GPU 2: found 2 GPUs, numbered from 0");
  EXPECT_EQ(error(choose_device(devices, -1)), "GPU -1: found 2 GPUs, numbered from 0");
}

TEST(GpuDevices, OlderThanAmpereAreNotSupported) {
  EXPECT_EQ(error(choose_device(two_devices(), 1)),
            "GPU 1 (Tesla T4): found compute capability 7.5, expected 8.0 (Ampere) or newer");
  EXPECT_EQ(capability_problem(8, 0), "");
  EXPECT_EQ(capability_problem(12, 1), "");
}

TEST(GpuDevices, NeedADriverThatIsNewEnough) {
  EXPECT_EQ(driver_problem(0, 13000), "no NVIDIA driver: it is not installed, or not visible here");
  EXPECT_EQ(driver_problem(12020, 13010),
            "the NVIDIA driver knows CUDA 12.2, expected 13.0 or newer");
  EXPECT_EQ(driver_problem(13000, 13010),
            "no NVIDIA GPU: there is none, or CUDA_VISIBLE_DEVICES hides it");
  Devices none;
  none.problem = driver_problem(0, 13000);
  const auto chosen = choose_device(none, 0);
  EXPECT_EQ(error(chosen), none.problem);
  EXPECT_EQ(chosen.error().kind, ErrorKind::kWork);
}

TEST(GpuDevices, SayWhenMemoryIsTooLittle) {
  const Device device = two_devices().list[0];
  EXPECT_TRUE(check_room(device, 3100000000, "the weights"));
  EXPECT_EQ(error(check_room(device, 4200000000, "the weights")),
            "GPU 0 (NVIDIA H200): found 3.1 GB of 143.8 GB free, expected 4.2 GB for the weights");
}

}  // namespace
}  // namespace espalier::gpu
