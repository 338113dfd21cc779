#include "support/default_model.h"

#include <cstdlib>
#include <stdexcept>

namespace espalier::test {

std::filesystem::path fetched_model(std::string_view file) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path root =
      cache != nullptr && *cache != '\0'
          ? std::filesystem::path(cache)
          : std::filesystem::path(home != nullptr ? home : "/") / ".cache";
  const auto path = root / "espalier" / file;
  if (!std::filesystem::exists(path)) {
    throw std::runtime_error(path.string() + " is missing; scripts/fetch-model fetches it");
  }
  return path;
}

std::filesystem::path default_model() { return fetched_model("SmolLM2-135M-Instruct.Q4_1.gguf"); }

}  // namespace espalier::test
