// Published models, where scripts/fetch-model puts them.
#pragma once

#include <filesystem>
#include <string_view>

namespace espalier::test {

// The model of that file name. Throws, saying what to do, if it is not there.
std::filesystem::path fetched_model(std::string_view file);

std::filesystem::path default_model();

}  // namespace espalier::test
