#include "file/gguf.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/printable.h"

namespace espalier::file {
namespace {

constexpr std::string_view kMagic = "GGUF";

// The specification allows tensor names of 64 bytes; files for ggml builds with a larger limit
// carry longer ones.
constexpr std::uint64_t kMaxTensorNameBytes = 127;

// Arrays in arrays in arrays …: more than any file has use for, few enough to recurse.
constexpr int kMaxArrayDepth = 4;

// The least bytes that a metadata entry (key of one byte, value of one byte) and a tensor's entry
// (name and dimension of one each) take: what counts are checked against.
constexpr std::uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

struct TypeInfo {
  std::string_view name;
  std::uint64_t bytes;  // of a value; of a string or array, the least it can take
};

constexpr auto kTypes = std::to_array<TypeInfo>({
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"float32", 4},
    {"bool", 1},
    {"string", 8},
    {"array", 4 + 8},
    {"uint64", 8},
    {"int64", 8},
    {"float64", 8},
});

// ggml's names of tensor types, by number: what a message calls a type that has no Format.
constexpr auto kGgmlTypeNames = std::to_array<std::string_view>({
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0",
    "Q2_0",
});

const TypeInfo& info(GgufType type) { return kTypes[static_cast<std::size_t>(type)]; }

Error ends_early(const Cursor& cursor, std::string_view what, std::uint64_t needed) {
  return input_error("the file ends in {}: expected {} more bytes, found {}", what, needed,
                     cursor.remaining());
}

template <typename T>
Result<T> read_number(Cursor& cursor, std::string_view what) {
  const auto value = cursor.read<T>();
  if (!value) return ends_early(cursor, what, sizeof(T));
  return *value;
}

Result<std::string_view> read_string(Cursor& cursor, std::string_view what) {
  ESPALIER_TRY(const auto length, read_number<std::uint64_t>(cursor, what));
  const auto bytes = cursor.take(length);
  if (!bytes) return ends_early(cursor, what, length);
  return as_text(*bytes);
}

// A name that is not empty and not longer than `max_bytes`.
Result<std::string_view> read_name(Cursor& cursor, std::string_view what, std::uint64_t max_bytes) {
  ESPALIER_TRY(const std::string_view name, read_string(cursor, what));
  if (name.empty() || name.size() > max_bytes) {
    return input_error("found {} of {} bytes, expected 1 to {}", what, name.size(), max_bytes);
  }
  return name;
}

Result<GgufType> read_type(Cursor& cursor, std::string_view what) {
  ESPALIER_TRY(const auto type, read_number<std::uint32_t>(cursor, what));
  if (type >= kTypes.size()) {
    return input_error("{} {} is unknown, expected 0 to {}", what, type, kTypes.size() - 1);
  }
  return static_cast<GgufType>(type);
}

using Value = decltype(GgufValue::value);

// A value of fixed size out of its bytes, of which there are enough.
Value decode_scalar(GgufType type, const std::byte* from) {
  switch (type) {
    case GgufType::kUint8:
      return std::uint64_t{load<std::uint8_t>(from)};
    case GgufType::kUint16:
      return std::uint64_t{load<std::uint16_t>(from)};
    case GgufType::kUint32:
      return std::uint64_t{load<std::uint32_t>(from)};
    case GgufType::kUint64:
      return load<std::uint64_t>(from);
    case GgufType::kInt8:
      return std::int64_t{load<std::int8_t>(from)};
    case GgufType::kInt16:
      return std::int64_t{load<std::int16_t>(from)};
    case GgufType::kInt32:
      return std::int64_t{load<std::int32_t>(from)};
    case GgufType::kInt64:
      return load<std::int64_t>(from);
    case GgufType::kFloat32:
      return double{load<float>(from)};
    case GgufType::kFloat64:
      return load<double>(from);
    default:
      return load<std::uint8_t>(from) != 0;  // kBool; strings and arrays never come here
  }
}

Status check_bools(Bytes bytes) {
  for (const std::byte byte : bytes) {
    if (byte > std::byte{1}) {
      return input_error("found bool {}, expected 0 or 1", static_cast<int>(byte));
    }
  }
  return {};
}

// Reads the value of that type at the cursor, which lies within `depth` arrays. Time and stack are
// bounded by the bytes read and by kMaxArrayDepth.
Result<GgufValue> read_value(Cursor& cursor, GgufType type, int depth);

Result<GgufArray> read_array(Cursor& cursor, int depth) {
  if (depth == kMaxArrayDepth) {
    return input_error("arrays are nested too deep, expected at most {} levels", kMaxArrayDepth);
  }
  GgufArray array;
  ESPALIER_TRY(array.element, read_type(cursor, "the array's element type"));
  ESPALIER_TRY(array.count, read_number<std::uint64_t>(cursor, "the array's length"));
  const std::uint64_t element_bytes = info(array.element).bytes;
  if (array.count > cursor.remaining() / element_bytes) {
    return input_error("found an array of {} × {}, more than the {} bytes left can hold",
                       array.count, type_name(array.element), cursor.remaining());
  }
  const bool fixed = array.element != GgufType::kString && array.element != GgufType::kArray;
  if (fixed) {
    array.bytes = *cursor.take(array.count * element_bytes);
    if (array.element == GgufType::kBool) ESPALIER_CHECK(check_bools(array.bytes));
    return array;
  }
  Cursor start = cursor;
  for (std::uint64_t i = 0; i < array.count; ++i) {
    ESPALIER_CHECK(read_value(cursor, array.element, depth + 1));
  }
  array.bytes = *start.take(cursor.offset() - start.offset());
  return array;
}

Result<GgufValue> read_value(Cursor& cursor, GgufType type, int depth) {
  if (type == GgufType::kString) {
    ESPALIER_TRY(const std::string_view text, read_string(cursor, "a string"));
    return GgufValue{type, text};
  }
  if (type == GgufType::kArray) {
    ESPALIER_TRY(const GgufArray array, read_array(cursor, depth));
    return GgufValue{type, array};
  }
  const auto bytes = cursor.take(info(type).bytes);
  if (!bytes) return ends_early(cursor, "a value", info(type).bytes);
  if (type == GgufType::kBool) ESPALIER_CHECK(check_bools(*bytes));
  return GgufValue{type, decode_scalar(type, bytes->data())};
}

Status check_dimension_count(std::uint64_t count) {
  if (count >= 1 && count <= 4) return {};
  return input_error("found {} dimensions, expected 1 to 4", count);
}

// What a tensor's entry says, its bytes not looked at yet.
Result<GgufTensor> read_tensor_entry(Cursor& cursor, GgufTensor tensor) {
  ESPALIER_TRY(const auto dims, read_number<std::uint32_t>(cursor, "the number of dimensions"));
  ESPALIER_CHECK(check_dimension_count(dims));
  for (std::uint32_t d = 0; d < dims; ++d) {
    ESPALIER_TRY(const auto dim, read_number<std::uint64_t>(cursor, "the dimensions"));
    tensor.dims.push_back(dim);
  }
  ESPALIER_TRY(const auto type, read_number<std::uint32_t>(cursor, "the type"));
  tensor.format = pack::find_ggml_format(type);
  if (tensor.format == nullptr) {
    if (type >= kGgmlTypeNames.size()) return input_error("type {} is unknown", type);
    return input_error("type {} ({}) is not supported", type, kGgmlTypeNames[type]);
  }
  ESPALIER_TRY(tensor.offset, read_number<std::uint64_t>(cursor, "the offset"));
  return tensor;
}

// What llama.cpp's splitter puts at the end of the name of part `number`, counted from 1.
std::string part_suffix(std::uint64_t number, std::uint64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number, count);
}

