// Test data that is kept compressed.
#pragma once

#include <string>

namespace espalier::test {

// What tests/data/`name`, a Zstandard frame, holds. Anything else throws.
std::string read_zstd_data(const std::string& name);

}  // namespace espalier::test
