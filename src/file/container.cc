#include "file/container.h"

#include <algorithm>
#include <set>

namespace espalier::file {
namespace {

Result<std::vector<NamedMatrix>> list_gguf(const Gguf& gguf) {
  std::vector<NamedMatrix> list;
  for (const GgufTensor& tensor : gguf.tensors()) {
    list.push_back({.name = std::string(tensor.name),
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

// Modules first, then what stands beside them: biases, and whatever belongs to no packed module.
Result<std::vector<NamedMatrix>> list_directory(const HfDirectory& directory) {
  std::vector<NamedMatrix> list;
  std::set<std::string, std::less<>> packed;
  for (const std::string& module : directory.modules()) {
    ESPALIER_TRY(const auto matrix, directory.find_matrix(module));
    const std::string name = module + ".weight";
    const SafetensorsTensor* plain = directory.find(name);
    if (plain != nullptr && has_float_values(*plain)) {
      list.push_back({.name = name, .shape = plain->shape, .matrix = *matrix});
    } else {
      packed.insert(module);
      list.push_back({.name = name, .shape = {matrix->rows, matrix->cols}, .matrix = *matrix});
    }
  }
  for (const Safetensors& file : directory.files()) {
    for (const SafetensorsTensor& tensor : file.tensors()) {
      const std::size_t dot = std::min(tensor.name.rfind('.'), tensor.name.size());
      const std::string_view suffix = std::string_view(tensor.name).substr(dot);
      const bool part = suffix != ".bias" && packed.contains(tensor.name.substr(0, dot));
      if (suffix == ".weight" || part || !has_float_values(tensor)) continue;
      const std::uint64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
      const std::uint64_t values = tensor.data.size() * 8 / dtype_bits(tensor.dtype);
      ESPALIER_TRY(const pack::Matrix matrix,
                   pack::block_matrix(*pack::find_format(dtype_name(tensor.dtype)), values / cols,
                                      cols, tensor.data));
      list.push_back({.name = tensor.name, .shape = tensor.shape, .matrix = matrix});
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

Result<std::vector<NamedMatrix>> list_matrices(const Container& container) {
  if (const auto* gguf = std::get_if<Gguf>(&container)) return list_gguf(*gguf);
  return list_directory(std::get<HfDirectory>(container));
}

}  // namespace espalier::file
