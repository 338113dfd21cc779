#include "inspect_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>

#include "base/printable.h"

namespace espalier::app {
namespace {

using Json = nlohmann::ordered_json;
using Item = InspectReport::Item;

// How wide a column of names may get.
constexpr std::size_t kMaxNameWidth = 56;

struct Totals {
  std::uint64_t tensors = 0, values = 0, bytes = 0;

  void add(const Item& item) {
    ++tensors;
    values += item.values;
    bytes += item.bytes;
  }
  double bits_per_weight() const {
    return values == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(values);
  }
};

struct Group {
  std::string name;  // "blk.*.attn_q.weight"
  std::string_view type;
  Totals totals;
};

struct Summary {
  Totals all;
  std::map<std::string_view, Totals> by_type;
  std::vector<Group> groups;  // in the order of their first members
};

// The name of a tensor's group: numbers between dots count layers and experts, and become "*".
std::string group_name(std::string_view name) {
  std::string group;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find('.'), name.size());
    const std::string_view part = name.substr(0, end);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    group += number ? "*" : part;
    if (end < name.size()) group += '.';
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return group;
}

Summary summarize(const std::vector<Item>& items) {
  Summary summary;
  std::map<std::pair<std::string, std::string_view>, std::size_t> places;
  for (const Item& item : items) {
    summary.all.add(item);
    summary.by_type[item.type].add(item);
    std::string name = group_name(item.name);
    const auto [place, added] = places.emplace(std::pair(name, item.type), summary.groups.size());
    if (added) summary.groups.push_back({std::move(name), item.type, {}});
    summary.groups[place->second].totals.add(item);
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

std::string rate_text(const Totals& totals) {
  return fmt::format("{:.3f}", totals.bits_per_weight());
}

void print_groups(const Summary& summary, std::string& out) {
  Table table({kLeft, kLeft, kRight, kRight, kRight, kRight});
  table.add({"group", "type", "tensors", "values", "bytes", "bits per weight"});
  for (const Group& group : summary.groups) {
    table.add({printable(group.name), std::string(group.type), grouped(group.totals.tensors),
               grouped(group.totals.values), grouped(group.totals.bytes), rate_text(group.totals)});
  }
  table.print(out);
}

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
               grouped(totals.bytes), fmt::format("{:.1f}%", 100 * share), rate_text(totals)});
  };
  for (const auto& [name, totals] : types) add(name, totals);
  if (types.size() > 1) add("all", summary.all);
  table.print(out);
}

Json totals_json(const Totals& totals) {
  return {{"tensors", totals.tensors},
          {"values", totals.values},
          {"bytes", totals.bytes},
          {"bits_per_weight", totals.bits_per_weight()}};
}

}  // namespace

std::string report_text(const InspectReport& report) {
  std::string out = printable(report.source, 4096) + "\n" + report.summary + "\n";
  fmt::format_to(std::back_inserter(out), "\n{} ({})\n", report.settings_title,
                 report.settings.size());
  Table settings({kLeft, kLeft, kLeft});
  for (const InspectReport::Setting& setting : report.settings) {
    settings.add({printable(setting.key), setting.type, setting.value});
  }
  settings.print(out);

  fmt::format_to(std::back_inserter(out), "\ntensors ({})\n", report.items.size());
  if (report.items.empty()) return out;
  Table tensors({kLeft, kLeft, kLeft, kRight});
  for (const Item& item : report.items) {
    tensors.add({printable(item.name), fmt::format("{}", fmt::join(item.shape, " × ")),
                 std::string(item.type), grouped(item.bytes)});
  }
  tensors.print(out);
  const Summary summary = summarize(report.items);
  out += "\n";
  print_groups(summary, out);
  out += "\n";
  print_types(summary, out);
  return out;
}

std::string report_json(const InspectReport& report) {
  Json all = report.head;
  Json& tensors = all["tensors"] = Json::array();
  for (std::size_t i = 0; i < report.items.size(); ++i) {
    const Item& item = report.items[i];
    Json entry = {
        {"name", item.name}, {"shape", item.shape}, {"type", item.type}, {"bytes", item.bytes}};
    if (i < report.item_details.size()) entry.update(report.item_details[i]);
    tensors.push_back(std::move(entry));
  }
  const Summary summary = summarize(report.items);
  Json& groups = all["groups"] = Json::array();
  for (const Group& group : summary.groups) {
    Json entry = {{"name", group.name}, {"type", group.type}};
    entry.update(totals_json(group.totals));
    groups.push_back(std::move(entry));
  }
  Json& types = all["types"] = Json::object();
  for (const auto& [name, totals] : summary.by_type) types[std::string(name)] = totals_json(totals);
  all["total"] = totals_json(summary.all);
  // Everything outside ASCII is escaped, so that no control character reaches a terminal, and bytes
  // that are not UTF-8 become U+FFFD.
  return all.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace espalier::app
