// What is drawn, as gnuplot wrote it, and pages around it.
#include "framework/lab/charts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <regex>
#include <set>

#include "framework/lab/html.h"

namespace keel::lab {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Of the SVG, in pixels.
int height_of(const Picture& picture) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(picture.light, found, std::regex("viewBox=\"0 0 [0-9]+ ([0-9]+)\"")));
  return std::stoi(found[1]);
}

// The texts that a reader sees.
std::vector<std::string> shown_texts(const Picture& picture) {
  std::vector<std::string> texts;
  const std::regex text("<text>(?:<tspan[^>]*>)?([^<]*)<");
  for (std::sregex_iterator found(picture.light.begin(), picture.light.end(), text), end; found != end; ++found)
    texts.push_back((*found)[1]);
  return texts;
}

// From the top.
double y_of_text(const Picture& picture, const std::string& text) {
  const std::string before = picture.light.substr(0, picture.light.find(">" + text + "<"));
  const size_t at = before.rfind("translate(");
  EXPECT_NE(at, std::string::npos);
  return std::stod(before.substr(before.find(',', at) + 1));
}

TEST(Page, EscapesWhatUsersWrote) {
  Page page("a <b> & \"c\"");
  page.table({{"h"}, {"<script>"}, {"-1.5"}});
  EXPECT_THAT(page.text(), HasSubstr("<h1>a &lt;b&gt; &amp; &quot;c&quot;</h1>"));
  EXPECT_THAT(page.text(), HasSubstr("<td>&lt;script&gt;</td>"));
  EXPECT_THAT(page.text(), HasSubstr("<td class=\"number\">-1.5</td>"));
}

TEST(Charts, HeatMapsKeepTheirPeaks) {
  HeatMap map{.rows = {"a"}, .values = {{}}};
  for (int i = 0; i < 1000; ++i) map.x.push_back(i + 1), map.values[0].push_back(i == 537 ? 9 : 1);
  const HeatMap narrow = narrowed(map, 100);
  ASSERT_EQ(narrow.x.size(), 100u);
  EXPECT_EQ(narrow.x.back(), 1000);
  EXPECT_EQ(narrow.values[0][53], 9);
  EXPECT_EQ(narrow.values[0][52], 1);
}

TEST(Charts, LongCurvesKeepTheirExtremes) {
  Series series{.label = "a"};
  for (int i = 0; i < 200000; ++i) series.x.push_back(i), series.y.push_back(i % 2 ? 1.5 : 1);
  series.y[123456] = 9, series.y[77777] = 0.125, series.y[50000] = std::nan(""), series.y[60001] = INFINITY;
  const Series thin = thinned(series, 2000);
  EXPECT_LE(thin.x.size(), 2000u);
  EXPECT_TRUE(std::ranges::is_sorted(thin.x));
  for (size_t at : {123456, 77777, 50000, 60001}) {
    const auto found = std::ranges::find(thin.x, double(at));
    ASSERT_NE(found, thin.x.end()) << at;
    const double kept = thin.y[size_t(found - thin.x.begin())];
    EXPECT_TRUE(kept == series.y[at] || std::isnan(series.y[at])) << at << ": " << kept;
  }
  const Picture picture = draw(Chart{.name = "c", .title = "t", .series = {series}});
  EXPECT_LT(picture.light.size(), 200u << 10);
  EXPECT_THAT(picture.light, HasSubstr("∞"));
  EXPECT_EQ(std::count(picture.csv.begin(), picture.csv.end(), '\n'), 200001) << "the numbers are all there";
}

