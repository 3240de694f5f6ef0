// The description of every key, those of `stability` beside it; configs/README.md is generated from it.
#include "framework/config/run_config.h"

namespace keel::config {

using enum OnResume;

std::vector<std::string> enum_names(Precision) {
  return {"bf16", "fp32"};
}
std::vector<std::string> enum_names(DeviceKind) {
  return {"cpu", "cuda"};
}
std::vector<std::string> enum_names(OptimizerKind) {
  return {"adamw"};
}
std::vector<std::string> enum_names(RoundingKind) {
  return {"nearest", "stochastic"};
}
std::vector<std::string> enum_names(DecayKind) {
  return {"lr", "independent"};
}
std::vector<std::string> enum_names(ScheduleKind) {
  return {"cosine", "wsd", "constant"};
}
std::vector<std::string> enum_names(IdType) {
  return {"uint16", "uint32"};
}
std::vector<std::string> enum_names(ResumeFrom) {
  return {"auto", "none"};
}

void describe(Fields& fields, DataSource& c) {
  fields.add(
      "path", c.path,
      {.doc =
           "A pair PREFIX.bin and PREFIX.idx by its prefix, or one .bin or .npy file, or a pattern such as "
           "data/shard_*.bin for several (of X.bin and X-valid.bin, X.bin alone); on resume the contents are compared, "
           "not the path.",
       .on_resume = ignored,
       .required = true,
       .shorthand = true,
       .synonyms = {"prefix", "file"}});
  fields.add(
      "weight", c.weight,
      {.doc = "Share of the samples, relative to the other sources. Where none has one, all sources are one set: an "
              "epoch shows each sample of all once.",
       .range = above(0)});
  fields.add("type", c.type,
             {.doc = "Of the ids of a file without a header, as OLMo-core and dolma write .npy files. Others say it "
                     "themselves.",
              .synonyms = {"dtype"}});
  fields.add(
      "document_end", c.document_end,
      {.doc = "The id that ends each document, for data.document_mask, where the file has no .idx that says where "
              "documents begin.",
       .range = at_least(0),
       .synonyms = {"eos_token_id", "eot"}});
}

void describe(Fields& fields, SpecialIds& c) {
  fields.add("bos", c.bos, {.doc = "Begins a text; exported, no more.", .range = at_least(0)});
  fields.add(
      "eos", c.eos,
      {.doc = "End a text, beside the tokenizer's own id: generation stops there. Exported as they are; empty: the "
              "tokenizer's own id.",
       .range = at_least(0)});
  fields.add("pad", c.pad, {.doc = "Fills rows up; exported, no more.", .range = at_least(0)});
}

void describe(Fields& fields, DataConfig& c) {
  fields.add("train", c.train,
             {.doc = "Token files to train on; a text alone is one source.",
              .required = true,
              .synonyms = {"train_data", "dataset", "data_path"}});
  fields.add("valid", c.valid,
             {.doc = "Held-out token files, in the same forms.",
              .on_resume = changeable,
              .synonyms = {"validation", "val", "eval"}});
  fields.add("sequence_length", c.sequence_length,
             {.doc = "Length of every training sample.",
              .unit = "tokens",
              .range = at_least(1),
              .synonyms = {"seq_len", "seq_length", "block_size", "context_length", "max_seq_len"}});
  fields.add("document_mask", c.document_mask,
             {.doc = "Packed documents do not attend to one another, and the last token of a document does not predict "
                     "the first of the next.",
              .synonyms = {"doc_mask", "reset_attention_mask"}});
  fields.add(
      "tokenizer", c.tokenizer,
      {.doc = "Tokenizer for texts, where the training data has no notes: a .model, a tokenizer.json, or a folder "
              "with one of them.",
       .on_resume = ignored});
  fields.add(
      "tokenizer_crc32c", c.tokenizer_crc32c,
      {.doc = "CRC32C of the tokenizer's file, filled in where a run begins: texts and held-out tokens of another "
              "one are refused. null: of the file that is there.",
       .range = at_least(0),
       .on_resume = ignored});
  fields.add("special_ids", c.special_ids,
             {.doc = "Ids that an imported model's config.json names.", .on_resume = ignored});
  fields.add("verify", c.verify,
             {.doc = "Check every token id against the vocabulary before the first step.", .on_resume = ignored});
}

void describe(Fields& fields, BatchConfig& c) {
  fields.add("sequences", c.sequences,
             {.doc = "Global batch: sequences of one step, over all ranks and micro-steps.",
              .unit = "sequences",
              .range = at_least(1),
              .synonyms = {"batch_size", "global_batch_size", "size"}});
  fields.add("micro_sequences", c.micro_sequences,
             {.doc = "Sequences of one micro-step on one data rank; auto: the most that divide a rank's share and have "
                     "at most 8,192 tokens (keel plan says what memory allows).",
              .unit = "sequences",
              .range = at_least(1),
              .on_resume = changeable,
              .synonyms = {"micro_batch_size", "micro_batch", "per_device_batch_size"}});
}

void describe(Fields& fields, OptimizerConfig& c) {
  fields.add("kind", c.kind, {.doc = "Which optimizer.", .synonyms = {"name", "type", "optimizer"}});
  fields.add("lr", c.lr,
             {.doc = "Learning rate at the schedule's top.",
              .range = above(0),
              .on_resume = changeable,
              .synonyms = {"learning_rate", "max_lr", "peak_lr"}});
  fields.add("beta1", c.beta1,
             {.doc = "Decay of the first moment.",
              .range = {.low = 0, .high = 1, .high_open = true},
              .on_resume = changeable,
              .synonyms = {"adam_beta1", "betas"}});
  fields.add("beta2", c.beta2,
             {.doc = "Decay of the second moment.",
              .range = {.low = 0, .high = 1, .high_open = true},
              .on_resume = changeable,
              .synonyms = {"adam_beta2"}});
  fields.add("eps", c.eps,
             {.doc = "Added to the root of the second moment.",
              .range = above(0),
              .on_resume = changeable,
              .synonyms = {"epsilon", "adam_eps"}});
  fields.add("weight_decay", c.weight_decay,
             {.doc = "Decay of matrices; gains and biases are spared unless the model says otherwise.",
              .range = at_least(0),
              .on_resume = changeable,
              .synonyms = {"wd"}});
  fields.add("decay", c.decay,
             {.doc = "lr: decay times the current learning rate; independent: times the schedule only.",
              .on_resume = changeable});
  fields.add("clip_norm", c.clip_norm,
             {.doc = "Gradients are scaled down to this global norm; null: never.",
              .range = above(0),
              .on_resume = changeable,
              .synonyms = {"grad_clip", "gradient_clipping", "max_norm", "max_grad_norm"}});
  fields.add("rounding", c.rounding,
             {.doc = "Of bf16 compute copies. stochastic: up or down by chance, so that their mean over updates is the "
                     "fp32 master weight; the same bits at every layout. No effect in fp32, which has no copies.",
              .on_resume = changeable,
              .synonyms = {"stochastic_rounding"}});
}

void describe(Fields& fields, ScheduleConfig& c) {
  fields.add("kind", c.kind,
             {.doc = "cosine: down over all steps; wsd: constant, then down over decay_steps; constant.",
              .on_resume = changeable,
              .synonyms = {"type", "name", "lr_scheduler_type"}});
  fields.add("warmup_steps", c.warmup_steps,
             {.doc = "Steps of linear rise: step s of W has lr * s / W; 0: none.",
              .unit = "steps",
              .range = at_least(0),
              .on_resume = changeable,
              .synonyms = {"warmup", "warmup_iters"}});
  fields.add("decay_steps", c.decay_steps,
             {.doc = "Steps of the final descent; needed for wsd, refused otherwise.",
              .unit = "steps",
              .range = at_least(1),
              .on_resume = changeable,
              .synonyms = {"lr_decay_steps", "decay_iters"}});
  fields.add("final_ratio", c.final_ratio,
             {.doc = "Learning rate at the last step as a share of optimizer.lr.",
              .range = between(0, 1),
              .on_resume = changeable,
              .synonyms = {"min_lr", "min_lr_ratio", "final_lr_ratio"}});
}

void describe(Fields& fields, TrainConfig& c) {
  fields.add("steps", c.steps,
             {.doc = "Length of the run in steps; give this or train.tokens.",
              .unit = "steps",
              .range = at_least(1),
              .on_resume = changeable,
              .synonyms = {"max_steps", "max_iters", "num_steps", "iterations"}});
  fields.add("tokens", c.tokens,
             {.doc = "Length of the run in tokens, rounded up to whole steps.",
              .unit = "tokens",
              .range = at_least(1),
              .on_resume = changeable,
              .synonyms = {"max_tokens", "num_tokens", "token_budget"}});
  fields.add("stop_after", c.stop_after,
             {.doc = "Save and end with exit code 4 before the job's time slot does.",
              .unit = "d, h, m, s",
              .range = at_least(1),
              .on_resume = ignored,
              .synonyms = {"time_limit", "max_time"}});
  fields.add("z_loss", c.z_loss,
             {.doc = "Weight of the mean squared log-sum-exp of the logits; 0: off.",
              .range = at_least(0),
              .on_resume = changeable,
              .synonyms = {"z_loss_weight", "z_loss_multiplier"}});
  fields.add("label_smoothing", c.label_smoothing,
             {.doc = "Share of the target's probability that is spread over the vocabulary.",
              .range = {.low = 0, .high = 1, .high_open = true},
              .on_resume = changeable});
  fields.add(
      "graphs", c.graphs,
      {.doc = "One rank on a GPU records its steps and replays them as CUDA graphs, which saves the host's calls "
              "and changes no bit.",
       .on_resume = ignored,
       .synonyms = {"cuda_graphs", "cudagraphs", "use_cuda_graphs"}});
}

void describe(Fields& fields, EvalConfig& c) {
  fields.add("every", c.every,
             {.doc = "Steps between evaluations on data.valid; null: after the last step only.",
              .unit = "steps",
              .range = at_least(1),
              .on_resume = ignored,
              .synonyms = {"interval", "eval_interval", "eval_every"}});
  fields.add("first", c.first,
             {.doc = "Also before the first step: the loss of the initial weights.", .on_resume = ignored});
  fields.add("sequences", c.sequences,
             {.doc = "Held-out sequences of one evaluation; null: all of them.",
              .unit = "sequences",
              .range = at_least(1),
              .on_resume = ignored});
  fields.add(
      "prompts", c.prompts,
      {.doc = "Texts that the model writes on from after each evaluation, into samples.jsonl.", .on_resume = ignored});
  fields.add("sample_tokens", c.sample_tokens,
             {.doc = "How much it writes at most.", .unit = "tokens", .range = at_least(1), .on_resume = ignored});
}

void describe(Fields& fields, ParallelConfig& c) {
  fields.add("tensor", c.tensor,
             {.doc = "Ranks that share one copy of the model.",
              .unit = "ranks",
              .range = at_least(1),
              .on_resume = changeable,
              .synonyms = {"tp", "tensor_parallel", "tensor_model_parallel_size"}});
  fields.add("data", c.data,
             {.doc = "Copies of the model; auto: all ranks / tensor.",
              .unit = "copies",
              .range = at_least(1),
              .on_resume = changeable,
              .synonyms = {"dp", "data_parallel"}});
  fields.add("zero", c.zero,
             {.doc = "ZeRO-1: each data rank keeps and updates its slice of the optimizer's state.",
              .on_resume = changeable,
              .synonyms = {"zero1", "distributed_optimizer"}});
  fields.add("ranks", c.ranks,
             {.doc = "Expected number of ranks; any other number is refused. null: any.",
              .unit = "ranks",
              .range = at_least(1),
              .on_resume = ignored,
              .synonyms = {"world_size"}});
  fields.add(
      "tensor_across_hosts", c.tensor_across_hosts,
      {.doc = "Let a tensor group span hosts, which is slow; otherwise it is refused.", .on_resume = changeable});
  fields.add("time_limit", c.time_limit,
             {.doc = "Longest wait for other ranks in one exchange; then every rank says where it stands, and all end.",
              .unit = "d, h, m, s",
              .range = at_least(1),
              .on_resume = ignored,
              .synonyms = {"timeout", "comm_timeout", "nccl_timeout"}});
}

// How a file is written.
void describe_writing(Fields& fields, CheckpointConfig& c) {
  fields.add("parts", c.parts,
             {.doc = "Files per checkpoint; above 1, part files and one that links them.",
              .unit = "files",
              .range = between(1, 4096),
              .on_resume = ignored});
  fields.add("mpi_hints", c.mpi_hints, {.doc = "Hints for MPI-IO, such as striping_factor: 8.", .on_resume = ignored});
  fields.add(
      "weights_only", c.weights_only,
      {.doc = "Leave the optimizer's state out: small, but no resume from it and no rollback. A run that is stopped "
              "early still saves all of it.",
       .on_resume = ignored});
  fields.add("final", c.final, {.doc = "Save after the last step.", .on_resume = ignored});
  fields.add("background", c.background,
             {.doc = "Training goes on while a copy of the state is written; false: it waits, and takes no memory for "
                     "the copy.",
              .on_resume = ignored,
              .synonyms = {"async", "asynchronous"}});
  fields.add("max_failed", c.max_failed,
             {.doc = "Saves in a row that may fail before the run ends.",
              .unit = "saves",
              .range = at_least(1),
              .on_resume = ignored});
  fields.add("time_limit", c.time_limit,
             {.doc = "Longest wait for one step of a save or a load; then all ranks end.",
              .unit = "d, h, m, s",
              .range = at_least(1),
              .on_resume = ignored,
              .synonyms = {"timeout"}});
  fields.add(
      "final_save_limit", c.final_save_limit,
      {.doc = "Longest time for the save where a run ends, is preempted or reaches train.stop_after; then it ends "
              "with the newest complete checkpoint.",
       .unit = "d, h, m, s",
       .range = at_least(1),
       .on_resume = ignored});
}

void describe(Fields& fields, CheckpointConfig& c) {
  fields.add("every", c.every,
             {.doc = "Steps between checkpoints; null: only what `final` says.",
              .unit = "steps",
              .range = at_least(1),
              .on_resume = ignored,
              .synonyms = {"interval", "save_interval", "save_every"}});
  fields.add("keep", c.keep,
             {.doc = "Newest complete checkpoints kept; older ones are deleted.",
              .unit = "files",
              .range = at_least(1),
              .on_resume = ignored,
              .synonyms = {"keep_last", "max_to_keep"}});
  fields.add("keep_every", c.keep_every,
             {.doc = "Checkpoints of steps that are multiples of this are never deleted; null: none.",
              .unit = "steps",
              .range = at_least(1),
              .on_resume = ignored});
  fields.add("resume", c.resume,
             {.doc = "auto: the run's newest complete checkpoint, if any; none: start anew; else a "
                     "checkpoint's path. One of another run is where this one begins: once it has saved, the same "
                     "command goes on as auto does. One of its own is gone back to, once.",
              .on_resume = ignored,
              .synonyms = {"load", "resume_from"}});
  fields.add("weights_from", c.weights_from,
             {.doc = "Begin at step 0 with the weights of this checkpoint of the same model, such as an imported one; "
                     "of no effect once the run has checkpoints of its own.",
              .on_resume = ignored,
              .synonyms = {"init_from", "pretrained"}});
  describe_writing(fields, c);
}

void describe(Fields& fields, TraceConfig& c) {
  fields.add("from", c.from,
             {.doc = "The first step recorded.", .unit = "step", .range = at_least(1), .on_resume = ignored});
  fields.add("steps", c.steps, {.doc = "How many.", .unit = "steps", .range = at_least(1), .on_resume = ignored});
}

void describe(Fields& fields, TelemetryConfig& c) {
  fields.add("every", c.every,
             {.doc = "Steps between records per layer and head; null: none.",
              .unit = "steps",
              .range = at_least(1),
              .on_resume = ignored,
              .synonyms = {"interval"}});
  fields.add("tensorboard", c.tensorboard, {.doc = "Write TensorBoard event files as well.", .on_resume = ignored});
  fields.add("trace", c.trace,
             {.doc = "Record where the time of some steps goes: traces/step-N-rank-R.json, for ui.perfetto.dev; null: "
                     "do not.",
              .on_resume = ignored,
              .synonyms = {"profile", "profiler"}});
}

void describe(Fields& fields, LogConfig& c) {
  fields.add("directory", c.directory,
             {.doc = "Where runs are kept; this one in DIRECTORY/NAME.",
              .on_resume = ignored,
              .synonyms = {"dir", "output_dir", "out_dir"}});
  fields.add("every", c.every,
             {.doc = "Steps between plain lines where the output is no terminal.",
              .unit = "steps",
              .range = at_least(1),
              .on_resume = ignored,
              .synonyms = {"interval", "log_interval"}});
}

void describe(Fields& fields, RunConfig& c) {
  fields.add("name", c.name,
             {.doc = "Name of the run and of its folder.",
              .on_resume = ignored,
              .default_text = "the config file's name",
              .synonyms = {"run_name"}});
  fields.add(
      "seed", c.seed,
      {.doc = "Initial values and sample order follow from it.", .range = at_least(0), .synonyms = {"random_seed"}});
  fields.add("precision", c.precision,
             {.doc = "Type of activations and compute copies; master weights are fp32.",
              .on_resume = changeable,
              .synonyms = {"dtype"}});
  fields.add("device", c.device, {.doc = "auto: a GPU where there is one.", .on_resume = changeable});
  fields.add("model", c.model,
             {.doc = "The model, by its family's own table.", .on_resume = elsewhere, .required = true});
  fields.add("data", c.data, {.doc = "Token files and samples."});
  fields.add("batch", c.batch, {.doc = "The global batch and its parts."});
  fields.add("optimizer", c.optimizer, {.doc = "The update rule.", .synonyms = {"optimiser", "optim"}});
  fields.add("schedule", c.schedule,
             {.doc = "The learning rate over the steps.", .synonyms = {"scheduler", "lr_scheduler"}});
  fields.add("train", c.train, {.doc = "Length of the run and the loss.", .synonyms = {"training", "trainer"}});
  fields.add("eval", c.eval, {.doc = "Evaluation.", .synonyms = {"evaluation", "validation"}});
  fields.add("parallel", c.parallel, {.doc = "How ranks divide the work.", .synonyms = {"parallelism", "mesh"}});
  fields.add("checkpoint", c.checkpoint, {.doc = "Saving and resuming.", .synonyms = {"checkpoints", "save"}});
  fields.add("stability", c.stability, {.doc = "What is done about steps that leap or are not finite, and QK-clip."});
  fields.add("telemetry", c.telemetry, {.doc = "Records per layer and head."});
  fields.add("log", c.log, {.doc = "Lines for people.", .synonyms = {"logging"}});
  fields.add("ablate", c.ablate,
             {.doc = "Arms, axes and seeds of keel ablate, by their own table.", .on_resume = ignored});
}

}  // namespace keel::config
