#include "file/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/printable.h"

namespace espalier::file {
namespace {

constexpr std::uint64_t kLengthBytes = 8;               // the header's length, little-endian
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // what the original implementation reads
constexpr std::string_view kMetadataKey = "__metadata__";

struct DtypeInfo {
  std::string_view name;
  std::uint64_t bits;
};

// In the order of Dtype.
constexpr auto kDtypes = std::to_array<DtypeInfo>({
    {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"U16", 16},
    {"I16", 16}, {"F16", 16},    {"BF16", 16},   {"U32", 32},    {"I32", 32},
    {"F32", 32}, {"U64", 64},    {"I64", 64},    {"F64", 64},    {"C64", 64},
});
static_assert(kDtypes.size() == static_cast<std::size_t>(Dtype::kC64) + 1);

// One tensor as the header states it; what it says is checked against the file afterwards.
struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;
};

// Reads the header as a stream of JSON events, so that a name that comes twice is seen (a JSON
// object would keep one of the two) and nothing deeper than a header can be is ever built.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string problem;  // why reading stopped

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kHeader;
        return true;
      case Place::kHeader:
        return key_ == kMetadataKey ? start_metadata() : start_entry();
      default:
        return unexpected("an object");
    }
  }

  bool end_object() override {
    place_ = place_ == Place::kHeader ? Place::kStart : Place::kHeader;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kEntry && key_ == "shape" && !entries.back().shape) {
      numbers_ = &entries.back().shape.emplace();
    } else if (place_ == Place::kEntry && key_ == "data_offsets" && !entries.back().offsets) {
      numbers_ = &entries.back().offsets.emplace();
    } else {
      return unexpected("an array");
    }
    place_ = Place::kNumbers;
    return true;
  }

  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool key(std::string& name) override {
    key_ = name;
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::kEntry && key_ == "dtype" && !entries.back().dtype) {
      entries.back().dtype = text;
      return true;
    }
    if (place_ != Place::kMetadata) return unexpected("a string");
    if (metadata.emplace(key_, text).second) return true;
    return stop("{}: key '{}' comes twice", kMetadataKey, printable(key_));
  }

  bool number_unsigned(std::uint64_t number) override {
    if (place_ != Place::kNumbers) return unexpected("a number");
    numbers_->push_back(number);
    return true;
  }

  bool null() override {
    // MLX writes this where it has no metadata.
    const bool no_metadata = place_ == Place::kHeader && key_ == kMetadataKey;
    return no_metadata || unexpected("null");
  }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(std::int64_t) override { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) override {
    return unexpected("a number that is not a 64-bit integer");
  }
  bool binary(nlohmann::json::binary_t&) override { return unexpected("binary data"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    const bool encoding =
        std::string_view(error.what()).find("ill-formed UTF-8") != std::string_view::npos;
    return stop("the header is not {} at its byte {}", encoding ? "UTF-8" : "JSON", position);
  }

 private:
  // Where in the header the reader is: the only four levels that a header has.
  enum class Place { kStart, kHeader, kMetadata, kEntry, kNumbers };

  bool start_metadata() {
    if (std::exchange(has_metadata_, true)) return stop("{} comes twice", kMetadataKey);
    place_ = Place::kMetadata;
    return true;
  }

  bool start_entry() {
    entries.push_back({.name = key_});
    place_ = Place::kEntry;
    return true;
  }

  template <typename... Args>
  bool stop(fmt::format_string<Args...> format, Args&&... args) {
    problem = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }

  bool unexpected(std::string_view what) {
    switch (place_) {
      case Place::kStart:
        return stop("the header is {}, expected a JSON object", what);
      case Place::kHeader:
        return stop("{} '{}' is {}, expected an object", key_ == kMetadataKey ? "key" : "tensor",
                    printable(key_), what);
      case Place::kMetadata:
        return stop("{}: key '{}' is {}, expected a string", kMetadataKey, printable(key_), what);
      case Place::kEntry:
        break;
      case Place::kNumbers:
        return stop("tensor '{}': {} holds {}, expected unsigned integers",
                    printable(entries.back().name), key_, what);
    }
    const std::string name = printable(entries.back().name);
    const bool known = key_ == "dtype" || key_ == "shape" || key_ == "data_offsets";
    if (!known) return stop("tensor '{}': unknown key '{}'", name, printable(key_));
    const bool right = what == (key_ == "dtype" ? "a string" : "an array");
    if (right) return stop("tensor '{}': {} comes twice", name, key_);
    return stop("tensor '{}': {} is {}, expected {}", name, key_, what,
                key_ == "dtype" ? "a string" : "an array");
  }

  Place place_ = Place::kStart;
  bool has_metadata_ = false;
  std::string key_;
  std::vector<std::uint64_t>* numbers_ = nullptr;
};

