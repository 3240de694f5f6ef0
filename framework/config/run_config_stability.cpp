// The description of every key of `stability`.
#include "framework/config/run_config.h"

namespace keel::config {

using enum OnResume;

void describe(Fields& fields, SpikeConfig& c) {
  fields.add("enabled", c.enabled,
             {.doc = "Act on steps whose loss, norms, logits or entropy leap.", .on_resume = changeable});
  fields.add("window", c.window,
             {.doc = "Accepted steps that mean and deviation are taken over.",
              .unit = "steps",
              .range = at_least(2),
              .on_resume = changeable});
  fields.add("min_history", c.min_history,
             {.doc = "Accepted steps before the first verdict.",
              .unit = "steps",
              .range = at_least(2),
              .on_resume = changeable});
  fields.add("sigmas", c.sigmas,
             {.doc = "A spike lies this many standard deviations above the mean.",
              .unit = "deviations",
              .range = above(0),
              .on_resume = changeable,
              .synonyms = {"sigma", "threshold"}});
  fields.add("deviation_floor", c.deviation_floor,
             {.doc = "The deviation of losses counts as at least this share of their mean.",
              .range = above(0),
              .on_resume = changeable});
  fields.add(
      "gradient_deviation_floor", c.gradient_deviation_floor,
      {.doc = "The same for gradient norms, which are long-tailed and clipped: 4 with 6 sigmas lets up to 25 times the "
              "mean pass. Such spikes are skipped but never lead to the next rung: where they stay, they are let pass.",
       .range = above(0),
       .on_resume = changeable});
  fields.add("update_deviation_floor", c.update_deviation_floor,
             {.doc = "The same for the norm of the update over the learning rate, which is narrow.",
              .range = above(0),
              .on_resume = changeable});
}

void describe(Fields& fields, QkClipConfig& c) {
  fields.add("tau", c.tau,
             {.doc = "Heads whose largest logit passes this are scaled back to it.",
              .range = above(0),
              .on_resume = changeable,
              .synonyms = {"threshold"}});
}

void describe(Fields& fields, PerHeadConfig& c) {
  fields.add("logit_factor", c.logit_factor,
             {.doc = "A head whose largest logit is this many times its recent mean is in trouble.",
              .range = above(1),
              .on_resume = changeable});
  fields.add(
      "logit_floor", c.logit_floor,
      {.doc = "Logits up to this are none, however fast they rose.", .range = at_least(0), .on_resume = changeable});
  fields.add("min_entropy", c.min_entropy,
             {.doc = "A head whose mean attention entropy falls below this, from ten times as much, is in trouble; "
                     "seen on telemetry steps.",
              .unit = "nats",
              .range = at_least(0),
              .on_resume = changeable});
}

void describe(Fields& fields, LowerLrConfig& c) {
  fields.add("factor", c.factor,
             {.doc = "Factor on the learning rate.",
              .range = {.low = 0, .high = 1, .low_open = true, .high_open = true},
              .on_resume = changeable});
  fields.add("steps", c.steps,
             {.doc = "For how long it is lowered.", .unit = "steps", .range = at_least(1), .on_resume = changeable});
  fields.add("times", c.times,
             {.doc = "How often, before the next rung; 0: this rung is left out.",
              .range = at_least(0),
              .on_resume = changeable});
}

void describe(Fields& fields, RollbackConfig& c) {
  fields.add(
      "times", c.times,
      {.doc = "How often the run goes back to a checkpoint before the trouble, before the next rung; 0: this rung "
              "is left out.",
       .range = at_least(0),
       .on_resume = changeable});
  fields.add("per_checkpoint", c.per_checkpoint,
             {.doc = "How often to the same checkpoint, before an older one is taken.",
              .range = at_least(1),
              .on_resume = changeable});
  fields.add("leave_out", c.leave_out,
             {.doc = "The samples of the steps in trouble are not taken again.", .on_resume = changeable});
  fields.add("more_samples", c.more_samples,
             {.doc = "So many after them are left out, too.",
              .unit = "samples",
              .range = at_least(0),
              .on_resume = changeable});
}

void describe(Fields& fields, StabilityConfig& c) {
  fields.add("max_skips", c.max_skips,
             {.doc = "Consecutive steps in trouble (loss, gradient or logits not finite, loss or logits leaping) that "
                     "are skipped before the next rung: lower_lr, then rollback, then fallbacks, then the run stops "
                     "with exit 3. As many spikes of the gradient norm are skipped beside them, then let pass.",
              .unit = "steps",
              .range = at_least(0),
              .on_resume = changeable});
  fields.add("max_skips_of_1000", c.max_skips_of_1000,
             {.doc = "The same for skipped steps among the last 1,000, where it is above max_skips.",
              .unit = "steps",
              .range = at_least(0),
              .on_resume = changeable});
  fields.add("spike", c.spike, {.doc = "Detection of spikes of the loss, the gradient norm and the update norm."});
  fields.add("per_head", c.per_head, {.doc = "What single heads must not do."});
  fields.add("lower_lr", c.lower_lr, {.doc = "The second rung."});
  fields.add("rollback", c.rollback, {.doc = "The third rung."});
  fields.add(
      "fallbacks", c.fallbacks,
      {.doc = "The fourth rung: changes to this config, such as [{optimizer.lr: 1e-4}, {optimizer.lr: 5e-5, "
              "optimizer.clip_norm: 0.5}]. Each comes with a rollback and is laid over the config as it is here, "
              "in the place of the one before.",
       .on_resume = ignored,
       .synonyms = {"custom_fallbacks", "fallback"}});
  fields.add("calm_steps", c.calm_steps,
             {.doc = "So many steps beyond the last trouble, lowerings and rollbacks count from 0 again.",
              .unit = "steps",
              .range = at_least(1),
              .on_resume = changeable});
  fields.add("on_event", c.on_event,
             {.doc = "Shell command that gets each event of this section and each failed save as JSON on its standard "
                     "input; training never waits for it.",
              .on_resume = ignored,
              .synonyms = {"hook", "command"}});
  fields.add(
      "on_event_limit", c.on_event_limit,
      {.doc = "The command is killed after this.", .unit = "d, h, m, s", .range = at_least(1), .on_resume = ignored});
  fields.add("qk_clip", c.qk_clip, {.doc = "QK-clip after each update; null: off.", .on_resume = changeable});
  fields.add(
      "check_replicas", c.check_replicas,
      {.doc = "Steps between checks that all ranks which hold the same weights hold the same bits, the first one "
              "before step 1; null: none.",
       .unit = "steps",
       .range = at_least(1),
       .on_resume = ignored});
}

}  // namespace keel::config
