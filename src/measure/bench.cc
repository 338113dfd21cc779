#include "measure/bench.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/half.h"
#include "base/timer.h"
#include "measure/bandwidth.h"
#include "pack/exl3.h"
#include "pack/grouped_int4.h"
#include "pack/mlx.h"
#include "run/generate.h"
#include "run/kv_cache.h"

namespace espalier::measure {
namespace {

using pack::PackedMatrix;

// Bytes that all copies of a matrix have together, at least.
constexpr std::size_t kColdBytes = std::size_t{256} << 20;

std::vector<run::TokenId> random_tokens(std::size_t count, std::size_t vocabulary) {
  std::mt19937 random(1);
  std::vector<run::TokenId> tokens(count);
  for (run::TokenId& token : tokens) token = static_cast<run::TokenId>(random() % vocabulary);
  return tokens;
}

// A model with a cache, and the tokens that are run through it.
class Workload {
 public:
  static Result<Workload> create(const model::Model& model, compute::KvType cache_type,
                                 const ModelBenchOptions& options) {
    const std::size_t fresh =
        std::max({options.prompt_tokens, options.decode_tokens, std::size_t{1}});
    ESPALIER_TRY(run::KvCache cache,
                 run::KvCache::create(model.info(), 1, options.depth + fresh, cache_type));
    return Workload(model, std::move(cache), options, fresh);
  }

  // Brings the tokens into the cache that are there before.
  void fill(compute::Ops& ops) { forward(ops, 0, depth_, run::kPrefillRows); }
  void prefill(compute::Ops& ops) { forward(ops, depth_, prompt_tokens_, run::kPrefillRows); }
  void decode(compute::Ops& ops, std::size_t count) { forward(ops, depth_, count, 1); }

 private:
  Workload(const model::Model& model, run::KvCache cache, const ModelBenchOptions& options,
           std::size_t fresh)
      : model_(&model),
        cache_(std::move(cache)),
        depth_(options.depth),
        prompt_tokens_(options.prompt_tokens),
        tokens_(random_tokens(options.depth + fresh, model.info().vocab_size)),
        logits_(model.info().vocab_size) {}

  // Runs `count` tokens from position `first` on, `at_once` rows at a time.
  void forward(compute::Ops& ops, std::size_t first, std::size_t count, std::size_t at_once) {
    const run::Session session = {*model_, ops, cache_};
    for (std::size_t done = 0; done < count;) {
      const auto batch = std::span(tokens_).subspan(first + done, std::min(at_once, count - done));
      run::forward_sequence(session, batch, first + done, run::Wanted::kLastLogits, logits_.data());
      done += batch.size();
    }
  }

  const model::Model* model_;
  run::KvCache cache_;
  std::size_t depth_, prompt_tokens_;
  std::vector<run::TokenId> tokens_;
  std::vector<float> logits_;
};

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937 random(2);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Numbers near ±value.
std::vector<std::byte> half_numbers(std::size_t count, float value) {
  std::vector<std::byte> bytes(count * sizeof(std::uint16_t));
  for (std::size_t i = 0; i < count; ++i) {
    const float sign = i % 3 == 0 ? -1.0f : 1.0f;
    const std::uint16_t half =
        float_to_half(sign * value * (0.75f + 0.125f * static_cast<float>(i % 5)));
    std::memcpy(bytes.data() + i * sizeof(half), &half, sizeof(half));
  }
  return bytes;
}

// `bytes`, which are some rows' part of a matrix, again and again until there are enough.
std::vector<std::byte> repeated(const std::vector<std::byte>& bytes, std::uint64_t times) {
  std::vector<std::byte> all;
  all.reserve(bytes.size() * times);
  for (std::uint64_t t = 0; t < times; ++t) all.insert(all.end(), bytes.begin(), bytes.end());
  return all;
}

// As many rows, made of the `few` whose bytes these are, in turn.
std::vector<std::byte> rows_in_turn(const std::vector<std::byte>& bytes, std::uint64_t few,
                                    std::uint64_t rows) {
  std::vector<std::byte> all = repeated(bytes, rows / few);
  const auto rest = static_cast<std::ptrdiff_t>(bytes.size() / few * (rows % few));
  all.insert(all.end(), bytes.begin(), bytes.begin() + rest);
  return all;
}

// Formats that Espalier can write: a few rows, packed, then repeated. Their number divides no
// number of rows that kernels take together, so that one which takes the wrong row is noticed.
Result<PackedMatrix> encoded_matrix(const pack::Format& format, std::uint64_t rows,
                                    std::uint64_t cols) {
  const std::uint64_t few = std::min<std::uint64_t>(rows, 7);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(cols)));
  std::vector<float> values(few * cols);
  for (float& value : values) value = normal(random);
  ESPALIER_TRY(const PackedMatrix part, format.encode(format, values, few, cols));
  PackedMatrix packed;
  packed.data = rows_in_turn(part.data, few, rows);
  packed.scales = rows_in_turn(part.scales, few, rows);
  packed.zeros = rows_in_turn(part.zeros, few, rows);
  packed.view = part.view;
  packed.view.rows = rows;
  packed.view.data = packed.data;
  packed.view.scales = packed.scales;
  packed.view.zeros = packed.zeros;
  return packed;
}

