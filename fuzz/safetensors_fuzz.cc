// libFuzzer target of the safetensors reader: whatever opens must be safe to walk.
#include <cstdlib>

#include "base/printable.h"
#include "file/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace espalier;
  const Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto parsed = file::Safetensors::parse(bytes, "fuzz");
  if (!parsed) {
    if (parsed.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  unsigned sum = 0;
  for (const file::SafetensorsTensor& tensor : parsed->tensors()) {
    if (parsed->find(tensor.name) != &tensor) std::abort();
    if (file::tensor_bytes(tensor.dtype, tensor.shape) != tensor.data.size()) std::abort();
    for (const std::byte byte : tensor.data) sum += std::to_integer<unsigned>(byte);
    (void)printable(tensor.name);
    (void)file::shape_text(tensor.shape);
  }
  return sum == 0xffffffffu ? -1 : 0;  // the sum is used, so that the bytes are read
}
