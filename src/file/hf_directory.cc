#include "file/hf_directory.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>

#include "base/printable.h"
#include "pack/exl3.h"
#include "pack/grouped_int4.h"
#include "pack/mlx.h"

namespace espalier::file {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kNgramName = "ngram_embedding.safetensors";

// The tensor that a form of packing has in every case, by which it is known.
constexpr std::string_view kPlain = ".weight";  // and MLX
constexpr std::string_view kExl3 = ".trellis";
constexpr std::string_view kExl3Shard = ".shard_0.trellis";
constexpr std::string_view kInt4 = ".qweight";  // GPTQ and AWQ
constexpr std::string_view kCompressed = ".weight_packed";
constexpr std::string_view kMxfp4 = "_blocks";
constexpr auto kForms = std::to_array({kPlain, kExl3, kExl3Shard, kInt4, kCompressed, kMxfp4});

using Shape = std::vector<std::uint64_t>;

constexpr auto kScaleDtypes = std::to_array({Dtype::kF16, Dtype::kBF16, Dtype::kF32});
constexpr auto kWordDtypes = std::to_array({Dtype::kI32, Dtype::kU32});
constexpr auto kByteDtypes = std::to_array({Dtype::kU8});
constexpr auto kIndexDtypes = std::to_array({Dtype::kI32, Dtype::kI64});

pack::ScaleType scale_type(Dtype dtype) {
  return dtype == Dtype::kF16    ? pack::ScaleType::kF16
         : dtype == Dtype::kBF16 ? pack::ScaleType::kBF16
                                 : pack::ScaleType::kF32;
}

std::string dtype_list(std::span<const Dtype> dtypes) {
  std::string list;
  for (const Dtype dtype : dtypes) {
    if (!list.empty()) list += " or ";
    list += dtype_name(dtype);
  }
  return list;
}

// The tensors of one module.
class Parts {
 public:
  Parts(const HfDirectory& directory, std::string_view module)
      : directory_(directory), module_(module) {}

  [[nodiscard]] const HfDirectory& directory() const { return directory_; }
  [[nodiscard]] std::string_view module() const { return module_; }

  [[nodiscard]] const SafetensorsTensor* find(std::string_view suffix) const {
    return directory_.find(name(suffix));
  }

  // The part with that suffix, of one of these dtypes and with `dims` dimensions, none of them
  // zero: no product of dimensions overflows then.
  [[nodiscard]] Result<const SafetensorsTensor*> part(std::string_view suffix,
                                                      std::span<const Dtype> dtypes,
                                                      std::size_t dims) const {
    ESPALIER_TRY(const SafetensorsTensor* tensor, typed(suffix, dtypes));
    if (tensor->shape.size() != dims) {
      return input_error("{} has shape {}, expected {} dimensions",
                         directory_.describe(tensor->name), shape_text(tensor->shape), dims);
    }
    return tensor;
  }

  // The same with exactly this shape.
  [[nodiscard]] Result<const SafetensorsTensor*> part(std::string_view suffix,
                                                      std::span<const Dtype> dtypes,
                                                      const Shape& shape) const {
    ESPALIER_TRY(const SafetensorsTensor* tensor, typed(suffix, dtypes));
    if (tensor->shape != shape) {
      return input_error("{} has shape {}, expected {}", directory_.describe(tensor->name),
                         shape_text(tensor->shape), shape_text(shape));
    }
    return tensor;
  }

  // `matrix`, its error prefixed with the module's place.
  [[nodiscard]] Result<pack::Matrix> named(std::string_view suffix,
                                           Result<pack::Matrix> matrix) const {
    if (matrix) return matrix;
    return input_error("{}: {}", directory_.describe(name(suffix)), matrix.error().message);
  }

  [[nodiscard]] std::string name(std::string_view suffix) const {
    return std::string(module_).append(suffix);
  }

