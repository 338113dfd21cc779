#include "base/machine.h"

#include <fstream>
#include <string_view>

namespace espalier {
namespace {

std::optional<std::uint64_t> memory_entry(std::string_view wanted) {
  std::ifstream info("/proc/meminfo");
  for (std::string key, rest; info >> key && std::getline(info, rest);) {
    if (key == wanted) return std::stoull(rest) * 1024;  // kB
  }
  return std::nullopt;
}

}  // namespace

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

std::optional<std::uint64_t> total_memory() { return memory_entry("MemTotal:"); }
std::optional<std::uint64_t> available_memory() { return memory_entry("MemAvailable:"); }

}  // namespace espalier
