#include "framework/lab/html.h"

#include <fmt/format.h>

#include "framework/io/files.h"

namespace keel::lab {
namespace {

constexpr const char* kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>%TITLE%</title><style>
:root { --paper: #ffffff; --ink: #222222; --soft: #666666; --line: #dddddd; --box: #f4f6f8; --accent: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #181a1d; --ink: #e4e4e4; --soft: #a0a0a0; --line: #3a3d42; --box: #22262b; --accent: #58b4f5; }
  .light { display: none; }
}
@media (prefers-color-scheme: light) { .dark { display: none; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 1080px;
  margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.6em; margin: 0 0 .2em; }
h2 { font-size: 1.15em; margin: 2em 0 .5em; padding-bottom: .2em; border-bottom: 1px solid var(--line); }
p { max-width: 75ch; }
.finding { background: var(--box); border-left: 4px solid var(--accent); padding: .7em 1em; }
.scroll { overflow-x: auto; margin: .8em 0; }
table { border-collapse: collapse; font-size: .92em; }
th, td { text-align: left; padding: .28em .9em .28em 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1.2em 0; }
figure svg { width: 100%; max-width: 900px; height: auto; }
svg image { image-rendering: pixelated; }
figcaption, .soft { color: var(--soft); font-size: .92em; max-width: 80ch; }
figcaption b { color: var(--ink); }
pre { background: var(--box); padding: .8em; overflow-x: auto; font-size: .85em; }
summary { cursor: pointer; color: var(--accent); margin-top: 1em; }
</style></head><body>
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (char letter : text) {
    switch (letter) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += letter;
    }
  }
  return out;
}

bool is_number(const std::string& cell) {
  return !cell.empty() && std::string("0123456789+-").find(cell[0]) != std::string::npos;
}

}  // namespace

Page::Page(const std::string& title) : title_(title), body_(fmt::format("<h1>{}</h1>\n", escaped(title))) {}

void Page::heading(const std::string& text) {
  body_ += fmt::format("<h2>{}</h2>\n", escaped(text));
}

void Page::paragraph(const std::string& text, const std::string& kind) {
  body_ += fmt::format("<p class=\"{}\">{}</p>\n", kind, escaped(text));
}

void Page::table(const std::vector<std::vector<std::string>>& rows) {
  body_ += "<div class=\"scroll\"><table>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    body_ += "<tr>";
    for (const std::string& cell : rows[i])
      body_ += i == 0 ? fmt::format("<th>{}</th>", escaped(cell))
                      : fmt::format("<td{}>{}</td>", is_number(cell) ? " class=\"number\"" : "", escaped(cell));
    body_ += "</tr>\n";
  }
  body_ += "</table></div>\n";
}

void Page::picture(const Picture& picture, const std::string& caption) {
  body_ += fmt::format(
      "<figure><figcaption><b>{}</b> {}</figcaption>\n<div class=\"light\">{}</div>\n<div "
      "class=\"dark\">{}</div></figure>\n",
      escaped(picture.title), escaped(caption), picture.light, picture.dark);
  pictures_.push_back(picture);
}

void Page::details(const std::string& summary, const std::string& preformatted) {
  body_ +=
      fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n", escaped(summary), escaped(preformatted));
}

std::string Page::text() const {
  std::string head = kHead;
  head.replace(head.find("%TITLE%"), 7, escaped(title_));
  return head + body_ + "</body></html>\n";
}

void write_page(const Page& page, const std::string& directory) {
  const std::string folder = directory + "/report";
  io::create_directories(folder);
  for (const Picture& picture : page.pictures()) {
    io::write_file(fmt::format("{}/{}.svg", folder, picture.name), picture.light);
    io::write_file(fmt::format("{}/{}-dark.svg", folder, picture.name), picture.dark);
    io::write_file(fmt::format("{}/{}.csv", folder, picture.name), picture.csv);
  }
  io::write_file(directory + "/report.html", page.text());
}

}  // namespace keel::lab
