#include "compute/cpu/cpu_ops.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "compute/cpu/arrange.h"
#include "compute/cpu/attention.h"
#include "compute/cpu/kv_kernels.h"
#include "compute/cpu/panel.h"
#include "compute/cpu/recurrent.h"
#include "compute/cpu/row_kernels.h"
#include "compute/cpu/targets.h"
#include "hwy/targets.h"

namespace espalier::cpu {
namespace {

using compute::Activation;
using compute::Attention;
using compute::CausalConvolution;
using compute::DeltaRule;
using compute::HeadNorms;
using compute::Heads;
using compute::KvView;
using compute::Linear;
using compute::Projection;
using compute::RecurrentView;
using compute::Rope;
using compute::RopePairs;
using compute::Row;
using compute::SplitPart;

// The cosines and sines of one Rope at the positions of a pass: all layers turn by the same angles.
struct RopeTable {
  std::vector<double> frequencies;
  double magnitude = 1;
  std::vector<std::int32_t> positions;
  std::vector<float> cosines;  // [positions, frequencies], magnitude included
  std::vector<float> sines;
};

class CpuOps final : public compute::Ops {
 public:
  CpuOps(std::size_t threads, Activations activations)
      : pool_(threads), activations_(activations) {}

  void prepare(Linear& linear) override {
    if (activations_ == Activations::kCoded)
      linear.arranged = arranger_.arrange(pool_, linear.weight);
  }

  void embed(std::span<const Row> rows, const pack::Matrix& table, float* y) override {
    pool_.parallel_for(rows.size(), [&](std::size_t begin, std::size_t end, std::size_t) {
      for (std::size_t r = begin; r < end; ++r) {
        pack::decode_rows(table, static_cast<std::uint64_t>(rows[r].token), 1, y + r * table.cols);
      }
    });
  }

  void project(std::size_t rows, const float* x, const Linear& linear, float* y) override {
    const Projection projection[] = {{&linear, y}};
    project_all(rows, x, projection);
  }

  void project_all(std::size_t rows, const float* x,
                   std::span<const Projection> projections) override {
    project_inputs(rows, {x}, projections);
  }

  void gate_project(std::size_t rows, float* gates, const float* ups, Activation activation,
                    const Linear& linear, float* y) override {
    const Projection projection[] = {{&linear, y}};
    project_inputs(rows, {gates, ups, gate_kernel(activation)}, projection);
  }

  void rms_norm(std::size_t rows, const float* x, std::span<const float> weight, float epsilon,
                float* y) override {
    const std::size_t width = weight.size();
    for_rows(rows, width, [&](std::size_t r) {
      row_kernels().rms_norm(x + r * width, weight.data(), width, epsilon, y + r * width);
    });
  }

  void add_rms_norm(std::size_t rows, float* y, std::span<const float> post,
                    std::span<const float> weight, float epsilon, float* x,
                    float* normed) override {
    const std::size_t width = weight.size();
    for_rows(rows, width, [&](std::size_t r) {
      row_kernels().add_rms_norm(y + r * width, post.empty() ? nullptr : post.data(), weight.data(),
                                 width, epsilon, x + r * width, normed + r * width);
    });
  }

  void rope(std::span<const Row> rows, std::size_t heads, std::size_t head_dim, const Rope& rope,
            float* x) override {
    const RopeTable& table = rope_table(rows, rope);
    for_rows(rows.size(), heads * head_dim, [&](std::size_t r) {
      for (std::size_t h = 0; h < heads; ++h) {
        turn(rope, table, r, x + (r * heads + h) * head_dim);
      }
    });
  }

  void store_kv(std::span<const Row> rows, const float* keys, const float* values,
                const KvView& cache) override {
    for_rows(rows.size(), cache.kv_heads * cache.head_dim, [&](std::size_t r) {
      for (std::size_t h = 0; h < cache.kv_heads; ++h) {
        const std::size_t from = (r * cache.kv_heads + h) * cache.head_dim;
        store(cache, rows[r], h, keys + from, values + from);
      }
    });
  }

