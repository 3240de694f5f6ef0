// Records what a decoder knows about itself, into telemetry.h5 (framework/README.md lists all of it) and metrics.jsonl.
//
// On telemetry steps, all reduced over the whole mesh, beside what train::RunFilesHook writes of every model:
//
// - `q_gain_gradient` [L, H], `k_gain_gradient` [L, G], `logit_scale_gradient` [L, H]: the L2 norm of the gradient of
//   each head's stored weights, summed over all ranks and micro-batches, before clipping. [L, 1] where a layer's heads
//   share one weight. Not a number where a layer has none; no array where no layer has.
// - `largest_logit_place` [L, H, 4] int64: source, sample of it, and the query's and the key's position in the sample,
//   of the first place where the step's largest logit was reached (ops/logit_place.h); -1 where all logits are 0. With
//   T tokens in a sample the query is token sample * T + query of its source (data/sampler.h).
// - `parallel` [L, H]: the share of |cos(q, k)| > 0.95 among visible pairs (probe.h).
// - `stream_outliers` [L, 1]: the share of |x| > 6 in the residual stream (probe.h); `stream_kurtosis` [L, 1]: its
//   kurtosis about 0.
// - `update_ratio` [L, 1]: the norm of the update of the layer's matrices over the norm that it left them with.
// - bf16 runs: `weights_saturated`, `weights_flushed` [L, 1], of the matrices' bf16 copies, and `stream_saturated`,
//   `stream_flushed` [L, 1], of the residual stream, or where that is fp32, of the branch that the layer adds to it:
//   the shares of values at bf16's largest number or beyond, and below its least normal one (ops/elementwise.h,
//   probe.h).
#pragma once

#include "framework/parallel/pieces.h"
#include "framework/train/head_statistics.h"
#include "framework/train/hook.h"
#include "framework/train/layer_statistics.h"
#include "framework/train/telemetry_arrays.h"
#include "models/decoder/decoder.h"

namespace keel::models {

class TelemetryHook : public train::Hook {
 public:
  // All outlive this.
  TelemetryHook(Decoder& decoder, parallel::Mesh& mesh, train::TelemetryArrays& arrays);

  train::Verdict judge(const train::StepReport& report) override;

 private:
  void record_places(const train::StepReport& report);
  void record_matrices(const train::StepReport& report);
  void record_stream(int64_t step);
  void record_parallel(int64_t step);
  // What the probe summed of each layer, over the data axis.
  template <class T>
  void collect(std::vector<T>& whole, ConstTensor own, int64_t width);
  // How a weight of heads lies: elements of a head, this rank's heads, the model's; 1 and 1 where they share it.
  struct HeadRows {
    int64_t elements, own, all;
  };
  struct Gains {
    std::string name;                             // of the array of its gradient's norms
    std::vector<const nn::Parameter*> of_layers;  // null where a layer has none
    HeadRows rows;
  };
  template <class WeightOf>
  void add_gains(const char* name, WeightOf weight_of, const HeadRows& rows);
  void record_gradient(int64_t step, const Gains& gains);

  Decoder& decoder_;
  parallel::Mesh& mesh_;
  train::TelemetryArrays& arrays_;
  train::HeadStatistics heads_;
  train::LayerStatistics matrices_;
  std::vector<optim::Span> pieces_;
  int64_t layers_;
  bool rounded_;  // whether products read bf16
  std::vector<Gains> gains_;
  std::vector<float> whole_;
};

}  // namespace keel::models
