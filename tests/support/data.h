// The files under tests/data, and the project's others.
#pragma once

#include <filesystem>
#include <string>

namespace espalier::test {

// Where tests/data/`name` lies.
std::filesystem::path data_path(const std::string& name);

// Where `name` lies in the project.
std::filesystem::path source_path(const std::string& name);

// The bytes of tests/data/`name`. A missing file throws, so that no test can pass without its data.
std::string read_data(const std::string& name);

}  // namespace espalier::test
