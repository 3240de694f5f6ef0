// A live run or ablation as lines of text, from the ends of its files.
#pragma once

#include <string>
#include <vector>

namespace keel::lab {

struct ScreenSize {
  size_t rows = 24, columns = 80;
};

// At most size.rows lines of at most size.columns characters. An input error where the folder holds neither.
std::vector<std::string> screen_of(const std::string& directory, ScreenSize size);

// The last values as a line of eight heights, the smallest and the largest among them at its ends; "" for none.
std::string sparkline(const std::vector<double>& values, size_t columns);

}  // namespace keel::lab
