#include "compute/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "compute/delta_gates.h"
#include "compute/kv_codec.h"
#include "pack/exl3.h"

namespace espalier::reference {
namespace {

using compute::Activation;
using compute::Attention;
using compute::CausalConvolution;
using compute::DeltaGates;
using compute::DeltaRule;
using compute::KvView;
using compute::Linear;
using compute::RecurrentView;
using compute::Rope;
using compute::RopePairs;
using compute::Row;
using compute::SplitPart;

// Rows of a matrix that are decoded at a time: EXL3 packs 16 together.
constexpr std::uint64_t kDecodedRows = 16;

double dot(const float* a, const float* b, std::size_t n) {
  double sums[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      sums[lane] += static_cast<double>(a[i + lane]) * b[i + lane];
    }
  }
  for (; i < n; ++i) sums[i % 8] += static_cast<double>(a[i]) * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// x [rows, cols] · Wᵀ with W as decode_rows gives it.
void project_decoded(std::size_t rows, const float* x, const pack::Matrix& w, float* y) {
  std::vector<float> decoded(kDecodedRows * w.cols);
  for (std::uint64_t first = 0; first < w.rows; first += kDecodedRows) {
    const std::uint64_t count = std::min(kDecodedRows, w.rows - first);
    pack::decode_rows(w, first, count, decoded.data());
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::uint64_t o = 0; o < count; ++o) {
        y[r * w.rows + first + o] =
            static_cast<float>(dot(x + r * w.cols, decoded.data() + o * w.cols, w.cols));
      }
    }
  }
}

// EXL3: the decoded matrix lies between two rotations, and has the padded size.
void project_rotated(std::size_t rows, const float* x, const pack::Matrix& w, float* y) {
  const pack::Matrix inner = pack::exl3_inner(w);
  std::vector<float> rotated(rows * inner.cols);
  for (std::size_t r = 0; r < rows; ++r) {
    pack::exl3_rotate_input(w, x + r * w.cols, rotated.data() + r * inner.cols);
  }
  std::vector<float> products(rows * inner.rows);
  project_decoded(rows, rotated.data(), inner, products.data());
  for (std::size_t r = 0; r < rows; ++r) {
    float* row = products.data() + r * inner.rows;
    pack::exl3_rotate_output(w, row);
    std::copy_n(row, w.rows, y + r * w.rows);
  }
}

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGeluTanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kClampedSwiglu:
      x = std::min(x, 7.0);
      return x / (1 + std::exp(-1.702 * x));
  }
  return x;
}

// One row of one value head with the matrix s.
void delta_step(const DeltaRule& rule, const DeltaGates& gates, const float* query,
                const float* key, const float* value, float* s, float* y) {
  for (std::size_t v = 0; v < rule.value_dim; ++v) {
    constexpr std::size_t kTile = DeltaRule::kTile;
    float* column = s + v / kTile * rule.key_dim * kTile + v % kTile;
    double held = 0;
    for (std::size_t k = 0; k < rule.key_dim; ++k) {
      held += static_cast<double>(column[k * kTile]) * key[k];
    }
    const double change = gates.write * (value[v] - gates.keep * held);
    double read = 0;
    for (std::size_t k = 0; k < rule.key_dim; ++k) {
      float& element = column[k * kTile];
      element = static_cast<float>(gates.keep * element + key[k] * change);
      read += static_cast<double>(element) * query[k];
    }
    y[v] = static_cast<float>(read * rule.scale);
  }
}

// Rows of one value head that follow each other: see chunked_delta_rule.
struct DeltaChunk {
  std::size_t count;
  const float* queries;  // rows key_stride apart
  const float* keys;
  std::size_t key_stride;
  const float* values;  // rows value_stride apart, as those of y
  std::size_t value_stride;
  std::vector<DeltaGates> gates;
};