// The path of part `to`, given that of part `from`, both counted from 1; nothing where the name
// does not follow the convention.
std::optional<std::string> other_part(const std::string& path, std::uint64_t from, std::uint64_t to,
                                      std::uint64_t count) {
  const std::string suffix = part_suffix(from, count);
  if (!path.ends_with(suffix)) return std::nullopt;
  return path.substr(0, path.size() - suffix.size()) + part_suffix(to, count);
}

std::optional<std::uint64_t> to_unsigned(const GgufValue& value) {
  if (const auto* number = std::get_if<std::uint64_t>(&value.value)) return *number;
  if (const auto* number = std::get_if<std::int64_t>(&value.value); number && *number >= 0) {
    return static_cast<std::uint64_t>(*number);
  }
  return std::nullopt;
}

std::optional<std::int64_t> to_signed(const GgufValue& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value.value)) return *number;
  if (const auto* number = std::get_if<std::uint64_t>(&value.value);
      number && *number <= std::numeric_limits<std::int64_t>::max()) {
    return static_cast<std::int64_t>(*number);
  }
  return std::nullopt;
}

std::optional<double> to_double(const GgufValue& value) {
  if (const auto* number = std::get_if<double>(&value.value)) return *number;
  if (const auto* number = std::get_if<std::int64_t>(&value.value)) return *number;
  if (const auto* number = std::get_if<std::uint64_t>(&value.value)) return *number;
  return std::nullopt;
}

