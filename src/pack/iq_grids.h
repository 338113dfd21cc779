// The point sets ("grids") of the IQ1, IQ2 and IQ3 formats. A code of such a format is the index of
// a point, which gives several values at once; the points were chosen by the formats' author for
// the vectors that model weights have, so the tables are definitions and follow no formula.
//
// A point is packed into 16 bits, coordinate j (the value of lowest position first) in
//   bits 2j, 2j+1 of a point of eight: digits 0, 1, 2, meaning −1, 0, 1 (IQ1) or 8, 25, 43 (IQ2);
//   bits 3j … 3j+2 of a point of four: digits 0 … 7, meaning 4, 12, 20, 28, 36, 44, 52, 62
//   (IQ3_XXS) or 1, 3, 5 … 15 (IQ3_S).
// The points of IQ2 have an even number of digits 1, as in the lattice E8; those of IQ3_XXS have an
// even sum of digits, as in D4.
#pragma once

#include <cstdint>

namespace espalier::pack {

extern const std::uint16_t kIq1Grid[2048];    // IQ1_S, IQ1_M
extern const std::uint16_t kIq2XxsGrid[256];  // IQ2_XXS
extern const std::uint16_t kIq2XsGrid[512];   // IQ2_XS
extern const std::uint16_t kIq2SGrid[1024];   // IQ2_S
extern const std::uint16_t kIq3XxsGrid[256];  // IQ3_XXS
extern const std::uint16_t kIq3SGrid[512];    // IQ3_S

// What the digits mean.
inline constexpr std::uint8_t kIq2Levels[3] = {8, 25, 43};
inline constexpr std::uint8_t kIq3XxsLevels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr std::uint8_t kIq3SLevels[8] = {1, 3, 5, 7, 9, 11, 13, 15};

// What IQ1 adds to, or subtracts from, every coordinate.
inline constexpr float kIq1Shift = 0.125f;

// The levels of IQ4_NL and IQ4_XS.
inline constexpr std::int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

}  // namespace espalier::pack
