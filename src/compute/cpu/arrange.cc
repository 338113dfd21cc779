#include "compute/cpu/arrange.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include <sys/mman.h>

#include "base/interrupt.h"
#include "compute/cpu/exl3_kernels.h"
#include "compute/cpu/panel.h"

namespace espalier::cpu {
namespace {

constexpr std::size_t kWord = 4;

constexpr std::size_t kAlignment = 64;  // of a vector
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPiece = std::size_t{32} << 20;

template <std::size_t kSize>
std::byte* put(const std::byte* const* rows, std::size_t lanes, std::size_t at, std::byte* to) {
  for (std::size_t l = 0; l < lanes; ++l, to += kSize) std::memcpy(to, rows[l] + at, kSize);
  return to;
}

// The block at byte `at` of every row.
std::byte* put_block(const CodeKernel& kernel, const std::byte* const* rows, std::size_t lanes,
                     std::size_t at, std::byte* to) {
  const std::size_t odd = kernel.block_bytes % kWord;
  for (std::size_t b = 0; b < kernel.block_bytes;) {
    if (b == kernel.odd_at && odd != 0) {
      to = odd == 1 ? put<1>(rows, lanes, at + b, to) : put<2>(rows, lanes, at + b, to);
      b += odd;
    } else {
      to = put<kWord>(rows, lanes, at + b, to);
      b += kWord;
    }
  }
  return to;
}

// Calls body(index) for all of [0, count), or as many as there is time for until Ctrl+C. Whether
// that was all.
template <typename Body>
bool for_all(ThreadPool& pool, std::size_t count, const Body& body) {
  pool.parallel_for(count, [&](std::size_t begin, std::size_t end, std::size_t) {
    for (std::size_t i = begin; i < end && !interrupt_pending(); ++i) body(i);
  });
  return !interrupt_pending();
}

// Tile by tile, to where exl3_tiles() finds them.
bool put_tiles(ThreadPool& pool, const pack::Matrix& w, std::byte* to) {
  const std::size_t bytes = w.format->block_bytes;
  const Exl3Tiles from = exl3_tiles(w, nullptr);
  const std::size_t inputs = w.data.size() / from.input_stride;
  return for_all(pool, from.input_stride / bytes, [&](std::size_t o) {
    for (std::size_t i = 0; i < inputs; ++i) {
      std::memcpy(to + (o * inputs + i) * bytes,
                  from.tiles + i * from.input_stride + o * from.output_stride, bytes);
    }
  });
}

// Panel by panel.
bool put_panels(ThreadPool& pool, const pack::Matrix& w, const CodeKernel& kernel,
                std::size_t panels, std::byte* arranged) {
  const std::size_t lanes = code_kernels().lanes;
  const std::size_t row_bytes = w.cols / kernel.block * kernel.block_bytes;
  return for_all(pool, panels, [&](std::size_t p) {
    const std::byte* rows[kMaxLanes];
    for (std::size_t l = 0; l < lanes; ++l) {
      rows[l] = w.data.data() + std::min(p * lanes + l, w.rows - 1) * row_bytes;
    }
    std::byte* to = arranged + p * lanes * row_bytes;
    for (std::size_t at = 0; at < row_bytes; at += kernel.block_bytes) {
      to = put_block(kernel, rows, lanes, at, to);
    }
  });
}

}  // namespace

std::shared_ptr<std::byte> Arranger::allocate(std::size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > piece_size_ - used_) {
    piece_size_ = (std::max(bytes, kPiece) + kHugePage - 1) / kHugePage * kHugePage;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(kHugePage, piece_size_));
    if (memory == nullptr) throw std::bad_alloc();
    piece_ = std::shared_ptr<std::byte>(memory, [](std::byte* p) { std::free(p); });
    ::madvise(memory, piece_size_, MADV_HUGEPAGE);
    used_ = 0;
  }
  std::shared_ptr<std::byte> part(piece_, piece_.get() + used_);
  used_ += bytes;
  return part;
}

std::shared_ptr<const std::byte> Arranger::arrange(ThreadPool& pool, const pack::Matrix& w) {
  if (w.format == nullptr || w.rows == 0 || interrupt_pending()) return nullptr;
  std::shared_ptr<std::byte> arranged;
  if (has_exl3_kernel(w)) {
    arranged = allocate(w.data.size());
    return put_tiles(pool, w, arranged.get()) ? arranged : nullptr;
  }
  const CodeKernel* kernel = find_code_kernel(w);
  if (kernel == nullptr || kernel->unpack_arranged == nullptr) return nullptr;
  const std::size_t lanes = code_kernels().lanes;
  const std::size_t panels = (w.rows + lanes - 1) / lanes;
  arranged = allocate(panels * lanes * (w.cols / kernel->block) * kernel->block_bytes);
  return put_panels(pool, w, *kernel, panels, arranged.get()) ? arranged : nullptr;
}

}  // namespace espalier::cpu
