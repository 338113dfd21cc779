// espalier dequantize: a model's weights as plain numbers in a safetensors file.
#include <fnmatch.h>

#include <algorithm>
#include <array>

#include "base/half.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "file/container.h"
#include "file/safetensors.h"
#include "load.h"
#include "verbs.h"

namespace espalier::app {
namespace {

// Values that are decoded at a time.
constexpr std::uint64_t kChunkValues = 1 << 20;

// EXL3 packs 16 output features together, and a rotation mixes 128.
constexpr std::uint64_t kRowRun = 128;

void to_f32(const float* from, std::size_t count, std::byte* to) {
  std::memcpy(to, from, count * sizeof(float));
}

template <std::uint16_t (*kRound)(float)>
void to_16_bits(const float* from, std::size_t count, std::byte* to) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t rounded = kRound(from[i]);
    std::memcpy(to + i * sizeof(rounded), &rounded, sizeof(rounded));
  }
}

struct OutputType {
  std::string_view name;
  file::Dtype dtype;
  std::size_t bytes;
  void (*store)(const float* from, std::size_t count, std::byte* to);
};

constexpr auto kOutputTypes = std::to_array<OutputType>({
    {"f32", file::Dtype::kF32, 4, to_f32},
    {"f16", file::Dtype::kF16, 2, to_16_bits<float_to_half>},
    {"bf16", file::Dtype::kBF16, 2, to_16_bits<float_to_bfloat>},
});

struct DequantizeOptions {
  std::string input;
  std::string tensors = "*";
  std::string output;
  std::string type = "f32";
};

Status write_tensor(const file::NamedMatrix& tensor, const OutputType& type,
                    file::SafetensorsWriter& writer) {
  const pack::Matrix& matrix = tensor.matrix;
  const std::uint64_t rows_at_once = std::clamp(kChunkValues / matrix.cols / kRowRun * kRowRun,
                                                kRowRun, std::max(matrix.rows, kRowRun));
  std::vector<float> values;
  std::vector<std::byte> stored;
  for (std::uint64_t first = 0; first < matrix.rows; first += rows_at_once) {
    const std::uint64_t rows = std::min(rows_at_once, matrix.rows - first);
    values.resize(rows * matrix.cols);
    stored.resize(values.size() * type.bytes);
    pack::dequantize_rows(matrix, first, rows, values.data());
    type.store(values.data(), values.size(), stored.data());
    ESPALIER_CHECK(writer.write(tensor.name, stored));
  }
  return {};
}

Status dequantize(const DequantizeOptions& options) {
  const std::atomic<bool>& stop = interrupted();
  const OutputType& type = *std::find_if(
      kOutputTypes.begin(), kOutputTypes.end(),
      [&options](const OutputType& candidate) { return candidate.name == options.type; });
  ESPALIER_TRY(const file::Container container, open_model(options.input));
  ESPALIER_TRY(std::vector<file::NamedMatrix> tensors, file::list_matrices(container));
  std::erase_if(tensors, [&options](const file::NamedMatrix& tensor) {
    return ::fnmatch(options.tensors.c_str(), tensor.name.c_str(), 0) != 0;
  });
  if (tensors.empty()) {
    return input_error("{}: no tensor matches --tensor '{}'", options.input, options.tensors);
  }
  std::vector<file::SafetensorsWriter::Declaration> declarations;
  declarations.reserve(tensors.size());
  for (const file::NamedMatrix& tensor : tensors) {
    declarations.push_back({tensor.name, type.dtype, tensor.shape});
  }
  ESPALIER_TRY(auto writer,
               file::SafetensorsWriter::create(options.output, std::move(declarations)));
  Progress progress("dequantizing", tensors.size(), "tensors");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (stop) {
      return work_error("interrupted after {} of {} tensors; nothing was written to {}", i,
                        tensors.size(), options.output);
    }
    ESPALIER_CHECK(write_tensor(tensors[i], type, writer));
    progress.update(i + 1);
  }
  return writer.finish();
}

}  // namespace

void add_dequantize(CLI::App& app, Verb& run) {
  CLI::App* verb = app.add_subcommand("dequantize", "Write a model's weights as plain numbers");
  auto options = std::make_shared<DequantizeOptions>();
  verb->add_option("model", options->input, "Model file (GGUF) or Hugging Face directory")
      ->required();
  verb->add_option("--tensor", options->tensors,
                   "Only tensors whose names match, such as 'blk.0.*'")
      ->capture_default_str();
  verb->add_option("-o,--output", options->output, "The safetensors file to write")->required();
  verb->add_option("--type", options->type, "Type of the numbers")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->capture_default_str();
  verb->callback([&run, options] { run = [options] { return dequantize(*options); }; });
}

}  // namespace espalier::app
