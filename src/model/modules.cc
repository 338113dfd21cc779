#include "model/modules.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace espalier::model {

std::string module_name(std::span<const ModuleName> exceptions, Convention convention,
                        Module module, std::size_t layer) {
  for (const std::span<const ModuleName> names :
       {exceptions, std::span<const ModuleName>(kModuleNames)}) {
    for (const ModuleName& name : names) {
      if (name.module != module) continue;
      const std::string_view pattern =
          convention == Convention::kGguf ? name.gguf : name.hugging_face;
      return fmt::format(fmt::runtime(pattern), layer);
    }
  }
  return {};
}

void project(compute::Ops& ops, std::size_t rows, const float* x, const JointLinear& joint,
             std::span<float* const> outputs) {
  const compute::Workspace::Frame frame(ops.workspace());
  if (joint.parts.size() == joint.sizes.size()) {
    auto* all = ops.workspace().take<compute::Projection>(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) all[i] = {&joint.parts[i], outputs[i]};
    return ops.project_all(rows, x, {all, outputs.size()});
  }
  const compute::Linear& whole = joint.parts.front();
  float* all = ops.workspace().floats(rows * whole.weight.rows);
  ops.project(rows, x, whole, all);
  for (std::size_t r = 0; r < rows; ++r) {
    const float* from = all + r * whole.weight.rows;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::size_t size = joint.sizes[i];
      std::memcpy(outputs[i] + r * size, from, size * sizeof(float));
      from += size;
    }
  }
}

Result<compute::Linear> Modules::linear(Module module, std::size_t layer, std::size_t outputs,
                                        std::size_t inputs) const {
  return weights_.linear(name(module, layer), outputs, inputs);
}

Result<JointLinear> Modules::linears(std::span<const Part> parts, Module fused, std::size_t layer,
                                     std::size_t inputs) const {
  JointLinear joint;
  std::size_t total = 0;
  for (const Part& part : parts) {
    joint.sizes.push_back(part.outputs);
    total += part.outputs;
  }
  ESPALIER_TRY(const auto first, weights_.find_matrix(name(parts[0].module, layer)));
  ESPALIER_TRY(const auto whole, weights_.find_matrix(name(fused, layer)));
  // A matrix of fewer rows is only one of the parts: GGUF calls both forms of "up" the same.
  if (first || !whole || whole->rows < total) {
    for (const Part& part : parts) {
      ESPALIER_TRY(compute::Linear linear, this->linear(part.module, layer, part.outputs, inputs));
      joint.parts.push_back(std::move(linear));
    }
    return joint;
  }

  ESPALIER_TRY(compute::Linear linear, this->linear(fused, layer, total, inputs));
  std::vector<compute::Linear> views;
  std::size_t begin = 0;
  for (const std::size_t size : joint.sizes) {
    const std::optional<pack::Matrix> view = pack::row_view(linear.weight, begin, size);
    if (!view) break;
    compute::Linear part = {.weight = *view, .bias = {}};
    if (!linear.bias.empty()) {
      const auto bias = linear.bias.begin() + static_cast<std::ptrdiff_t>(begin);
      part.bias.assign(bias, bias + static_cast<std::ptrdiff_t>(size));
    }
    views.push_back(std::move(part));
    begin += size;
  }
  if (views.size() == joint.sizes.size()) {
    joint.parts = std::move(views);
  } else {
    joint.parts.push_back(std::move(linear));
  }
  return joint;
}

Result<std::vector<float>> Modules::norm(Module module, std::size_t layer, std::size_t size,
                                         float offset) const {
  ESPALIER_TRY(std::vector<float> values,
               weights_.vector(fmt::format("{}.weight", name(module, layer)), size));
  for (float& value : values) value += offset;
  return values;
}

}  // namespace espalier::model
