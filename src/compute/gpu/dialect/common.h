// What follows from the words of a dialect: a thread's place, and reductions whose sums have a
// fixed order on every target. Included by dialect.h alone, which says what the words are.
#pragma once

namespace espalier::gpu::ESPALIER_DIALECT {

ESPALIER_CONSTANT uint32_t kLanes = 32;

// A thread's place in its block, and the block's in the grid.
struct Thread {
  uint32_t index;    // in the block
  uint32_t threads;  // of the block
  uint32_t block_x;
  uint32_t block_y;
};

ESPALIER_DEVICE uint32_t lane_of(Thread at) { return at.index % kLanes; }
ESPALIER_DEVICE uint32_t warp_of(Thread at) { return at.index / kLanes; }
ESPALIER_DEVICE uint32_t warps_of(Thread at) { return at.threads / kLanes; }

// The shared memory of kernels that need none. (An empty struct has a size too.)
struct NoMemory {};

ESPALIER_DEVICE float broadcast(float value) { return shuffle(value, 0); }
ESPALIER_DEVICE bool any(bool vote) { return ballot(vote) != 0; }

// The sum, or largest, of the warp's values, in every lane. Lanes add in pairs 16, 8, 4, 2, 1
// apart; as a + b = b + a, all have the same bits.
ESPALIER_DEVICE float warp_sum(float value) {
  for (uint32_t apart = kLanes / 2; apart != 0; apart /= 2) value += shuffle_xor(value, apart);
  return value;
}
ESPALIER_DEVICE float warp_max(float value) {
  for (uint32_t apart = kLanes / 2; apart != 0; apart /= 2) {
    value = fmax(value, shuffle_xor(value, apart));
  }
  return value;
}

// The same over the block, whose warps are added in order. Each thread's earlier writes to shared
// memory are visible to all afterwards. `warps` has room for one number a warp.
ESPALIER_DEVICE float block_sum(Thread at, float value, Shared<float> warps) {
  value = warp_sum(value);
  if (lane_of(at) == 0) warps[warp_of(at)] = value;
  barrier();
  float sum = 0;
  for (uint32_t w = 0; w < warps_of(at); ++w) sum += warps[w];
  barrier();  // before somebody fills `warps` again
  return sum;
}
ESPALIER_DEVICE float block_max(Thread at, float value, Shared<float> warps) {
  value = warp_max(value);
  if (lane_of(at) == 0) warps[warp_of(at)] = value;
  barrier();
  float most = warps[0];
  for (uint32_t w = 1; w < warps_of(at); ++w) most = fmax(most, warps[w]);
  barrier();  // before somebody fills `warps` again
  return most;
}

// The most warps a block has, and with that the most numbers that block_sum needs room for.
ESPALIER_CONSTANT int kMostWarps = 32;

}  // namespace espalier::gpu::ESPALIER_DIALECT
