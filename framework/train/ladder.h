// What is done about a step in trouble, rung by rung: skip it -> lower the learning rate for a while -> roll back ->
// stop. Each rung is bounded, and good steps lead down again. Pure counting: the same on every rank.
//
// A step whose trouble is seen before its update is skipped. After `max_skips` of them in a row, or
// `max_skips_of_1000` among the last 1,000 attempts, the next rung is taken, and skips count from 0. Light and heavy
// trouble have a budget of skips each. What was done is forgotten `calm_steps` beyond the last trouble.
#pragma once

#include <deque>
#include <functional>
#include <nlohmann/json.hpp>

#include "framework/config/run_config.h"
#include "framework/train/step_report.h"

namespace keel::train {

// How much a trouble is worth.
enum class Grade {
  light,  // a gradient norm alone: clipping bounds what it does, and where it stays high that is how this run is
  heavy,
  taken,  // heavy, and the update has been made: skipping does not help
};

// Whether there is a checkpoint to roll back to, and a rollback left, for trouble that began at this step. None: never.
using MayRollBack = std::function<bool(int64_t step)>;

class Ladder {
 public:
  explicit Ladder(const config::StabilityConfig& options, MayRollBack may_roll_back = {})
      : options_(options), may_roll_back_(std::move(may_roll_back)) {}

  const config::StabilityConfig& options() const { return options_; }
  // The rung for trouble at this step; `proceed` where light trouble is let pass.
  Action climb(int64_t step, Grade grade);
  // Whether light trouble would be skipped now.
  bool skips_light() const { return may_skip(light_); }
  // The step was taken, and nothing was wrong with it.
  void accept(int64_t step);
  // Of the scheduled learning rate.
  double lr_factor(int64_t step) const { return step <= lowered_until_ ? lowered_factor_ : 1; }
  // What heavy trouble has led to so far: "3 skipped steps in a row, the learning rate lowered 2 times".
  std::string history() const;
  // Where the present trouble began; 0 where there is none.
  int64_t first_step() const { return first_step_; }

  nlohmann::json state() const;
  void restore(const nlohmann::json& state);

 private:
  using Steps = std::deque<int64_t>;
  struct Skips {
    int64_t in_a_row = 0;
    Steps steps = {};  // among the last 1,000 attempts
  };
  bool may_skip(const Skips& skips) const;
  bool skip(int64_t step, Skips& skips);
  void lower(int64_t step);

  config::StabilityConfig options_;
  MayRollBack may_roll_back_;
  Skips heavy_, light_;
  int64_t lowered_times_ = 0, lowered_until_ = 0, first_step_ = 0, last_trouble_ = 0;
  double lowered_factor_ = 1;
};

}  // namespace keel::train
