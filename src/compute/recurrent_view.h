// Where layers with a recurrence keep what they remember of the tokens before.
#pragma once

#include <cstddef>

namespace espalier::compute {

// The state of one layer. It has no positions: rows of a sequence continue from the row before
// theirs, in order, and a row at position 0 begins from zeros, whatever the memory holds.
struct RecurrentView {
  float* convolution = nullptr;  // [sequences, convolution_size]: see CausalConvolution
  float* memory = nullptr;       // [sequences, memory_size]: see DeltaRule
  std::size_t convolution_size = 0;
  std::size_t memory_size = 0;
};

}  // namespace espalier::compute
