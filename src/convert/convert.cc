#include "convert/convert.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "base/printable.h"
#include "base/progress.h"
#include "convert/metadata.h"
#include "convert/names.h"
#include "convert/tokenizer.h"
#include "model/model.h"
#include "pack/mlx.h"
#include "pack/repack.h"

namespace espalier::convert {
namespace {

using file::Container;
using file::Gguf;
using file::HfDirectory;
using file::Json;
using file::NamedMatrix;
using pack::Format;
using pack::Matrix;
using pack::PackedMatrix;

// A tensor of the target.
struct Planned {
  std::string name;                  // of a packed matrix in a directory: its module and ".weight"
  std::vector<std::uint64_t> shape;  // slowest varying first
  Matrix matrix;                     // what it is made from
  const Format* format = nullptr;    // what it becomes
  bool unpacked = false;
  std::uint64_t head_dim = 0;  // of a matrix whose rows change places; otherwise 0
};

// A tensor that the target cannot carry.
struct Refused {
  std::string name;
  const Format* format;
  std::string why;
};

struct Plan {
  const Architecture* architecture = nullptr;
  Side from = Side::kGguf;
  std::vector<Planned> tensors;
  std::vector<Refused> refused;
  std::vector<float> rope_factors;  // what `rope_freqs.weight` of a GGUF file shall hold