 private:
  [[nodiscard]] Result<const SafetensorsTensor*> typed(std::string_view suffix,
                                                       std::span<const Dtype> dtypes) const {
    const SafetensorsTensor* tensor = find(suffix);
    if (tensor == nullptr) {
      return input_error("{}: tensor '{}' is missing", directory_.name(), printable(name(suffix)));
    }
    if (std::find(dtypes.begin(), dtypes.end(), tensor->dtype) == dtypes.end()) {
      return input_error("{} is {}, expected {}", directory_.describe(tensor->name),
                         dtype_name(tensor->dtype), dtype_list(dtypes));
    }
    if (std::find(tensor->shape.begin(), tensor->shape.end(), 0) != tensor->shape.end()) {
      return input_error("{} of shape {} is empty", directory_.describe(tensor->name),
                         shape_text(tensor->shape));
    }
    return tensor;
  }

  const HfDirectory& directory_;
  std::string_view module_;
};

// Product of all dimensions but the last, which a scalar counts as 1.
std::uint64_t leading(const Shape& shape) {
  std::uint64_t product = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) product *= shape[i];
  return product;
}

std::uint64_t last(const Shape& shape) { return shape.empty() ? 1 : shape.back(); }

Shape with_last(Shape shape, std::uint64_t size) {
  if (shape.empty()) shape.push_back(1);
  shape.back() = size;
  return shape;
}

// --- Plain ---------------------------------------------------------------------------------------

Result<pack::Matrix> plain_matrix(const HfDirectory& directory, const SafetensorsTensor& tensor) {
  if (std::find(kScaleDtypes.begin(), kScaleDtypes.end(), tensor.dtype) == kScaleDtypes.end()) {
    return input_error("{} is {}, expected F32, F16 or BF16, or a packed form",
                       directory.describe(tensor.name), dtype_name(tensor.dtype));
  }
  if (tensor.data.empty()) {
    return input_error("{} of shape {} is empty", directory.describe(tensor.name),
                       shape_text(tensor.shape));
  }
  const pack::Format* format = pack::find_format(dtype_name(tensor.dtype));
  return pack::block_matrix(*format, leading(tensor.shape), last(tensor.shape), tensor.data);
}

// --- MLX -----------------------------------------------------------------------------------------

const pack::Format* mlx_format(const MlxScheme& scheme) {
  switch (scheme.mode) {
    case MlxMode::kAffine:
      return pack::find_format(fmt::format("MLX-{}-g{}", scheme.bits, scheme.group_size));
    case MlxMode::kMxfp4:
      return pack::find_format("MLX-MXFP4");
    case MlxMode::kMxfp8:
      return pack::find_format("MLX-MXFP8");
    case MlxMode::kNvfp4:
      return pack::find_format("MLX-NVFP4");
  }
  return nullptr;
}

