// libFuzzer target of the GGUF reader: whatever opens must be safe to walk and to decode.
#include <cstdlib>

#include "base/printable.h"
#include "file/gguf.h"

namespace {

using namespace espalier;

void walk(const file::GgufArray& array) {
  file::GgufElements elements(array);
  std::uint64_t count = 0;
  for (; const auto element = elements.next(); ++count) {
    if (const auto* inner = std::get_if<file::GgufArray>(&element->value)) walk(*inner);
  }
  if (count != array.count) std::abort();
}

void use_metadata(const file::Gguf& gguf) {
  for (const auto& [key, value] : gguf.metadata()) {
    if (gguf.find(key) != &value) std::abort();
    (void)printable(key);
    (void)file::describe(value);
    (void)gguf.unsigned_integer(key);
    (void)gguf.number(key);
    (void)gguf.boolean(key);
    (void)gguf.string(key);
    (void)gguf.strings(key);
    (void)gguf.integers(key);
    (void)gguf.numbers(key);
    if (const auto* array = std::get_if<file::GgufArray>(&value.value)) walk(*array);
  }
}

void use_tensors(const file::Gguf& gguf) {
  std::vector<float> row;
  for (const file::GgufTensor& tensor : gguf.tensors()) {
    if (gguf.find_tensor(tensor.name) != &tensor) std::abort();
    const pack::Matrix matrix = tensor.matrix();
    row.resize(matrix.cols);
    pack::decode_rows(matrix, 0, 1, row.data());
    pack::decode_rows(matrix, matrix.rows - 1, 1, row.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto gguf = file::Gguf::parse(bytes, "fuzz"); gguf) {
    use_metadata(*gguf);
    use_tensors(*gguf);
  }
  return 0;
}
