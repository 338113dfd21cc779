#include "file/gguf_writer.h"

#include <bit>
#include <cstring>
#include <limits>

#include "base/printable.h"

namespace espalier::file {
namespace {

// The specification allows names of 64 bytes, but ggml's own reader one less.
constexpr std::size_t kMaxWrittenNameBytes = 63;

// The number of tensors comes after magic and version.
constexpr std::size_t kTensorCountOffset = 8;

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void append_string(std::string& out, std::string_view text) {
  append(out, std::uint64_t{text.size()});
  out += text;
}

// A number as its own type, out of the widened one that GgufValue holds.
std::string narrow(const GgufValue& value) {
  std::string out;
  if (const auto* number = std::get_if<double>(&value.value)) {
    if (value.type == GgufType::kFloat32) {
      append(out, static_cast<float>(*number));
    } else {
      append(out, *number);
    }
  } else if (const auto* boolean = std::get_if<bool>(&value.value)) {
    append(out, std::uint8_t{*boolean});
  } else if (const auto* integer = std::get_if<std::int64_t>(&value.value)) {
    append(out, *integer);
  } else {
    append(out, std::get<std::uint64_t>(value.value));
  }
  out.resize(type_bytes(value.type));  // little-endian: the low bytes of an integer come first
  return out;
}

}  // namespace

std::string GgufMetadata::encode(const std::string& text) {
  std::string out;
  append_string(out, text);
  return out;
}

std::string GgufMetadata::encode_array_head(GgufType element, std::uint64_t count) {
  std::string out;
  append(out, static_cast<std::uint32_t>(element));
  append(out, count);
  return out;
}

void GgufMetadata::set_bytes(std::string_view key, GgufType type, std::string bytes) {
  const auto [known, added] = index_.emplace(key, entries_.size());
  if (added) entries_.push_back(Entry{std::string(key), type, {}});
  entries_[known->second].type = type;
  entries_[known->second].bytes = std::move(bytes);
}

void GgufMetadata::set(std::string_view key, const GgufValue& value) {
  if (const auto* text = std::get_if<std::string_view>(&value.value)) {
    set_bytes(key, value.type, encode(std::string(*text)));
  } else if (const auto* array = std::get_if<GgufArray>(&value.value)) {
    set_bytes(key, value.type,
              encode_array_head(array->element, array->count) += as_text(array->bytes));
  } else {
    set_bytes(key, value.type, narrow(value));
  }
}

std::string GgufMetadata::bytes() const {
  std::string out = "GGUF";
  append(out, std::uint32_t{3});
  append(out, std::uint64_t{0});
  append(out, std::uint64_t{entries_.size()});
  for (const Entry& entry : entries_) {
    append_string(out, entry.key);
    append(out, static_cast<std::uint32_t>(entry.type));
    out += entry.bytes;
  }
  return out;
}

Result<TensorFile> create_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                               const std::vector<GgufDeclaration>& tensors) {
  const std::string file = path.string();
  std::string header = metadata.bytes();
  const std::uint64_t count = tensors.size();
  std::memcpy(header.data() + kTensorCountOffset, &count, sizeof(count));

  std::uint64_t alignment = kDefaultGgufAlignment;
  for (const auto& entry : metadata.entries_) {
    if (entry.key.empty() || entry.key.size() > kMaxGgufKeyBytes) {
      return input_error("{}: metadata key '{}': found {} bytes, expected 1 to {}", file,
                         printable(entry.key), entry.key.size(), kMaxGgufKeyBytes);
    }
    if (entry.key == "general.alignment") {
      alignment = entry.type == GgufType::kUint32 ? load<std::uint32_t>(entry.bytes.data()) : 0;
      if (!std::has_single_bit(alignment)) {
        return input_error("{}: metadata key '{}': expected a power of two as uint32", file,
                           entry.key);
      }
    }
  }

  TensorFile::Regions regions;
  std::uint64_t data_bytes = 0;
  for (const GgufDeclaration& tensor : tensors) {
    const std::string name = printable(tensor.name);
    if (tensor.name.empty() || tensor.name.size() > kMaxWrittenNameBytes) {
      return input_error("{}: tensor '{}': found a name of {} bytes, expected 1 to {}", file, name,
                         tensor.name.size(), kMaxWrittenNameBytes);
    }
    if (tensor.format->ggml_type == pack::kNoGgmlType) {
      return input_error("{}: tensor '{}': GGUF has no type for {}", file, name,
                         tensor.format->name);
    }
    const auto bytes = tensor_bytes(*tensor.format, tensor.dims);
    if (!bytes) return input_error("{}: tensor '{}': {}", file, name, bytes.error().message);
    const auto end = checked_add(data_bytes, *bytes);
    const auto next = end ? align_up(*end, alignment) : std::nullopt;
    if (!next) return input_error("{}: tensor '{}': the file's size overflows", file, name);
    if (!regions.emplace(tensor.name, TensorFile::Region{data_bytes, *end}).second) {
      return input_error("{}: tensor '{}' comes twice", file, name);
    }
    append_string(header, tensor.name);
    append(header, static_cast<std::uint32_t>(tensor.dims.size()));
    for (const std::uint64_t dim : tensor.dims) append(header, dim);
    append(header, tensor.format->ggml_type);
    append(header, data_bytes);
    data_bytes = *next;
  }

  // The last tensor is padded too: ggml reads the data in whole alignments. Without tensors there
  // is nothing to align.
  const auto data_start = align_up(header.size(), tensors.empty() ? 1 : alignment);
  const auto size = data_start ? checked_add(*data_start, data_bytes) : std::nullopt;
  if (!size || *size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return input_error("{}: the file's size overflows", file);
  }
  for (auto& [name, region] : regions) {
    region.next += *data_start;
    region.end += *data_start;
  }
  return TensorFile::create(path, header, std::move(regions), *size);
}

}  // namespace espalier::file