// Checks what one entry says on its own, and against the `size` bytes after the header.
Result<SafetensorsTensor> make_tensor(const std::string& file, Entry&& entry, Bytes data) {
  const std::string name = printable(entry.name);
  for (const auto& [key, found] :
       {std::pair("dtype", entry.dtype.has_value()), std::pair("shape", entry.shape.has_value()),
        std::pair("data_offsets", entry.offsets.has_value())}) {
    if (!found) return input_error("{}: tensor '{}': {} is missing", file, name, key);
  }
  const std::optional<Dtype> dtype = find_dtype(*entry.dtype);
  if (!dtype) {
    return input_error("{}: tensor '{}': unknown dtype '{}'", file, name, printable(*entry.dtype));
  }
  const std::optional<std::uint64_t> bytes = tensor_bytes(*dtype, *entry.shape);
  if (!bytes) {
    return input_error(
        "{}: tensor '{}': {} of shape {} is too large or not a whole number of bytes", file, name,
        *entry.dtype, shape_text(*entry.shape));
  }
  const std::vector<std::uint64_t>& offsets = *entry.offsets;
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return input_error("{}: tensor '{}': data_offsets are {}, expected [begin, end]", file, name,
                       shape_text(offsets));
  }
  if (offsets[1] > data.size()) {
    return input_error("{}: tensor '{}': data_offsets {} end outside the file's {} bytes of data",
                       file, name, shape_text(offsets), data.size());
  }
  if (offsets[1] - offsets[0] != *bytes) {
    return input_error("{}: tensor '{}': data_offsets {} hold {} bytes, {} of shape {} needs {}",
                       file, name, shape_text(offsets), offsets[1] - offsets[0], *entry.dtype,
                       shape_text(*entry.shape), *bytes);
  }
  return SafetensorsTensor{.name = std::move(entry.name),
                           .dtype = *dtype,
                           .shape = std::move(*entry.shape),
                           .data = data.subspan(offsets[0], *bytes)};
}

// The format has no holes: sorted by offset, each tensor begins where the one before ends.
Status check_contiguous(const std::string& file, std::span<const SafetensorsTensor> tensors,
                        Bytes data) {
  const std::byte* end = data.data();
  std::string_view before;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::byte* begin = tensor.data.data();
    if (begin < end) {
      return input_error("{}: tensors '{}' and '{}' overlap by {} bytes", file, printable(before),
                         printable(tensor.name), end - begin);
    }
    if (begin > end) {
      return input_error("{}: {} bytes before tensor '{}' belong to no tensor", file, begin - end,
                         printable(tensor.name));
    }
    end = begin + tensor.data.size();
    before = tensor.name;
  }
  const std::byte* file_end = data.data() + data.size();
  if (end != file_end) {
    return input_error("{}: {} bytes after the last tensor belong to no tensor", file,
                       file_end - end);
  }
  return {};
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }

std::uint64_t dtype_bits(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].bits; }

std::optional<Dtype> find_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::string shape_text(std::span<const std::uint64_t> shape) {
  constexpr std::size_t kShown = 8;  // a hostile shape can be long
  const auto shown = shape.first(std::min(shape.size(), kShown));
  return fmt::format("[{}{}]", fmt::join(shown, ", "), shape.size() > kShown ? ", …" : "");
}

