// Which elements of a matrix each lane holds, transcribed from the PTX ISA, "Matrix Fragments for mma.m16n8k16 with
// floating point type" (.bf16) and "ldmatrix". Written by hand from that text, not from any kernel. There a lane is
// groupID = lane / 4 and threadID_in_group = lane % 4.
#pragma once

namespace keel::cuda_host {

// Element i of a lane's fragment: row = row_per_group * groupID + row_per_thread * threadID_in_group + row, col alike.
struct FragmentElement {
  int row_per_group, row_per_thread, row;
  int col_per_group, col_per_thread, col;
};

struct Position {
  int row, col;
};

constexpr Position position_of(const FragmentElement& element, int lane) {
  const int group = lane / 4, thread = lane % 4;
  return {element.row_per_group * group + element.row_per_thread * thread + element.row,
          element.col_per_group * group + element.col_per_thread * thread + element.col};
}

// A, 16 x 16: a0..a7, two to a register, the lower half first.
//   row = groupID for a0 a1 a4 a5, groupID + 8 for a2 a3 a6 a7
//   col = threadID_in_group * 2 + (i & 1) for i < 4, + 8 for i >= 4
constexpr FragmentElement kFragmentA[8] = {
    {1, 0, 0, 0, 2, 0}, {1, 0, 0, 0, 2, 1}, {1, 0, 8, 0, 2, 0}, {1, 0, 8, 0, 2, 1},
    {1, 0, 0, 0, 2, 8}, {1, 0, 0, 0, 2, 9}, {1, 0, 8, 0, 2, 8}, {1, 0, 8, 0, 2, 9},
};

// B, 16 x 8: b0..b3.
//   row = threadID_in_group * 2 + (i & 1) for i < 2, + 8 for i >= 2;   col = groupID
constexpr FragmentElement kFragmentB[4] = {
    {0, 2, 0, 1, 0, 0},
    {0, 2, 1, 1, 0, 0},
    {0, 2, 8, 1, 0, 0},
    {0, 2, 9, 1, 0, 0},
};

// C and D, 16 x 8: c0..c3.
//   row = groupID for c0 c1, groupID + 8 for c2 c3;   col = threadID_in_group * 2 + (i & 1)
constexpr FragmentElement kFragmentC[4] = {
    {1, 0, 0, 0, 2, 0},
    {1, 0, 0, 0, 2, 1},
    {1, 0, 8, 0, 2, 0},
    {1, 0, 8, 0, 2, 1},
};

// One 8 x 8 matrix of ldmatrix: the two elements of a register, and with .trans.
constexpr FragmentElement kLoaded[2] = {{1, 0, 0, 0, 2, 0}, {1, 0, 0, 0, 2, 1}};
constexpr FragmentElement kLoadedTransposed[2] = {{0, 2, 0, 1, 0, 0}, {0, 2, 1, 1, 0, 0}};

}  // namespace keel::cuda_host