  [[nodiscard]] bool has(std::string_view name) const {
    return std::any_of(tensors.begin(), tensors.end(),
                       [name](const Planned& tensor) { return tensor.name == name; });
  }
};

// Work is done and memory taken for about this many values at a time.
constexpr std::uint64_t kChunkValues = 1 << 22;

// EXL3 decodes 128 rows at once.
constexpr std::uint64_t kRowRun = 128;

constexpr std::string_view kRopeFactors = "rope_freqs.weight";

std::string_view target_name(Target target) {
  return target == Target::kGguf ? "a GGUF file" : "a directory";
}

std::string_view carried_by(Target target) {
  return target == Target::kGguf
             ? "F32, F16, BF16, and of MLX, GPTQ, AWQ and compressed-tensors what its own blocks "
               "of 32 can express"
             : "F32, F16, BF16 and, in MLX's form, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q1_0, Q2_0, "
               "TQ1_0, TQ2_0, MXFP4 and NVFP4";
}

// --- Planning ------------------------------------------------------------------------------------

// The architecture of a model that loads.
Result<const Architecture*> architecture_of(const Container& input) {
  std::string name;
  Side side = Side::kGguf;
  if (const auto* gguf = std::get_if<Gguf>(&input)) {
    ESPALIER_TRY(const auto model, model::load_model(*gguf));
    ESPALIER_TRY(
        name, file::required(*gguf, "general.architecture", gguf->string("general.architecture")));
  } else {
    const auto& directory = std::get<HfDirectory>(input);
    ESPALIER_TRY(const auto model, model::load_model(directory));
    ESPALIER_TRY(const auto type, directory.config().string("model_type"));
    name = type.value_or("");
    side = Side::kDirectory;
  }
  const Architecture* architecture = find_architecture(side, name);
  if (architecture == nullptr) {
    return input_error("{}: models of architecture '{}' cannot be converted",
                       file::container_name(input), printable(name));
  }
  return architecture;
}

// Tensors that the other side has in another form, or computes.
bool is_derived(std::string_view name) {
  return name == kRopeFactors || name.ends_with(".rotary_emb.inv_freq");
}

Result<Planned> plan_tensor(const NamedMatrix& tensor, const Plan& plan, const Sizes& sizes,
                            const std::string& source) {
  const auto translated = translate(*plan.architecture, plan.from, tensor.name);
  if (!translated) {
    return input_error("{}: tensor '{}' is none that models of architecture '{}' have", source,
                       printable(tensor.name), plan.architecture->gguf_name);
  }
  const Module& module = *translated->module;
  Planned planned{.name = translated->name, .shape = tensor.shape, .matrix = tensor.matrix};
  if (tensor.shape.size() == 2) {
    const auto fitting =
        file::without_padding(tensor.matrix, module.rows(sizes), module.cols(sizes));
    if (!fitting) {
      return input_error("{}: tensor '{}' is {}, expected [{}, {}]", source, printable(tensor.name),
                         file::shape_text(tensor.shape), module.rows(sizes), module.cols(sizes));
    }
    planned.matrix = *fitting;
    planned.shape = {fitting->rows, fitting->cols};
  }
  if (module.rotated) {
    planned.head_dim = sizes.head_dim;
    // A bias has as many rows as the matrix.
    if (tensor.shape.size() == 1) std::swap(planned.matrix.rows, planned.matrix.cols);
  }
  return planned;
}

Result<Plan> make_plan(const Container& input, const Options& options, ThreadPool& threads,
                       const std::atomic<bool>& stop) {
  const std::string& source = file::container_name(input);
  const auto* gguf = std::get_if<Gguf>(&input);
  Plan plan;
  plan.from = gguf != nullptr ? Side::kGguf : Side::kDirectory;
  ESPALIER_TRY(plan.architecture, architecture_of(input));
  ESPALIER_TRY(const Sizes sizes, gguf != nullptr ? read_sizes(*gguf, *plan.architecture)
                                                  : read_sizes(std::get<HfDirectory>(input)));
  ESPALIER_TRY(const file::Contents contents, file::list_contents(input));
  if (!contents.others.empty()) {
    const file::SafetensorsTensor& other = *contents.others.front();
    return input_error("{}: tensor '{}' ({}) is none that models of architecture '{}' have", source,
                       printable(other.name), file::dtype_name(other.dtype),
                       plan.architecture->gguf_name);
  }
  const bool to_gguf = options.target == Target::kGguf;
  const pack::Family family = to_gguf ? pack::Family::kGguf : pack::Family::kMlx;
  Progress progress("looking at tensors", contents.matrices.size(), "tensors");
  std::uint64_t done = 0;
  for (const NamedMatrix& tensor : contents.matrices) {
    if (stop) return work_error("interrupted; nothing was written");
    progress.update(done++);
    if (is_derived(tensor.name)) continue;
    ESPALIER_TRY(Planned planned, plan_tensor(tensor, plan, sizes, source));
    const auto format = pack::find_repacking(planned.matrix, family, threads);
    planned.unpacked = !format;
    planned.format = format ? *format : options.plain;
    // llama.cpp's kernels want vectors in F32, which holds what the other plain formats do.
    if (to_gguf && tensor.shape.size() == 1) planned.format = pack::find_format("F32");
    if (!format && options.plain == nullptr) {
      plan.refused.push_back({tensor.name, tensor.matrix.format, format.error().message});
    }
    plan.tensors.push_back(std::move(planned));
  }
  return plan;
}

// One line for all that is refused: for each format, the first tensor and how many more.
Error refusal(const Plan& plan, const std::string& source, Target target) {
  std::map<std::string_view, std::vector<const Refused*>> by_format;
  for (const Refused& refused : plan.refused) by_format[refused.format->name].push_back(&refused);
  std::string list;
  for (const auto& [format, tensors] : by_format) {
    list += fmt::format("{}'{}'{}: {}", list.empty() ? "" : "; ", printable(tensors[0]->name),
                        tensors.size() == 1 ? "" : fmt::format(" and {} more", tensors.size() - 1),
                        tensors[0]->why);
  }
  return input_error(
      "{}: {} of {} tensors cannot go into {} as they are: {}. It carries {}. With --unpack TYPE "
      "they become plain numbers",
      source, plan.refused.size(), plan.tensors.size(), target_name(target), list,
      carried_by(target));
}

// --- Writing -------------------------------------------------------------------------------------

class Output {
 public:
  virtual ~Output() = default;

