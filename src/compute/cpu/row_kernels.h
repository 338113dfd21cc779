// The operators of a layer that work on single rows or elements.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier::cpu {

struct RowKernels {
  // y = x / √(mean(x²) + epsilon) ∘ weight; y may be x.
  void (*rms_norm)(const float* x, const float* weight, std::size_t width, float epsilon, float* y);

  // x += y, or the norm of y by `post` unless that is null; then normed = rms_norm(x). The bits are
  // those of these steps one after the other.
  void (*add_rms_norm)(const float* y, const float* post, const float* weight, std::size_t width,
                       float epsilon, float* x, float* normed);

  // Turns pair i of `head` by the angle with `cosines[i]` and `sines[i]`. Pairs are (i, i + pairs),
  // or (2i, 2i + 1).
  void (*rope_halves)(const float* cosines, const float* sines, std::size_t pairs, float* head);
  void (*rope_interleaved)(const float* cosines, const float* sines, std::size_t pairs,
                           float* head);

  // y = activation(x) ∘ up; y may be x or up.
  using Gate = void (*)(const float* x, const float* up, std::size_t count, float* y);
  Gate silu_gate, gelu_tanh_gate, sigmoid_gate, clamped_swiglu_gate;

  // y += x.
  void (*add)(const float* x, std::size_t count, float* y);

  // y += factor · x.
  void (*add_scaled)(float factor, const float* x, std::size_t count, float* y);

  // x = cap · tanh(x / cap).
  void (*softcap)(float cap, std::size_t count, float* x);
};

// Those of the best instruction set of this machine.
[[nodiscard]] const RowKernels& row_kernels();

}  // namespace espalier::cpu