void delta_chunk(const DeltaRule& rule, const DeltaChunk& chunk, float* s, float* y) {
  const std::size_t n = chunk.count;
  const auto key = [&](std::size_t t) { return chunk.keys + t * chunk.key_stride; };
  const auto query = [&](std::size_t t) { return chunk.queries + t * chunk.key_stride; };
  // What is left after row t of what row j wrote, for j ≤ t; and of S.
  std::vector<double> left(n * n);
  std::vector<double> left_s(n);
  for (std::size_t t = 0; t < n; ++t) {
    for (std::size_t j = 0; j < t; ++j)
      left[t * n + j] = chunk.gates[t].keep * left[(t - 1) * n + j];
    left[t * n + t] = 1;
    left_s[t] = chunk.gates[t].keep * (t == 0 ? 1 : left_s[t - 1]);
  }
  std::vector<double> u(n);
  std::vector<double> column(rule.key_dim);
  for (std::size_t v = 0; v < rule.value_dim; ++v) {
    constexpr std::size_t kTile = DeltaRule::kTile;
    float* elements = s + v / kTile * rule.key_dim * kTile + v % kTile;
    for (std::size_t k = 0; k < rule.key_dim; ++k) column[k] = elements[k * kTile];
    const auto times_column = [&](const float* x) {
      return std::inner_product(column.begin(), column.end(), x, 0.0);
    };
    for (std::size_t t = 0; t < n; ++t) {
      u[t] = chunk.values[t * chunk.value_stride + v] - left_s[t] * times_column(key(t));
      for (std::size_t j = 0; j < t; ++j) {
        u[t] -= left[t * n + j] * dot(key(t), key(j), rule.key_dim) * u[j];
      }
      u[t] *= chunk.gates[t].write;
      double read = left_s[t] * times_column(query(t));
      for (std::size_t j = 0; j <= t; ++j) {
        read += left[t * n + j] * dot(query(t), key(j), rule.key_dim) * u[j];
      }
      y[t * chunk.value_stride + v] = static_cast<float>(read * rule.scale);
    }
    for (std::size_t k = 0; k < rule.key_dim; ++k) {
      double element = left_s[n - 1] * column[k];
      for (std::size_t j = 0; j < n; ++j) element += left[(n - 1) * n + j] * key(j)[k] * u[j];
      elements[k * kTile] = static_cast<float>(element);
    }
  }
}

double capped(double x, double cap) { return cap * std::tanh(x / cap); }

// One query against keys and values [positions, head_dim].
void attend(const Attention& attention, std::size_t head, const float* query,
            const std::vector<float>& keys, const std::vector<float>& values, float* y) {
  const std::size_t dim = attention.head_dim;
  std::vector<double> weights(keys.size() / dim);
  double highest = attention.sinks.empty() ? -INFINITY : attention.sinks[head];
  for (std::size_t p = 0; p < weights.size(); ++p) {
    const double score = attention.scale * dot(query, &keys[p * dim], dim);
    weights[p] = attention.softcap == 0 ? score : capped(score, attention.softcap);
    highest = std::max(highest, weights[p]);
  }
  double total = attention.sinks.empty() ? 0 : std::exp(attention.sinks[head] - highest);
  for (double& weight : weights) total += weight = std::exp(weight - highest);
  for (std::size_t i = 0; i < dim; ++i) {
    double sum = 0;
    for (std::size_t p = 0; p < weights.size(); ++p) sum += weights[p] * values[p * dim + i];
    y[i] = static_cast<float>(sum / total);
  }
}

