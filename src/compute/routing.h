// Which experts of a mixture serve which rows.
#pragma once

#include <cstdint>
#include <span>

#include "compute/ops.h"

namespace espalier::compute {

struct ExpertChoice {
  std::uint32_t expert = 0;
  float weight = 0;
};

// The definition of a Router: turns one row's router outputs [experts] into choices [top_k], best
// first. In double; equal scores keep the order of the experts.
void route(const Router& router, std::span<const float> outputs, std::span<ExpertChoice> choices);

// All rows' choices, sorted by expert and then by row: expert e serves rows[begin[e]] to
// rows[begin[e + 1] − 1] with these weights.
struct ExpertGroups {
  std::span<std::uint32_t> begin;  // [experts + 1]
  std::span<std::uint32_t> rows;   // [rows · top_k]
  std::span<float> weights;        // [rows · top_k]
};

// Groups choices [rows, top_k]; the spans are workspace memory.
[[nodiscard]] ExpertGroups group_by_expert(std::span<const ExpertChoice> choices, std::size_t top_k,
                                           std::size_t experts, Workspace& workspace);

}  // namespace espalier::compute
