#include "support/gguf_builder.h"

#include <stdexcept>

#include "support/files.h"

namespace espalier::test {

std::string gguf_string(std::string_view text) {
  return le_bytes<std::uint64_t>(text.size()) + std::string(text);
}

std::string gguf_array(file::GgufType element, std::uint64_t count, std::string_view elements) {
  return le_bytes(static_cast<std::uint32_t>(element)) + le_bytes(count) + std::string(elements);
}

GgufBuilder& GgufBuilder::add_raw(std::string_view key, std::uint32_t type,
                                  std::string_view value) {
  keys_.push_back(gguf_string(key) + le_bytes(type) + std::string(value));
  return *this;
}

GgufBuilder& GgufBuilder::tensor(Tensor tensor) {
  tensors_.push_back(std::move(tensor));
  return *this;
}

GgufBuilder& GgufBuilder::tensor(std::string_view name, std::vector<std::uint64_t> dims,
                                 const std::vector<float>& values) {
  const auto* data = reinterpret_cast<const char*>(values.data());
  return tensor({.name = std::string(name),
                 .dims = std::move(dims),
                 .type = 0,
                 .data = {data, values.size() * sizeof(float)}});
}

GgufBuilder& GgufBuilder::tensor(std::string_view name, std::vector<std::uint64_t> dims,
                                 std::string_view format_name, const std::vector<float>& values) {
  const pack::Format* format = pack::find_format(format_name);
  if (format == nullptr || format->encode == nullptr) {
    throw std::runtime_error("no encoder for " + std::string(format_name));
  }
  const auto packed = format->encode(*format, values, values.size() / dims.at(0), dims.at(0));
  if (!packed) throw std::runtime_error(packed.error().message);
  return tensor({.name = std::string(name),
                 .dims = std::move(dims),
                 .type = format->ggml_type,
                 .data = std::string(as_text(packed->view.data))});
}

std::string GgufBuilder::bytes() const {
  std::string out = magic + le_bytes(version);
  out += le_bytes(tensor_count.value_or(tensors_.size()));
  out += le_bytes(key_count.value_or(keys_.size()));
  for (const std::string& key : keys_) out += key;
  std::string data;
  for (const Tensor& tensor : tensors_) {
    data.resize((data.size() + alignment - 1) / alignment * alignment);
    out += gguf_string(tensor.name) + le_bytes(static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t dim : tensor.dims) out += le_bytes(dim);
    out += le_bytes(tensor.type) + le_bytes(tensor.offset.value_or(data.size()));
    data += tensor.data;
  }
  if (!data.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
  return out + data;
}

std::filesystem::path GgufBuilder::write(const std::filesystem::path& path) const {
  write_file(path, bytes());
  return path;
}

}  // namespace espalier::test
