#include "compute/gpu/cuda/cublas_lt.h"

#include "compute/gpu/cuda/error.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#include <bit>
#include <map>
#include <mutex>
#include <tuple>
#endif

namespace espalier::gpu::cuda {

#if __has_include(<cublasLt.h>)
namespace {

// cuBLASLt's functions that are used, found in its shared library.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithms = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
};

Result<Library> open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  // Never closed: it has state of its own, as the CUDA runtime has.
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return work_error("{} was not found; it comes with CUDA, or in a package of its own", name);
  }
  Library library;
  const char* missing = nullptr;
  const auto find = [&](const char* function, auto& to) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(::dlsym(handle, function));
    if (to == nullptr) missing = function;
  };
  find("cublasLtCreate", library.create);
  find("cublasLtMatmul", library.multiply);
  find("cublasLtMatmulAlgoGetHeuristic", library.find_algorithms);
  find("cublasLtMatmulDescCreate", library.create_operation);
  find("cublasLtMatmulDescDestroy", library.destroy_operation);
  find("cublasLtMatmulDescSetAttribute", library.set_operation);
  find("cublasLtMatrixLayoutCreate", library.create_layout);
  find("cublasLtMatrixLayoutDestroy", library.destroy_layout);
  find("cublasLtMatmulPreferenceCreate", library.create_preference);
  find("cublasLtMatmulPreferenceDestroy", library.destroy_preference);
  find("cublasLtMatmulPreferenceSetAttribute", library.set_preference);
  if (missing != nullptr) return work_error("{} lacks {}", name, missing);
  return library;
}

const Result<Library>& library() {
  static const Result<Library> opened = open_library();
  return opened;
}

Status succeeded(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return work_error("cuBLASLt: {}: status {}", what, static_cast<int>(status));
}

// What the library is told about a product, given back at its end.
class Description {
 public:
  static Result<Description> of(const HalfProduct& product) {
    ESPALIER_CHECK(library());
    Description made;
    ESPALIER_CHECK(made.describe_operation(product));
    ESPALIER_CHECK(made.layout(product.inputs, product.outputs, CUDA_R_16F, product.inputs, 0));
    ESPALIER_CHECK(made.layout(product.inputs, product.rows, CUDA_R_16F, product.inputs, 1));
    ESPALIER_CHECK(made.layout(product.outputs, product.rows, CUDA_R_32F, product.stride, 2));
    return made;
  }

  [[nodiscard]] cublasLtMatmulDesc_t operation() const { return operation_.get(); }
  [[nodiscard]] cublasLtMatrixLayout_t layout(int i) const { return layouts_[i].get(); }

 private:
  struct Destroy {
    void operator()(cublasLtMatmulDesc_t it) const { library()->destroy_operation(it); }
    void operator()(cublasLtMatrixLayout_t it) const { library()->destroy_layout(it); }
  };

  Status describe_operation(const HalfProduct& product) {
    cublasLtMatmulDesc_t handle = nullptr;
    ESPALIER_CHECK(succeeded(library()->create_operation(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                             "describing a product"));
    operation_.reset(handle);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtPointerMode_t pointers = CUBLASLT_POINTER_MODE_DEVICE;
    ESPALIER_CHECK(set(CUBLASLT_MATMUL_DESC_TRANSA, transposed));
    ESPALIER_CHECK(set(CUBLASLT_MATMUL_DESC_POINTER_MODE, pointers));
    if (product.bias == nullptr) return {};
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    ESPALIER_CHECK(set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue));
    return set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  }

  template <typename T>
  Status set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return succeeded(library()->set_operation(operation(), attribute, &value, sizeof(value)),
                     "describing a product");
  }

  // Matrices are column by column in cuBLASLt.
  Status layout(std::uint64_t rows, std::uint64_t cols, cudaDataType type, std::uint64_t stride,
                int i) {
    cublasLtMatrixLayout_t handle = nullptr;
    ESPALIER_CHECK(succeeded(
        library()->create_layout(&handle, type, rows, cols, static_cast<std::int64_t>(stride)),
        "describing a matrix"));
    layouts_[i].reset(handle);
    return {};
  }

  std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy> operation_;
  std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy> layouts_[3];
};

