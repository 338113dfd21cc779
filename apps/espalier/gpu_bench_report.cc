#include "gpu_bench_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

namespace espalier::app {
namespace {

using measure::GpuBench;
using measure::GpuCeilings;
using measure::GpuLine;
using Json = nlohmann::ordered_json;

struct Column {
  const char* title;
  std::string (*cell)(const GpuLine& line, const GpuCeilings& ceilings);
};

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }
// A time beside ours, and how many times as long it is.
std::string beside(const std::optional<measure::Spread>& other, const measure::Spread& ours) {
  if (!other) return "–";
  return fmt::format("{:.2f} ({:.1f} µs)", other->median / ours.median, 1e6 * other->median);
}
std::string or_dash(const std::string& text) { return text.empty() ? "–" : text; }

constexpr auto kColumns = std::to_array<Column>({
    {"op", [](const GpuLine& line, const GpuCeilings&) { return line.op; }},
    {"format", [](const GpuLine& line, const GpuCeilings&) { return or_dash(line.format); }},
    {"shape",
     [](const GpuLine& line, const GpuCeilings&) { return shape_text(line.shape, line.parts); }},
    {"rows", [](const GpuLine& line, const GpuCeilings&) { return std::to_string(line.rows); }},
    {"kernel", [](const GpuLine& line, const GpuCeilings&) { return line.kernel; }},
    {"median µs",
     [](const GpuLine& line, const GpuCeilings&) {
       return fmt::format("{:.2f}", 1e6 * line.seconds.median);
     }},
    {"spread",
     [](const GpuLine& line, const GpuCeilings&) {
       return fmt::format("{:.2f} – {:.2f}", 1e6 * line.seconds.least, 1e6 * line.seconds.most);
     }},
    {"GB/s",
     [](const GpuLine& line, const GpuCeilings&) {
       return fmt::format("{:.0f}{}", line.bytes / line.seconds.median / 1e9,
                          line.beyond_cache ? "" : " (L2)");
     }},
    {"of copy",
     [](const GpuLine& line, const GpuCeilings& ceilings) {
       return percent(line.bytes / line.seconds.median / ceilings.copy);
     }},
    {"TFLOP/s",
     [](const GpuLine& line, const GpuCeilings&) {
       return fmt::format("{:.2f}", line.operations / line.seconds.median / 1e12);
     }},
    {"of products",
     [](const GpuLine& line, const GpuCeilings& ceilings) {
       if (ceilings.products == 0) return std::string("–");
       return percent(line.operations / line.seconds.median / ceilings.products);
     }},
    {"of FP16", [](const GpuLine& line,
                   const GpuCeilings&) { return beside(line.dense_seconds, line.seconds); }},
    {"apart", [](const GpuLine& line,
                 const GpuCeilings&) { return beside(line.apart_seconds, line.seconds); }},
    {"difference",
     [](const GpuLine& line, const GpuCeilings&) {
       if (!line.difference) return std::string("–");
       const bool good = line.difference->found <= line.difference->allowed;
       return fmt::format("{:.1e}{}", line.difference->found, good ? "" : " WRONG");
     }},
});

std::string heading(const GpuBench& bench) {
  const GpuCeilings& ceilings = bench.ceilings;
  return fmt::format(
      "{}, compute capability {}.{}, {} SMs, L2 of {:.0f} MB; a copy reads and writes {:.0f} GB/s; "
      "{}\n\n",
      bench.device.name, bench.device.major, bench.device.minor, bench.device.multiprocessors,
      static_cast<double>(bench.device.l2_bytes) / 1e6, ceilings.copy / 1e9,
      ceilings.products == 0
          ? fmt::format("no bfloat16 product: {}", ceilings.no_products)
          : fmt::format("a bfloat16 product reaches {:.0f} TFLOP/s", ceilings.products / 1e12));
}

std::string in_columns(const GpuBench& bench, bool markdown) {
  std::vector<std::vector<std::string>> table(1);
  for (const Column& column : kColumns) table[0].emplace_back(column.title);
  for (const GpuLine& line : bench.lines) {
    std::vector<std::string>& row = table.emplace_back();
    for (const Column& column : kColumns) row.push_back(column.cell(line, bench.ceilings));
  }
  std::string text = heading(bench);
  if (markdown) {
    table.insert(table.begin() + 1, std::vector<std::string>(kColumns.size(), "---"));
    for (const auto& row : table) text += fmt::format("| {} |\n", fmt::join(row, " | "));
    return text;
  }
  std::array<std::size_t, kColumns.size()> widths = {};
  for (const auto& row : table) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], fmt::formatted_size("{}", row[c]));
    }
  }
  for (const auto& row : table) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool last = c + 1 == row.size();
      text += fmt::format("{:<{}}{}", row[c], last ? 0 : widths[c], last ? "\n" : "  ");
    }
  }
  return text;
}

Json in_json(const GpuLine& line, const GpuCeilings& ceilings) {
  const double bytes = line.bytes / line.seconds.median;
  const double operations = line.operations / line.seconds.median;
  Json json = {
      {"op", line.op},
      {"format", line.format.empty() ? Json() : Json(line.format)},
      {"shape", line.shape},
      {"parts", line.parts},
      {"rows", line.rows},
      {"kernel", line.kernel},
      {"seconds",
       {{"median", line.seconds.median},
        {"least", line.seconds.least},
        {"most", line.seconds.most}}},
      {"bytes", line.bytes},
      {"operations", line.operations},
      {"bytes_per_second", bytes},
      {"share_of_copy", bytes / ceilings.copy},
      {"operations_per_second", operations},
      {"share_of_products", ceilings.products == 0 ? Json() : Json(operations / ceilings.products)},
      {"dense_seconds", line.dense_seconds ? Json(line.dense_seconds->median) : Json()},
      {"apart_seconds", line.apart_seconds ? Json(line.apart_seconds->median) : Json()},
      {"copies", line.copies},
      {"beyond_cache", line.beyond_cache},
      {"difference", Json()}};
  if (line.difference) {
    // JSON has no infinity: null is what was not written, or is no number.
    const double found = line.difference->found;
    json["difference"] = {{"found", std::isfinite(found) ? Json(found) : Json()},
                          {"allowed", line.difference->allowed}};
  }
  return json;
}

std::string in_json(const GpuBench& bench) {
  Json lines = Json::array();
  for (const GpuLine& line : bench.lines) lines.push_back(in_json(line, bench.ceilings));
  const double products = bench.ceilings.products;
  const Json json = {
      {"device", bench.device.name},
      {"compute_capability", fmt::format("{}.{}", bench.device.major, bench.device.minor)},
      {"l2_bytes", bench.device.l2_bytes},
      {"copy_bytes_per_second", bench.ceilings.copy},
      {"product_operations_per_second", products == 0 ? Json() : Json(products)},
      {"results", lines}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string gpu_bench_report(const GpuBench& bench, const std::string& output) {
  return output == "json" ? in_json(bench) : in_columns(bench, output == "md");
}

std::string shape_text(const measure::Shape& shape, std::size_t parts) {
  std::string text;
  const std::size_t numbers = shape.size() / parts;
  for (std::size_t part = 0; part < parts; ++part) {
    const auto sizes = std::span(shape).subspan(part * numbers, numbers);
    text += fmt::format("{}{}", part == 0 ? "" : "+", fmt::join(sizes, "x"));
  }
  return text;
}

}  // namespace espalier::app