template <typename T>
std::optional<T> to_exactly(const GgufValue& value) {
  const T* found = std::get_if<T>(&value.value);
  return found ? std::optional<T>(*found) : std::nullopt;
}

// Conversions give nothing for a value that they do not accept.
template <typename T>
using Convert = std::optional<T> (*)(const GgufValue& value);

template <typename T>
Result<std::optional<T>> single(const Gguf& gguf, std::string_view key, std::string_view expected,
                                Convert<T> convert) {
  const GgufValue* value = gguf.find(key);
  if (value == nullptr) return std::optional<T>();
  const std::optional<T> converted = convert(*value);
  if (!converted) {
    return input_error("{}: metadata key '{}': found {}, expected {}", gguf.name(), key,
                       describe(*value), expected);
  }
  return converted;
}

template <typename T>
Result<std::optional<std::vector<T>>> array(const Gguf& gguf, std::string_view key,
                                            std::string_view expected, Convert<T> convert) {
  const GgufValue* value = gguf.find(key);
  if (value == nullptr) return std::optional<std::vector<T>>();
  const auto* array = std::get_if<GgufArray>(&value->value);
  if (array == nullptr) {
    return input_error("{}: metadata key '{}': found {}, expected an array of {}", gguf.name(), key,
                       describe(*value), expected);
  }
  std::vector<T> converted;
  GgufElements elements(*array);
  while (const auto element = elements.next()) {
    const std::optional<T> one = convert(*element);
    if (!one) {
      return input_error(
          "{}: metadata key '{}': found {} with element {} = {}, expected an array "
          "of {}",
          gguf.name(), key, describe(*value), converted.size(), describe(*element), expected);
    }
    converted.push_back(*one);
  }
  return std::optional(std::move(converted));
}

}  // namespace

std::uint64_t type_bytes(GgufType type) { return info(type).bytes; }

std::string_view type_name(GgufType type) { return info(type).name; }

std::string describe(const GgufValue& value) {
  const auto says = [&](const auto& content) -> std::string {
    using T = std::decay_t<decltype(content)>;
    if constexpr (std::is_same_v<T, std::string_view>) {
      return fmt::format("string '{}'", printable(content));
    } else if constexpr (std::is_same_v<T, GgufArray>) {
      return fmt::format("array of {} × {}", content.count, type_name(content.element));
    } else if (value.type == GgufType::kFloat32) {
      return fmt::format("float32 {}", static_cast<float>(content));  // with a float's few digits
    } else {
      return fmt::format("{} {}", type_name(value.type), content);
    }
  };
  return std::visit(says, value.value);
}

