#include "support/fixture.h"

#include <nlohmann/json.hpp>

namespace espalier::test {

Fixture::Fixture(const std::string& name) : file_(read_data(name)) {
  const Bytes bytes = as_bytes(file_);
  const auto header_bytes = load<std::uint64_t>(bytes.data());
  const auto header = nlohmann::json::parse(as_text(bytes.subspan(8, header_bytes)));
  const Bytes data = bytes.subspan(8 + header_bytes);
  for (const auto& [tensor, entry] : header.items()) {
    if (tensor == "__metadata__") continue;
    const auto begin = entry["data_offsets"][0].get<std::size_t>();
    const auto end = entry["data_offsets"][1].get<std::size_t>();
    tensors_[tensor] = {entry["shape"].get<std::vector<std::uint64_t>>(),
                        data.subspan(begin, end - begin)};
  }
}

}  // namespace espalier::test