Result<PackedMatrix> exl3_random(const pack::Format& format, std::uint64_t rows,
                                 std::uint64_t cols) {
  const std::uint64_t padded_rows = pack::exl3_padded(rows);
  const std::uint64_t padded_cols = pack::exl3_padded(cols);
  PackedMatrix packed;
  packed.data = random_bytes(padded_rows * padded_cols / format.block_values * format.block_bytes);
  packed.scales = half_numbers(padded_cols, 1 / std::sqrt(static_cast<float>(cols)));
  packed.zeros = half_numbers(padded_rows, 1);
  ESPALIER_TRY(packed.view,
               pack::exl3_matrix(format, rows, cols, packed.data, packed.scales, packed.zeros));
  return packed;
}

Result<PackedMatrix> int4_random(const pack::Format& format, std::uint64_t rows,
                                 std::uint64_t cols) {
  const bool one_group = format.name.ends_with("-row");
  const std::uint64_t groups = one_group ? 1 : cols / format.block_values;
  const bool packed_rows = format.family == pack::Family::kCompressedTensors;
  PackedMatrix packed;
  packed.data = random_bytes(rows * cols / 2);
  packed.scales = half_numbers(rows * groups, 0.2f / std::sqrt(static_cast<float>(cols)));
  if (!format.name.starts_with("CT-SYM")) {
    packed.zeros.assign((packed_rows ? (rows + 7) / 8 * groups : groups * (rows / 8)) * 4,
                        std::byte{0x77});
  }
  ESPALIER_TRY(packed.view, pack::int4_matrix(format, rows, cols, packed.data, packed.scales,
                                              pack::ScaleType::kF16, packed.zeros, {}));
  return packed;
}

}  // namespace

Spread spread(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const std::size_t middle = samples.size() / 2;
  const double median =
      samples.size() % 2 != 0 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
  return {.median = median, .least = samples.front(), .most = samples.back()};
}

Result<ModelBench> bench_model(const model::Model& model, compute::Ops& ops,
                               compute::KvType cache_type, const ModelBenchOptions& options) {
  ESPALIER_TRY(Workload work, Workload::create(model, cache_type, options));
  work.fill(ops);
  ModelBench bench = {};
  ProfiledOps profiled(ops);
  work.decode(profiled, 1);
  bench.bytes_per_token = static_cast<double>(profiled.account(Operator::kProject).weight_bytes);

  std::vector<double> prefill, decode;
  for (int repeat = -1; repeat < options.repeats; ++repeat) {
    const Timer prefill_timer;
    work.prefill(ops);
    const double prefill_seconds = prefill_timer.seconds();
    const Timer decode_timer;
    work.decode(ops, options.decode_tokens);
    if (repeat < 0) continue;
    prefill.push_back(prefill_seconds);
    decode.push_back(decode_timer.seconds());
  }
  bench.prefill_seconds = spread(std::move(prefill));
  bench.decode_seconds = spread(std::move(decode));
  return bench;
}

