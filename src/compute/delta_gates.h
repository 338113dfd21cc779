// How much of a delta rule's memory a row keeps, and how much of its own it writes.
#pragma once

#include <algorithm>
#include <cmath>

#include "compute/ops.h"

namespace espalier::compute {

struct DeltaGates {
  double keep;   // e^(rate · softplus(a + dt_bias)): factor of the memory, 0 to 1
  double write;  // sigmoid(b): factor of the correction
};

[[nodiscard]] inline DeltaGates delta_gates(const DeltaRule& rule, std::size_t value_head, double b,
                                            double a) {
  const double step = a + rule.dt_bias[value_head];
  // ln(1 + e^step) without overflow.
  const double softplus = std::max(step, 0.0) + std::log1p(std::exp(-std::abs(step)));
  return {.keep = std::exp(rule.rate[value_head] * softplus), .write = 1 / (1 + std::exp(-b))};
}

}  // namespace espalier::compute
