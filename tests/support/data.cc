#include "support/data.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace espalier::test {

std::filesystem::path data_path(const std::string& name) {
  return std::filesystem::path(ESPALIER_TEST_DATA) / name;
}

std::filesystem::path source_path(const std::string& name) {
  return std::filesystem::path(ESPALIER_SOURCE_DIR) / name;
}

std::string read_data(const std::string& name) {
  std::ifstream in(data_path(name), std::ios::binary);
  if (!in) throw std::runtime_error("tests/data/" + name + " is missing");
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace espalier::test
