#include "compute/workspace.h"

#include <algorithm>
#include <new>

namespace espalier::compute {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kAlignmentFloats = 64 / sizeof(float);
constexpr std::size_t kMinimumChunk = std::size_t{1} << 20;  // 4 MiB

}  // namespace

void Workspace::AlignedDelete::operator()(float* memory) const {
  ::operator delete(memory, kAlignment);
}

float* Workspace::floats(std::size_t count) {
  const std::size_t rounded = (count + kAlignmentFloats - 1) / kAlignmentFloats * kAlignmentFloats;
  while (chunk_ < chunks_.size() && used_ + rounded > chunks_[chunk_].size) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const std::size_t size = std::max(rounded, kMinimumChunk);
    auto* memory = static_cast<float*>(::operator new(size * sizeof(float), kAlignment));
    chunks_.push_back({std::unique_ptr<float, AlignedDelete>(memory), size});
  }
  float* taken = chunks_[chunk_].memory.get() + used_;
  used_ += rounded;
  return taken;
}

}  // namespace espalier::compute
