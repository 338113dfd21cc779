// A safetensors file of tests/data, whose contents are trusted.
#pragma once

#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "support/data.h"

namespace espalier::test {

class Fixture {
 public:
  explicit Fixture(const std::string& name);

  [[nodiscard]] bool has(const std::string& tensor) const { return tensors_.count(tensor) != 0; }

  // The tensor's elements, in row-major order. A missing tensor throws, so that no test can pass
  // without its data.
  template <typename T>
  [[nodiscard]] std::span<const T> get(const std::string& tensor) const {
    const Bytes bytes = find(tensor).bytes;
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  // Its dimensions.
  [[nodiscard]] const std::vector<std::uint64_t>& shape(const std::string& tensor) const {
    return find(tensor).shape;
  }

 private:
  struct Tensor {
    std::vector<std::uint64_t> shape;
    Bytes bytes;
  };
  [[nodiscard]] const Tensor& find(const std::string& tensor) const {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end()) throw std::runtime_error("no fixture tensor " + tensor);
    return found->second;
  }

  std::string file_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace espalier::test