// gnuplot runs what stands in backticks inside double quotes.
TEST(Charts, NamesAreDrawnAsTheyAre) {
  const auto made = std::filesystem::temp_directory_path() / fmt::format("keel-charts-{}", getpid());
  const std::string name = fmt::format("rms_learned \"x\" {{y}} it's a&b `touch {}`", made.string());
  Chart chart{
      .name = "c",
      .title = "t",
      .x_label = "a_b",
      .y_label = name,
      .series = {{.label = name, .x = {1, 2}, .y = {1, std::nan("")}}, {.label = "", .x = {1, 2}, .y = {INFINITY, 2}}}};
  const Picture picture = draw(chart);
  EXPECT_THAT(picture.light, HasSubstr(fmt::format("rms_learned \"x\" {{y}} it's a&amp;b `touch {}`", made.string())));
  EXPECT_FALSE(std::filesystem::exists(made));
  EXPECT_THAT(picture.dark, ::testing::StartsWith("<svg"));
  EXPECT_THAT(picture.light, HasSubstr("∞"));
  EXPECT_THAT(picture.csv, HasSubstr("\",1,1,,\n"));
  EXPECT_THAT(picture.csv, HasSubstr("\n,1,inf,,\n,2,2,,\n"));
}

TEST(Charts, PointsDrawnAsideKeepTheirX) {
  Chart chart{.name = "c", .title = "t", .x_names = {"a", "b"}};
  for (int line = 0; line < 30; ++line)
    chart.series.push_back({.label = std::to_string(line), .x = {0, 1}, .y = {1, 2}, .aside = line < 15 ? -0.6 : 0.6});
  const std::string csv = draw(chart).csv;
  EXPECT_THAT(csv, HasSubstr("\n0,a,1,,\n0,b,2,,\n"));
  EXPECT_THAT(csv, HasSubstr("\n29,a,1,,\n29,b,2,,\n"));
}

TEST(Charts, NothingToDrawIsSaid) {
  const double nan = std::nan("");
  const std::vector<Series> nothing[] = {
      {}, {{.label = "a"}}, {{.label = "a", .x = {1, 2}, .y = {nan, nan}}}, {{.label = "a", .x = {1}, .y = {-1}}}};
  for (const auto& series : nothing)
    EXPECT_THAT(draw(Chart{.name = "c", .log_y = true, .series = series, .levels = {{"level", 1}}}).light,
                HasSubstr("no values"));
  for (const auto& values : {std::vector<std::vector<double>>{{nan, nan}, {nan, nan}}, {{0, -1}, {-2, nan}}})
    EXPECT_THAT(draw(HeatMap{.name = "h", .x = {1, 2}, .rows = {"a", "b"}, .values = values, .log_color = true}).light,
                HasSubstr("no values"));
}

TEST(Charts, HeatMapsOfAnySize) {
  for (size_t rows : {1, 2})
    for (size_t columns : {1, 2, 3}) {
      HeatMap map{.name = "h", .x = std::vector<double>(columns, 1.0), .rows = std::vector<std::string>(rows, "r")};
      map.values.assign(rows, std::vector<double>(columns, 5.0));
      map.values[0][0] = INFINITY;
      const bool one = rows * columns == 1;
      EXPECT_THAT(draw(map).light, one ? HasSubstr("no values") : HasSubstr("<svg")) << rows << " x " << columns;
      EXPECT_THAT(draw(map).csv, HasSubstr("r,inf"));
    }
}

TEST(Charts, HeatMapsKeepCollapsesWhereAsked) {
  HeatMap map{.name = "h", .rows = {"a"}, .values = {{}}, .keeps_least = true};
  for (int i = 0; i < 1000; ++i) map.x.push_back(i + 1), map.values[0].push_back(i == 537 ? 0.1 : 4);
  EXPECT_EQ(narrowed(map, 100).values[0][53], 0.1);
  EXPECT_EQ(narrowed(map, 100).values[0][52], 4);
  const std::string csv = draw(map).csv;
  EXPECT_THAT(csv, HasSubstr(",4,0.1,4,")) << "the numbers are all there";
  EXPECT_EQ(std::count(csv.begin(), csv.end(), ','), 2000);
}