Result<pack::Matrix> mlx_matrix(const Parts& parts) {
  constexpr auto kCodes = std::to_array({Dtype::kU32});
  const SafetensorsTensor& codes = *parts.find(kPlain);
  const auto* config = std::get_if<MlxConfig>(&parts.directory().quantization());
  if (config == nullptr) {
    return input_error("{} is U32, but config.json has no MLX quantization",
                       parts.directory().describe(codes.name));
  }
  ESPALIER_CHECK(parts.part(kPlain, kCodes, codes.shape));
  const MlxScheme& scheme = config->scheme(parts.module());
  const std::uint64_t row_bits = last(codes.shape) * 32;
  if (row_bits % (scheme.bits * scheme.group_size) != 0) {
    return input_error("{} of shape {} does not hold rows of whole groups of {} codes of {} bits",
                       parts.directory().describe(codes.name), shape_text(codes.shape),
                       scheme.group_size, scheme.bits);
  }
  const std::uint64_t cols = row_bits / scheme.bits;
  const bool affine = scheme.mode == MlxMode::kAffine;
  const Shape scale_shape = with_last(codes.shape, cols / scheme.group_size);
  ESPALIER_TRY(const SafetensorsTensor* scales,
               parts.part(".scales",
                          affine ? std::span<const Dtype>(kScaleDtypes)
                                 : std::span<const Dtype>(kByteDtypes),
                          scale_shape));
  Bytes biases;
  if (affine) {
    ESPALIER_TRY(const SafetensorsTensor* part,
                 parts.part(".biases", std::span(&scales->dtype, 1), scale_shape));
    biases = part->data;
  }
  ESPALIER_TRY(pack::Matrix matrix,
               parts.named(kPlain, pack::mlx_matrix(*mlx_format(scheme), leading(codes.shape), cols,
                                                    codes.data, scales->data, biases,
                                                    scale_type(scales->dtype))));
  if (const SafetensorsTensor* global = parts.find(".global_scale");
      global != nullptr && scheme.mode == MlxMode::kNvfp4) {
    if (global->dtype != Dtype::kF32 || global->data.size() != sizeof(float)) {
      return input_error("{} is {} of shape {}, expected one F32",
                         parts.directory().describe(global->name), dtype_name(global->dtype),
                         shape_text(global->shape));
    }
    matrix.global_scale = pack::nvfp4_factor(load<float>(global->data.data()));
  }
  return matrix;
}

// --- MXFP4 of gpt-oss
// -----------------------------------------------------------------------------

// The bytes are those of MLX's mxfp4, the rows of all experts one after the other.
Result<pack::Matrix> mxfp4_matrix(const Parts& parts) {
  ESPALIER_TRY(const SafetensorsTensor* blocks, parts.part(kMxfp4, kByteDtypes, 4));
  const Shape& shape = blocks->shape;
  const pack::Format& format = *pack::find_format("MLX-MXFP4");
  if (shape[3] != format.block_bytes) {
    return input_error("{} has shape {}, expected blocks of {} bytes",
                       parts.directory().describe(blocks->name), shape_text(shape),
                       format.block_bytes);
  }
  ESPALIER_TRY(const SafetensorsTensor* scales,
               parts.part("_scales", kByteDtypes, Shape{shape[0], shape[1], shape[2]}));
  return parts.named(kMxfp4,
                     pack::mlx_matrix(format, shape[0] * shape[1], shape[2] * format.block_values,
                                      blocks->data, scales->data, {}, pack::ScaleType::kF16));
}

// --- GPTQ, AWQ, compressed-tensors ---------------------------------------------------------------

// The groups of inputs, or nothing where they are in order anyway.
Bytes unless_in_order(Bytes input_group, std::uint64_t cols, std::uint64_t groups) {
  for (std::uint64_t col = 0; col < cols; ++col) {
    const auto group = load<std::uint32_t>(input_group.data() + col * sizeof(std::uint32_t));
    if (group != col / (cols / groups)) return input_group;
  }
  return {};
}

// How many groups a row has; at least 1, so that a row too short fails on shapes.
std::uint64_t group_count(std::uint64_t cols, std::uint64_t group_size) {
  return group_size == pack::kWholeRow ? 1 : std::max<std::uint64_t>(1, cols / group_size);
}

