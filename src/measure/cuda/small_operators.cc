#include "measure/cuda/small_operators.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "base/half.h"
#include "compute/gpu/cuda/arguments.h"
#include "compute/gpu/launch.h"
#include "compute/reference/reference.h"

namespace espalier::measure {
namespace {

namespace cuda = gpu::cuda;
using cuda::Stream;

constexpr float kEpsilon = 1e-6f;

// What an operator is made from.
struct Request {
  const std::string& format;
  const Shape& shape;
  std::uint64_t rows;
  bool check;
};

std::vector<float> normals(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::uint32_t narrow(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
double real(std::uint64_t value) { return static_cast<double>(value); }

compute::Ops& reference_ops() {
  static const std::unique_ptr<compute::Ops> ops = reference::make_ops();
  return *ops;
}

// Row i at the given position of sequence i.
struct RowList {
  std::vector<compute::Row> rows;
  std::vector<std::int32_t> sequences, positions;

  RowList(std::uint64_t count, std::uint64_t position) {
    for (std::uint64_t r = 0; r < count; ++r) {
      sequences.push_back(static_cast<std::int32_t>(r));
      positions.push_back(static_cast<std::int32_t>(position));
      rows.push_back({.sequence = sequences.back(), .position = positions.back()});
    }
  }
};

// A launch of the kernel of that name, whose arguments follow from where the arrays lie.
template <typename MakeArguments>
Result<std::function<Status(Stream&, const Places&)>> launch_of(const std::string& kernel_name,
                                                                const gpu::Grid& grid,
                                                                MakeArguments make) {
  ESPALIER_TRY(const cuda::KernelEntry* const kernel, cuda::find_kernel(kernel_name));
  return std::function<Status(Stream&, const Places&)>(
      [kernel, grid, make](Stream& stream, const Places& at) {
        return cuda::enqueue(stream, *kernel, grid, make(at));
      });
}

Result<SmallOperator> rms_norm(const Request& request) {
  const std::uint64_t width = request.shape[0];
  ESPALIER_TRY(const gpu::Grid grid, gpu::row_grid("rms_norm", request.rows, width));
  const auto x = normals(request.rows * width, 1);
  const auto weight = normals(width, 2);
  SmallOperator op = {.kernel = "rms_norm",
                      .arrays = {array_of(x), array_of(weight), output_of(x.size())},
                      .result = 2,
                      .allowed = 1e-6,
                      .bytes = real(8 * x.size() + 4 * width),
                      .operations = real(4 * x.size())};
  if (request.check) {
    op.expected.resize(x.size());
    reference_ops().rms_norm(request.rows, x.data(), weight, kEpsilon, op.expected.data());
  }
  ESPALIER_TRY(op.enqueue, launch_of(op.kernel, grid, [width](const Places& at) {
                 return cuda::RmsNormArguments{place<float>(at, 0), place<float>(at, 1),
                                               place<float>(at, 2), narrow(width), kEpsilon};
               }));
  return op;
}

Result<SmallOperator> rope(const Request& request) {
  const std::uint64_t heads = request.shape[0];
  const std::uint64_t head_dim = request.shape[1];
  compute::Rope rope = {.pairs = compute::RopePairs::kHalves};
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(head_dim, 65536) / 2; ++i) {
    rope.frequencies.push_back(std::pow(10000.0, -2.0 * real(i) / real(head_dim)));
  }
  ESPALIER_TRY(const gpu::Grid grid, gpu::rope_grid(request.rows, heads, head_dim, rope));
  const RowList list(request.rows, 12345);
  const auto x = normals(request.rows * heads * head_dim, 1);
  std::vector<std::uint64_t> turns;
  for (const double frequency : rope.frequencies) turns.push_back(gpu::rope_turns(frequency));
  SmallOperator op = {.kernel = "rope",
                      .arrays = {array_of(x), array_of(list.positions), array_of(turns)},
                      .result = 0,
                      .allowed = 1e-6,
                      .bytes = real(8 * x.size() + 8 * turns.size()),
                      .operations = real(3 * x.size())};
  if (request.check) {
    op.expected = x;
    reference_ops().rope(list.rows, heads, head_dim, rope, op.expected.data());
  }
  const std::uint32_t pairs = narrow(rope.frequencies.size());
  ESPALIER_TRY(op.enqueue, launch_of(op.kernel, grid, [heads, head_dim, pairs](const Places& at) {
                 return cuda::RopeArguments{.x = place<float>(at, 0),
                                            .positions = place<std::int32_t>(at, 1),
                                            .turns = place<std::uint64_t>(at, 2),
                                            .heads = narrow(heads),
                                            .head_dim = narrow(head_dim),
                                            .pairs = pairs,
                                            .step = 1,
                                            .apart = pairs,
                                            .magnitude = 1};
               }));
  return op;
}

Result<SmallOperator> gate(const Request& request) {
  ESPALIER_TRY(const gpu::Grid row, gpu::row_grid("gate_silu", request.rows, request.shape[0]));
  const std::uint64_t count = row.blocks_x * request.shape[0];
  ESPALIER_TRY(const gpu::Grid grid, gpu::element_grid("gate_silu", count));
  const auto gates = normals(count, 1);
  const auto ups = normals(count, 2);
  SmallOperator op = {.kernel = "gate_silu",
                      .arrays = {array_of(gates), array_of(ups), output_of(count)},
                      .result = 2,
                      .allowed = 1e-6,
                      .bytes = real(12 * count),
                      .operations = real(5 * count)};
  if (request.check) {
    op.expected.resize(count);
    reference_ops().gate(count, gates.data(), ups.data(), compute::Activation::kSilu,
                         op.expected.data());
  }
  ESPALIER_TRY(op.enqueue, launch_of(op.kernel, grid, [count](const Places& at) {
                 return cuda::GateArguments{place<float>(at, 0), place<float>(at, 1),
                                            place<float>(at, 2), narrow(count)};
               }));
  return op;
}

Result<SmallOperator> softmax(const Request& request) {
  const std::uint64_t width = request.shape[0];
  ESPALIER_TRY(const gpu::Grid grid, gpu::row_grid("softmax", request.rows, width));
  const auto x = normals(request.rows * width, 1);
  SmallOperator op = {.kernel = "softmax",
                      .arrays = {array_of(x), output_of(x.size())},
                      .result = 1,
                      .allowed = 1e-6,
                      .bytes = real(8 * x.size()),
                      .operations = real(5 * x.size())};
  for (std::uint64_t r = 0; request.check && r < request.rows; ++r) {
    const auto row = std::span(x).subspan(r * width, width);
    const double most = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float value : row) sum += std::exp(value - most);
    for (const float value : row) {
      op.expected.push_back(static_cast<float>(std::exp(value - most) / sum));
    }
  }
  ESPALIER_TRY(
      op.enqueue, launch_of(op.kernel, grid, [width](const Places& at) {
        return cuda::SoftmaxArguments{place<float>(at, 0), place<float>(at, 1), narrow(width), 1};
      }));
  return op;
}

Result<SmallOperator> top_k(const Request& request) {
  const std::uint64_t width = request.shape[0];
  const std::uint64_t count = request.shape[1];
  ESPALIER_TRY(const gpu::Grid grid, gpu::top_k_grid(request.rows, width, count));
  const auto x = normals(request.rows * width, 1);
  const std::uint64_t found = request.rows * count;
  SmallOperator op = {.kernel = "top_k",
                      .arrays = {array_of(x), output_of(found), output_of(found)},
                      .result = 2,
                      .allowed = 0,
                      .bytes = real(4 * x.size() + 8 * found),
                      .operations = real(x.size())};
  for (std::uint64_t r = 0; request.check && r < request.rows; ++r) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(r * width);
    std::vector<float> row(begin, begin + static_cast<std::ptrdiff_t>(width));
    std::sort(row.begin(), row.end(), std::greater<>());
    op.expected.insert(op.expected.end(), row.begin(),
                       row.begin() + static_cast<std::ptrdiff_t>(count));
  }
  ESPALIER_TRY(op.enqueue, launch_of(op.kernel, grid, [width, count](const Places& at) {
                 return cuda::TopKArguments{place<float>(at, 0), place<std::uint32_t>(at, 1),
                                            place<float>(at, 2), narrow(width), narrow(count)};
               }));
  return op;
}

// --- Attention -----------------------------------------------------------------------------------

std::vector<std::byte> cache_numbers(compute::KvType type, std::size_t count, std::uint32_t seed) {
  const auto values = normals(count, seed);
  if (type == compute::KvType::kF32) return array_of(values).content;
  std::vector<std::uint16_t> halves(count);
  std::transform(values.begin(), values.end(), halves.begin(), float_to_half);
  return array_of(halves).content;
}

// The two launches of attention with keys and values of one type.
template <typename Kv>
Result<std::function<Status(Stream&, const Places&)>> attention_launches(
    const gpu::AttentionShape& shape, const compute::Attention& attention, std::size_t capacity) {
  const cuda::AttentionArguments<Kv> args = {.heads = narrow(attention.heads),
                                             .kv_heads = narrow(attention.kv_heads),
                                             .capacity = narrow(capacity),
                                             .chunks = shape.chunks,
                                             .window = 0,
                                             .scale = attention.scale,
                                             .softcap = 0};
  ESPALIER_TRY(auto chunk,
               launch_of(std::string(shape.chunk_kernel), shape.chunk, [args](const Places& at) {
                 auto placed = args;
                 placed.queries = place<float>(at, 0);
                 placed.keys = place<Kv>(at, 1);
                 placed.values = place<Kv>(at, 2);
                 placed.sequences = place<std::int32_t>(at, 3);
                 placed.positions = place<std::int32_t>(at, 4);
                 placed.partial = place<float>(at, 5);
                 return placed;
               }));
  const std::uint32_t head_dim = narrow(attention.head_dim);
  ESPALIER_TRY(auto merge,
               launch_of("attention_merge", shape.merge, [args, head_dim](const Places& at) {
                 return cuda::AttentionMergeArguments{.partial = place<float>(at, 5),
                                                      .sinks = nullptr,
                                                      .y = place<float>(at, 6),
                                                      .heads = args.heads,
                                                      .head_dim = head_dim,
                                                      .chunks = args.chunks};
               }));
  return std::function<Status(Stream&, const Places&)>(
      [chunk, merge](Stream& stream, const Places& at) -> Status {
        ESPALIER_CHECK(chunk(stream, at));
        return merge(stream, at);
      });
}

// Each row is the last position of a sequence of its own.
Result<SmallOperator> attention(const Request& request) {
  const compute::KvType type =
      request.format == "F32" ? compute::KvType::kF32 : compute::KvType::kF16;
  const compute::Attention attention = {
      .heads = request.shape[0],
      .kv_heads = request.shape[1],
      .head_dim = request.shape[2],
      .scale = 1 / std::sqrt(static_cast<float>(request.shape[2]))};
  const std::uint64_t positions = request.shape[3];
  compute::KvView cache = {.type = type,
                           .kv_heads = attention.kv_heads,
                           .head_dim = attention.head_dim,
                           .capacity = positions};
  ESPALIER_TRY(const gpu::AttentionShape shape,
               gpu::attention_shape(request.rows, attention, cache, positions));
  const RowList list(request.rows, positions - 1);
  const std::uint64_t elements = request.rows * attention.kv_heads * positions * attention.head_dim;
  const auto queries = normals(request.rows * attention.heads * attention.head_dim, 1);
  Array keys = {cache_numbers(type, elements, 2), compute::kv_row_bytes(type, elements)};
  Array values = {cache_numbers(type, elements, 3), compute::kv_row_bytes(type, elements)};
  SmallOperator op = {.kernel = std::string(shape.chunk_kernel),
                      .result = 6,
                      .allowed = 1e-5,
                      .bytes = real(keys.bytes + values.bytes + 8 * queries.size()),
                      .operations = 4 * real(request.rows * attention.heads * attention.head_dim) *
                                    real(positions)};
  if (request.check) {
    op.expected.resize(queries.size());
    cache.keys = keys.content.data();
    cache.values = values.content.data();
    reference_ops().attention(list.rows, queries.data(), cache, attention, op.expected.data());
  }
  op.arrays = {array_of(queries),        std::move(keys),          std::move(values),
               array_of(list.sequences), array_of(list.positions), output_of(shape.partial_floats),
               output_of(queries.size())};
  ESPALIER_TRY(op.enqueue, type == compute::KvType::kF32
                               ? attention_launches<float>(shape, attention, positions)
                               : attention_launches<std::uint16_t>(shape, attention, positions));
  return op;
}

// --- Gated delta nets ----------------------------------------------------------------------------

cuda::DeltaArguments delta_arguments(const compute::DeltaRule& rule, const Places& at) {
  return {.queries_keys = place<float>(at, 0),
          .values = place<float>(at, 1),
          .b = place<float>(at, 2),
          .a = place<float>(at, 3),
          .rate = place<float>(at, 4),
          .dt_bias = place<float>(at, 5),
          .memory = place<float>(at, 6),
          .sequences = place<std::int32_t>(at, 7),
          .positions = place<std::int32_t>(at, 8),
          .y = place<float>(at, 9),
          .key_heads = narrow(rule.key_heads),
          .value_heads = narrow(rule.value_heads),
          .key_dim = narrow(rule.key_dim),
          .value_dim = narrow(rule.value_dim),
          .tiled = 0,
          .memory_size = narrow(rule.memory_size()),
          .scale = rule.scale};
}

Result<SmallOperator> delta_rule(const Request& request) {
  compute::DeltaRule rule = {.key_heads = request.shape[0],
                             .value_heads = request.shape[1],
                             .key_dim = request.shape[2],
                             .value_dim = request.shape[3]};
  ESPALIER_TRY(const gpu::Grid grid, gpu::delta_grid(request.rows, rule));
  rule.scale = 1 / std::sqrt(static_cast<float>(rule.key_dim));
  rule.rate.assign(rule.value_heads, -0.5f);
  rule.dt_bias = normals(rule.value_heads, 1);
  const RowList list(request.rows, 100);
  auto queries_keys = normals(request.rows * 2 * rule.key_heads * rule.key_dim, 2);
  reference_ops().l2_norm(request.rows * 2 * rule.key_heads, rule.key_dim, queries_keys.data(),
                          kEpsilon, queries_keys.data());
  const auto values = normals(request.rows * rule.value_heads * rule.value_dim, 3);
  const auto b = normals(request.rows * rule.value_heads, 4);
  const auto a = normals(request.rows * rule.value_heads, 5);
  auto memory = normals(request.rows * rule.memory_size(), 6);
  SmallOperator op = {
      .kernel = "delta_step",
      .arrays = {array_of(queries_keys), array_of(values), array_of(b), array_of(a),
                 array_of(rule.rate), array_of(rule.dt_bias), array_of(memory),
                 array_of(list.sequences), array_of(list.positions), output_of(values.size())},
      .result = 9,
      .allowed = 1e-5,
      .bytes = 4 * real(2 * memory.size() + queries_keys.size() + 2 * values.size() + 2 * b.size()),
      .operations = 6 * real(memory.size())};
  if (request.check) {
    op.expected.resize(values.size());
    reference_ops().delta_rule(list.rows, queries_keys.data(), values.data(), b.data(), a.data(),
                               rule, {.memory = memory.data(), .memory_size = rule.memory_size()},
                               op.expected.data());
  }
  ESPALIER_TRY(op.enqueue, launch_of(op.kernel, grid, [rule](const Places& at) {
                 return delta_arguments(rule, at);
               }));
  return op;
}

struct Maker {
  std::string_view name;
  Result<SmallOperator> (*make)(const Request& request);
};
constexpr Maker kMakers[] = {
    {"attention", attention},
    {"rms-norm", rms_norm},
    {"rope", rope},
    {"gate", gate},
    {"softmax", softmax},
    {"top-k", top_k},
    {"delta-rule", delta_rule},
};

}  // namespace

Result<SmallOperator> small_operator(std::string_view name, const std::string& format,
                                     const Shape& shape, std::uint64_t rows, Oracle oracle) {
  for (const Maker& maker : kMakers) {
    if (maker.name == name) return maker.make({format, shape, rows, oracle == Oracle::kComputed});
  }
  return input_error("{}: there is no such operator", name);
}

}  // namespace espalier::measure
