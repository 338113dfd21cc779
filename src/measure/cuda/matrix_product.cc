#include "measure/cuda/matrix_product.h"

#include <dlfcn.h>

#include <algorithm>
#include <random>
#include <span>
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

// Numbers of either sign from 0.5 to 2: random bits but for the top of the exponent.
Result<DeviceMemory> random_numbers(Stream& stream, DenseType type, std::size_t count) {
  const bool halves = type == DenseType::kF16;
  const std::uint32_t kept = halves ? 0x87ff : 0x80ff;
  const std::uint32_t exponent = halves ? 0x3800 : 0x3f00;
  std::mt19937 random(5);
  std::vector<std::uint16_t> numbers(std::size_t{1} << 20);
  for (std::uint16_t& number : numbers) {
    number = static_cast<std::uint16_t>((random() & kept) | exponent);
  }
  ESPALIER_TRY(DeviceMemory memory, DeviceMemory::allocate(count * 2, "a matrix"));
  for (std::size_t at = 0; at < count; at += numbers.size()) {
    const auto piece = std::span(numbers).first(std::min(numbers.size(), count - at));
    ESPALIER_CHECK(copy_to_device(stream, std::as_bytes(piece), memory.at<std::uint16_t>() + at));
  }
  return memory;
}

Result<Spread> time_products(const Library& library, cublasHandle_t handle, Stream& stream,
                             const DenseProduct& product, int repeats) {
  ESPALIER_TRY(const DeviceMemory weights,
               random_numbers(stream, product.type, product.outputs * product.inputs));
  ESPALIER_TRY(const DeviceMemory x,
               random_numbers(stream, product.type, product.rows * product.inputs));
  ESPALIER_TRY(const DeviceMemory y,
               DeviceMemory::allocate(product.rows * product.outputs * 2, "a product"));
  const int outputs = static_cast<int>(product.outputs);
  const int rows = static_cast<int>(product.rows);
  const int inputs = static_cast<int>(product.inputs);
  const cudaDataType type = product.type == DenseType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
  const float one = 1;
  const float zero = 0;
  ESPALIER_TRY(Event begin, Event::create());
  ESPALIER_TRY(Event end, Event::create());
  constexpr int kProducts = 4;  // between two events
  std::vector<double> seconds;
  for (int repeat = -2; repeat < repeats; ++repeat) {
    ESPALIER_CHECK(begin.record(stream));
    for (int i = 0; i < kProducts; ++i) {
      const cublasStatus_t computed =
          library.gemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, outputs, rows, inputs, &one,
                       weights.at<void>(), type, inputs, x.at<void>(), type, inputs, &zero,
                       y.at<void>(), type, outputs, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      if (computed != CUBLAS_STATUS_SUCCESS) {
        return work_error("cuBLAS refused a product: status {}", static_cast<int>(computed));
      }
    }
    ESPALIER_CHECK(end.record(stream));
    ESPALIER_CHECK(end.wait());
    ESPALIER_TRY(const double all, Event::seconds_between(begin, end));
    if (repeat >= 0) seconds.push_back(all / kProducts);
  }
  return spread(std::move(seconds));
}

}  // namespace

Result<Spread> time_dense_product(Stream& stream, const DenseProduct& product, int repeats) {
  ESPALIER_TRY(const Library library, Library::open());
  cublasHandle_t handle = nullptr;
  if (library.create(&handle) != CUBLAS_STATUS_SUCCESS) {
    return work_error("cuBLAS does not start on this GPU");
  }
  library.set_stream(handle, stream.get());
  Result<Spread> seconds = time_products(library, handle, stream, product, repeats);
  library.destroy(handle);
  return seconds;
}

#else

Result<Spread> time_dense_product(gpu::cuda::Stream&, const DenseProduct&, int) {
  return work_error("this build was made without cuBLAS");
}

#endif

}  // namespace espalier::measure