  void norm_rope_store(std::span<const Row> rows, const Heads& heads, const HeadNorms& norms,
                       const Rope* rope, const KvView& cache) override {
    const RopeTable* table = rope == nullptr ? nullptr : &rope_table(rows, *rope);
    const std::size_t dim = cache.head_dim;
    const auto norm_and_turn = [&](std::size_t r, std::span<const float> norm, float* head) {
      if (!norm.empty()) row_kernels().rms_norm(head, norm.data(), dim, norms.epsilon, head);
      if (rope != nullptr) turn(*rope, *table, r, head);
    };
    for_rows(rows.size(), (heads.query_heads + 2 * cache.kv_heads) * dim, [&](std::size_t r) {
      for (std::size_t h = 0; h < heads.query_heads; ++h) {
        norm_and_turn(r, norms.queries, heads.queries + (r * heads.query_heads + h) * dim);
      }
      for (std::size_t h = 0; h < cache.kv_heads; ++h) {
        const std::size_t from = (r * cache.kv_heads + h) * dim;
        norm_and_turn(r, norms.keys, heads.keys + from);
        store(cache, rows[r], h, heads.keys + from, heads.values + from);
      }
    });
  }

  void attention(std::span<const Row> rows, const float* queries, const KvView& cache,
                 const Attention& attention, float* y) override {
    cpu::attention(pool_, workspace(), rows, queries, cache, attention, y);
  }

  void gate(std::size_t count, const float* gate, const float* up, Activation activation,
            float* y) override {
    const RowKernels::Gate kernel = gate_kernel(activation);
    for_elements(count, [&](std::size_t begin, std::size_t size) {
      kernel(gate + begin, up + begin, size, y + begin);
    });
  }

  void add(std::size_t count, const float* x, float* y) override {
    for_elements(count, [&](std::size_t begin, std::size_t size) {
      row_kernels().add(x + begin, size, y + begin);
    });
  }

  void split(std::size_t rows, std::size_t repeats, std::span<const SplitPart> parts,
             const float* x) override {
    std::size_t width = 0;
    for (const SplitPart& part : parts) width += part.width;
    for_rows(rows, repeats * width, [&](std::size_t r) {
      const float* from = x + r * repeats * width;
      for (std::size_t i = 0; i < repeats; ++i) {
        for (const SplitPart& part : parts) {
          std::copy_n(from, part.width, part.to + r * part.stride + i * part.width);
          from += part.width;
        }
      }
    });
  }

  void gather_rows(std::span<const std::uint32_t> from, std::size_t width, const float* x,
                   float* y) override {
    for_rows(from.size(), width,
             [&](std::size_t r) { std::copy_n(x + from[r] * width, width, y + r * width); });
  }

  void scatter_add_rows(std::span<const std::uint32_t> to, const float* factors, std::size_t width,
                        const float* x, float* y) override {
    for_rows(to.size(), width, [&](std::size_t r) {
      row_kernels().add_scaled(factors[r], x + r * width, width, y + to[r] * width);
    });
  }

  void causal_convolution(std::span<const Row> rows, const float* x,
                          const CausalConvolution& convolution, const RecurrentView& state,
                          float* y) override {
    cpu::causal_convolution(pool_, rows, x, convolution, state, y);
  }

  void delta_rule(std::span<const Row> rows, const float* queries_keys, const float* values,
                  const float* b, const float* a, const DeltaRule& rule, const RecurrentView& state,
                  float* y) override {
    cpu::delta_rule(pool_, workspace(), rows, queries_keys, values, b, a, rule, state, y);
  }

  void scale(std::size_t count, float factor, float* x) override {
    for_elements(count, [&](std::size_t begin, std::size_t size) {
      for (std::size_t i = begin; i < begin + size; ++i) x[i] *= factor;
    });
  }

  void softcap(std::size_t count, float cap, float* x) override {
    for_elements(count, [&](std::size_t begin, std::size_t size) {
      row_kernels().softcap(cap, size, x + begin);
    });
  }

 private:
  static RowKernels::Gate gate_kernel(Activation activation) {
    switch (activation) {
      case Activation::kSilu:
        return row_kernels().silu_gate;
      case Activation::kGeluTanh:
        return row_kernels().gelu_tanh_gate;
      case Activation::kSigmoid:
        return row_kernels().sigmoid_gate;
      case Activation::kClampedSwiglu:
        return row_kernels().clamped_swiglu_gate;
    }
    return nullptr;
  }

  void project_inputs(std::size_t rows, const Inputs& inputs,
                      std::span<const Projection> projections) {
    products_.clear();
    for (const auto& [linear, y] : projections) {
      products_.push_back({&linear->weight, linear->arranged.get(), y});
    }
    cpu::project(pool_, workspace(), inputs, rows, products_, activations_);
    for (const auto& [linear, y] : projections) {
      const std::vector<float>& bias = linear->bias;
      float* to = y;
      if (bias.empty()) continue;
      for_rows(rows, bias.size(), [&](std::size_t r) {
        row_kernels().add(bias.data(), bias.size(), to + r * bias.size());
      });
    }
  }