// Of a pointer, as far as algorithms care.
std::uint32_t alignment_of(const void* pointer) {
  const auto bits = reinterpret_cast<std::uintptr_t>(pointer) | 256;
  return std::uint32_t{1} << std::countr_zero(bits);
}

Result<cublasLtMatmulAlgo_t> find_algorithm(cublasLtHandle_t handle, const Description& description,
                                            const HalfProduct& product) {
  cublasLtMatmulPreference_t created = nullptr;
  ESPALIER_CHECK(succeeded(library()->create_preference(&created), "choosing an algorithm"));
  const auto destroy = [](cublasLtMatmulPreference_t it) { library()->destroy_preference(it); };
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(destroy)> preference(created,
                                                                                        destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return succeeded(library()->set_preference(created, attribute, &value, sizeof(value)),
                     "choosing an algorithm");
  };
  const std::uint64_t workspace = kHalfWorkspace;
  // Where the sums of an output are divided, the parts meet in the workspace and are added in
  // order.
  const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  ESPALIER_CHECK(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace));
  ESPALIER_CHECK(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions));
  ESPALIER_CHECK(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(product.weights)));
  ESPALIER_CHECK(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(product.x)));
  ESPALIER_CHECK(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(product.y)));
  ESPALIER_CHECK(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(product.y)));
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  ESPALIER_CHECK(
      succeeded(library()->find_algorithms(handle, description.operation(), description.layout(0),
                                           description.layout(1), description.layout(2),
                                           description.layout(2), created, 1, &found, &count),
                "choosing an algorithm"));
  if (count == 0 || found.state != CUBLAS_STATUS_SUCCESS) {
    return work_error("cuBLASLt: found no algorithm for {} rows of {} to {} features", product.rows,
                      product.inputs, product.outputs);
  }
  return found.algo;
}

// The library on one GPU, and the algorithms that it chose, which takes it as long as a small
// product.
class OnDevice {
 public:
  static Result<OnDevice*> current() {
    ESPALIER_CHECK(library());
    int device = 0;
    ESPALIER_CHECK(check(cudaGetDevice(&device), "asking for the current GPU"));
    static std::mutex mutex;
    static std::map<int, OnDevice> devices;
    const std::lock_guard lock(mutex);
    OnDevice& found = devices[device];
    if (found.handle_ == nullptr) {
      ESPALIER_CHECK(succeeded(library()->create(&found.handle_), "starting on this GPU"));
    }
    return &found;
  }

  [[nodiscard]] cublasLtHandle_t handle() const { return handle_; }

  Result<cublasLtMatmulAlgo_t> algorithm(const Description& description,
                                         const HalfProduct& product) {
    const Key key = {product.outputs,
                     product.rows,
                     product.inputs,
                     product.stride,
                     alignment_of(product.weights),
                     alignment_of(product.x),
                     alignment_of(product.y),
                     product.bias != nullptr};
    const std::lock_guard lock(mutex_);
    const auto found = algorithms_.find(key);
    if (found != algorithms_.end()) return found->second;
    ESPALIER_TRY(const cublasLtMatmulAlgo_t chosen, find_algorithm(handle_, description, product));
    if (algorithms_.size() >= kMostAlgorithms) algorithms_.clear();
    algorithms_.emplace(key, chosen);
    return chosen;
  }

 private:
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t,
                         std::uint32_t, std::uint32_t, bool>;
  static constexpr std::size_t kMostAlgorithms = 4096;

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace

bool has_cublas_lt() { return static_cast<bool>(library()); }

Status multiply_halves(Stream& stream, const HalfProduct& product) {
  ESPALIER_TRY(OnDevice* const device, OnDevice::current());
  ESPALIER_TRY(const Description description, Description::of(product));
  ESPALIER_TRY(const cublasLtMatmulAlgo_t algorithm, device->algorithm(description, product));
  return succeeded(library()->multiply(device->handle(), description.operation(), product.factor,
                                       product.weights, description.layout(0), product.x,
                                       description.layout(1), product.zero, product.y,
                                       description.layout(2), product.y, description.layout(2),
                                       &algorithm, product.workspace, kHalfWorkspace, stream.get()),
                   "multiplying");
}

#else

bool has_cublas_lt() { return false; }

Status multiply_halves(Stream&, const HalfProduct&) {
  return work_error("this build was made without cuBLASLt");
}

#endif

}  // namespace espalier::gpu::cuda
