#include "measure/gpu_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "base/thread_pool.h"
#include "compute/gpu/cuda/device.h"
#include "compute/gpu/cuda/project.h"
#include "compute/reference/reference.h"
#include "measure/cuda/matrix_product.h"
#include "measure/cuda/small_operators.h"

namespace espalier::measure {
namespace {

namespace cuda = gpu::cuda;
using cuda::DeviceMatrix;
using cuda::DeviceMemory;
using cuda::Event;
using cuda::Graph;
using cuda::Stream;

// What outputs hold before: −2.9e-16 as a float, which no operator computes.
constexpr std::uint8_t kPoison = 0xa5;
constexpr std::size_t kLaunches = 64;      // of a graph, about: one event for many
constexpr double kGraphSeconds = 2e-3;     // which are fewer if they take longer than this
constexpr std::size_t kMostCopies = 4096;  // of small arrays
constexpr std::uint64_t kMostValues = std::uint64_t{1} << 34;
constexpr std::uint64_t kDenseRows = 64;  // from which on a dense product is timed beside

struct Bench {
  const GpuBenchOptions& options;
  gpu::Device device;
  Stream stream;
  cuda::Uploader uploader;
  ThreadPool pool{0};
};

// Copies of `bytes` that are twice as large as the cache together.
std::size_t copies_of(const Bench& bench, std::size_t bytes) {
  return std::clamp<std::size_t>(2 * bench.device.l2_bytes / std::max<std::size_t>(bytes, 1) + 1, 2,
                                 kMostCopies);
}

bool beyond_cache(const Bench& bench, std::size_t bytes, std::size_t copies) {
  return copies * bytes >= 2 * bench.device.l2_bytes;
}

// Seconds of one of the launches that `launch` adds for copy 0, 1, …, each graph going through all
// of them at least once.
Result<Spread> time_launches(Bench& bench, std::size_t copies,
                             const std::function<Status(std::size_t copy)>& launch) {
  ESPALIER_TRY(Event begin, Event::create());
  ESPALIER_TRY(Event end, Event::create());
  ESPALIER_CHECK(launch(0));  // the first of all may take longer
  ESPALIER_CHECK(begin.record(bench.stream));
  ESPALIER_CHECK(launch(0));
  ESPALIER_CHECK(end.record(bench.stream));
  ESPALIER_CHECK(end.wait());
  ESPALIER_TRY(const double about, Event::seconds_between(begin, end));
  const std::size_t wanted =
      std::clamp<std::size_t>(static_cast<std::size_t>(kGraphSeconds / about), 1, kLaunches);
  const std::size_t launches = (wanted + copies - 1) / copies * copies;
  ESPALIER_TRY(const Graph graph, Graph::capture(bench.stream, [&]() -> Status {
                 for (std::size_t i = 0; i < launches; ++i) ESPALIER_CHECK(launch(i % copies));
                 return {};
               }));
  std::vector<double> seconds;
  for (int repeat = -2; repeat < bench.options.repeats; ++repeat) {
    ESPALIER_CHECK(begin.record(bench.stream));
    ESPALIER_CHECK(graph.replay(bench.stream));
    ESPALIER_CHECK(end.record(bench.stream));
    ESPALIER_CHECK(end.wait());
    ESPALIER_TRY(const double all, Event::seconds_between(begin, end));
    if (repeat >= 0) seconds.push_back(all / static_cast<double>(launches));
  }
  return spread(std::move(seconds));
}

double difference(std::span<const float> found, std::span<const float> expected) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  float poison = 0;
  std::memset(&poison, kPoison, sizeof(poison));
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(found[i]) || found[i] == poison) return kInfinite;
    error += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    size += std::pow(static_cast<double>(expected[i]), 2);
  }
  if (error == 0) return 0;
  return size == 0 ? kInfinite : std::sqrt(error / size);
}

// How far what lies at `result` is from what is expected.
Result<double> difference_on_device(Bench& bench, const float* result,
                                    std::span<const float> expected) {
  std::vector<float> found(expected.size());
  ESPALIER_CHECK(copy_to_host(bench.stream, result, std::as_writable_bytes(std::span(found))));
  return difference(found, expected);
}

// --- Operators without packed weights ------------------------------------------------------------

// Arrays of all copies, and where those of each lie.
struct Copies {
  DeviceMemory memory;
  std::vector<Places> places;
  std::size_t bytes_each = 0;
};

std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kTo = DeviceMemory::kAlignment;
  return (bytes + kTo - 1) / kTo * kTo;
}