class ReferenceOps final : public compute::Ops {
 public:
  void embed(std::span<const Row> rows, const pack::Matrix& table, float* y) override {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      pack::decode_rows(table, static_cast<std::uint64_t>(rows[r].token), 1, y + r * table.cols);
    }
  }

  void project(std::size_t rows, const float* x, const Linear& linear, float* y) override {
    reference::project(rows, x, linear.weight, y);
    if (linear.bias.empty()) return;
    for (std::size_t r = 0; r < rows; ++r)
      add(linear.bias.size(), linear.bias.data(), y + r * linear.bias.size());
  }

  void rms_norm(std::size_t rows, const float* x, std::span<const float> weight, float epsilon,
                float* y) override {
    const std::size_t width = weight.size();
    for (std::size_t r = 0; r < rows; ++r) {
      const float* row = x + r * width;
      const double mean_square = dot(row, row, width) / static_cast<double>(width);
      const double factor = 1 / std::sqrt(mean_square + epsilon);
      for (std::size_t i = 0; i < width; ++i) {
        y[r * width + i] = static_cast<float>(row[i] * factor * weight[i]);
      }
    }
  }

  void rope(std::span<const Row> rows, std::size_t heads, std::size_t head_dim, const Rope& rope,
            float* x) override {
    const std::size_t pairs = rope.frequencies.size();
    const bool halves = rope.pairs == RopePairs::kHalves;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t h = 0; h < heads; ++h) {
        float* head = x + (r * heads + h) * head_dim;
        for (std::size_t i = 0; i < pairs; ++i) {
          const double angle = rows[r].position * rope.frequencies[i];
          const double cosine = std::cos(angle) * rope.magnitude;
          const double sine = std::sin(angle) * rope.magnitude;
          float& first = head[halves ? i : 2 * i];
          float& second = head[halves ? i + pairs : 2 * i + 1];
          const double a = first;
          const double b = second;
          first = static_cast<float>(a * cosine - b * sine);
          second = static_cast<float>(a * sine + b * cosine);
        }
      }
    }
  }

  void store_kv(std::span<const Row> rows, const float* keys, const float* values,
                const KvView& cache) override {
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t h = 0; h < cache.kv_heads; ++h) {
        const std::size_t to = cache.offset(rows[r].sequence, h, rows[r].position);
        const std::size_t from = (r * cache.kv_heads + h) * cache.head_dim;
        compute::encode_kv(cache.type, keys + from, cache.head_dim, cache.keys + to);
        compute::encode_kv(cache.type, values + from, cache.head_dim, cache.values + to);
      }
    }
  }

  void attention(std::span<const Row> rows, const float* queries, const KvView& cache,
                 const Attention& attention, float* y) override {
    const std::size_t dim = attention.head_dim;
    const std::size_t group = attention.heads / attention.kv_heads;
    std::vector<float> keys;
    std::vector<float> values;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto end = static_cast<std::size_t>(rows[r].position) + 1;
      const std::size_t begin =
          attention.window != 0 && end > attention.window ? end - attention.window : 0;
      keys.resize((end - begin) * dim);
      values.resize((end - begin) * dim);
      for (std::size_t h = 0; h < attention.heads; ++h) {
        for (std::size_t p = begin; h % group == 0 && p < end; ++p) {
          const std::size_t at = cache.offset(rows[r].sequence, h / group, p);
          compute::decode_kv(cache.type, cache.keys + at, dim, keys.data() + (p - begin) * dim);
          compute::decode_kv(cache.type, cache.values + at, dim, values.data() + (p - begin) * dim);
        }
        const std::size_t at = (r * attention.heads + h) * dim;
        attend(attention, h, queries + at, keys, values, y + at);
      }
    }
  }

  void gate(std::size_t count, const float* gate, const float* up, Activation activation,
            float* y) override {
    for (std::size_t i = 0; i < count; ++i) {
      const float factor =
          activation == Activation::kClampedSwiglu ? std::clamp(up[i], -7.0f, 7.0f) + 1 : up[i];
      y[i] = static_cast<float>(activate(activation, gate[i])) * factor;
    }
  }

  void add(std::size_t count, const float* x, float* y) override {
    for (std::size_t i = 0; i < count; ++i) y[i] += x[i];
  }

  void split(std::size_t rows, std::size_t repeats, std::span<const SplitPart> parts,
             const float* x) override {
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t i = 0; i < repeats; ++i) {
        for (const SplitPart& part : parts) {
          std::copy_n(x, part.width, part.to + r * part.stride + i * part.width);
          x += part.width;
        }
      }
    }
  }

  void gather_rows(std::span<const std::uint32_t> from, std::size_t width, const float* x,
                   float* y) override {
    for (std::size_t r = 0; r < from.size(); ++r) {
      std::copy_n(x + from[r] * width, width, y + r * width);
    }
  }

  void scatter_add_rows(std::span<const std::uint32_t> to, const float* factors, std::size_t width,
                        const float* x, float* y) override {
    for (std::size_t r = 0; r < to.size(); ++r) {
      for (std::size_t i = 0; i < width; ++i) {
        float& sum = y[to[r] * width + i];
        sum = static_cast<float>(sum + static_cast<double>(factors[r]) * x[r * width + i]);
      }
    }
  }

  void causal_convolution(std::span<const Row> rows, const float* x,
                          const CausalConvolution& convolution, const RecurrentView& state,
                          float* y) override {
    const std::size_t channels = convolution.channels;
    const std::size_t past = convolution.kernel - 1;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      float* before =
          state.convolution + static_cast<std::size_t>(rows[r].sequence) * state.convolution_size;
      if (rows[r].position == 0) std::fill_n(before, convolution.state_size(), 0.0f);
      for (std::size_t c = 0; c < channels; ++c) {
        const float input = x[r * channels + c];
        double sum = static_cast<double>(convolution.weight[past * channels + c]) * input;
        for (std::size_t j = 0; j < past; ++j) {
          float& earlier = before[j * channels + c];
          sum += static_cast<double>(convolution.weight[j * channels + c]) * earlier;
          earlier = j + 1 < past ? before[(j + 1) * channels + c] : input;
        }
        y[r * channels + c] = static_cast<float>(activate(Activation::kSilu, sum));
      }
    }
  }

  void delta_rule(std::span<const Row> rows, const float* queries_keys, const float* values,
                  const float* b, const float* a, const DeltaRule& rule, const RecurrentView& state,
                  float* y) override {
    const std::size_t row_keys = 2 * rule.key_heads * rule.key_dim;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      float* memory = state.memory + static_cast<std::size_t>(rows[r].sequence) * state.memory_size;
      if (rows[r].position == 0) std::fill_n(memory, rule.matrices_size(), 0.0f);
      for (std::size_t h = 0; h < rule.value_heads; ++h) {
        const std::size_t head = r * rule.value_heads + h;
        const float* query = queries_keys + r * row_keys + rule.key_head(h) * rule.key_dim;
        delta_step(rule, compute::delta_gates(rule, h, b[head], a[head]), query,
                   query + rule.key_heads * rule.key_dim, values + head * rule.value_dim,
                   memory + h * rule.matrix_size(), y + head * rule.value_dim);
      }
    }
  }

  void scale(std::size_t count, float factor, float* x) override {
    for (std::size_t i = 0; i < count; ++i) x[i] *= factor;
  }

  void softcap(std::size_t count, float cap, float* x) override {
    for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<float>(capped(x[i], cap));
  }
};

}  // namespace