  // The next rows of a tensor; tensors come one after another in the order of the plan.
  virtual Status write(const Planned& tensor, const PackedMatrix& rows) = 0;

  // Gives the output its name.
  virtual Status finish() = 0;
};

class GgufOutput final : public Output {
 public:
  static Result<std::unique_ptr<Output>> create(const std::filesystem::path& path, const Plan& plan,
                                                const file::GgufMetadata& metadata) {
    std::vector<file::GgufDeclaration> declarations;
    if (!plan.rope_factors.empty()) {
      declarations.push_back(
          {std::string(kRopeFactors), pack::find_format("F32"), {plan.rope_factors.size()}});
    }
    for (const Planned& tensor : plan.tensors) {
      declarations.push_back(
          {tensor.name, tensor.format, {tensor.shape.rbegin(), tensor.shape.rend()}});
    }
    ESPALIER_TRY(auto file, file::create_gguf(path, metadata, declarations));
    if (!plan.rope_factors.empty()) {
      ESPALIER_CHECK(file.write(kRopeFactors, std::as_bytes(std::span(plan.rope_factors))));
    }
    return std::unique_ptr<Output>(new GgufOutput(std::move(file)));
  }

  Status write(const Planned& tensor, const PackedMatrix& rows) override {
    return file_.write(tensor.name, rows.data);
  }
  Status finish() override { return file_.finish(); }

 private:
  explicit GgufOutput(file::TensorFile file) : file_(std::move(file)) {}

  file::TensorFile file_;
};

// A directory that is removed with its object unless it got its name.
class PartialDirectory {
 public:
  static Result<PartialDirectory> create(const std::filesystem::path& path) {
    PartialDirectory directory;
    directory.path_ = path;
    directory.partial_ = path;
    directory.partial_ += fmt::format(".{}.partial", ::getpid());
    std::error_code error;
    if (!std::filesystem::create_directory(directory.partial_, error)) {
      const std::string name = std::exchange(directory.partial_, {}).string();
      return work_error("{}: cannot create: {}", name,
                        error ? error.message() : "it exists already");
    }
    return directory;
  }

  PartialDirectory(PartialDirectory&& other) noexcept
      : path_(std::move(other.path_)), partial_(std::exchange(other.partial_, {})) {}
  PartialDirectory(const PartialDirectory&) = delete;
  PartialDirectory& operator=(const PartialDirectory&) = delete;
  PartialDirectory& operator=(PartialDirectory&&) = delete;
  ~PartialDirectory() {
    std::error_code ignored;
    if (!partial_.empty()) std::filesystem::remove_all(partial_, ignored);
  }

  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const {
    return partial_ / name;
  }

  Status write(std::string_view name, std::string_view text) const {
    std::ofstream out(partial_ / name, std::ios::binary);
    out << text;
    out.close();
    if (!out) return work_error("{}: cannot write", (partial_ / name).string());
    return {};
  }

  Status finish() {
    std::error_code error;
    std::filesystem::rename(partial_, path_, error);
    if (error) return work_error("{}: cannot write: {}", path_.string(), error.message());
    partial_.clear();
    return {};
  }

 private:
  PartialDirectory() = default;