Result<Copies> make_copies(Bench& bench, const SmallOperator& op) {
  Copies copies;
  for (const Array& array : op.arrays) copies.bytes_each += aligned(array.bytes);
  const std::size_t count = copies_of(bench, copies.bytes_each);
  ESPALIER_TRY(copies.memory, DeviceMemory::allocate(count * copies.bytes_each, "operands"));
  for (std::size_t copy = 0; copy < count; ++copy) {
    auto* at = copies.memory.at<std::byte>(copy * copies.bytes_each);
    Places& places = copies.places.emplace_back();
    for (const Array& array : op.arrays) {
      places.push_back(at);
      if (array.content.empty()) {
        ESPALIER_CHECK(fill(bench.uploader.stream(), at, array.bytes, kPoison));
      } else if (copy == 0) {
        ESPALIER_CHECK(bench.uploader.upload(array.content, at));
      } else {
        const std::byte* const first = copies.places[0][places.size() - 1];
        ESPALIER_CHECK(copy_on_device(bench.uploader.stream(), first, array.bytes, at));
      }
      at += aligned(array.bytes);
    }
  }
  ESPALIER_CHECK(bench.uploader.finish());
  return copies;
}

Result<GpuLine> bench_small(Bench& bench, const std::string& format, const Shape& shape,
                            std::uint64_t rows) {
  ESPALIER_TRY(const SmallOperator op,
               small_operator(bench.options.op, format, shape, rows,
                              bench.options.check ? Oracle::kComputed : Oracle::kLeftOut));
  ESPALIER_TRY(const Copies copies, make_copies(bench, op));
  GpuLine line = {.op = bench.options.op,
                  .format = format,
                  .kernel = op.kernel,
                  .shape = shape,
                  .rows = rows,
                  .bytes = op.bytes,
                  .operations = op.operations,
                  .copies = copies.places.size(),
                  .beyond_cache = beyond_cache(bench, copies.bytes_each, copies.places.size())};
  if (bench.options.check) {
    // The last copy: it was not made by an upload of its own. Before others change their inputs.
    const Places& last = copies.places.back();
    ESPALIER_CHECK(op.enqueue(bench.stream, last));
    ESPALIER_TRY(const double found,
                 difference_on_device(bench, place<float>(last, op.result), op.expected));
    line.difference = Difference{found, op.allowed};
  }
  ESPALIER_TRY(line.seconds, time_launches(bench, copies.places.size(), [&](std::size_t copy) {
                 return op.enqueue(bench.stream, copies.places[copy]);
               }));
  return line;
}

// --- Products with packed weights ----------------------------------------------------------------

// Packed matrices on the GPU, the parts of a product, as often as is needed to exceed the cache;
// rows to multiply them with; and the oracle's results for some of those.
struct Products {
  std::vector<std::vector<DeviceMatrix>> copies;  // [parts] each
  std::size_t bytes = 0;                          // of a copy
  DeviceMemory x;
  std::vector<std::map<std::uint64_t, std::vector<float>>>
      expected;  // of each part by row, or none
};

// The rows that are compared: all where they are few, otherwise some from the first to the last, at
// places of all kinds in the tiles of kernels.
std::vector<std::uint64_t> checked_rows(std::uint64_t rows) {
  constexpr std::uint64_t kChecked = 16;
  std::vector<std::uint64_t> checked;
  const std::uint64_t count = std::min(rows, kChecked);
  for (std::uint64_t i = 0; i < count; ++i) {
    checked.push_back(count == 1 ? 0 : i * (rows - 1) / (count - 1));
  }
  return checked;
}

void compute_expected(ThreadPool& pool, const pack::Matrix& matrix, const std::vector<float>& x,
                      std::span<const std::uint64_t> counts, Products& products) {
  auto& expected = products.expected.emplace_back();
  for (const std::uint64_t count : counts) {
    for (const std::uint64_t row : checked_rows(count)) expected[row];
  }
  std::vector<std::pair<std::uint64_t, float*>> places;
  for (auto& [row, values] : expected) {
    values.resize(matrix.rows);
    places.emplace_back(row, values.data());
  }
  pool.parallel_for(places.size(), [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t i = begin; i < end; ++i) {
      reference::project(1, x.data() + places[i].first * matrix.cols, matrix, places[i].second);
    }
  });
}

// The parts of a copy, whose results lie one after the other.
std::vector<cuda::Part> parts_of(const Products& products, std::size_t copy, std::uint64_t rows,
                                 const DeviceMemory& y) {
  std::vector<cuda::Part> parts;
  float* to = y.at<float>();
  for (const DeviceMatrix& weights : products.copies[copy]) {
    parts.push_back({.weights = &weights, .y = to});
    to += rows * weights.outputs();
  }
  return parts;
}