Result<pack::Matrix> gptq_or_awq_matrix(const Parts& parts) {
  ESPALIER_TRY(const SafetensorsTensor* codes, parts.part(kInt4, kWordDtypes, 2));
  const QuantizationConfig& quantization = parts.directory().quantization();
  const auto* gptq = std::get_if<GptqConfig>(&quantization);
  const auto* awq = std::get_if<AwqConfig>(&quantization);
  if (gptq == nullptr && awq == nullptr) {
    return input_error("{}: config.json has no GPTQ or AWQ quantization",
                       parts.directory().describe(codes->name));
  }
  const pack::Int4Layout layout = gptq != nullptr ? gptq->layout : pack::Int4Layout::kAwq;
  const std::uint64_t group_size = gptq != nullptr ? gptq->group_size : awq->group_size;
  const std::uint64_t rows = gptq != nullptr ? codes->shape[1] : codes->shape[1] * 8;
  const std::uint64_t cols = gptq != nullptr ? codes->shape[0] * 8 : codes->shape[0];
  const std::uint64_t groups = group_count(cols, group_size);
  ESPALIER_TRY(const SafetensorsTensor* scales,
               parts.part(".scales", kScaleDtypes, Shape{groups, rows}));
  ESPALIER_TRY(const SafetensorsTensor* zeros,
               parts.part(".qzeros", kWordDtypes, Shape{groups, rows / 8}));
  Bytes input_group;
  if (gptq != nullptr && (gptq->act_order || parts.find(".g_idx") != nullptr)) {
    ESPALIER_TRY(const SafetensorsTensor* part, parts.part(".g_idx", kWordDtypes, Shape{cols}));
    input_group = unless_in_order(part->data, cols, groups);
  }
  return parts.named(
      kInt4, pack::int4_matrix(*pack::find_int4_format(layout, group_size), rows, cols, codes->data,
                               scales->data, scale_type(scales->dtype), zeros->data, input_group));
}

std::uint64_t index_at(const SafetensorsTensor& tensor, std::size_t i) {
  return tensor.dtype == Dtype::kI64
             ? load<std::uint64_t>(tensor.data.data() + i * sizeof(std::uint64_t))
             : load<std::uint32_t>(tensor.data.data() + i * sizeof(std::uint32_t));
}

Result<pack::Matrix> compressed_matrix(const Parts& parts) {
  ESPALIER_TRY(const SafetensorsTensor* codes, parts.part(kCompressed, kWordDtypes, 2));
  const auto* config = std::get_if<CompressedTensorsConfig>(&parts.directory().quantization());
  if (config == nullptr) {
    return input_error("{}: config.json has no compressed-tensors quantization",
                       parts.directory().describe(codes->name));
  }
  const std::uint64_t rows = codes->shape[0];
  const std::uint64_t cols = codes->shape[1] * 8;
  ESPALIER_TRY(const SafetensorsTensor* shape, parts.part(".weight_shape", kIndexDtypes, Shape{2}));
  if (index_at(*shape, 0) != rows || index_at(*shape, 1) != cols) {
    return input_error("{} says [{}, {}], the packed codes are [{}, {}]",
                       parts.directory().describe(shape->name), index_at(*shape, 0),
                       index_at(*shape, 1), rows, cols);
  }
  ESPALIER_TRY(const SafetensorsTensor* scales, parts.part(".weight_scale", kScaleDtypes, 2));
  const bool symmetric = parts.find(".weight_zero_point") == nullptr;
  const std::uint64_t groups = scales->shape[1];
  const pack::Format* format = nullptr;
  for (const CompressedTensorsConfig::Group& group : config->groups) {
    const bool same_zeros = symmetric == (group.layout == pack::Int4Layout::kCtSymmetric);
    if (same_zeros && groups == group_count(cols, group.group_size)) {
      format = pack::find_int4_format(group.layout, group.group_size);
    }
  }
  if (format == nullptr) {
    return input_error(
        "{}: {} scales a row for {} columns and {} zero points are in no group of config.json",
        parts.directory().describe(scales->name), groups, cols, symmetric ? "no" : "with");
  }
  ESPALIER_CHECK(parts.part(".weight_scale", kScaleDtypes, Shape{rows, groups}));
  Bytes zeros;
  if (!symmetric) {
    ESPALIER_TRY(const SafetensorsTensor* part,
                 parts.part(".weight_zero_point", kWordDtypes, Shape{(rows + 7) / 8, groups}));
    zeros = part->data;
  }
  Bytes input_group;
  if (parts.find(".weight_g_idx") != nullptr) {
    ESPALIER_TRY(const SafetensorsTensor* part,
                 parts.part(".weight_g_idx", kWordDtypes, Shape{cols}));
    // −1 throughout is how the format says that there is no order.
    const bool unset = std::all_of(part->data.begin(), part->data.end(),
                                   [](std::byte byte) { return byte == std::byte{0xff}; });
    if (!unset) input_group = unless_in_order(part->data, cols, groups);
  }
  return parts.named(kCompressed, pack::int4_matrix(*format, rows, cols, codes->data, scales->data,
                                                    scale_type(scales->dtype), zeros, input_group));
}

