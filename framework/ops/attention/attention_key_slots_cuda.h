// Where few heads of keys leave most of a GPU idle, the query heads that share one are divided over several blocks of
// the grid, its slots. Each leaves fp32 sums in the workspace, and a second kernel adds them, always in one order. Only
// attention_backward_cuda.cu includes it.
#pragma once

#include "framework/ops/attention/attention_problem_cuda.h"

namespace keel::ops::cuda {

struct KeySlots {
  int count = 1;             // divides the query heads that share one of keys
  float* partial = nullptr;  // [2, B, G, count, T_k, D]: of dk and dv; null where there is one slot

  // The fewest that put two blocks on each multiprocessor, or all that there are. `blocks`: of one slot.
  static int wanted(Device device, int64_t blocks, int heads_per_kv) {
    const int64_t enough = 2 * int64_t(keel::cuda::multiprocessors(device));
    int count = 1;
    while (count < heads_per_kv && (blocks * count < enough || heads_per_kv % count != 0)) ++count;
    return count;
  }
  // Of dk or of dv.
  __host__ __device__ int64_t elements(const AttentionProblem& problem, int D) const {
    return int64_t(problem.batch) * problem.kv_heads * count * problem.keys * D;
  }

  // A warp's sums of 16 keys from `first_key` on. `which`: 0 dk, 1 dv; `part`: the slot, counted through the batch.
  template <int D>
  __device__ void store(const AttentionProblem& problem, int which, int64_t part, int first_key,
                        const float (&sums)[D / 8][4]) const {
    const int lane = int(device::lane());
    float* to = partial + which * elements(problem, D) + part * problem.keys * D + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first_key + lane / 4 + 8 * i;
      if (key >= problem.keys) continue;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        device::store_vector(to + int64_t(key) * D + 8 * n, float2{sums[n][2 * i], sums[n][2 * i + 1]});
    }
  }
};

// to [B, T_k, G, d] = the sum over the slots of `which`.
template <int D, int N, class T>
__global__ void __launch_bounds__(kThreads)
    add_slots(HeadRows<T> to, KeySlots slots, AttentionProblem problem, int which) {
  const int64_t packs = (problem.head_dim + N - 1) / N, rows = int64_t(problem.batch) * problem.kv_heads * problem.keys;
  const int64_t of_slot = int64_t(problem.keys) * D;
  const float* first = slots.partial + which * slots.elements(problem, D);
  for_elements<1>(rows * packs, [&](int64_t i, auto) {
    const int64_t row = i / packs, head = row / problem.keys, key = row % problem.keys, column = i % packs * N;
    const float* from = first + head * slots.count * of_slot + key * D + column;
    float sum[N];
    load(sum, from);
    for (int slot = 1; slot < slots.count; ++slot) {
      float more[N];
      load(more, from + slot * of_slot);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += more[j];
    }
    store(to.head(int(head / problem.kv_heads), int(head % problem.kv_heads)) + key * to.of_row + column, sum);
  });
}

template <int D, class T>
void add_all_slots(const HeadRows<T>& dk, const HeadRows<T>& dv, const KeySlots& slots, const AttentionProblem& problem,
                   Device device) {
  dispatch_width(problem.wide && problem.head_dim % kWide == 0 ? kWide : 1, [&]<int N>() {
    const unsigned blocks = blocks_for(device, slots.elements(problem, D) / slots.count / N);
    for (int which : {0, 1})
      launch(add_slots<D, N, T>, blocks, kThreads, 0, keel::cuda::current_stream(device), which == 0 ? dk : dv, slots,
             problem, which);
  });
}

}  // namespace keel::ops::cuda