// A part's results against the oracle's.
Result<double> part_difference(Bench& bench, const cuda::Part& part, std::uint64_t rows,
                               const std::map<std::uint64_t, std::vector<float>>& expected_rows) {
  const std::uint64_t outputs = part.weights->outputs();
  std::vector<float> expected;
  std::vector<float> found;
  for (const std::uint64_t row : checked_rows(rows)) {
    const std::vector<float>& values = expected_rows.at(row);
    expected.insert(expected.end(), values.begin(), values.end());
    found.resize(expected.size());
    ESPALIER_CHECK(copy_to_host(bench.stream, part.y + row * outputs,
                                std::as_writable_bytes(std::span(found).last(outputs))));
  }
  return difference(found, expected);
}

// The largest of the differences of all parts of the first and the last copy.
Result<double> product_difference(Bench& bench, const Products& products, std::uint64_t rows,
                                  const DeviceMemory& y,
                                  const std::function<Status(std::size_t copy)>& launch) {
  double most = 0;
  for (const std::size_t copy : {std::size_t{0}, products.copies.size() - 1}) {
    ESPALIER_CHECK(fill(bench.stream, y.at<void>(), y.size(), kPoison));
    ESPALIER_CHECK(launch(copy));
    const std::vector<cuda::Part> parts = parts_of(products, copy, rows, y);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ESPALIER_TRY(const double found,
                   part_difference(bench, parts[i], rows, products.expected[i]));
      most = std::max(most, found);
    }
  }
  return most;
}

Result<Products> make_products(Bench& bench, const std::string& format_name, const Shape& shape) {
  const pack::Format* format = pack::find_format(format_name);
  if (format == nullptr) return input_error("--format '{}': no such format", format_name);
  // Before it is packed, a matrix has to fit; so have rows of activations.
  const auto& rows = bench.options.rows;
  const std::uint64_t most_rows = *std::max_element(rows.begin(), rows.end());
  Products products;
  std::vector<pack::PackedMatrix> packed;
  for (std::size_t i = 0; i < shape.size(); i += 2) {
    ESPALIER_TRY(pack::PackedMatrix part, random_matrix(*format, shape[i], shape[i + 1]));
    products.bytes += part.data.size() + part.scales.size() + part.zeros.size();
    packed.push_back(std::move(part));
  }
  const std::size_t copies = copies_of(bench, products.bytes);
  ESPALIER_CHECK(gpu::check_room(bench.device, copies * products.bytes, "copies of the weights"));
  for (std::size_t copy = 0; copy < copies; ++copy) {
    std::vector<DeviceMatrix>& parts = products.copies.emplace_back();
    for (const pack::PackedMatrix& part : packed) {
      ESPALIER_TRY(DeviceMatrix device,
                   DeviceMatrix::upload(bench.uploader, part.view, "a copy of the weights"));
      parts.push_back(std::move(device));
    }
  }
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> x(most_rows * shape[1]);
  for (float& value : x) value = normal(random);
  ESPALIER_TRY(products.x, DeviceMemory::allocate(x.size() * sizeof(float), "activations"));
  ESPALIER_CHECK(bench.uploader.upload(std::as_bytes(std::span(x)), products.x.at<void>()));
  ESPALIER_CHECK(bench.uploader.finish());
  for (const pack::PackedMatrix& part : packed) {
    if (bench.options.check) compute_expected(bench.pool, part.view, x, rows, products);
  }
  return products;
}

Status arrange(Bench& bench, Products& products) {
  for (std::vector<DeviceMatrix>& parts : products.copies) {
    for (DeviceMatrix& weights : parts) ESPALIER_CHECK(weights.arrange(bench.stream));
  }
  return {};
}