std::optional<GgufValue> GgufElements::next() {
  if (left_ == 0) return std::nullopt;
  --left_;
  // The bytes were checked when the file was opened, so this does not fail.
  const auto value = read_value(cursor_, element_, 1);
  return value ? std::optional(*value) : std::nullopt;
}

Result<std::uint64_t> tensor_bytes(const pack::Format& format,
                                   std::span<const std::uint64_t> dims) {
  ESPALIER_CHECK(check_dimension_count(dims.size()));
  auto rows = std::optional<std::uint64_t>(1);
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 0) {
      return input_error("dimension {} of {} is 0, expected at least 1", d, dims.size());
    }
    if (d > 0 && rows) rows = checked_mul(*rows, dims[d]);
  }
  ESPALIER_TRY(const auto row_bytes, pack::packed_bytes(format, dims[0]));
  const auto bytes = rows ? checked_mul(*rows, row_bytes) : std::nullopt;
  if (!bytes) {
    return input_error("the product of its dimensions {} overflows", fmt::join(dims, "×"));
  }
  return *bytes;
}

pack::Matrix GgufTensor::matrix() const {
  const std::uint64_t rows = std::accumulate(dims.begin() + 1, dims.end(), std::uint64_t{1},
                                             std::multiplies<std::uint64_t>());
  return {.format = format, .rows = rows, .cols = dims[0], .data = data};
}

Status Gguf::read_metadata(Cursor& cursor, std::uint64_t count) {
  if (count > cursor.remaining() / kMinMetadataBytes) {
    return input_error(
        "{}: found a count of {} metadata keys, more than the {} bytes left can hold", name_, count,
        cursor.remaining());
  }
  for (std::uint64_t k = 0; k < count; ++k) {
    const auto key = read_name(cursor, "a key", kMaxGgufKeyBytes);
    if (!key) {
      return input_error("{}: metadata key {} of {}: {}", name_, k + 1, count, key.error().message);
    }
    const auto type = read_type(cursor, "the value's type");
    const auto value = type ? read_value(cursor, *type, 0) : type.error();
    if (!value) {
      return input_error("{}: metadata key '{}': {}", name_, printable(*key),
                         value.error().message);
    }
    if (!key_index_.emplace(*key, metadata_.size()).second) {
      return input_error("{}: metadata key '{}' is there twice, expected once", name_,
                         printable(*key));
    }
    metadata_.emplace_back(*key, *value);
  }
  return {};
}

Status Gguf::read_tensors(Cursor& cursor, std::uint64_t count, Bytes file) {
  if (count > cursor.remaining() / kMinTensorBytes) {
    return input_error("{}: found a count of {} tensors, more than the {} bytes left can hold",
                       name_, count, cursor.remaining());
  }
  for (std::uint64_t t = 0; t < count; ++t) {
    const auto name = read_name(cursor, "a name", kMaxTensorNameBytes);
    if (!name) {
      return input_error("{}: tensor {} of {}: {}", name_, t + 1, count, name.error().message);
    }
    auto tensor = read_tensor_entry(cursor, GgufTensor{.name = *name});
    if (!tensor) {
      return input_error("{}: tensor '{}': {}", name_, printable(*name), tensor.error().message);
    }
    if (!tensor_index_.emplace(*name, tensors_.size()).second) {
      return input_error("{}: tensor '{}' is there twice, expected once", name_, printable(*name));
    }
    tensors_.push_back(std::move(*tensor));
  }

  // Offsets count from the first aligned byte after the entries.
  const auto data_start = align_up(cursor.offset(), alignment_);
  for (GgufTensor& tensor : tensors_) {
    const auto bytes = tensor_bytes(*tensor.format, tensor.dims);
    if (!bytes) {
      return input_error("{}: tensor '{}': {}", name_, printable(tensor.name),
                         bytes.error().message);
    }
    if (tensor.offset % alignment_ != 0) {
      return input_error("{}: tensor '{}': found offset {}, expected a multiple of {}", name_,
                         printable(tensor.name), tensor.offset, alignment_);
    }
    const auto start = data_start ? checked_add(*data_start, tensor.offset) : std::nullopt;
    if (!start || *start > file.size() || *bytes > file.size() - *start) {
      return input_error(
          "{}: tensor '{}': its {} bytes at offset {} of the data reach outside the file, which "
          "has {} bytes",
          name_, printable(tensor.name), *bytes, tensor.offset, file.size());
    }
    tensor.offset = *start;
    tensor.data = file.subspan(*start, *bytes);
  }
  return check_overlaps();
}

