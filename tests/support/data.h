// The files under tests/data.
#pragma once

#include <filesystem>
#include <string>

namespace espalier::test {

// Where tests/data/`name` lies.
std::filesystem::path data_path(const std::string& name);

// Its bytes. A missing file throws, so that no test can pass without its data.
std::string read_data(const std::string& name);

}  // namespace espalier::test
