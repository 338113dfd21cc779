// What the machine that this runs on has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace espalier {

// As its maker calls it, or "unknown processor".
[[nodiscard]] std::string processor_name();

// Bytes of memory; nothing where the system does not say.
[[nodiscard]] std::optional<std::uint64_t> total_memory();
// What of them can be had without taking any from others.
[[nodiscard]] std::optional<std::uint64_t> available_memory();

}  // namespace espalier