// --- EXL3 ----------------------------------------------------------------------------------------

constexpr auto kF16 = std::to_array({Dtype::kF16});
constexpr auto kI16 = std::to_array({Dtype::kI16});
constexpr auto kI64 = std::to_array({Dtype::kI64});

// Scale and sign of each channel: `scale_suffix`, or the signs alone of older packs.
using SignTable = std::map<std::string, std::vector<std::byte>, std::less<>>;
Result<Bytes> channel_scales(const Parts& parts, const SignTable& signs,
                             std::string_view scale_suffix, std::string_view sign_suffix,
                             std::uint64_t channels) {
  const auto found = signs.find(parts.name(sign_suffix));
  if (parts.find(scale_suffix) != nullptr || found == signs.end()) {
    ESPALIER_TRY(const SafetensorsTensor* part, parts.part(scale_suffix, kF16, Shape{channels}));
    return part->data;
  }
  ESPALIER_CHECK(parts.part(sign_suffix, kI16, Shape{channels / 16}));
  return Bytes(found->second);
}

Result<pack::Matrix> exl3_weights(const Parts& parts, const SignTable& signs) {
  ESPALIER_TRY(const SafetensorsTensor* trellis, parts.part(kExl3, kI16, 3));
  const bool mcg = parts.find(".mcg") != nullptr;
  const bool mul1 = parts.find(".mul1") != nullptr;
  if (mcg && mul1) {
    return input_error("{}: both .mcg and .mul1 are there, expected one codebook",
                       parts.directory().describe(trellis->name));
  }
  const pack::Codebook codebook = mcg    ? pack::Codebook::kMcg
                                  : mul1 ? pack::Codebook::kMul1
                                         : pack::Codebook::k3Inst;
  const pack::Format* format = pack::find_exl3_format(codebook, trellis->shape[2]);
  if (format == nullptr) {
    return input_error("{} of shape {}: tiles of {} words have no {} format",
                       parts.directory().describe(trellis->name), shape_text(trellis->shape),
                       trellis->shape[2],
                       mcg    ? "MCG"
                       : mul1 ? "MUL1"
                              : "3INST");
  }
  const std::uint64_t cols = trellis->shape[0] * 16;
  const std::uint64_t rows = trellis->shape[1] * 16;
  ESPALIER_TRY(const Bytes suh, channel_scales(parts, signs, ".suh", ".su", cols));
  ESPALIER_TRY(const Bytes svh, channel_scales(parts, signs, ".svh", ".sv", rows));
  return parts.named(kExl3, pack::exl3_matrix(*format, rows, cols, trellis->data, suh, svh));
}

// The bits of a table whose rows have `rings` rings, each `dim` symbols after a word of scale.
const pack::Format* exl3_table_format(std::string_view kind, std::uint64_t words,
                                      std::uint64_t rings, std::uint64_t dim) {
  if (words % rings != 0) return nullptr;
  const std::uint64_t symbol_words = words / rings - 1;
  if (symbol_words * 16 % dim != 0) return nullptr;
  return pack::find_format(fmt::format("EXL3-{}-{}", kind, symbol_words * 16 / dim));
}

