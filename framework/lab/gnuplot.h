// Pictures by gnuplot (Debian: gnuplot-nox), as SVG that can stand in a file of its own or inside an HTML page.
#pragma once

#include <string>

namespace keel::lab {

// The colours of a picture: ink on a transparent ground.
struct Scheme {
  const char* name;
  const char* ink;
  const char* grid;
  const char* series[8];  // distinct also for colour-blind readers (after Okabe & Ito); the baseline's first
};
extern const Scheme kLight, kDark;

struct Size {
  int width = 760, height = 400;  // pixels
};

// Throws where gnuplot is missing, with the package to install.
void require_gnuplot();

// Runs the script, which must draw one picture; terminal, size and output are set before it. `id` makes the names
// inside the picture its own, so that many may stand in one page.
std::string run_gnuplot(const std::string& script, const std::string& id, Size size);

}  // namespace keel::lab