Status Gguf::check_overlaps() const {
  std::vector<const GgufTensor*> sorted;
  for (const GgufTensor& tensor : tensors_) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
  for (std::size_t t = 1; t < sorted.size(); ++t) {
    const GgufTensor& before = *sorted[t - 1];
    if (sorted[t]->offset < before.offset + before.data.size()) {
      return input_error("{}: tensor '{}' at byte {} overlaps tensor '{}', which ends at byte {}",
                         name_, printable(sorted[t]->name), sorted[t]->offset,
                         printable(before.name), before.offset + before.data.size());
    }
  }
  return {};
}

Result<Gguf> Gguf::parse(Bytes bytes, std::string name) {
  Gguf gguf;
  gguf.name_ = std::move(name);
  Cursor cursor(bytes);

  const std::string_view magic = as_text(bytes.first(std::min(bytes.size(), kMagic.size())));
  if (magic != kMagic) {
    return input_error("{}: not a GGUF file: starts with '{}', expected '{}'", gguf.name_,
                       printable(magic), kMagic);
  }
  (void)cursor.take(kMagic.size());
  const auto version = cursor.read<std::uint32_t>();
  if (version && *version != 2 && *version != 3) {
    const std::uint32_t swapped = __builtin_bswap32(*version);
    if (swapped >= 1 && swapped <= 3) {
      return input_error("{}: found big-endian GGUF version {}, expected little-endian", gguf.name_,
                         swapped);
    }
    return input_error("{}: found GGUF version {}, expected 2 or 3", gguf.name_, *version);
  }
  const auto tensor_count = cursor.read<std::uint64_t>();
  const auto key_count = cursor.read<std::uint64_t>();
  if (!version || !tensor_count || !key_count) {
    return input_error("{}: the file ends in the header: expected at least 24 bytes, found {}",
                       gguf.name_, bytes.size());
  }
  gguf.version_ = *version;
  ESPALIER_CHECK(gguf.read_metadata(cursor, *key_count));

  ESPALIER_TRY(const auto alignment, gguf.unsigned_integer("general.alignment"));
  gguf.alignment_ = alignment.value_or(gguf.alignment_);
  if (!std::has_single_bit(gguf.alignment_)) {
    return input_error("{}: metadata key 'general.alignment': found {}, expected a power of two",
                       gguf.name_, gguf.alignment_);
  }
  ESPALIER_CHECK(gguf.read_tensors(cursor, *tensor_count, bytes));
  return gguf;
}

Result<Gguf> Gguf::open(const std::filesystem::path& path) {
  ESPALIER_TRY(MappedFile file, MappedFile::open(path));
  ESPALIER_TRY(Gguf gguf, parse(file.bytes(), path.string()));
  gguf.files_.push_back(std::move(file));

  ESPALIER_TRY(const auto count, gguf.unsigned_integer("split.count"));
  if (count.value_or(1) > 1) ESPALIER_CHECK(gguf.add_other_parts(path, *count));
  return gguf;
}

