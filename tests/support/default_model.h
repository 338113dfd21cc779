// The default model, where scripts/fetch-model puts it.
#pragma once

#include <filesystem>

namespace espalier::test {

// Throws, saying what to do, if it is not there.
std::filesystem::path default_model();

}  // namespace espalier::test