  std::filesystem::path path_, partial_;
};

// The tensors that a planned one is stored in, each with the rows' bytes that belong there.
struct Part {
  file::SafetensorsWriter::Declaration declaration;
  Bytes (*bytes)(const PackedMatrix& rows);
};

std::vector<Part> parts_of(const Planned& tensor) {
  const Format& format = *tensor.format;
  const auto codes = [](const PackedMatrix& rows) { return Bytes(rows.data); };
  const auto scales = [](const PackedMatrix& rows) { return Bytes(rows.scales); };
  const auto biases = [](const PackedMatrix& rows) { return Bytes(rows.zeros); };
  if (format.family != pack::Family::kMlx) {
    return {{{tensor.name, *file::find_dtype(format.name), tensor.shape}, codes}};
  }
  const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
  const bool affine = format.dequantize_rows != nullptr;
  std::vector<std::uint64_t> code_shape = tensor.shape;
  std::vector<std::uint64_t> group_shape = tensor.shape;
  code_shape.back() = tensor.shape.back() * pack::mlx_code_bits(format) / 32;
  group_shape.back() = tensor.shape.back() / format.block_values;
  std::vector<Part> parts = {
      {{tensor.name, file::Dtype::kU32, code_shape}, codes},
      {{module + ".scales", affine ? file::Dtype::kF16 : file::Dtype::kU8, group_shape}, scales}};
  if (affine) parts.push_back({{module + ".biases", file::Dtype::kF16, group_shape}, biases});
  return parts;
}

class DirectoryOutput final : public Output {
 public:
  static Result<std::unique_ptr<Output>> create(PartialDirectory directory, const Plan& plan,
                                                std::uint64_t shard_bytes) {
    std::unique_ptr<DirectoryOutput> output(new DirectoryOutput(std::move(directory)));
    const bool packed = std::any_of(plan.tensors.begin(), plan.tensors.end(), [](const auto& t) {
      return t.format->family == pack::Family::kMlx;
    });
    output->metadata_ = {{"format", packed ? "mlx" : "pt"}};
    std::uint64_t total = 0;
    std::uint64_t in_shard = 0;
    for (const Planned& tensor : plan.tensors) {
      const std::vector<Part> parts = parts_of(tensor);
      std::uint64_t bytes = 0;
      for (const Part& part : parts) {
        bytes += *file::tensor_bytes(part.declaration.dtype, part.declaration.shape);
      }
      if (output->shards_.empty() || in_shard + bytes > shard_bytes) {
        output->shards_.emplace_back();
        in_shard = 0;
      }
      in_shard += bytes;
      total += bytes;
      for (const Part& part : parts) output->shards_.back().push_back(part.declaration);
      output->shard_of_[tensor.name] = output->shards_.size() - 1;
    }
    if (output->shards_.size() > 1) ESPALIER_CHECK(output->write_index(total));
    return std::unique_ptr<Output>(std::move(output));
  }

  Status write(const Planned& tensor, const PackedMatrix& rows) override {
    const std::size_t shard = shard_of_.at(tensor.name);
    if (!writer_ || shard != open_shard_) {
      if (writer_) ESPALIER_CHECK(writer_->finish());
      writer_.reset();
      ESPALIER_TRY(auto writer,
                   file::SafetensorsWriter::create(directory_ / shard_name(shard),
                                                   std::move(shards_[shard]), metadata_));
      writer_.emplace(std::move(writer));
      open_shard_ = shard;
    }
    for (const Part& part : parts_of(tensor)) {
      ESPALIER_CHECK(writer_->write(part.declaration.name, part.bytes(rows)));
    }
    return {};
  }

  Status finish() override {
    if (writer_) ESPALIER_CHECK(writer_->finish());
    return directory_.finish();
  }

 private:
  explicit DirectoryOutput(PartialDirectory directory) : directory_(std::move(directory)) {}

  [[nodiscard]] std::string shard_name(std::size_t shard) const {
    if (shards_.size() == 1) return "model.safetensors";
    return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards_.size());
  }

  [[nodiscard]] Status write_index(std::uint64_t total) const {
    Json weights = Json::object();
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      for (const auto& tensor : shards_[s]) weights[tensor.name] = shard_name(s);
    }
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weights)}};
    return directory_.write("model.safetensors.index.json", index.dump(2) + "\n");
  }

  PartialDirectory directory_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::vector<file::SafetensorsWriter::Declaration>> shards_;
  std::map<std::string, std::size_t> shard_of_;
  std::size_t open_shard_ = 0;
  std::optional<file::SafetensorsWriter> writer_;
};

// --- Configuration -------------------------------------------------------------------------------

