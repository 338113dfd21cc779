// espalier inspect: prints what a model file or directory holds, for people or as JSON.
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <iterator>

#include "base/printable.h"
#include "file/container.h"
#include "inspect_report.h"
#include "load.h"
#include "output.h"
#include "verbs.h"

namespace espalier::app {
namespace {

using file::Gguf;
using file::GgufArray;
using file::GgufElements;
using file::GgufTensor;
using file::GgufType;
using file::GgufValue;
using Json = nlohmann::ordered_json;

// ---- GGUF

std::string type_text(const GgufValue& value) {
  if (const auto* array = std::get_if<GgufArray>(&value.value)) {
    return fmt::format("{}[{}]", type_name(array->element), array->count);
  }
  return std::string(type_name(value.type));
}

// The value on one line: of a long string or array, its beginning.
std::string value_text(const GgufValue& value, std::size_t shown = kShownBytes) {
  if (const auto* text = std::get_if<std::string_view>(&value.value)) {
    return fmt::format("\"{}\"", printable(*text, shown));
  }
  const auto* array = std::get_if<GgufArray>(&value.value);
  if (array == nullptr) {
    const std::string described = describe(value);  // "uint32 7"
    return described.substr(described.find(' ') + 1);
  }
  std::string out = "[";
  GgufElements elements(*array);
  std::string_view separator;
  while (const auto element = elements.next()) {
    const std::string next = value_text(*element, shown / 2);
    if (out.size() + next.size() > shown) {
      fmt::format_to(std::back_inserter(out), "{}…", separator);
      break;
    }
    fmt::format_to(std::back_inserter(out), "{}{}", separator, next);
    separator = ", ";
  }
  return out + "]";
}

Json value_json(const GgufValue& value) {
  const auto convert = [&](const auto& content) -> Json {
    using T = std::decay_t<decltype(content)>;
    if constexpr (std::is_same_v<T, GgufArray>) {
      Json items = Json::array();
      GgufElements elements(content);
      while (const auto element = elements.next()) items.push_back(value_json(*element));
      return items;
    } else if constexpr (std::is_same_v<T, double>) {
      // The shortest decimal that is this float32, not the many digits of its double.
      if (value.type == GgufType::kFloat32) {
        return std::strtod(fmt::format("{}", static_cast<float>(content)).c_str(), nullptr);
      }
      return content;
    } else {
      return content;
    }
  };
  return std::visit(convert, value.value);
}

InspectReport report_gguf(const Gguf& gguf) {
  InspectReport report;
  report.source = gguf.name();
  report.summary =
      fmt::format("GGUF version {}, alignment {}, {}", gguf.version(), gguf.alignment(),
                  gguf.parts() == 1 ? "one file" : fmt::format("{} parts", gguf.parts()));
  report.settings_title = "metadata";
  Json metadata = Json::object();
  for (const auto& [key, value] : gguf.metadata()) {
    report.settings.push_back({std::string(key), type_text(value), value_text(value)});
    Json& entry = metadata[std::string(key)];
    entry["type"] = type_name(value.type);
    if (const auto* array = std::get_if<GgufArray>(&value.value)) {
      entry["element_type"] = type_name(array->element);
    }
    entry["value"] = value_json(value);
  }
  report.head = {{"file", gguf.name()},       {"format", "GGUF"},
                 {"version", gguf.version()}, {"alignment", gguf.alignment()},
                 {"parts", gguf.parts()},     {"metadata", std::move(metadata)}};
  for (const GgufTensor& tensor : gguf.tensors()) {
    const pack::Matrix matrix = tensor.matrix();
    report.items.push_back({.name = std::string(tensor.name),
                            .shape = tensor.dims,
                            .type = tensor.format->name,
                            .values = matrix.rows * matrix.cols,
                            .bytes = tensor.data.size()});
    report.item_details.push_back({{"part", tensor.part}, {"offset", tensor.offset}});
  }
  return report;
}

// ---- safetensors

InspectReport::Item item_of(const file::SafetensorsTensor& tensor) {
  return {.name = tensor.name,
          .shape = tensor.shape,
          .type = file::dtype_name(tensor.dtype),
          .values = tensor.data.size() * 8 / file::dtype_bits(tensor.dtype),
          .bytes = tensor.data.size()};
}

std::string files_text(std::size_t count) {
  return count == 1 ? "one safetensors file" : fmt::format("{} safetensors files", count);
}

InspectReport report_safetensors(const file::Safetensors& file) {
  InspectReport report;
  report.source = file.name();
  report.summary = files_text(1);
  report.settings_title = "metadata";
  for (const auto& [key, value] : file.metadata()) {
    report.settings.push_back(
        {key, "string", fmt::format("\"{}\"", printable(value, kShownBytes))});
  }
  report.head = {{"file", file.name()}, {"format", "safetensors"}, {"metadata", file.metadata()}};
  for (const file::SafetensorsTensor& tensor : file.tensors()) {
    report.items.push_back(item_of(tensor));
  }
  return report;
}

// ---- Hugging Face directories

// The alternatives of QuantizationConfig.
constexpr auto kMethods = std::to_array<std::string_view>(
    {"not quantized", "EXL3", "MLX", "GPTQ", "AWQ", "compressed-tensors", "MXFP4"});
static_assert(kMethods.size() == std::variant_size_v<file::QuantizationConfig>);

Result<InspectReport> report_directory(const file::Container& container) {
  const auto& directory = std::get<file::HfDirectory>(container);
  const std::string_view method = kMethods[directory.quantization().index()];
  InspectReport report;
  report.source = directory.name();
  report.summary =
      fmt::format("Hugging Face directory, {}, {}", method, files_text(directory.files().size()));
  report.settings_title = "config.json";
  for (const auto& [key, value] : directory.config().json().items()) {
    report.settings.push_back(
        {key, value.type_name(),
         printable(value.dump(-1, ' ', false, file::Json::error_handler_t::replace), kShownBytes)});
  }
  Json files = Json::array();
  for (const file::Safetensors& file : directory.files()) {
    files.push_back(std::filesystem::path(file.name()).filename().string());
  }
  report.head = {{"file", directory.name()},
                 {"format", "Hugging Face directory"},
                 {"quantization", method},
                 {"files", std::move(files)},
                 {"config", directory.config().json()}};
  ESPALIER_TRY(const file::Contents contents, file::list_contents(container));
  for (const file::NamedMatrix& tensor : contents.matrices) {
    report.items.push_back({.name = tensor.name,
                            .shape = tensor.shape,
                            .type = tensor.matrix.format->name,
                            .values = tensor.matrix.rows * tensor.matrix.cols,
                            .bytes = file::matrix_bytes(tensor.matrix)});
  }
  for (const file::SafetensorsTensor* tensor : contents.others) {
    report.items.push_back(item_of(*tensor));
  }
  return report;
}

Result<InspectReport> inspect(const std::string& path) {
  if (path.ends_with(".safetensors")) {
    ESPALIER_TRY(const file::Safetensors file, file::Safetensors::open(path));
    return report_safetensors(file);
  }
  ESPALIER_TRY(const file::Container container, open_model(path));
  if (const auto* gguf = std::get_if<Gguf>(&container)) return report_gguf(*gguf);
  return report_directory(container);
}

}  // namespace

void add_inspect(CLI::App& app, Verb& run) {
  struct Options {
    std::string path;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("inspect", "Print what a model file or directory holds");
  verb->add_option("MODEL", options->path,
                   "A GGUF file, or the first part of a split one; a Hugging Face directory; or a "
                   "safetensors file")
      ->required();
  verb->add_flag("--json", options->json,
                 "Print JSON: all metadata, arrays and strings whole; shapes as in the file, for "
                 "GGUF the fastest varying dimension first");
  verb->callback([&run, options] {
    run = [options]() -> Status {
      ESPALIER_TRY(const InspectReport report, inspect(options->path));
      return write_stdout(options->json ? report_json(report) : report_text(report));
    };
  });
}

}  // namespace espalier::app