  // Rotates a head of row r of those that `table` is for.
  static void turn(const Rope& rope, const RopeTable& table, std::size_t r, float* head) {
    const std::size_t pairs = rope.frequencies.size();
    const auto kernel = rope.pairs == RopePairs::kHalves ? row_kernels().rope_halves
                                                         : row_kernels().rope_interleaved;
    kernel(table.cosines.data() + r * pairs, table.sines.data() + r * pairs, pairs, head);
  }

  // Writes one head of a row's keys and values.
  static void store(const KvView& cache, const Row& row, std::size_t head, const float* key,
                    const float* value) {
    const std::size_t at = cache.offset(static_cast<std::size_t>(row.sequence), head,
                                        static_cast<std::size_t>(row.position));
    kv_kernels().encode(cache.type, key, cache.head_dim, cache.keys + at);
    kv_kernels().encode(cache.type, value, cache.head_dim, cache.values + at);
  }

  // Fewer elements than this are done sooner by one thread than others wake up.
  static constexpr std::size_t kShareFrom = 16384;

  // body(row) for all rows of `width` elements.
  template <typename Body>
  void for_rows(std::size_t rows, std::size_t width, const Body& body) {
    const auto part = [&](std::size_t begin, std::size_t end, std::size_t) {
      for (std::size_t r = begin; r < end; ++r) body(r);
    };
    if (rows * width < kShareFrom) return part(0, rows, 0);
    pool_.parallel_for(rows, part);
  }

  // body(begin, size) for parts of `count` elements.
  template <typename Body>
  void for_elements(std::size_t count, const Body& body) {
    if (count < kShareFrom) return body(0, count);
    pool_.parallel_for(
        count, [&](std::size_t begin, std::size_t end, std::size_t) { body(begin, end - begin); });
  }

  // The table of `rope` at the positions of `rows`, computed if it is not the last one of that
  // rope.
  const RopeTable& rope_table(std::span<const Row> rows, const Rope& rope) {
    const auto same_rope = [&](const RopeTable& t) {
      return t.magnitude == rope.magnitude && t.frequencies == rope.frequencies;
    };
    auto table = std::find_if(rope_tables_.begin(), rope_tables_.end(), same_rope);
    if (table == rope_tables_.end()) {
      table = rope_tables_.begin() + static_cast<std::ptrdiff_t>(next_rope_table_);
      next_rope_table_ = (next_rope_table_ + 1) % rope_tables_.size();
      *table = {.frequencies = rope.frequencies, .magnitude = rope.magnitude};
    }
    const auto same_position = [](std::int32_t position, const Row& row) {
      return position == row.position;
    };
    if (!std::equal(table->positions.begin(), table->positions.end(), rows.begin(), rows.end(),
                    same_position)) {
      fill(rows, *table);
    }
    return *table;
  }

  void fill(std::span<const Row> rows, RopeTable& table) {
    const std::size_t pairs = table.frequencies.size();
    table.positions.resize(rows.size());
    table.cosines.resize(rows.size() * pairs);
    table.sines.resize(rows.size() * pairs);
    pool_.parallel_for(rows.size(), [&](std::size_t begin, std::size_t end, std::size_t) {
      for (std::size_t r = begin; r < end; ++r) {
        table.positions[r] = rows[r].position;
        for (std::size_t i = 0; i < pairs; ++i) {
          const double angle = rows[r].position * table.frequencies[i];
          table.cosines[r * pairs + i] = static_cast<float>(std::cos(angle) * table.magnitude);
          table.sines[r * pairs + i] = static_cast<float>(std::sin(angle) * table.magnitude);
        }
      }
    });
  }

  ThreadPool pool_;
  Arranger arranger_;
  std::vector<Product> products_;  // of the call under way
  Activations activations_;
  std::array<RopeTable, 4> rope_tables_;  // models have one or two
  std::size_t next_rope_table_ = 0;
};

}  // namespace

std::unique_ptr<compute::Ops> make_ops(std::size_t threads, Activations activations) {
  return std::make_unique<CpuOps>(threads, activations);
}

const char* instructions() { return hwy::TargetName(code_kernels().target); }

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  // Highway gives better targets lower bits.
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS & ~(HWY_SCALAR | HWY_EMU128);
       left != 0; left &= left - 1) {
    names.emplace_back(hwy::TargetName(left & -left));
  }
  return names;
}

}  // namespace espalier::cpu