Json mlx_scheme(const Format& format) {
  const std::uint64_t bits = pack::mlx_code_bits(format);
  const std::string_view mode = format.dequantize_rows != nullptr ? "affine"
                                : format.block_values == 16       ? "nvfp4"
                                                                  : "mxfp4";
  return {{"bits", bits}, {"group_size", format.block_values}, {"mode", mode}};
}

// The config.json of a directory with the planned tensors.
Result<Json> make_config(const Gguf& gguf, const Plan& plan) {
  ESPALIER_TRY(Json config, to_config(gguf, *plan.architecture));
  std::map<const Format*, std::size_t> packed;
  std::map<const Format*, std::uint64_t> plain;  // values
  for (const Planned& tensor : plan.tensors) {
    if (tensor.format->family == pack::Family::kMlx) {
      ++packed[tensor.format];
    } else {
      plain[tensor.format] += tensor.matrix.rows * tensor.matrix.cols;
    }
  }
  const auto by_count = [](const auto& a, const auto& b) { return a.second < b.second; };
  std::string dtype = "float16";  // that of MLX's scales
  if (!packed.empty()) {
    // What most modules have stands for all; the others are named.
    const Format* standard = std::max_element(packed.begin(), packed.end(), by_count)->first;
    Json quantization = mlx_scheme(*standard);
    for (const Planned& tensor : plan.tensors) {
      if (tensor.format->family != pack::Family::kMlx || tensor.format == standard) continue;
      quantization[tensor.name.substr(0, tensor.name.rfind('.'))] = mlx_scheme(*tensor.format);
    }
    config["quantization"] = quantization;
    config["quantization_config"] = std::move(quantization);  // as MLX repeats it
  } else if (!plain.empty()) {
    const std::string_view name =
        std::max_element(plain.begin(), plain.end(), by_count)->first->name;
    dtype = name == "F32" ? "float32" : name == "BF16" ? "bfloat16" : "float16";
  }
  config["torch_dtype"] = dtype;
  config["tie_word_embeddings"] = !plan.has("lm_head.weight");
  config["attention_bias"] = plan.has("model.layers.0.self_attn.q_proj.bias");
  config["mlp_bias"] = plan.has("model.layers.0.mlp.up_proj.bias");
  return config;
}

// --- Rows ----------------------------------------------------------------------------------------

// Rows [first, first + count) of the planned tensor as plain numbers. Both are multiples of the
// head and of kRowRun, but for the tensor's end.
Result<PackedMatrix> unpack_rows(const Planned& tensor, Side from, std::uint64_t first,
                                 std::uint64_t count, ThreadPool& threads) {
  const std::uint64_t cols = tensor.matrix.cols;
  std::vector<float> values(count * cols);
  // Between EXL3's rotations lies what no other format means by a matrix.
  const auto decode = tensor.matrix.format->family == pack::Family::kExl3 ? pack::dequantize_rows
                                                                          : pack::decode_rows;
  threads.parallel_for(
      (count + kRowRun - 1) / kRowRun, [&](std::size_t begin, std::size_t end, std::size_t) {
        const std::uint64_t row = begin * kRowRun;
        decode(tensor.matrix, first + row, std::min<std::uint64_t>(end * kRowRun, count) - row,
               values.data() + row * cols);
      });
  if (tensor.head_dim != 0) {
    std::vector<float> ordered(values.size());
    for (std::uint64_t row = 0; row < count; ++row) {
      std::memcpy(ordered.data() + row * cols,
                  values.data() + rotated_row(from, row, tensor.head_dim) * cols,
                  cols * sizeof(float));
    }
    values = std::move(ordered);
  }
  return tensor.format->encode(*tensor.format, values, count, cols);
}