Result<GpuLine> bench_product(Bench& bench, const Products& products, const Shape& shape,
                              std::uint64_t rows, const cuda::ProjectKernel* kernel) {
  const std::vector<DeviceMatrix>& first = products.copies.front();
  std::size_t outputs = 0;
  std::size_t weight_bytes = 0;
  for (const DeviceMatrix& weights : first) {
    outputs += rows * weights.outputs();
    weight_bytes += weights.bytes();
  }
  const std::uint64_t inputs = first.front().inputs();
  ESPALIER_TRY(const DeviceMemory y, DeviceMemory::allocate(outputs * sizeof(float), "results"));
  const auto count = static_cast<std::uint32_t>(rows);
  ESPALIER_TRY(const DeviceMemory workspace,
               DeviceMemory::allocate(
                   workspace_bytes(*kernel, parts_of(products, 0, rows, y), count), "a workspace"));
  ESPALIER_CHECK(fill(bench.stream, workspace.at<void>(), workspace.size(), 0));
  const auto launch = [&](std::span<const cuda::Part> parts) {
    return cuda::project(bench.stream, *kernel,
                         {.parts = parts,
                          .x = products.x.at<float>(),
                          .rows = count,
                          .workspace = workspace.at<void>()});
  };
  const auto together = [&](std::size_t copy) { return launch(parts_of(products, copy, rows, y)); };
  const auto apart = [&](std::size_t copy) -> Status {
    for (const cuda::Part& part : parts_of(products, copy, rows, y)) {
      ESPALIER_CHECK(launch({&part, 1}));
    }
    return {};
  };
  const std::size_t copies = products.copies.size();
  GpuLine line = {.op = "project",
                  .format = std::string(first.front().format().name),
                  .kernel = std::string(kernel->name),
                  .shape = shape,
                  .parts = first.size(),
                  .rows = rows,
                  .bytes = static_cast<double>(weight_bytes + 4 * (rows * inputs + outputs)),
                  .operations = 2.0 * static_cast<double>(outputs) * static_cast<double>(inputs),
                  .copies = copies,
                  .beyond_cache = beyond_cache(bench, weight_bytes, copies)};
  if (bench.options.check) {
    ESPALIER_TRY(const double found, product_difference(bench, products, rows, y, together));
    line.difference = Difference{found, kernel->allowed_difference};
  }
  ESPALIER_TRY(line.seconds, time_launches(bench, copies, together));
  if (first.size() > 1) {
    ESPALIER_TRY(line.apart_seconds, time_launches(bench, copies, apart));
  }
  if (rows >= kDenseRows && first.size() == 1 && !bench.options.every_kernel) {
    const auto dense =
        time_dense_product(bench.stream, {.rows = rows, .outputs = shape[0], .inputs = shape[1]},
                           bench.options.repeats);
    if (dense) line.dense_seconds = *dense;
  }
  return line;
}

// With the kernel that is chosen for each number of rows.
Status bench_chosen(Bench& bench, Products& products, const Shape& shape,
                    std::vector<GpuLine>& lines) {
  const auto choose = [&](std::uint64_t rows) {
    return cuda::choose_project_kernel(products.copies[0][0], rows, bench.options.kernel);
  };
  bool arranges = false;
  for (const std::uint64_t rows : bench.options.rows) {
    ESPALIER_TRY(const cuda::ProjectKernel* const kernel, choose(rows));
    arranges = arranges || kernel->arranges;
  }
  if (arranges) ESPALIER_CHECK(arrange(bench, products));
  for (const std::uint64_t rows : bench.options.rows) {
    ESPALIER_TRY(const cuda::ProjectKernel* const kernel, choose(rows));
    ESPALIER_TRY(GpuLine line, bench_product(bench, products, shape, rows, kernel));
    lines.push_back(std::move(line));
  }
  return {};
}

// With each kernel that serves, those first that need no arranged weights. Beyond few rows the
// plain kernel takes seconds, and is left out.
Status bench_every_kernel(Bench& bench, Products& products, const Shape& shape,
                          std::vector<GpuLine>& lines) {
  const auto kernels = cuda::project_kernels();
  for (const bool arranges : {false, true}) {
    for (const cuda::ProjectKernel& kernel : kernels) {
      for (const std::uint64_t rows : bench.options.rows) {
        const bool slow = &kernel == &kernels.back() && rows >= cuda::kDecodedRows;
        if (kernel.arranges != arranges || slow) continue;
        if (!cuda::serves(kernel, products.copies[0][0], rows)) continue;
        if (arranges) ESPALIER_CHECK(arrange(bench, products));  // once: then it does nothing
        ESPALIER_TRY(GpuLine line, bench_product(bench, products, shape, rows, &kernel));
        lines.push_back(std::move(line));
      }
    }
  }
  return {};
}

// --- Ceilings ------------------------------------------------------------------------------------