// 1,024 layers are drawn in as much room as fewer are.
TEST(Charts, ManyRowsAreDrawnByGroups) {
  for (bool least : {false, true}) {
    HeatMap map{.name = "h", .x = {1, 2}, .group = 64, .keeps_least = least};
    for (int layer = 0; layer < 64; ++layer) {
      map.groups.push_back(fmt::format("layer {}", layer));
      for (int head = 0; head < 64; ++head) {
        map.rows.push_back(fmt::format("{}", head));
        map.values.push_back({double(layer), head == 7 ? (least ? -9.0 : 99.0) : layer + 1.0});
      }
    }
    const HeatMap shown = grouped(map);
    ASSERT_EQ(shown.rows.size(), 64u);
    EXPECT_EQ(shown.rows[3], "layer 3");
    EXPECT_THAT(shown.values[3], ::testing::ElementsAre(3, least ? -9 : 99));
    const Picture picture = draw(map);
    EXPECT_EQ(std::count(picture.csv.begin(), picture.csv.end(), '\n'), 1 + 64 * 64);
    EXPECT_LT(height_of(picture), 1200);
    EXPECT_THAT(shown_texts(picture), Contains("layer 3"));
  }
  HeatMap plain{.name = "h", .x = {1, 2}, .rows = std::vector<std::string>(1024, "r")};
  plain.values.assign(1024, {1, 2});
  EXPECT_LT(height_of(draw(plain)), 3000);
}

TEST(Charts, ElevenSeriesLookDifferent) {
  std::set<std::tuple<int, int, int>> looks;
  for (int i = 0; i < 40; ++i) {
    const Look look = look_of({.color = i, .dashed = i == 0});
    looks.insert({look.color, look.dash, look.point});
  }
  EXPECT_EQ(looks.size(), 40u);
}

// Names on the x axis say nothing of the lines.
TEST(Charts, SeveralLinesHaveALegend) {
  Chart chart{.name = "c", .title = "t", .x_names = {"fp32", "bf16"}};
  for (const char* arm : {"apple", "pear"}) chart.series.push_back({.label = arm, .x = {0, 1}, .y = {1, 2}});
  EXPECT_THAT(shown_texts(draw(chart)), ::testing::IsSupersetOf({"apple", "pear", "fp32", "bf16"}));
  chart.legend = false;
  EXPECT_THAT(shown_texts(draw(chart)), Not(Contains("apple")));
}

// Their paper is whatever the page's is.
TEST(Charts, BarsAreDrawnInTheColorOfTheirSeries) {
  const Series bars{.label = "a", .x = {1, 2}, .y = {2, 3}, .low = {1, 2.5}, .high = {3, 3.5}, .points = true};
  const Picture picture = draw(Chart{.name = "c", .title = "t", .series = {bars, {.label = "b", .x = {1}, .y = {2}}}});
  for (const std::string& svg : {picture.light, picture.dark}) EXPECT_THAT(svg, Not(HasSubstr(" color='white'")));
  Chart without{.name = "c", .title = "t", .series = {bars}};
  without.series[0].low = without.series[0].high = {};
  EXPECT_GT(picture.light.size(), draw(without).light.size());
}

TEST(Charts, ManyNamesStandAslant) {
  for (size_t names : {6, 7}) {
    Chart chart{.name = "c", .title = "t", .x_names = std::vector<std::string>(names, "an_arm_with_a_name")};
    chart.series.push_back({.label = "a", .x = {0, 1}, .y = {1, 2}});
    EXPECT_EQ(draw(chart).light.find("rotate(-30") != std::string::npos, names > 6) << names;
  }
}

TEST(Charts, OpenPointsAreExplained) {
  Chart chart{.name = "c", .title = "t", .open_label = "broken"};
  chart.series.push_back({.label = "a", .x = {1, 2}, .y = {1, 2}, .open = {false, false}, .points = true});
  EXPECT_THAT(shown_texts(draw(chart)), Not(Contains("broken")));
  chart.series[0].open[1] = true;
  EXPECT_THAT(shown_texts(draw(chart)), Contains("broken"));
}

// In the 400 pixels of a picture, from the top: the sign of what is not finite, then the level, then the values.
TEST(Charts, WhatIsNotFiniteStandsAboveEverything) {
  const Picture picture = draw(Chart{.name = "c",
                                     .title = "t",
                                     .log_y = true,
                                     .series = {{.label = "a", .x = {1, 2, 3}, .y = {10, 100, INFINITY}}},
                                     .levels = {{"lost above", 1e4}}});
  EXPECT_LT(y_of_text(picture, "∞"), y_of_text(picture, "lost above") - 5);
}

}  // namespace
}  // namespace keel::lab
