// What an ablation leaves in its folder beside the cells.
#include "framework/lab/ablation.h"

#include <gmock/gmock.h>

#include "framework/io/hdf5.h"
#include "tests/support/disk.h"
#include "tests/support/folder.h"

namespace keel::lab {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Tables : public ::testing::Test {
 protected:
  // Two cells that have ended after so many steps, and one that has not.
  void make(int64_t steps) {
    plan_ = {.name = "study", .baseline = "a", .arms = {{"a", {}}, {"b", {}}, {"c", {}}}, .seeds = {1}};
    for (const char* name : {"a", "b", "c"}) plan_.cells.push_back({std::string(name) + "-seed1", name, {}, 1, {}});
    for (size_t cell : {0, 1}) {
      const std::string folder = cell_directory(path_, plan_.cells[cell]);
      io::create_directories(folder);
      io::JsonLinesWriter metrics(folder + "/metrics.jsonl");
      for (int64_t step = 1; step <= steps; ++step)
        metrics.write({{"step", step}, {"loss", loss(cell, step)}, {"largest_logit", 3.0 + double(step)}});
      metrics.write({{"step", steps}, {"valid_loss", 2.5 + double(cell)}});
      write_result(folder, {.steps = steps, .valid_loss = 2.5 + double(cell), .largest_logit = 3.0 + double(steps)});
    }
  }
  static double loss(size_t cell, int64_t step) { return 5 + double(cell) + 1 / double(step); }

  template <class T>
  std::vector<T> curve(const std::string& cell, const std::string& name) {
    return io_.run([&](io::IoContext& context) {
      const io::File file = io::File::open(context, path_ + "/ablation.h5", io::Access::read);
      return file.open_dataset("curves/" + cell + "/" + name).read_all<T>();
    });
  }
  std::string text(const char* name) {
    return io_.run([&](io::IoContext& context) {
      return io::File::open(context, path_ + "/ablation.h5", io::Access::read).read_text(name);
    });
  }

  testing::TemporaryFolder folder_;
  std::string path_ = folder_ / "study";
  Plan plan_;
  io::IoThread io_;
};

TEST_F(Tables, Hdf5HoldsThemAndTheCurves) {
  make(3);
  write_tables(io_, path_, plan_);
  const std::string cells = testing::read_bytes(path_ + "/cells.csv");
  EXPECT_THAT(cells, HasSubstr("\na-seed1,a,1,done,3,")) << "it is none of an empty ablation";
  EXPECT_THAT(cells, HasSubstr("\nb-seed1,b,1,done,3,"));
  EXPECT_EQ(text("cells_csv"), cells);
  EXPECT_EQ(text("costs_csv"), testing::read_bytes(path_ + "/costs.csv"));
  EXPECT_EQ(plan_from_json(io::Json::parse(text("plan"))).cells.size(), 3u);
  for (size_t cell : {0, 1}) {
    const std::string& name = plan_.cells[cell].name;
    EXPECT_THAT(curve<int64_t>(name, "step"), ElementsAre(1, 2, 3));
    EXPECT_THAT(curve<double>(name, "loss"), ElementsAre(loss(cell, 1), loss(cell, 2), loss(cell, 3)));
    EXPECT_THAT(curve<double>(name, "largest_logit"), ElementsAre(4, 5, 6));
    EXPECT_THAT(curve<int64_t>(name, "evaluated_step"), ElementsAre(3));
    EXPECT_THAT(curve<double>(name, "valid_loss"), ElementsAre(2.5 + double(cell)));
  }
  const auto members = io_.run([&](io::IoContext& context) {
    return io::File::open(context, path_ + "/ablation.h5", io::Access::read).open_group("curves").names();
  });
  EXPECT_THAT(members, ElementsAre("a-seed1", "b-seed1"));
}

TEST_F(Tables, NothingIsLeftOfOneThatCannotBeWritten) {
  make(5000);
  {
    const testing::FileSizeLimit full(64 << 10);
    EXPECT_THROW(write_tables(io_, path_, plan_), Error);
  }
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) names.insert(entry.path().filename());
  EXPECT_THAT(names, ElementsAre("cells", "cells.csv", "costs.csv"));
  write_tables(io_, path_, plan_);
  EXPECT_EQ(curve<int64_t>("a-seed1", "step").size(), 5000u);
}

}  // namespace
}  // namespace keel::lab