Result<pack::Matrix> exl3_embedding(const Parts& parts) {
  ESPALIER_TRY(const SafetensorsTensor* trellis, parts.part(kExl3, kI16, 2));
  ESPALIER_TRY(const SafetensorsTensor* signs, parts.part(".signs", kF16, 2));
  const std::uint64_t rings = signs->shape[0];
  ESPALIER_CHECK(parts.part(".signs", kF16, Shape{rings, 256}));
  const pack::Format* format = exl3_table_format("EMB", trellis->shape[1], rings, 256);
  if (format == nullptr) {
    return input_error("{} of shape {} does not hold rows of {} rings of 256 values",
                       parts.directory().describe(trellis->name), shape_text(trellis->shape),
                       rings);
  }
  return parts.named(kExl3, pack::exl3_embedding_matrix(*format, trellis->shape[0], rings * 256,
                                                        trellis->data, signs->data));
}

// All shards of a table as one: they have to lie back to back.
Result<pack::Matrix> exl3_ngram_table(const Parts& parts) {
  const bool sharded = parts.find(kExl3) == nullptr;
  const std::string_view front_name = sharded ? kExl3Shard : kExl3;
  ESPALIER_TRY(const SafetensorsTensor* front, parts.part(front_name, kI16, 2));
  const std::uint64_t words = front->shape[1];
  std::uint64_t rows = front->shape[0];
  Bytes data = front->data;
  for (std::size_t i = 1; sharded; ++i) {
    const std::string suffix = fmt::format(".shard_{}.trellis", i);
    const SafetensorsTensor* found = parts.find(suffix);
    if (found == nullptr) break;
    ESPALIER_TRY(const SafetensorsTensor* shard, parts.part(suffix, kI16, 2));
    const std::byte* end = data.data() + data.size();
    if (shard->shape[1] != words || shard->data.data() != end) {
      return input_error("{} of shape {}, expected {} words a row, right behind the shard before",
                         parts.directory().describe(shard->name), shape_text(shard->shape), words);
    }
    rows += shard->shape[0];
    data = Bytes(data.data(), data.size() + shard->data.size());
  }
  const pack::Format* format = exl3_table_format("NGRAM", words, 1, pack::kExl3NgramDim);
  if (format == nullptr) {
    return input_error("{} of shape {} does not hold rows of {} values",
                       parts.directory().describe(front->name), shape_text(front->shape),
                       pack::kExl3NgramDim);
  }
  Bytes bias;
  Bytes offsets;
  if (parts.find(".head_bias") != nullptr) {
    ESPALIER_TRY(const SafetensorsTensor* bias_part, parts.part(".head_bias", kF16, 2));
    ESPALIER_TRY(const SafetensorsTensor* offset_part,
                 parts.part(".head_offsets", kI64, Shape{bias_part->shape[0]}));
    bias = bias_part->data;
    offsets = offset_part->data;
  }
  return parts.named(front_name, pack::exl3_ngram_matrix(*format, rows, data, bias, offsets));
}

// -------------------------------------------------------------------------------------------------

// A shard's name has to be that of a file in the directory itself.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

}  // namespace

Result<HfDirectory> HfDirectory::open(const std::filesystem::path& path) {
  HfDirectory directory;
  directory.name_ = path.string();
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    return input_error("{}: expected a directory with config.json and *.safetensors",
                       directory.name_);
  }
  ESPALIER_TRY(Json config, read_json(path / "config.json"));
  ESPALIER_CHECK(directory.set_config(std::move(config)));
  if (const auto older = directory.find_file("quantize_config.json");
      older && std::holds_alternative<std::monostate>(directory.quantization_)) {
    ESPALIER_TRY(const Json gptq, read_json(*older));
    ESPALIER_TRY(directory.quantization_, parse_gptq_config(JsonObject(gptq, older->string())));
  }
  ESPALIER_CHECK(directory.open_files(path));
  directory.expand_signs();
  return directory;
}

Result<HfDirectory> HfDirectory::parse(Bytes config, std::span<const Bytes> files,
                                       std::string name) {
  HfDirectory directory;
  directory.name_ = std::move(name);
  ESPALIER_TRY(Json document, parse_json(config, directory.name_ + "/config.json"));
  ESPALIER_CHECK(directory.set_config(std::move(document)));
  for (const Bytes file : files) {
    const std::string file_name =
        fmt::format("{}/{}.safetensors", directory.name_, directory.files_.size());
    ESPALIER_CHECK(directory.add_file(Safetensors::parse(file, file_name)));
  }
  directory.expand_signs();
  return directory;
}

