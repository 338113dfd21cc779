#include "file/container.h"

#include <algorithm>
#include <set>

namespace espalier::file {
namespace {

Contents list_gguf(const Gguf& gguf) {
  Contents list;
  for (const GgufTensor& tensor : gguf.tensors()) {
    list.matrices.push_back({.name = std::string(tensor.name),
                             .shape = {tensor.dims.rbegin(), tensor.dims.rend()},
                             .matrix = tensor.matrix()});
  }
  return list;
}

bool has_float_values(const SafetensorsTensor& tensor) {
  return (tensor.dtype == Dtype::kF32 || tensor.dtype == Dtype::kF16 ||
          tensor.dtype == Dtype::kBF16) &&
         !tensor.data.empty();
}

// Whether a tensor is a part of one of the packed modules: all beside their codes but a bias is.
bool is_part(const SafetensorsTensor& tensor,
             const std::set<std::string, std::less<>>& packed_modules) {
  const std::string_view name = tensor.name;
  const std::size_t dot = std::min(name.rfind('.'), name.size());
  std::string_view module = name.substr(0, dot);
  if (const std::size_t shard = module.rfind(".shard_"); shard != std::string_view::npos) {
    if (name.substr(dot) == ".trellis") module = module.substr(0, shard);
  }
  return name.substr(dot) != ".bias" && packed_modules.contains(module);
}

constexpr std::string_view kWeight = ".weight";

// Modules first, then what stands beside them: biases, and whatever belongs to no packed module.
Result<Contents> list_directory(const HfDirectory& directory) {
  Contents list;
  std::set<std::string, std::less<>> packed;
  for (const std::string& module : directory.modules()) {
    ESPALIER_TRY(const auto matrix, directory.find_matrix(module));
    const std::string name = std::string(module).append(kWeight);
    const SafetensorsTensor* plain = directory.find(name);
    if (plain != nullptr && has_float_values(*plain)) {
      list.matrices.push_back({.name = name, .shape = plain->shape, .matrix = *matrix});
    } else {
      packed.insert(module);
      list.matrices.push_back(
          {.name = name, .shape = {matrix->rows, matrix->cols}, .matrix = *matrix});
    }
  }
  for (const Safetensors& file : directory.files()) {
    for (const SafetensorsTensor& tensor : file.tensors()) {
      if (tensor.name.ends_with(kWeight) || is_part(tensor, packed)) continue;
      if (!has_float_values(tensor)) {
        list.others.push_back(&tensor);
        continue;
      }
      const std::uint64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
      const std::uint64_t values = tensor.data.size() * 8 / dtype_bits(tensor.dtype);
      ESPALIER_TRY(const pack::Matrix matrix,
                   pack::block_matrix(*pack::find_format(dtype_name(tensor.dtype)), values / cols,
                                      cols, tensor.data));
      list.matrices.push_back({.name = tensor.name, .shape = tensor.shape, .matrix = matrix});
    }
  }
  return list;
}

}  // namespace

Result<Container> open_container(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    ESPALIER_TRY(HfDirectory directory, HfDirectory::open(path));
    return Container(std::move(directory));
  }
  ESPALIER_TRY(Gguf gguf, Gguf::open(path));
  return Container(std::move(gguf));
}

const std::string& container_name(const Container& container) {
  return std::visit([](const auto& opened) -> const std::string& { return opened.name(); },
                    container);
}

Result<Contents> list_contents(const Container& container) {
  if (const auto* gguf = std::get_if<Gguf>(&container)) return list_gguf(*gguf);
  return list_directory(std::get<HfDirectory>(container));
}

Result<std::vector<NamedMatrix>> list_matrices(const Container& container) {
  ESPALIER_TRY(Contents contents, list_contents(container));
  return std::move(contents.matrices);
}

void release_pages(const Container& container) {
  if (const auto* gguf = std::get_if<Gguf>(&container)) return gguf->release_pages();
  for (const Safetensors& file : std::get<HfDirectory>(container).files()) file.release_pages();
}

std::uint64_t matrix_bytes(const pack::Matrix& matrix) {
  std::uint64_t bytes = 0;
  for (const Bytes part : {matrix.data, matrix.scales, matrix.zeros, matrix.input_group,
                           matrix.input_scale, matrix.output_scale, matrix.head_offsets}) {
    bytes += part.size();
  }
  return bytes;
}

}  // namespace espalier::file
