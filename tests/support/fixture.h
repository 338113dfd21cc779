// A safetensors file of tests/data, whose contents are trusted.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "file/safetensors.h"
#include "support/data.h"

namespace espalier::test {

class Fixture {
 public:
  // A missing or broken file, or tensor, throws, so that no test can pass without its data.
  explicit Fixture(const std::string& name) : file_(open(name)) {}

  [[nodiscard]] bool has(const std::string& tensor) const { return file_.find(tensor) != nullptr; }

  // The tensor's elements, in row-major order. The file keeps them aligned.
  template <typename T>
  [[nodiscard]] std::span<const T> get(const std::string& tensor) const {
    const Bytes bytes = find(tensor).data;
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  [[nodiscard]] const std::vector<std::uint64_t>& shape(const std::string& tensor) const {
    return find(tensor).shape;
  }

 private:
  static file::Safetensors open(const std::string& name) {
    auto opened = file::Safetensors::open(data_path(name));
    if (!opened) throw std::runtime_error(opened.error().message);
    return std::move(*opened);
  }
  [[nodiscard]] const file::SafetensorsTensor& find(const std::string& tensor) const {
    const file::SafetensorsTensor* found = file_.find(tensor);
    if (found == nullptr) throw std::runtime_error(file_.name() + " has no " + tensor);
    return *found;
  }

  file::Safetensors file_;
};

}  // namespace espalier::test
