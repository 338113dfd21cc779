// What is largest in a row: the most likely tokens, softmax, the experts of a router.
#pragma once

#include "compute/gpu/kernels/elementwise.h"

namespace espalier::gpu::ESPALIER_DIALECT {

ESPALIER_DEVICE float minus_infinity() { return float_of(0xff800000u); }

// A number and its place in a row. Larger ones come first, and of equals the lower place; NaN is
// never chosen.
struct Ranked {
  float value;
  uint32_t place;
};

ESPALIER_CONSTANT uint32_t kNowhere = 0xffffffffu;

ESPALIER_DEVICE Ranked nothing() { return {minus_infinity(), kNowhere}; }

ESPALIER_DEVICE bool comes_before(Ranked a, Ranked b) {
  return a.value > b.value || (a.value == b.value && a.place < b.place);
}

ESPALIER_DEVICE Ranked first_of(Ranked a, Ranked b) { return comes_before(b, a) ? b : a; }

// The first of the warp's, in every lane.
ESPALIER_DEVICE Ranked warp_first(Ranked mine) {
  for (uint32_t apart = kLanes / 2; apart != 0; apart /= 2) {
    const Ranked other = {shuffle_xor(mine.value, apart), shuffle_xor(mine.place, apart)};
    mine = first_of(mine, other);
  }
  return mine;
}

struct TopKArguments {
  Global<const float> x;    // [rows, width]
  Global<uint32_t> places;  // [rows, count], best first; where all are NaN or taken, 2³² − 1
  Global<float> values;     // [rows, count]
  uint32_t width;
  uint32_t count;
};

struct TopKMemory {
  SharedArray<float, kMostWarps> values;
  SharedArray<uint32_t, kMostWarps> places;
};

// The `count` largest of each row, a block for each: the next one after the one before, again and
// again. With count 1: argmax.
ESPALIER_DEVICE void top_k(Thread at, Arguments<TopKArguments> args, BlockMemory<TopKMemory> m) {
  const Global<const float> x = args.x + static_cast<uint64_t>(at.block_x) * args.width;
  Ranked last = nothing();
  for (uint32_t k = 0; k < args.count; ++k) {
    Ranked best = nothing();
    for (uint32_t i = at.index; i < args.width; i += at.threads) {
      const Ranked candidate = {x[i], i};
      if (k == 0 || comes_before(last, candidate)) best = first_of(best, candidate);
    }
    best = warp_first(best);
    if (lane_of(at) == 0) {
      m->values[warp_of(at)] = best.value;
      m->places[warp_of(at)] = best.place;
    }
    barrier();
    best = nothing();
    for (uint32_t w = 0; w < warps_of(at); ++w) {
      const Ranked candidate = {m->values[w], m->places[w]};
      best = first_of(best, candidate);
    }
    barrier();  // before the next round fills them again
    if (at.index == 0) {
      args.places[static_cast<uint64_t>(at.block_x) * args.count + k] = best.place;
      args.values[static_cast<uint64_t>(at.block_x) * args.count + k] = best.value;
    }
    last = best;
  }
}

struct SoftmaxArguments {
  Global<const float> x;  // [rows, width]
  Global<float> y;        // [rows, width]; may be x
  uint32_t width;
  float scale;  // 1 / temperature
};

struct SoftmaxMemory {
  SharedArray<float, kMostWarps> warps;
};

// y = softmax(scale · x), a block for each row.
ESPALIER_DEVICE void softmax(Thread at, Arguments<SoftmaxArguments> args,
                             BlockMemory<SoftmaxMemory> m) {
  const uint64_t row = static_cast<uint64_t>(at.block_x) * args.width;
  float most = minus_infinity();
  for (uint32_t i = at.index; i < args.width; i += at.threads) most = fmax(most, args.x[row + i]);
  most = block_max(at, most, m->warps);
  float sum = 0;
  for (uint32_t i = at.index; i < args.width; i += at.threads) {
    sum += exp((args.x[row + i] - most) * args.scale);
  }
  sum = block_sum(at, sum, m->warps);
  for (uint32_t i = at.index; i < args.width; i += at.threads) {
    args.y[row + i] = exp((args.x[row + i] - most) * args.scale) / sum;
  }
}

struct RouteArguments {
  Global<const float> outputs;         // [rows, experts]
  Global<const float> selection_bias;  // [experts] or null
  Global<uint32_t> chosen;             // [rows, top_k], best first
  Global<float> weights;               // [rows, top_k]
  uint32_t experts;
  uint32_t top_k;
  uint32_t renormalize;  // 0 or 1
  float scale;
};

// Scores of a router's outputs: `highest` and `total` are the row's, of softmax.
struct SoftmaxScores {
  static ESPALIER_DEVICE float score(float output, float highest, float total) {
    return exp(output - highest) / total;
  }
};
struct SigmoidScores {
  static ESPALIER_DEVICE float score(float output, float, float) { return sigmoid(output); }
};

// compute::Router: the experts of each row and their weights. A warp for each row.
template <typename Scores>
ESPALIER_DEVICE void route(Thread at, Arguments<RouteArguments> args, BlockMemory<NoMemory>) {
  const Global<const float> outputs =
      args.outputs + static_cast<uint64_t>(at.block_x) * args.experts;
  const uint64_t to = static_cast<uint64_t>(at.block_x) * args.top_k;
  float highest = minus_infinity();
  for (uint32_t e = lane_of(at); e < args.experts; e += kLanes) highest = fmax(highest, outputs[e]);
  highest = warp_max(highest);
  float total = 0;
  for (uint32_t e = lane_of(at); e < args.experts; e += kLanes) total += exp(outputs[e] - highest);
  total = warp_sum(total);

  float sum = 0;
  Ranked last = nothing();
  for (uint32_t k = 0; k < args.top_k; ++k) {
    Ranked best = nothing();
    for (uint32_t e = lane_of(at); e < args.experts; e += kLanes) {
      Ranked candidate = {outputs[e], e};  // scores rise with them
      if (args.selection_bias != nullptr) {
        candidate.value = Scores::score(outputs[e], highest, total) + args.selection_bias[e];
      }
      if (k == 0 || comes_before(last, candidate)) best = first_of(best, candidate);
    }
    last = warp_first(best);
    // Where outputs are not numbers nothing is first: expert 0 then, whose weight is NaN too.
    const uint32_t expert = last.place == kNowhere ? 0 : last.place;
    const float score = Scores::score(outputs[expert], highest, total);
    sum += score;
    if (lane_of(at) == 0) {
      args.chosen[to + k] = expert;
      args.weights[to + k] = score;
    }
  }
  const float factor = args.scale / (args.renormalize != 0 ? sum : 1.0f);
  if (lane_of(at) == 0) {
    for (uint32_t k = 0; k < args.top_k; ++k) {
      const float score = args.weights[to + k];
      args.weights[to + k] = score * factor;
    }
  }
}

}  // namespace espalier::gpu::ESPALIER_DIALECT