Status HfDirectory::set_config(Json config) {
  config_ = std::move(config);
  config_name_ = (std::filesystem::path(name_) / "config.json").string();
  ESPALIER_TRY(quantization_, parse_quantization_config(this->config()));
  return {};
}

void HfDirectory::expand_signs() {
  for (const auto& [name, place] : tensors_) {
    const bool signs =
        (name.ends_with(".su") || name.ends_with(".sv")) && place.tensor->dtype == Dtype::kI16;
    if (signs) signs_.emplace(name, pack::exl3_signs(place.tensor->data));
  }
}

Status HfDirectory::open_files(const std::filesystem::path& path) {
  if (const auto index = find_file(kIndexName)) return open_indexed(path, *index);
  std::set<std::filesystem::path> found;  // in a fixed order, whatever the file system's
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") found.insert(entry->path());
  }
  if (error) return work_error("{}: cannot list: {}", name_, error.message());
  if (found.empty()) return input_error("{}: holds no *.safetensors file", name_);
  for (const std::filesystem::path& file : found) {
    ESPALIER_CHECK(add_file(Safetensors::open(file)));
  }
  return {};
}

Status HfDirectory::open_indexed(const std::filesystem::path& path,
                                 const std::filesystem::path& index) {
  ESPALIER_TRY(const Json document, read_json(index));
  ESPALIER_TRY(const auto weight_map, JsonObject(document, index.string()).object("weight_map"));
  if (!weight_map) return input_error("{}: key 'weight_map' is missing", index.string());
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map->json().items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      return input_error("{}: tensor '{}' is in {}, expected the name of a file in this directory",
                         index.string(), printable(tensor),
                         shard.is_string()
                             ? fmt::format("'{}'", printable(shard.get_ref<const std::string&>()))
                             : json_kind(shard));
    }
    shards.insert(shard.get_ref<const std::string&>());
  }
  if (shards.empty()) return input_error("{}: names no file", index.string());
  if (find_file(kNgramName)) shards.emplace(kNgramName);
  for (const std::string& shard : shards) {
    std::error_code ignored;
    if (!std::filesystem::exists(path / shard, ignored)) {
      return input_error("{}: the file '{}' that it names is missing", index.string(),
                         printable(shard));
    }
    ESPALIER_CHECK(add_file(Safetensors::open(path / shard)));
  }
  for (const auto& [tensor, shard] : weight_map->json().items()) {
    const auto place = tensors_.find(tensor);
    const std::string expected = (path / shard.get_ref<const std::string&>()).string();
    if (place != tensors_.end() && files_[place->second.file].name() == expected) continue;
    return input_error("{}: tensor '{}' should be in '{}', found {}", index.string(),
                       printable(tensor), printable(shard.get_ref<const std::string&>()),
                       place == tensors_.end() ? "nowhere" : files_[place->second.file].name());
  }
  return {};
}

Status HfDirectory::add_file(Result<Safetensors> opened) {
  ESPALIER_TRY(Safetensors file, std::move(opened));
  const std::size_t index = files_.size();
  for (const SafetensorsTensor& tensor : file.tensors()) {
    const auto [place, added] = tensors_.emplace(tensor.name, Place{index, &tensor});
    if (!added) {
      return input_error("{}: tensor '{}' is in {} too", file.name(), printable(tensor.name),
                         files_[place->second.file].name());
    }
  }
  files_.push_back(std::move(file));  // its tensors stay where they are
  return {};
}

std::optional<std::filesystem::path> HfDirectory::find_file(std::string_view file_name) const {
  const std::filesystem::path path = std::filesystem::path(name_) / file_name;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  return path;
}