void project(std::size_t rows, const float* x, const pack::Matrix& w, float* y) {
  if (w.input_scale.empty()) {
    project_decoded(rows, x, w, y);
  } else {
    project_rotated(rows, x, w, y);
  }
}

void chunked_delta_rule(std::span<const Row> rows, std::size_t chunk, const float* queries_keys,
                        const float* values, const float* b, const float* a, const DeltaRule& rule,
                        const RecurrentView& state, float* y) {
  const std::size_t row_keys = 2 * rule.key_heads * rule.key_dim;
  const std::size_t row_values = rule.value_heads * rule.value_dim;
  for (std::size_t r = 0, count = 0; r < rows.size(); r += count) {
    count = 1;
    while (count < chunk && r + count < rows.size() &&
           rows[r + count].sequence == rows[r].sequence && rows[r + count].position != 0) {
      ++count;
    }
    float* memory = state.memory + static_cast<std::size_t>(rows[r].sequence) * state.memory_size;
    if (rows[r].position == 0) std::fill_n(memory, rule.matrices_size(), 0.0f);
    for (std::size_t h = 0; h < rule.value_heads; ++h) {
      const float* queries = queries_keys + r * row_keys + rule.key_head(h) * rule.key_dim;
      const std::size_t at = r * row_values + h * rule.value_dim;
      std::vector<DeltaGates> gates(count);
      for (std::size_t t = 0; t < count; ++t) {
        const std::size_t head = (r + t) * rule.value_heads + h;
        gates[t] = compute::delta_gates(rule, h, b[head], a[head]);
      }
      delta_chunk(rule,
                  {.count = count,
                   .queries = queries,
                   .keys = queries + rule.key_heads * rule.key_dim,
                   .key_stride = row_keys,
                   .values = values + at,
                   .value_stride = row_values,
                   .gates = std::move(gates)},
                  memory + h * rule.matrix_size(), y + at);
    }
  }
}

std::unique_ptr<compute::Ops> make_ops() { return std::make_unique<ReferenceOps>(); }

}  // namespace espalier::reference
