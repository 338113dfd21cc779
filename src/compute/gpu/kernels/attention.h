// Decode attention: a few rows against all that their sequences have cached.
//
// A sequence's visible positions are cut into chunks of a fixed length, so that long contexts fill
// the GPU; attention_chunk computes each by itself, attention_merge adds up the chunks in order.
// What a chunk holds depends on the row alone, and so do the bits of its result.
#pragma once

#include "compute/gpu/kernels/choice.h"

namespace espalier::gpu::ESPALIER_DIALECT {

ESPALIER_CONSTANT uint32_t kChunkQueries = 8;      // query heads that share a block's tiles
ESPALIER_CONSTANT uint32_t kChunkThreads = 128;    // of a block of attention_chunk
ESPALIER_CONSTANT uint32_t kChunkPositions = 256;  // of a chunk
ESPALIER_CONSTANT uint32_t kTileNumbers = 2048;    // of keys or values in shared memory

ESPALIER_DEVICE float number(float value) { return value; }
ESPALIER_DEVICE float number(uint16_t half) { return half_to_float(half); }

// Kv: float, or uint16_t for half precision.
template <typename Kv>
struct AttentionArguments {
  Global<const float> queries;      // [rows, heads, head_dim]
  Global<const Kv> keys;            // [sequences, kv_heads, capacity, head_dim]
  Global<const Kv> values;          // the same
  Global<const int32_t> sequences;  // [rows]
  Global<const int32_t> positions;  // [rows]
  // [rows, heads, chunks, head_dim + 2]: Σ e^(s − highest) · value, then highest and Σ e^(s −
  // highest), over a chunk's scores s.
  Global<float> partial;
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t capacity;
  uint32_t chunks;
  uint32_t window;  // 0: none
  float scale;
  float softcap;  // 0: none
};

template <int kDim>
struct AttentionMemory {
  SharedArray<float, kChunkQueries * kDim> queries;
  // Keys, then values. A row is one longer than the head, so that threads which read one element
  // each of neighbouring rows use different banks.
  SharedArray<float, kTileNumbers / kDim*(kDim + 1)> tile;
  SharedArray<float, kChunkQueries*(kTileNumbers / kDim)> scores;
  SharedArray<float, kChunkQueries> factors;
};

// A block for each (row, KV head, eight query heads) along x and each chunk along y.
template <typename Kv, int kDim>
ESPALIER_DEVICE void attention_chunk(Thread at, Arguments<AttentionArguments<Kv>> args,
                                     BlockMemory<AttentionMemory<kDim>> m) {
  constexpr uint32_t kHead = kDim;
  constexpr uint32_t kStride = kHead + 1;
  constexpr uint32_t kTile = kTileNumbers / kHead;
  constexpr uint32_t kOwned = kChunkQueries * kHead / kChunkThreads;
  constexpr uint32_t kWarps = kChunkThreads / kLanes;

  const uint32_t group = args.heads / args.kv_heads;
  const uint32_t parts = (group + kChunkQueries - 1) / kChunkQueries;
  const uint32_t part = at.block_x % parts;
  const uint32_t kv_head = at.block_x / parts % args.kv_heads;
  const uint32_t row = at.block_x / parts / args.kv_heads;
  const uint32_t left = group - part * kChunkQueries;
  const uint32_t queries = left < kChunkQueries ? left : kChunkQueries;
  const uint64_t first_head =
      static_cast<uint64_t>(row) * args.heads + kv_head * group + part * kChunkQueries;

  const uint32_t visible = static_cast<uint32_t>(args.positions[row]) + 1;
  const uint32_t oldest = args.window != 0 && visible > args.window ? visible - args.window : 0;
  const uint32_t begin = oldest + at.block_y * kChunkPositions;
  const uint32_t end = visible < begin + kChunkPositions ? visible : begin + kChunkPositions;
  const uint64_t past = (static_cast<uint64_t>(args.sequences[row]) * args.kv_heads + kv_head) *
                        args.capacity * kHead;

  for (uint32_t e = at.index; e < queries * kHead; e += kChunkThreads) {
    m->queries[e] = args.queries[first_head * kHead + e];
  }
  float sums[kOwned];  // of element at.index + j · threads of [queries, head]
  for (uint32_t j = 0; j < kOwned; ++j) sums[j] = 0;
  float highest[kChunkQueries / kWarps];  // of this warp's queries, in all lanes
  float totals[kChunkQueries / kWarps];
  for (uint32_t j = 0; j < kChunkQueries / kWarps; ++j) {
    highest[j] = minus_infinity();
    totals[j] = 0;
  }

  for (uint32_t first = begin; first < end; first += kTile) {
    const uint32_t count = end - first < kTile ? end - first : kTile;
    for (uint32_t e = at.index; e < count * kHead; e += kChunkThreads) {
      m->tile[e / kHead * kStride + e % kHead] = number(args.keys[past + first * kHead + e]);
    }
    barrier();
    for (uint32_t e = at.index; e < queries * count; e += kChunkThreads) {
      const uint32_t q = e / count;
      const uint32_t p = e % count;
      float score = 0;
      for (uint32_t i = 0; i < kHead; ++i) {
        score = fma(m->queries[q * kHead + i], m->tile[p * kStride + i], score);
      }
      score *= args.scale;
      if (args.softcap != 0) score = args.softcap * tanh(score / args.softcap);
      m->scores[q * kTile + p] = score;
    }
    barrier();
    for (uint32_t e = at.index; e < count * kHead; e += kChunkThreads) {
      m->tile[e / kHead * kStride + e % kHead] = number(args.values[past + first * kHead + e]);
    }
    for (uint32_t j = 0; j < kChunkQueries / kWarps; ++j) {
      const uint32_t q = warp_of(at) + j * kWarps;
      if (q >= queries) break;
      float score = minus_infinity();
      if (lane_of(at) < count) score = m->scores[q * kTile + lane_of(at)];
      const float most = fmax(highest[j], warp_max(score));
      const float weight = exp(score - most);
      const float factor = exp(highest[j] - most);
      totals[j] = totals[j] * factor + warp_sum(weight);
      highest[j] = most;
      if (lane_of(at) < count) m->scores[q * kTile + lane_of(at)] = weight;
      if (lane_of(at) == 0) m->factors[q] = factor;
    }
    barrier();
    for (uint32_t j = 0; j < kOwned; ++j) {
      const uint32_t e = at.index + j * kChunkThreads;
      const uint32_t q = e / kHead;
      if (q >= queries) break;
      float sum = sums[j] * m->factors[q];
      for (uint32_t p = 0; p < count; ++p) {
        sum = fma(m->scores[q * kTile + p], m->tile[p * kStride + e % kHead], sum);
      }
      sums[j] = sum;
    }
    barrier();
  }

  for (uint32_t j = 0; j < kOwned; ++j) {
    const uint32_t e = at.index + j * kChunkThreads;
    const uint32_t q = e / kHead;
    if (q >= queries) break;
    args.partial[((first_head + q) * args.chunks + at.block_y) * (kHead + 2) + e % kHead] = sums[j];
  }
  for (uint32_t j = 0; j < kChunkQueries / kWarps; ++j) {
    const uint32_t q = warp_of(at) + j * kWarps;
    if (q >= queries || lane_of(at) != 0) break;
    const uint64_t to = ((first_head + q) * args.chunks + at.block_y) * (kHead + 2) + kHead;
    args.partial[to] = highest[j];
    args.partial[to + 1] = totals[j];
  }
}

struct AttentionMergeArguments {
  Global<const float> partial;  // of attention_chunk
  Global<const float> sinks;    // [heads] or null
  Global<float> y;              // [rows, heads, head_dim]
  uint32_t heads;
  uint32_t head_dim;
  uint32_t chunks;
};

// A block for each (row, head); each thread goes through the chunks in order.
ESPALIER_DEVICE void attention_merge(Thread at, Arguments<AttentionMergeArguments> args,
                                     BlockMemory<NoMemory>) {
  const uint32_t stride = args.head_dim + 2;
  const Global<const float> partial =
      args.partial + static_cast<uint64_t>(at.block_x) * args.chunks * stride;
  const uint32_t head = at.block_x % args.heads;
  float highest = args.sinks != nullptr ? args.sinks[head] : minus_infinity();
  for (uint32_t c = 0; c < args.chunks; ++c) {
    highest = fmax(highest, partial[c * stride + args.head_dim]);
  }
  float total = args.sinks != nullptr ? exp(args.sinks[head] - highest) : 0;
  for (uint32_t c = 0; c < args.chunks; ++c) {
    const float factor = exp(partial[c * stride + args.head_dim] - highest);
    total = fma(factor, partial[c * stride + args.head_dim + 1], total);
  }
  for (uint32_t i = at.index; i < args.head_dim; i += at.threads) {
    float sum = 0;
    for (uint32_t c = 0; c < args.chunks; ++c) {
      const float factor = exp(partial[c * stride + args.head_dim] - highest);
      sum = fma(factor, partial[c * stride + i], sum);
    }
    args.y[static_cast<uint64_t>(at.block_x) * args.head_dim + i] = sum / total;
  }
}

}  // namespace espalier::gpu::ESPALIER_DIALECT
