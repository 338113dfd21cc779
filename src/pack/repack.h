// From one packed format to another without changing a weight: codes, scales and offsets are
// written anew where the other format has the same values, and nothing is rounded.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "pack/matrix.h"

namespace espalier::pack {

// Rows `rows` of `matrix`, in that order, in the format `to`; decode_rows gives the same numbers
// for them as for the originals (a zero may lose its sign). MLX's scales come out as F16. Errors: a
// weight that would change, formats without a way from one to the other.
[[nodiscard]] Result<PackedMatrix> repack_rows(const Matrix& matrix,
                                               std::span<const std::uint64_t> rows,
                                               const Format& to, ThreadPool& threads);

// The smallest format of `family`, kGguf or kMlx, that holds all of `matrix`, which is read whole
// to find that out. Plain formats belong to both and are only taken for themselves. Error: none
// does.
[[nodiscard]] Result<const Format*> find_repacking(const Matrix& matrix, Family family,
                                                   ThreadPool& threads);

}  // namespace espalier::pack
