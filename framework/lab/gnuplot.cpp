#include "framework/lab/gnuplot.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "framework/io/files.h"

namespace keel::lab {
namespace {

constexpr uint64_t kLargestPicture = 64 << 20;

// A folder for one picture, removed with it.
class Workplace {
 public:
  Workplace() : path_((std::filesystem::temp_directory_path() / "keel-picture-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw io::file_error(path_, "cannot create", errno);
  }
  ~Workplace() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

}  // namespace

const Scheme kLight = {"light",
                       "#333333",
                       "#dddddd",
                       {"#d55e00", "#0072b2", "#009e73", "#b0569a", "#8a6d00", "#3c9fd0", "#6b4fbb", "#777777"}};
const Scheme kDark = {"dark",
                      "#d8d8d8",
                      "#3d3d3d",
                      {"#ff8c42", "#58b4f5", "#3ddba6", "#ef9fd2", "#e6c84a", "#9ad8ff", "#b9a5ff", "#aaaaaa"}};

void require_gnuplot() {
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0)
    throw input_error("keel report draws with gnuplot, which is missing: install the package gnuplot-nox");
}

std::string run_gnuplot(const std::string& script, const std::string& id, Size size) {
  const Workplace place;
  io::write_file(place / "script",
                 fmt::format("set terminal svg size {},{} dynamic enhanced font 'sans-serif,13' name '{}'\n"
                             "set output '{}'\n{}",
                             size.width, size.height, id, place / "picture", script));
  const std::string command = fmt::format("gnuplot '{}' >'{}' 2>&1", place / "script", place / "said");
  if (std::system(command.c_str()) != 0 || !std::filesystem::exists(place / "picture"))
    throw Error(ErrorKind::internal,
                fmt::format("gnuplot could not draw {}: {}", id, io::read_file(place / "said", kLargestPicture)));
  std::string svg = io::read_file(place / "picture", kLargestPicture);
  svg.erase(0, svg.find("<svg"));
  return replaced(replaced(svg, "'gp", fmt::format("'{}_gp", id)), "'#gp", fmt::format("'#{}_gp", id));
}

}  // namespace keel::lab