const SafetensorsTensor* HfDirectory::find(std::string_view tensor_name) const {
  const auto found = tensors_.find(tensor_name);
  return found == tensors_.end() ? nullptr : found->second.tensor;
}

std::string HfDirectory::describe(std::string_view tensor_name) const {
  const Place& place = tensors_.at(tensor_name);
  return fmt::format("{}: tensor '{}'", files_[place.file].name(), printable(tensor_name));
}

std::vector<std::string> HfDirectory::modules() const {
  std::set<std::string> names;
  for (const auto& [name, place] : tensors_) {
    for (const std::string_view suffix : kForms) {
      if (!name.ends_with(suffix)) continue;
      const std::string_view module = name.substr(0, name.size() - suffix.size());
      const std::size_t last_dot = module.rfind('.');
      const bool shard = suffix == kExl3 && last_dot != std::string_view::npos &&
                         module.substr(last_dot).starts_with(".shard_");
      if (!shard) names.emplace(module);
    }
  }
  return {names.begin(), names.end()};
}

Result<std::optional<pack::Matrix>> HfDirectory::find_matrix(std::string_view module) const {
  const Parts parts(*this, module);
  std::string_view form;
  for (const std::string_view suffix : kForms) {
    if (parts.find(suffix) == nullptr) continue;
    if (!form.empty()) {
      return input_error("{}: module '{}' has both {} and {}", name_, printable(module), form,
                         suffix);
    }
    form = suffix;
  }
  if (form.empty() && find(module) == nullptr) return std::optional<pack::Matrix>();

  const auto build = [&]() -> Result<pack::Matrix> {
    const SafetensorsTensor& tensor = *parts.find(form);
    if (form.empty()) return plain_matrix(*this, tensor);
    if (form == kInt4) return gptq_or_awq_matrix(parts);
    if (form == kCompressed) return compressed_matrix(parts);
    if (form == kMxfp4) return mxfp4_matrix(parts);
    if (form == kPlain) {
      return tensor.dtype == Dtype::kU32 ? mlx_matrix(parts) : plain_matrix(*this, tensor);
    }
    if (form == kExl3 && tensor.shape.size() == 3) return exl3_weights(parts, signs_);
    return parts.find(".signs") != nullptr ? exl3_embedding(parts) : exl3_ngram_table(parts);
  };
  ESPALIER_TRY(const pack::Matrix matrix, build());
  return std::optional(matrix);
}

Result<std::optional<std::vector<float>>> HfDirectory::find_values(
    std::string_view tensor_name) const {
  const SafetensorsTensor* tensor = find(tensor_name);
  if (tensor == nullptr) return std::optional<std::vector<float>>();
  ESPALIER_TRY(const pack::Matrix matrix, plain_matrix(*this, *tensor));
  std::vector<float> values(matrix.rows * matrix.cols);
  pack::decode_rows(matrix, 0, matrix.rows, values.data());
  return std::optional(std::move(values));
}

std::optional<pack::Matrix> without_padding(const pack::Matrix& matrix, std::uint64_t rows,
                                            std::uint64_t cols) {
  const bool exl3 = matrix.format->family == pack::Family::kExl3;
  const std::uint64_t row_run = exl3 && !matrix.output_scale.empty() ? pack::kExl3Run : 1;
  const std::uint64_t col_run = exl3 && !matrix.input_scale.empty() ? pack::kExl3Run
                                : exl3 && !matrix.scales.empty()    ? 256
                                                                    : 1;
  const auto fits = [](std::uint64_t stored, std::uint64_t size, std::uint64_t run) {
    return size <= stored && stored - size < run;
  };
  if (!fits(matrix.rows, rows, row_run) || !fits(matrix.cols, cols, col_run)) return std::nullopt;
  pack::Matrix result = matrix;
  result.rows = rows;
  result.cols = cols;
  return result;
}

}  // namespace espalier::file