Status write_tensor(const Planned& tensor, const Plan& plan, Output& output, ThreadPool& threads,
                    const std::atomic<bool>& stop) {
  const std::uint64_t rows = tensor.matrix.rows;
  const std::uint64_t run = std::lcm(std::max<std::uint64_t>(tensor.head_dim, 1), kRowRun);
  const std::uint64_t step =
      std::max<std::uint64_t>(kChunkValues / tensor.matrix.cols / run, 1) * run;
  for (std::uint64_t first = 0; first < rows; first += step) {
    if (stop) return work_error("interrupted; nothing was written");
    const std::uint64_t count = std::min(step, rows - first);
    if (tensor.unpacked) {
      ESPALIER_TRY(const PackedMatrix packed,
                   unpack_rows(tensor, plan.from, first, count, threads));
      ESPALIER_CHECK(output.write(tensor, packed));
      continue;
    }
    std::vector<std::uint64_t> order(count);
    for (std::uint64_t i = 0; i < count; ++i) {
      order[i] =
          tensor.head_dim == 0 ? first + i : rotated_row(plan.from, first + i, tensor.head_dim);
    }
    ESPALIER_TRY(const PackedMatrix packed,
                 pack::repack_rows(tensor.matrix, order, *tensor.format, threads));
    ESPALIER_CHECK(output.write(tensor, packed));
  }
  return {};
}

Result<std::unique_ptr<Output>> make_output(const Container& input, Plan& plan,
                                            const std::filesystem::path& path,
                                            const Options& options) {
  if (const auto* directory = std::get_if<HfDirectory>(&input)) {
    ESPALIER_TRY(file::GgufMetadata metadata,
                 to_metadata(*directory, *plan.architecture, plan.rope_factors));
    metadata.set("general.quantization_version", std::uint32_t{2});
    if (options.tokenizer == TokenizerPart::kConvert) {
      ESPALIER_TRY(const Sizes sizes, read_sizes(*directory));
      ESPALIER_CHECK(set_tokenizer(*directory, sizes.vocab, metadata));
    }
    return GgufOutput::create(path, plan, metadata);
  }
  const auto& gguf = std::get<Gguf>(input);
  ESPALIER_TRY(Json config, make_config(gguf, plan));
  std::map<std::string, std::string> tokenizer_files;
  if (options.tokenizer == TokenizerPart::kConvert) {
    ESPALIER_TRY(tokenizer_files, to_tokenizer_files(gguf, config));
  }
  ESPALIER_TRY(auto directory, PartialDirectory::create(path));
  for (const auto& [name, text] : tokenizer_files) {
    ESPALIER_CHECK(directory.write(name, text));
  }
  ESPALIER_CHECK(directory.write("config.json", config.dump(2) + "\n"));
  return DirectoryOutput::create(std::move(directory), plan, options.shard_bytes);
}

}  // namespace

Result<Report> convert(const Container& input, const std::filesystem::path& output,
                       const Options& options, const std::atomic<bool>& stop) {
  const std::string& source = file::container_name(input);
  std::error_code ignored;
  if (std::filesystem::exists(std::filesystem::symlink_status(output, ignored))) {
    return input_error("{}: exists already; convert replaces nothing", output.string());
  }
  if (std::holds_alternative<Gguf>(input) == (options.target == Target::kGguf)) {
    return input_error("{}: is {} already", source, target_name(options.target));
  }
  ThreadPool threads(options.threads);
  ESPALIER_TRY(Plan plan, make_plan(input, options, threads, stop));
  if (!plan.refused.empty()) return refusal(plan, source, options.target);

  Report report;
  ESPALIER_TRY(const auto writer, make_output(input, plan, output, options));
  Progress progress("converting", plan.tensors.size(), "tensors");
  for (const Planned& tensor : plan.tensors) {
    Status written = write_tensor(tensor, plan, *writer, threads, stop);
    if (!written && written.error().kind == ErrorKind::kInput) {
      return input_error("{}: tensor '{}': {}", source, tensor.name, written.error().message);
    }
    ESPALIER_CHECK(std::move(written));
    report.unpacked += tensor.unpacked ? 1 : 0;
    progress.update(++report.tensors);
  }
  ESPALIER_CHECK(writer->finish());
  return report;
}

}  // namespace espalier::convert
