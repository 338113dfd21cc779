// What `espalier inspect` says of a file or directory, whatever its container, as text or as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::app {

// How much of a value the text shows, in bytes.
inline constexpr std::size_t kShownBytes = 72;

struct InspectReport {
  // A key of the metadata or configuration.
  struct Setting {
    std::string key, type, value;  // not yet made printable, but for the value
  };
  // A tensor, or a matrix packed in several.
  struct Item {
    std::string name;
    std::vector<std::uint64_t> shape;  // in the file's order
    std::string_view type;             // "Q4_1", "MLX-4-g64", "I32"
    std::uint64_t values = 0, bytes = 0;
  };

  std::string source;          // the path
  std::string summary;         // "GGUF version 3, alignment 32, one file"
  std::string settings_title;  // "metadata"
  std::vector<Setting> settings;
  std::vector<Item> items;

  // For JSON alone: what comes before the tensors, and for each item more keys (or nothing).
  nlohmann::ordered_json head;
  std::vector<nlohmann::ordered_json> item_details;
};

[[nodiscard]] std::string report_text(const InspectReport& report);
[[nodiscard]] std::string report_json(const InspectReport& report);

}  // namespace espalier::app