Result<Profile> profile_model(const model::Model& model, compute::Ops& ops,
                              compute::KvType cache_type, const ModelBenchOptions& options) {
  ESPALIER_TRY(Workload work, Workload::create(model, cache_type, options));
  ProfiledOps profiled(ops);
  work.fill(ops);
  Profile profile;
  for (const bool counted : {false, true}) {
    profiled.reset();
    work.prefill(profiled);
    if (counted) profile.prefill = profiled.accounts();
    profiled.reset();
    work.decode(profiled, options.decode_tokens);
    if (counted) profile.decode = profiled.accounts();
  }
  return profile;
}

bool can_make_weights(const pack::Format& format) {
  switch (format.family) {
    case pack::Family::kExl3:
      return format.dequantize_rows != nullptr;  // not a table to look up
    case pack::Family::kGptq:
    case pack::Family::kAwq:
    case pack::Family::kCompressedTensors:
      return true;
    case pack::Family::kGguf:
    case pack::Family::kMlx:
    case pack::Family::kTransposed:
      break;
  }
  return format.encode != nullptr;
}

Result<PackedMatrix> random_matrix(const pack::Format& format, std::uint64_t rows,
                                   std::uint64_t cols) {
  if (rows == 0 || cols == 0 || rows > (std::uint64_t{1} << 40) / cols) {
    return input_error("{} × {}: expected a matrix of at most 2^40 values", rows, cols);
  }
  if (cols % format.block_values != 0) {
    return input_error("{}: {} columns, expected a multiple of {}", format.name, cols,
                       format.block_values);
  }
  if (format.encode != nullptr) return encoded_matrix(format, rows, cols);
  switch (format.family) {
    case pack::Family::kExl3:
      if (format.dequantize_rows != nullptr) return exl3_random(format, rows, cols);
      return input_error("{}: a table to look up, not a matrix to multiply with", format.name);
    case pack::Family::kGptq:
    case pack::Family::kAwq:
    case pack::Family::kCompressedTensors:
      return int4_random(format, rows, cols);
    case pack::Family::kGguf:
    case pack::Family::kMlx:
    case pack::Family::kTransposed:
      break;
  }
  return input_error("{}: no way to make weights in this format", format.name);
}

Result<ProjectBench> bench_project(compute::Ops& ops, std::size_t threads,
                                   const pack::Format& format, std::uint64_t outputs,
                                   std::uint64_t inputs, std::size_t rows, int repeats) {
  ESPALIER_TRY(const PackedMatrix packed, random_matrix(format, outputs, inputs));
  ProjectBench bench = {};
  bench.bytes = packed.data.size() + packed.scales.size() + packed.zeros.size();
  const std::size_t copies = (kColdBytes + bench.bytes - 1) / bench.bytes;
  const std::vector<std::byte> data = repeated(packed.data, copies);

  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(rows * inputs);
  for (float& value : x) value = normal(random);
  std::vector<float> y(rows * outputs);
  std::vector<compute::Linear> linears(copies);
  for (std::size_t copy = 0; copy < copies; ++copy) {
    linears[copy].weight = packed.view;
    linears[copy].weight.data = Bytes(data).subspan(copy * packed.data.size(), packed.data.size());
    ops.prepare(linears[copy]);
  }
  std::vector<double> seconds;
  for (int repeat = -1; repeat < repeats; ++repeat) {
    for (const compute::Linear& linear : linears) {
      const Timer timer;
      ops.project(rows, x.data(), linear, y.data());
      if (repeat >= 0) seconds.push_back(timer.seconds());
    }
  }
  bench.seconds = spread(std::move(seconds));
  ThreadPool pool(threads);
  bench.bandwidth = read_bandwidth(pool, data, 2);
  return bench;
}

}  // namespace espalier::measure
