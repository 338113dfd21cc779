// espalier inspect: prints what a model file holds, for people or as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "file/gguf.h"
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
using nlohmann::json;

// How much of a value the text shows, in bytes, and how wide a column of names may get.
constexpr std::size_t kShownBytes = 72;
constexpr std::size_t kMaxNameWidth = 56;

struct Totals {
  std::uint64_t tensors = 0, values = 0, bytes = 0;

  void add(const GgufTensor& tensor) {
    const pack::Matrix matrix = tensor.matrix();
    ++tensors;
    values += matrix.rows * matrix.cols;
    bytes += tensor.data.size();
  }
  double bits_per_weight() const {
    return values == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(values);
  }
};

struct Summary {
  Totals all;
  std::map<std::string_view, Totals> by_type;
};

Summary summarize(const Gguf& gguf) {
  Summary summary;
  for (const GgufTensor& tensor : gguf.tensors()) {
    summary.all.add(tensor);
    summary.by_type[tensor.format->name].add(tensor);
  }
  return summary;
}

// ---- text

// 1234567 as "1,234,567".
std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

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

// Rows of cells as text: every column as wide as its widest cell, the last as wide as it comes.
class Table {
 public:
  enum class Align { kLeft, kRight };

  explicit Table(std::vector<Align> columns)
      : columns_(std::move(columns)), widths_(columns_.size()) {}

  void add(std::vector<std::string> cells) {
    for (std::size_t c = 0; c < cells.size(); ++c) {
      // In characters as good as it needs to be: continuation bytes do not count.
      const auto width = std::count_if(cells[c].begin(), cells[c].end(),
                                       [](char byte) { return (byte & 0xc0) != 0x80; });
      widths_[c] = std::max(widths_[c], std::min<std::size_t>(width, kMaxNameWidth));
    }
    rows_.push_back(std::move(cells));
  }

  void print(std::string& out) const {
    for (const auto& row : rows_) {
      std::string line;
      for (std::size_t c = 0; c < row.size(); ++c) {
        line += "  ";
        if (columns_[c] == Align::kRight) {
          fmt::format_to(std::back_inserter(line), "{:>{}}", row[c], widths_[c]);
        } else {
          fmt::format_to(std::back_inserter(line), "{:<{}}", row[c], widths_[c]);
        }
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
  }

 private:
  std::vector<Align> columns_;
  std::vector<std::size_t> widths_;
  std::vector<std::vector<std::string>> rows_;
};

constexpr Table::Align kLeft = Table::Align::kLeft;
constexpr Table::Align kRight = Table::Align::kRight;

void print_types(const Summary& summary, std::string& out) {
  std::vector<std::pair<std::string_view, Totals>> types(summary.by_type.begin(),
                                                         summary.by_type.end());
  std::stable_sort(types.begin(), types.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  Table table({kLeft, kRight, kRight, kRight, kRight, kRight});
  table.add({"type", "tensors", "values", "bytes", "of all", "bits per weight"});
  const auto add = [&](std::string_view name, const Totals& totals) {
    const double share = static_cast<double>(totals.bytes) /
                         static_cast<double>(std::max<std::uint64_t>(summary.all.bytes, 1));
    table.add({std::string(name), grouped(totals.tensors), grouped(totals.values),
               grouped(totals.bytes), fmt::format("{:.1f}%", 100 * share),
               fmt::format("{:.3f}", totals.bits_per_weight())});
  };
  for (const auto& [name, totals] : types) add(name, totals);
  if (types.size() > 1) add("all", summary.all);
  table.print(out);
}

std::string to_text(const Gguf& gguf) {
  std::string out = printable(gguf.name(), 4096) + "\n";
  fmt::format_to(std::back_inserter(out), "GGUF version {}, alignment {}, {}\n", gguf.version(),
                 gguf.alignment(),
                 gguf.parts() == 1 ? "one file" : fmt::format("{} parts", gguf.parts()));

  fmt::format_to(std::back_inserter(out), "\nmetadata ({})\n", gguf.metadata().size());
  Table metadata({kLeft, kLeft, kLeft});
  for (const auto& [key, value] : gguf.metadata()) {
    metadata.add({printable(key), type_text(value), value_text(value)});
  }
  metadata.print(out);

  fmt::format_to(std::back_inserter(out), "\ntensors ({})\n", gguf.tensors().size());
  if (gguf.tensors().empty()) return out;
  Table tensors({kLeft, kLeft, kLeft, kRight});
  for (const GgufTensor& tensor : gguf.tensors()) {
    tensors.add({printable(tensor.name), fmt::format("{}", fmt::join(tensor.dims, " × ")),
                 std::string(tensor.format->name), grouped(tensor.data.size())});
  }
  tensors.print(out);
  out += "\n";
  print_types(summarize(gguf), out);
  return out;
}

// ---- JSON

json value_json(const GgufValue& value) {
  const auto convert = [&](const auto& content) -> json {
    using T = std::decay_t<decltype(content)>;
    if constexpr (std::is_same_v<T, GgufArray>) {
      json items = json::array();
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

json totals_json(const Totals& totals) {
  return {{"tensors", totals.tensors},
          {"values", totals.values},
          {"bytes", totals.bytes},
          {"bits_per_weight", totals.bits_per_weight()}};
}

std::string to_json(const Gguf& gguf) {
  json metadata = json::object();
  for (const auto& [key, value] : gguf.metadata()) {
    json& entry = metadata[std::string(key)];
    entry["type"] = type_name(value.type);
    if (const auto* array = std::get_if<GgufArray>(&value.value)) {
      entry["element_type"] = type_name(array->element);
    }
    entry["value"] = value_json(value);
  }
  json tensors = json::array();
  for (const GgufTensor& tensor : gguf.tensors()) {
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.dims},
                       {"type", tensor.format->name},
                       {"bytes", tensor.data.size()},
                       {"part", tensor.part},
                       {"offset", tensor.offset}});
  }
  const Summary summary = summarize(gguf);
  json types = json::object();
  for (const auto& [name, totals] : summary.by_type) types[std::string(name)] = totals_json(totals);
  const json all = {{"file", gguf.name()},
                    {"format", "GGUF"},
                    {"version", gguf.version()},
                    {"alignment", gguf.alignment()},
                    {"parts", gguf.parts()},
                    {"metadata", std::move(metadata)},
                    {"tensors", std::move(tensors)},
                    {"types", std::move(types)},
                    {"total", totals_json(summary.all)}};
  // Everything outside ASCII is escaped, so that no control character reaches a terminal, and bytes
  // that are not UTF-8 become U+FFFD.
  return all.dump(2, ' ', true, json::error_handler_t::replace) + "\n";
}

}  // namespace

void add_inspect(CLI::App& app, Verb& run) {
  struct Options {
    std::string file;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("inspect", "Print what a model file holds");
  verb->add_option("FILE", options->file,
                   "A GGUF file, or the first part of a split one; with or without tensors")
      ->required();
  verb->add_flag("--json", options->json,
                 "Print JSON: all metadata, arrays and strings whole; shapes as in the file, for "
                 "GGUF the fastest varying dimension first");
  verb->callback([&run, options] {
    run = [options]() -> Status {
      ESPALIER_TRY(const Gguf gguf, Gguf::open(options->file));
      return write_stdout(options->json ? to_json(gguf) : to_text(gguf));
    };
  });
}

}  // namespace espalier::app