Status Gguf::add_other_parts(const std::filesystem::path& first, std::uint64_t count) {
  ESPALIER_TRY(const auto number, required(*this, "split.no", unsigned_integer("split.no")));
  if (number >= count) {
    return input_error("{}: metadata key 'split.no': found {}, expected less than split.count, {}",
                       name_, number, count);
  }
  const auto first_path = other_part(first.string(), number + 1, 1, count);
  if (number != 0) {
    return input_error("{}: is part {} of {} of a split model, expected the first{}", name_,
                       number + 1, count, first_path ? ": open " + *first_path : "");
  }
  if (!first_path) {
    return input_error("{}: is part 1 of {} of a split model, expected a name that ends in '{}'",
                       name_, count, part_suffix(1, count));
  }
  for (std::uint64_t p = 1; p < count; ++p) {
    const std::string path = *other_part(*first_path, 1, p + 1, count);
    auto file = MappedFile::open(path);
    if (!file) {
      return input_error("{}: part {} of {} is missing: {}", name_, p + 1, count,
                         file.error().message);
    }
    ESPALIER_TRY(Gguf part, parse(file->bytes(), path));
    part.files_.push_back(std::move(*file));
    ESPALIER_TRY(const auto part_number,
                 required(part, "split.no", part.unsigned_integer("split.no")));
    ESPALIER_TRY(const auto part_count,
                 required(part, "split.count", part.unsigned_integer("split.count")));
    if (part_number != p || part_count != count) {
      return input_error("{}: found split.no {} and split.count {}, expected {} and {}", path,
                         part_number, part_count, p, count);
    }
    ESPALIER_CHECK(add_part(std::move(part)));
  }
  ESPALIER_TRY(const auto tensors, unsigned_integer("split.tensors.count"));
  if (tensors && *tensors != tensors_.size()) {
    return input_error(
        "{}: metadata key 'split.tensors.count': found {}, expected the {} of all "
        "parts",
        name_, *tensors, tensors_.size());
  }
  return {};
}

Status Gguf::add_part(Gguf part) {
  for (GgufTensor& tensor : part.tensors_) {
    const auto [known, added] = tensor_index_.emplace(tensor.name, tensors_.size());
    if (!added) {
      return input_error("{}: tensor '{}' is in part {} already, expected once", part.name_,
                         printable(tensor.name), tensors_[known->second].part + 1);
    }
    tensor.part = parts_;
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(part.files_.front()));
  ++parts_;
  return {};
}

const GgufValue* Gguf::find(std::string_view key) const {
  const auto found = key_index_.find(key);
  return found == key_index_.end() ? nullptr : &metadata_[found->second].second;
}

const GgufTensor* Gguf::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

Result<std::optional<std::uint64_t>> Gguf::unsigned_integer(std::string_view key) const {
  return single<std::uint64_t>(*this, key, "an integer of at least 0", to_unsigned);
}

Result<std::optional<double>> Gguf::number(std::string_view key) const {
  return single<double>(*this, key, "a number", to_double);
}

Result<std::optional<bool>> Gguf::boolean(std::string_view key) const {
  return single<bool>(*this, key, "a bool", to_exactly<bool>);
}

Result<std::optional<std::string_view>> Gguf::string(std::string_view key) const {
  return single<std::string_view>(*this, key, "a string", to_exactly<std::string_view>);
}

Result<std::optional<std::vector<std::string_view>>> Gguf::strings(std::string_view key) const {
  return array<std::string_view>(*this, key, "strings", to_exactly<std::string_view>);
}

Result<std::optional<std::vector<std::int64_t>>> Gguf::integers(std::string_view key) const {
  return array<std::int64_t>(*this, key, "integers", to_signed);
}

Result<std::optional<std::vector<double>>> Gguf::numbers(std::string_view key) const {
  return array<double>(*this, key, "numbers", to_double);
}

}  // namespace espalier::file