Result<double> copy_rate(Bench& bench) {
  const std::size_t bytes =
      std::min<std::size_t>(std::size_t{1} << 30, bench.device.free_bytes / 8);
  ESPALIER_TRY(const DeviceMemory from, DeviceMemory::allocate(bytes, "a copy"));
  ESPALIER_TRY(const DeviceMemory to, DeviceMemory::allocate(bytes, "a copy"));
  ESPALIER_CHECK(fill(bench.stream, from.at<void>(), bytes, kPoison));
  ESPALIER_TRY(Event begin, Event::create());
  ESPALIER_TRY(Event end, Event::create());
  double best = 0;
  for (int repeat = 0; repeat < 10; ++repeat) {
    ESPALIER_CHECK(begin.record(bench.stream));
    ESPALIER_CHECK(copy_on_device(bench.stream, from.at<void>(), bytes, to.at<void>()));
    ESPALIER_CHECK(end.record(bench.stream));
    ESPALIER_CHECK(end.wait());
    ESPALIER_TRY(const double seconds, Event::seconds_between(begin, end));
    best = std::max(best, 2 * static_cast<double>(bytes) / seconds);
  }
  return best;
}

Result<GpuCeilings> measure_ceilings(Bench& bench) {
  GpuCeilings ceilings;
  ESPALIER_TRY(ceilings.copy, copy_rate(bench));
  constexpr std::uint64_t kSize = 8192;
  constexpr int kRepeats = 5;
  const auto products =
      time_dense_product(bench.stream, {DenseType::kBF16, kSize, kSize, kSize}, kRepeats);
  if (products) {
    ceilings.products = 2.0 * kSize * kSize * kSize / products->least;
  } else {
    ceilings.no_products = products.error().message;
  }
  return ceilings;
}

// Sizes whose product is absurd are refused before anything is allocated for them.
Status check_values(const Shape& shape, std::uint64_t rows) {
  std::uint64_t values = rows;
  for (const std::uint64_t size : shape) {
    if (size != 0 && values > kMostValues / size) {
      return input_error("--shape and --rows: expected at most 2^34 values in all");
    }
    values *= size;
  }
  return {};
}

// Of all that is allocated for an operator: of project the weights, activations and results, of
// others no array is larger than all their sizes together.
Status check_sizes(bool packed, const Shape& shape, std::uint64_t rows) {
  if (!packed) return check_values(shape, rows);
  for (const std::uint64_t size : shape) ESPALIER_CHECK(check_values({size}, rows));
  for (std::size_t i = 0; i < shape.size(); i += 2) {
    ESPALIER_CHECK(check_values({shape[i], shape[i + 1]}, 1));
  }
  return {};
}

Status bench_all(Bench& bench, const std::vector<std::string>& formats,
                 const std::vector<Shape>& shapes, std::vector<GpuLine>& lines) {
  const bool packed = bench.options.op == "project";
  for (const std::string& format : formats) {
    for (const Shape& shape : shapes) {
      for (const std::uint64_t rows : bench.options.rows) {
        ESPALIER_CHECK(check_sizes(packed, shape, rows));
      }
      if (packed) {
        ESPALIER_TRY(Products products, make_products(bench, format, shape));
        const auto bench_products = bench.options.every_kernel ? bench_every_kernel : bench_chosen;
        ESPALIER_CHECK(bench_products(bench, products, shape, lines));
        continue;
      }
      for (const std::uint64_t rows : bench.options.rows) {
        ESPALIER_TRY(GpuLine line, bench_small(bench, format, shape, rows));
        lines.push_back(std::move(line));
      }
    }
  }
  return {};
}

}  // namespace

Result<GpuBench> bench_gpu(const GpuBenchOptions& options) {
  const auto& operators = gpu_operators();
  const auto op = std::find_if(operators.begin(), operators.end(),
                               [&](const GpuOperator& o) { return o.name == options.op; });
  if (op == operators.end()) return input_error("{}: there is no such operator", options.op);
  ESPALIER_TRY(gpu::Device device, cuda::use_device(options.device));
  ESPALIER_TRY(Stream stream, Stream::create());
  ESPALIER_TRY(cuda::Uploader uploader, cuda::Uploader::create());
  Bench bench = {options, std::move(device), std::move(stream), std::move(uploader)};
  GpuBench result;
  result.device = bench.device;
  ESPALIER_TRY(result.ceilings, measure_ceilings(bench));
  std::vector<std::string> formats = options.formats;
  if (formats.empty()) formats.emplace_back(op->formats.empty() ? "" : op->formats.front());
  const std::vector<Shape> shapes =
      options.shapes.empty() ? std::vector<Shape>{op->usual} : options.shapes;
  ESPALIER_CHECK(bench_all(bench, formats, shapes, result.lines));
  return result;
}

}  // namespace espalier::measure
