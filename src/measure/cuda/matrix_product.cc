#include "measure/cuda/matrix_product.h"

#include <dlfcn.h>

#include <algorithm>
#include <random>
#include <vector>

#include "compute/gpu/cuda/memory.h"

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#endif

namespace espalier::measure {

#if __has_include(<cublas_v2.h>)
namespace {

using gpu::cuda::DeviceMemory;
using gpu::cuda::Event;
using gpu::cuda::Stream;

// cuBLAS's functions that are used, found in its shared library.
class Library {
 public:
  static Result<Library> open() {
    const std::string name = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
    Library library;
    library.handle_.reset(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (library.handle_ == nullptr) return work_error("{} was not found", name);
    const bool complete = library.find("cublasCreate_v2", library.create) &&
                          library.find("cublasDestroy_v2", library.destroy) &&
                          library.find("cublasSetStream_v2", library.set_stream) &&
                          library.find("cublasGemmEx", library.gemm);
    if (!complete) return work_error("{} lacks functions", name);
    return library;
  }

  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  // The header has a second function of that name, and so decltype does not do.
  cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                         const void*, const void*, cudaDataType, int, const void*, cudaDataType,
                         int, const void*, void*, cudaDataType, int, cublasComputeType_t,
                         cublasGemmAlgo_t) = nullptr;

 private:
  struct Close {
    void operator()(void* handle) const { ::dlclose(handle); }
  };

  template <typename Function>
  bool find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(handle_.get(), name));
    return function != nullptr;
  }

  std::unique_ptr<void, Close> handle_;
};

constexpr int kSize = 8192;  // of each side
constexpr int kRepeats = 10;

Result<DeviceMemory> random_square(Stream& stream) {
  constexpr std::size_t kNumbers = std::size_t{kSize} * kSize;
  std::mt19937 random(5);
  std::vector<std::uint16_t> numbers(std::size_t{1} << 20);
  // bfloat16 of either sign from 0.5 to 2: random bits but for the top of the exponent.
  for (std::uint16_t& number : numbers) {
    number = static_cast<std::uint16_t>((random() & 0x80ff) | 0x3f00);
  }
  ESPALIER_TRY(DeviceMemory memory, DeviceMemory::allocate(kNumbers * 2, "a matrix"));
  for (std::size_t at = 0; at < kNumbers; at += numbers.size()) {
    ESPALIER_CHECK(
        copy_to_device(stream, std::as_bytes(std::span(numbers)), memory.at<std::uint16_t>() + at));
  }
  return memory;
}

Result<double> best_rate(const Library& library, cublasHandle_t handle, Stream& stream) {
  ESPALIER_TRY(const DeviceMemory a, random_square(stream));
  ESPALIER_TRY(const DeviceMemory b, random_square(stream));
  ESPALIER_TRY(const DeviceMemory c, DeviceMemory::allocate(a.size(), "a product"));
  ESPALIER_TRY(Event begin, Event::create());
  ESPALIER_TRY(Event end, Event::create());
  const float one = 1;
  const float zero = 0;
  double best = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    ESPALIER_CHECK(begin.record(stream));
    const cublasStatus_t computed =
        library.gemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, kSize, kSize, kSize, &one, a.at<void>(),
                     CUDA_R_16BF, kSize, b.at<void>(), CUDA_R_16BF, kSize, &zero, c.at<void>(),
                     CUDA_R_16BF, kSize, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (computed != CUBLAS_STATUS_SUCCESS) {
      return work_error("cuBLAS refused a product: status {}", static_cast<int>(computed));
    }
    ESPALIER_CHECK(end.record(stream));
    ESPALIER_CHECK(end.wait());
    ESPALIER_TRY(const double seconds, Event::seconds_between(begin, end));
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds);
  }
  return best;
}

}  // namespace

Result<double> matrix_product_rate(Stream& stream) {
  ESPALIER_TRY(const Library library, Library::open());
  cublasHandle_t handle = nullptr;
  if (library.create(&handle) != CUBLAS_STATUS_SUCCESS) {
    return work_error("cuBLAS does not start on this GPU");
  }
  library.set_stream(handle, stream.get());
  Result<double> rate = best_rate(library, handle, stream);
  library.destroy(handle);
  return rate;
}

#else

Result<double> matrix_product_rate(gpu::cuda::Stream&) {
  return work_error("this build was made without cuBLAS");
}

#endif

}  // namespace espalier::measure
