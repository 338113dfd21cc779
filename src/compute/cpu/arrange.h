// The same bits in the order in which kernels read them: one stream of memory instead of one per
// row.
//
// The rows of a panel (panel.h) lie side by side: for each block in turn, its first four bytes of
// every row, then the next four, and so on; a part of a block that is no word of four bytes is as
// narrow here. What is at byte b of every row begins at lanes · b. Rows past the last repeat it.
//
// The tiles of EXL3 lie in the order of the outputs, those of the same 16 outputs side by side.
#pragma once

#include <cstddef>
#include <memory>

#include "base/thread_pool.h"
#include "pack/matrix.h"

namespace espalier::cpu {

// Arranges matrices for this machine's instruction set, in large pieces of memory that many share:
// on huge pages, a processor does not run out of translations of addresses.
class Arranger {
 public:
  // Null where the format has no kernel for this order, and after Ctrl+C. Takes as much memory as
  // w's blocks, with the rows rounded up to whole panels. The memory lives as long as anything that
  // was put into it.
  [[nodiscard]] std::shared_ptr<const std::byte> arrange(ThreadPool& pool, const pack::Matrix& w);

 private:
  std::shared_ptr<std::byte> allocate(std::size_t bytes);

  std::shared_ptr<std::byte> piece_;
  std::size_t piece_size_ = 0;
  std::size_t used_ = 0;
};

}  // namespace espalier::cpu
