// libFuzzer target of Hugging Face directories: their configurations, and the matrices that these
// and the tensors make together. An input is three parts with zero bytes between them: config.json,
// the tensors as {"name": ["I32", [8, 16]], …} in which any shape is as easy to reach as another,
// and bytes for the tensors' data, over and over.
#include <cstdlib>
#include <string>

#include "file/hf_directory.h"

namespace {

using namespace espalier;

constexpr std::uint64_t kMaxDataBytes = 1 << 16;

// Cuts `text` at its first zero byte and returns what is before.
std::string_view take_part(std::string_view& text) {
  const std::string_view part = text.substr(0, text.find('\0'));
  text.remove_prefix(std::min(text.size(), part.size() + 1));
  return part;
}

// A safetensors file of these tensors; entries that are none are left out.
std::string safetensors_file(std::string_view tensors, std::string_view fill) {
  const auto list = file::parse_json(as_bytes(tensors), "tensors");
  if (!list) return "";
  file::Json header = file::Json::object();
  std::uint64_t offset = 0;
  for (const auto& [name, entry] : list->items()) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_array()) {
      continue;
    }
    const auto dtype = file::find_dtype(entry[0].get<std::string>());
    std::vector<std::uint64_t> shape;
    for (const file::Json& dim : entry[1]) {
      if (dim.is_number_unsigned()) shape.push_back(dim.get<std::uint64_t>());
    }
    const auto bytes = dtype ? file::tensor_bytes(*dtype, shape) : std::nullopt;
    if (!bytes || *bytes > kMaxDataBytes - offset) continue;
    header[name] = {
        {"dtype", entry[0]}, {"shape", shape}, {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += text;
  for (std::uint64_t i = 0; i < offset; ++i) file += fill.empty() ? '\0' : fill[i % fill.size()];
  return file;
}

void use(const file::HfDirectory& directory, std::string_view module) {
  const auto matrix = directory.find_matrix(module);
  if (!matrix) {
    if (matrix.error().message.find('\n') != std::string::npos) std::abort();
    return;
  }
  if (!*matrix) return;
  std::vector<float> row((*matrix)->cols);
  pack::decode_rows(**matrix, 0, 1, row.data());
  pack::decode_rows(**matrix, (*matrix)->rows - 1, 1, row.data());
  pack::dequantize_rows(**matrix, (*matrix)->rows - 1, 1, row.data());
  (void)file::without_padding(**matrix, 100, 200);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view config = take_part(input);
  const std::string_view tensors = take_part(input);
  const std::string file = safetensors_file(tensors, input);
  const Bytes files[] = {as_bytes(file)};
  const auto directory =
      file::HfDirectory::parse(as_bytes(config), std::span(files, file.empty() ? 0 : 1), "fuzz");
  if (!directory) {
    if (directory.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  for (const std::string& module : directory->modules()) use(*directory, module);
  for (const file::Safetensors& opened : directory->files()) {
    for (const file::SafetensorsTensor& tensor : opened.tensors()) {
      use(*directory, tensor.name);
      (void)directory->find_values(tensor.name);
    }
  }
  return 0;
}