std::optional<std::uint64_t> tensor_bytes(Dtype dtype, std::span<const std::uint64_t> shape) {
  std::optional<std::uint64_t> bits = dtype_bits(dtype);
  for (const std::uint64_t dim : shape) {
    bits = checked_mul(*bits, dim);
    if (!bits) return std::nullopt;
  }
  if (*bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

Result<Safetensors> Safetensors::open(const std::filesystem::path& path) {
  ESPALIER_TRY(MappedFile mapped, MappedFile::open(path));
  ESPALIER_TRY(Safetensors result, parse(mapped.bytes(), path.string()));
  result.file_ = std::move(mapped);
  return result;
}

Result<Safetensors> Safetensors::parse(Bytes bytes, std::string name) {
  Cursor cursor(bytes);
  const std::optional<std::uint64_t> length = cursor.read<std::uint64_t>();
  if (!length) {
    return input_error("{}: not a safetensors file: it has {} bytes, expected at least {}", name,
                       bytes.size(), kLengthBytes);
  }
  if (*length > kMaxHeaderBytes || *length > cursor.remaining()) {
    return input_error(
        "{}: not a safetensors file or truncated: the header should take {} bytes, {} follow{}",
        name, *length, cursor.remaining(),
        *length > kMaxHeaderBytes ? fmt::format(" and {} are allowed", kMaxHeaderBytes) : "");
  }
  const std::string_view header = as_text(*cursor.take(*length));
  const Bytes data = bytes.subspan(cursor.offset());
  // The format asks for it; it also keeps out byte order marks and leading blanks.
  if (!header.starts_with('{')) {
    return input_error("{}: the header starts with '{}', expected '{{'", name,
                       printable(header.substr(0, 1)));
  }
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header, &reader)) {
    return input_error("{}: {}", name, reader.problem);
  }

  Safetensors result;
  result.metadata_ = std::move(reader.metadata);
  result.tensors_.reserve(reader.entries.size());
  for (Entry& entry : reader.entries) {
    ESPALIER_TRY(SafetensorsTensor tensor, make_tensor(name, std::move(entry), data));
    result.tensors_.push_back(std::move(tensor));
  }
  // Where tensors of no bytes share an offset with another, they come first.
  std::stable_sort(result.tensors_.begin(), result.tensors_.end(),
                   [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
                     return std::pair(a.data.data(), a.data.size()) <
                            std::pair(b.data.data(), b.data.size());
                   });
  for (std::size_t i = 0; i < result.tensors_.size(); ++i) {
    if (!result.index_.emplace(result.tensors_[i].name, i).second) {
      return input_error("{}: tensor '{}' comes twice", name, printable(result.tensors_[i].name));
    }
  }
  ESPALIER_CHECK(check_contiguous(name, result.tensors_, data));
  result.name_ = std::move(name);
  return result;
}

const SafetensorsTensor* Safetensors::find(std::string_view tensor_name) const {
  const auto found = index_.find(tensor_name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

namespace {

// `text` as a JSON string. Throws where it is not UTF-8.
std::string json_string(std::string_view text) { return nlohmann::json(text).dump(); }

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::create(
    const std::filesystem::path& path, std::vector<Declaration> tensors,
    const std::map<std::string, std::string>& metadata) {
  // Wide elements first: the format has no padding, and this keeps every tensor aligned.
  std::stable_sort(tensors.begin(), tensors.end(), [](const Declaration& a, const Declaration& b) {
    return dtype_bits(a.dtype) > dtype_bits(b.dtype);
  });

  TensorFile::Regions regions;
  std::uint64_t offset = 0;
  std::string text = "{";
  try {
    if (!metadata.empty()) {
      text += fmt::format("{}:{},", json_string(kMetadataKey), nlohmann::json(metadata).dump());
    }
    for (const Declaration& tensor : tensors) {
      const std::string name = printable(tensor.name);
      const std::optional<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
      const std::optional<std::uint64_t> end = bytes ? checked_add(offset, *bytes) : std::nullopt;
      if (!end) {
        return input_error(
            "{}: tensor '{}': {} of shape {} is too large or not a whole number of bytes",
            path.string(), name, dtype_name(tensor.dtype), shape_text(tensor.shape));
      }
      if (tensor.name == kMetadataKey) {
        return input_error("{}: a tensor cannot have the name '{}'", path.string(), name);
      }
      if (!regions.emplace(tensor.name, TensorFile::Region{offset, *end}).second) {
        return input_error("{}: tensor '{}' comes twice", path.string(), name);
      }
      text += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)",
                          json_string(tensor.name), dtype_name(tensor.dtype),
                          fmt::join(tensor.shape, ","), offset, *end);
      offset = *end;
    }
  } catch (const nlohmann::json::exception&) {  // the one thing dump() refuses
    return input_error("{}: a tensor's name or the metadata is not UTF-8", path.string());
  }
  if (text.ends_with(',')) text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    return input_error("{}: the header would take {} bytes, {} are allowed", path.string(),
                       text.size(), kMaxHeaderBytes);
  }
  const std::uint64_t data_start = kLengthBytes + text.size();
  for (auto& [name, region] : regions) {
    region.next += data_start;
    region.end += data_start;
  }
  const std::uint64_t length = text.size();
  text.insert(0, reinterpret_cast<const char*>(&length), kLengthBytes);
  ESPALIER_TRY(TensorFile file,
               TensorFile::create(path, text, std::move(regions), data_start + offset));
  return SafetensorsWriter(std::move(file));
}

}  // namespace espalier::file
