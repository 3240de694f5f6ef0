// One HTML page that needs nothing else: style and pictures inside it, light or dark as the reader's system says.
#pragma once

#include <string>
#include <vector>

#include "framework/lab/charts.h"

namespace keel::lab {

// Everything but Html is a text, and is escaped.
class Page {
 public:
  explicit Page(const std::string& title);

  void heading(const std::string& text);
  void paragraph(const std::string& text, const std::string& kind = "");  // kind: "" or "finding"
  // The first row is the header. A cell that begins with a digit or a sign is set as a number.
  void table(const std::vector<std::vector<std::string>>& rows);
  void picture(const Picture& picture, const std::string& caption);
  // A part that opens on a click.
  void details(const std::string& summary, const std::string& preformatted);

  std::string text() const;
  const std::vector<Picture>& pictures() const { return pictures_; }

 private:
  std::string title_, body_;
  std::vector<Picture> pictures_;
};

// DIRECTORY/report.html, and each picture with its numbers in DIRECTORY/report/.
void write_page(const Page& page, const std::string& directory);

}  // namespace keel::lab
