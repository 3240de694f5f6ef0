#include <type_traits>

#include "framework/ops/attention/attention_cuda.h"
#include "framework/ops/attention/attention_key_slots_cuda.h"

// FlashAttention-2, backward, without atomics: dq by blocks of queries that walk over keys, dk and dv by blocks of keys
// that walk over the queries of every head that shares them, or of some of them (attention_key_slots_cuda.h). Scores
// are computed in both. What a block owns are two tiles of 16 rows per warp, what it walks over comes in pairs of
// tiles, the next pair on its way while this one is used.
namespace keel::ops::cuda {
namespace {

// What a key needs to know of a query.
struct alignas(16) Query {
  KeyInterval sees;
  float log_sum_exp, mean;
};

// Shared memory of a block that owns 16 rows per warp and walks over tiles of `Streamed` rows.
template <class Element, int HeadDim, int Warps, int Streamed>
struct BackwardMemory {
  using T = Element;
  static constexpr int D = HeadDim, kWarps = Warps, kStreamed = Streamed, kOwn = kWarps * kWarpRows;
  static constexpr int kThreads = kWarps * device::kWarp;
  static constexpr size_t kOwnBytes = tile_bytes<T, D>(kOwn), kTileBytes = tile_bytes<T, D>(kStreamed);
  static constexpr size_t kQueries = 2 * kOwnBytes + 4 * kTileBytes;
  static constexpr size_t kBad = kQueries + 2 * kStreamed * sizeof(Query), kSmall = kBad + kStreamed * sizeof(int);
  static constexpr size_t kBytes = kSmall + 4 * kWarps * sizeof(double);

  // `which` is 0 for queries or keys, 1 for what goes with them: gradients of outputs, or values.
  __device__ static T* own(int which) { return device::shared_memory<T>(size_t(which) * kOwnBytes); }
  __device__ static T* own_of_warp(int which) {
    return own(which) + int(device::thread_index().x) / device::kWarp * kWarpRows * kTileStride<T, D>;
  }
  __device__ static T* streamed(int stage, int which) {
    return device::shared_memory<T>(2 * kOwnBytes + size_t(2 * stage + which) * kTileBytes);
  }
  __device__ static Query* queries(int stage) {
    return device::shared_memory<Query>(kQueries + size_t(stage) * kStreamed * sizeof(Query));
  }
  __device__ static int* bad() { return device::shared_memory<int>(kBad); }
  template <class S>
  __device__ static S* small() {
    return device::shared_memory<S>(kSmall);
  }
};

// bf16: 128 own rows. One block per multiprocessor: at most 255 registers for each of its 256 threads, 76 to 204 KB of
// shared memory. With heads of 256 the sums of dk and dv do not fit together and are made one after the other.
template <class T, int D>
using Tiles = std::conditional_t<std::is_same_v<T, float>, BackwardMemory<T, D, 2, 32>,
                                 BackwardMemory<T, D, 8, (D > 96 ? 32 : 64)>>;
// 136 KB at most, where a multiprocessor has 163 (sm_80) and the others do not fit.
template <class T, int D>
using SmallTiles =
    std::conditional_t<std::is_same_v<T, float>, BackwardMemory<T, D, 2, 16>, BackwardMemory<T, D, 4, 32>>;

template <class T>
struct Backward {
  AttentionProblem problem;
  HeadRows<const T> q, k, v, out, d_out;
  HeadRows<T> dq, dk, dv;
  const float* log_sum_exp;  // [B, H, T_q]
  float* mean;               // [B, H, T_q]: sum of d_out * out, which is the mean of dp under p
  double* d_scale;           // [H, B * blocks]: of each block of queries
  KeySlots slots;

  __device__ RowSource<T> rows(const HeadRows<const T>& tensor, int b, int h, int count) const {
    return {tensor.head(b, h), tensor.of_row, count, problem.head_dim, problem.wide};
  }
  __device__ RowSink<T> sink(const HeadRows<T>& tensor, int b, int h, int first) const {
    return {tensor.head(b, h) + first * tensor.of_row, tensor.of_row, 0, problem.head_dim, problem.wide};
  }
  __device__ int64_t row_number(int b, int h, int t) const {
    return (int64_t(b) * problem.heads + h) * problem.queries + t;
  }
};

struct ScoreRule {
  float scale, softcap;
};

// The probability of a visible pair and dL/dscore before the soft-cap, from the products q . k and d_out . v.
struct PairGradient {
  float p, ds;
};
template <bool kCapped>
__device__ __forceinline__ PairGradient gradient_of(float product, float dp, const ScoreRule& rule, float log_sum_exp,
                                                    float mean) {
  if constexpr (kCapped) {
    const float ratio = tanhf(product * (rule.scale / rule.softcap));
    const float p = exponential(rule.softcap * ratio - log_sum_exp);
    return {p, p * (dp - mean) * (1 - ratio * ratio)};
  } else {
    // The score rounds as it did in forward: where a row sees one key, it is the log-sum-exp, whatever its size.
    const float p = exponential(product * rule.scale - log_sum_exp);
    return {p, p * (dp - mean)};
  }
}
// f.operator()<whether the whole tile is visible, whether scores are capped>(), so that the choice is made once per
// tile.
template <class F>
__device__ __forceinline__ void dispatch_tile(bool whole, const ScoreRule& rule, const F& f) {
  if (rule.softcap != 0) return f.template operator()<false, true>();
  whole ? f.template operator()<true, false>() : f.template operator()<false, false>();
}

// The fragments of a warp's own queries and gradients of outputs stay in registers where they fit beside its sums.
template <class Memory>
constexpr bool kKeptQueries = std::is_same_v<typename Memory::T, __nv_bfloat16>&& Memory::D <= 128;
template <class Memory>
constexpr bool kKeptGradients = std::is_same_v<typename Memory::T, __nv_bfloat16>&& Memory::D <= 64;

// A lane's two rows of queries.
struct QueryRows {
  WarpView view;
  int first_row;
  float log_sum_exp[2], mean[2];
  float d_scale;  // sum of ds times the product q . k, from ds in fp32: its terms cancel, bf16 would show
};

template <class Memory, class T, int N>
__device__ void walk_keys(const Backward<T>& x, int b, int h, QueryRows& rows, float (&dq)[1][N][4]) {
  constexpr int D = Memory::D, kKeys = Memory::kStreamed, kWarps = Memory::kWarps;
  const AttentionProblem& problem = x.problem;
  const int kv = problem.kv_head(h);
  const RowSource<T> k = x.rows(x.k, b, kv, problem.keys), v = x.rows(x.v, b, kv, problem.keys);
  const KeyInterval seen = joined_over_block<kWarps>(rows.view.any, Memory::template small<int>());
  const ScoreRule rule = {problem.scale[h], problem.softcap};
  const OwnRows<T, D, 1, kKeptQueries<Memory>> queries(Memory::own_of_warp(0));
  const OwnRows<T, D, 1, kKeptGradients<Memory>> gradients(Memory::own_of_warp(1));
  const auto bring = [&](int tile) {
    load_rows<D, kKeys, Memory::kThreads>(Memory::streamed(tile % 2, 0), k, tile * kKeys);
    load_rows<D, kKeys, Memory::kThreads>(Memory::streamed(tile % 2, 1), v, tile * kKeys);
    device::commit_copies();
  };
  for (bool careful = false;; careful = true) {
    clear(dq);
    rows.d_scale = 0;
    const int tiles = (seen.end + kKeys - 1) / kKeys, first = seen.empty() ? tiles : seen.begin / kKeys;
    device::sync_threads();
    if (first < tiles) bring(first);
    for (int tile = first; tile < tiles; ++tile) {
      T *keys = Memory::streamed(tile % 2, 0), *values = Memory::streamed(tile % 2, 1);
      device::wait_copies<0>();
      device::sync_threads();  // this tile is here, and nobody uses the last one any more
      if (tile + 1 < tiles) bring(tile + 1);
      if (careful) {
        mark_bad_rows<D>(keys, values, kKeys, Memory::bad());
        device::sync_threads();
      }
      if (rows.view.any.meets(tile * kKeys, kKeys)) {
        float s[1][kKeys / 8][4], dp[1][kKeys / 8][4];
        clear(s);
        clear(dp);
        add_rows_product<D>(s, queries, keys);
        add_rows_product<D>(dp, gradients, values);
        if (careful) poison_columns(s, Memory::bad());
        const int column = tile * kKeys + int(device::lane()) % 4 * 2;
        const bool whole = rows.view.all.begin <= tile * kKeys && rows.view.all.end >= (tile + 1) * kKeys;
        dispatch_tile(whole, rule, [&]<bool kWhole, bool kCapped>() {
          LaneView lane;
          if constexpr (!kWhole) lane = LaneView(problem, b, rows.first_row);
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              float& score = s[0][n][i];
              const bool sees = kWhole || lane.row[i / 2].holds(column + 8 * n + i % 2);
              const float ds =
                  gradient_of<kCapped>(score, dp[0][n][i], rule, rows.log_sum_exp[i / 2], rows.mean[i / 2]).ds;
              rows.d_scale = sees ? fmaf(ds, score, rows.d_scale) : rows.d_scale;
              score = sees ? ds : 0.f;
            }
        });
        add_columns_product<D>(dq, s, keys);
      }
      if (careful) device::sync_threads();  // before the marks are written again
    }
    if (careful || block_all<kWarps>(all_finite(dq), Memory::template small<int>())) return;
  }
}

template <class Memory>
__global__ void __launch_bounds__(Memory::kThreads, 1) backward_queries(Backward<typename Memory::T> x) {
  using T = typename Memory::T;
  constexpr int D = Memory::D;
  const AttentionProblem& problem = x.problem;
  const int blocks = (problem.queries + Memory::kOwn - 1) / Memory::kOwn;
  const auto [b, h, number] = problem.place(int(device::block_index().x), problem.heads);
  const int block = blocks - 1 - number;  // the last rows see most keys: they come first
  const int lane = int(device::lane());
  const int first_row = block * Memory::kOwn + int(device::thread_index().x) / device::kWarp * kWarpRows;
  load_rows<D, Memory::kOwn, Memory::kThreads>(Memory::own(0), x.rows(x.q, b, h, problem.queries),
                                               block * Memory::kOwn);
  load_rows<D, Memory::kOwn, Memory::kThreads>(Memory::own(1), x.rows(x.d_out, b, h, problem.queries),
                                               block * Memory::kOwn);
  device::commit_copies();
  device::wait_copies<0>();
  device::sync_threads();

  QueryRows rows = {WarpView(problem, b, first_row, 1), first_row, {}, {}, 0};
  mean_of_rows<D>(rows.mean, Memory::own_of_warp(1), x.rows(x.out, b, h, problem.queries), first_row);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first_row + lane / 4 + 8 * i;
    if (row >= problem.queries) continue;
    rows.log_sum_exp[i] = x.log_sum_exp[x.row_number(b, h, row)];
    if (lane % 4 == 0) x.mean[x.row_number(b, h, row)] = rows.mean[i];
  }
  float dq[1][D / 8][4], factor[2];
  walk_keys<Memory>(x, b, h, rows, dq);

  T* own = Memory::own_of_warp(0);
  const LaneView view(problem, b, first_row);
  for (int i = 0; i < 2; ++i) factor[i] = view.row[i].empty() ? 0.f : problem.scale[h];
  device::sync_warp();
  put_rows<D>(own, dq[0], factor);
  RowSink<T> to = x.sink(x.dq, b, h, first_row);
  to.rows = least(kWarpRows, problem.queries - first_row);
  store_rows<D>(to, own);
  const double sum = block_sum(double(rows.d_scale), Memory::template small<double>());
  if (device::thread_index().x == 0) x.d_scale[(int64_t(h) * problem.batch + b) * blocks + block] = sum;
}

// A block of keys: rows [first, first + kOwn) of one KV head, the heads of its slot, and the tiles of queries that see
// some of the keys, the same for every head.
struct KeyPlace {
  int b, part, first, heads;  // part: the slot's number, counted through all KV heads
  int first_tile, tiles;

  __device__ int steps() const { return heads * tiles; }
  __device__ int head(int step) const { return part * heads + step / tiles; }
  __device__ int tile(int step) const { return first_tile + step % tiles; }
};

// The queries that see a key of the block. Documents are looked through by all threads, once for all heads.
template <class Memory>
__device__ KeyInterval queries_of(const AttentionProblem& problem, int b, int first_key) {
  KeyInterval queries{0, problem.queries};
  if (problem.causal) queries.begin = greatest(first_key - problem.q_offset, 0);
  if (problem.window > 0)
    queries.end = least(queries.end, first_key + Memory::kOwn - 1 + problem.window - problem.q_offset);
  if (!problem.first_key) return queries;
  KeyInterval found;
  for (int t = queries.begin + int(device::thread_index().x); t < queries.end; t += Memory::kThreads)
    if (visible(problem, b, t).meets(first_key, Memory::kOwn)) found = {least(found.begin, t), t + 1};
#pragma unroll
  for (unsigned bits = 1; bits < device::kWarp; bits *= 2) {
    found.begin = least(found.begin, device::shuffle_xor(found.begin, bits));
    found.end = greatest(found.end, device::shuffle_xor(found.end, bits));
  }
  return joined_over_block<Memory::kWarps>(found, Memory::template small<int>());
}

template <class Memory>
__device__ KeyPlace key_place(const AttentionProblem& problem, int slots) {
  constexpr int kQueries = Memory::kStreamed;
  const auto [b, part, block] = problem.place(int(device::block_index().x), problem.kv_heads * slots);
  const int first = block * Memory::kOwn;  // the first keys are seen by most: they come first
  const KeyInterval queries = queries_of<Memory>(problem, b, first);
  const int first_tile = queries.begin / kQueries;
  const int tiles = queries.empty() ? 0 : (queries.end + kQueries - 1) / kQueries - first_tile;
  return {b, part, first, problem.heads / (problem.kv_heads * slots), first_tile, tiles};
}

// Starts to bring one step's queries, gradients of outputs and what goes with them.
template <class Memory, class T>
__device__ void bring_queries(const Backward<T>& x, const KeyPlace& at, int step, int stage) {
  constexpr int D = Memory::D, kQueries = Memory::kStreamed;
  const AttentionProblem& problem = x.problem;
  const int h = at.head(step), first = at.tile(step) * kQueries;
  load_rows<D, kQueries, Memory::kThreads>(Memory::streamed(stage, 0), x.rows(x.q, at.b, h, problem.queries), first);
  load_rows<D, kQueries, Memory::kThreads>(Memory::streamed(stage, 1), x.rows(x.d_out, at.b, h, problem.queries),
                                           first);
  for (int i = int(device::thread_index().x); i < kQueries; i += int(device::block_size().x)) {
    const int t = first + i;
    const bool exists = t < problem.queries;
    const int64_t row = exists ? x.row_number(at.b, h, t) : 0;
    Query* query = Memory::queries(stage) + i;
    device::copy_word_async(&query->log_sum_exp, x.log_sum_exp + row, exists);
    device::copy_word_async(&query->mean, x.mean + row, exists);
    device::store_vector(&query->sees, visible(problem, at.b, t));
  }
  device::commit_copies();
}

enum class Wanted { both, dk, dv };

// Sums of a warp's 16 keys.
template <int D, Wanted kWanted>
struct KeySums {
  static constexpr bool kWantKeys = kWanted != Wanted::dv, kWantValues = kWanted != Wanted::dk;
  float dk[1][kWantKeys ? D / 8 : 1][4], dv[1][kWantValues ? D / 8 : 1][4];
};

// One pair of tiles: scores with a row per key and a column per query.
template <class Memory, int D, Wanted kWanted>
__device__ __forceinline__ void add_queries(KeySums<D, kWanted>& sums, const ScoreRule& rule, int stage, int first_key,
                                            const int* bad) {
  using Sums = KeySums<D, kWanted>;
  using T = typename Memory::T;
  constexpr int kQueries = Memory::kStreamed;
  const int lane = int(device::lane());
  const Query* queries = Memory::queries(stage);
  bool meets = false, whole = true;
  for (int i = lane; i < kQueries; i += device::kWarp) {
    const KeyInterval sees = queries[i].sees;
    meets |= sees.meets(first_key, kWarpRows);
    whole &= sees.begin <= first_key && sees.end >= first_key + kWarpRows;
  }
  if (!device::any(meets)) return;
  float p[1][kQueries / 8][4], ds[1][kQueries / 8][4];
  clear(p);
  clear(ds);
  add_rows_product<D>(p, OwnRows<T, D, 1, false>(Memory::own_of_warp(0)), Memory::streamed(stage, 0));
  if constexpr (Sums::kWantKeys)
    add_rows_product<D>(ds, OwnRows<T, D, 1, false>(Memory::own_of_warp(1)), Memory::streamed(stage, 1));
  if (bad) poison_columns(p, bad);
  dispatch_tile(device::all(whole), rule, [&]<bool kWhole, bool kCapped>() {
#pragma unroll
    for (int n = 0; n < kQueries / 8; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto query = device::load_vector<Query>(queries + 8 * n + lane % 4 * 2 + j);
#pragma unroll
        for (int i = j; i < 4; i += 2) {
          const PairGradient pair = gradient_of<kCapped>(p[0][n][i], ds[0][n][i], rule, query.log_sum_exp, query.mean);
          const bool sees = kWhole || query.sees.holds(first_key + lane / 4 + i / 2 * 8);
          p[0][n][i] = sees ? pair.p : 0.f;
          ds[0][n][i] = sees ? pair.ds * rule.scale : 0.f;
        }
      }
  });
  if constexpr (Sums::kWantValues) add_columns_product<D>(sums.dv, p, Memory::streamed(stage, 1));
  if constexpr (Sums::kWantKeys) add_columns_product<D>(sums.dk, ds, Memory::streamed(stage, 0));
}

template <class Memory, Wanted kWanted>
__global__ void __launch_bounds__(Memory::kThreads, 1) backward_keys(Backward<typename Memory::T> x) {
  using T = typename Memory::T;
  constexpr int D = Memory::D, kWarps = Memory::kWarps;
  using Sums = KeySums<D, kWanted>;
  const AttentionProblem& problem = x.problem;
  const KeyPlace at = key_place<Memory>(problem, x.slots.count);
  const int kv = at.part / x.slots.count;
  const int first_key = at.first + int(device::thread_index().x) / device::kWarp * kWarpRows;
  load_rows<D, Memory::kOwn, Memory::kThreads>(Memory::own(0), x.rows(x.k, at.b, kv, problem.keys), at.first);
  load_rows<D, Memory::kOwn, Memory::kThreads>(Memory::own(1), x.rows(x.v, at.b, kv, problem.keys), at.first);
  device::commit_copies();

  Sums sums;
  for (bool careful = false;; careful = true) {
    clear(sums.dk);
    clear(sums.dv);
    device::sync_threads();
    if (at.steps() > 0) bring_queries<Memory>(x, at, 0, 0);
    for (int step = 0; step < at.steps(); ++step) {
      const int stage = step % 2;
      device::wait_copies<0>();
      device::sync_threads();  // this pair of tiles is here, and nobody uses the last one any more
      if (step + 1 < at.steps()) bring_queries<Memory>(x, at, step + 1, stage ^ 1);
      if (careful) {
        mark_bad_rows<D>(Memory::streamed(stage, 0), Memory::streamed(stage, 1), Memory::kStreamed, Memory::bad());
        device::sync_threads();
      }
      const ScoreRule rule = {problem.scale[at.head(step)], problem.softcap};
      add_queries<Memory>(sums, rule, stage, first_key, careful ? Memory::bad() : nullptr);
      if (careful) device::sync_threads();  // before the marks are written again
    }
    device::wait_copies<0>();  // of the own rows, where nobody sees them
    const bool finite = all_finite(sums.dk) && all_finite(sums.dv);
    if (careful || block_all<kWarps>(finite, Memory::template small<int>())) break;
  }
  if (x.slots.partial) {
    const int64_t part = int64_t(at.b) * problem.kv_heads * x.slots.count + at.part;
    if constexpr (Sums::kWantKeys) x.slots.template store<D>(problem, 0, part, first_key, sums.dk[0]);
    if constexpr (Sums::kWantValues) x.slots.template store<D>(problem, 1, part, first_key, sums.dv[0]);
    return;
  }
  const float factor[2] = {1, 1};
  RowSink<T> dk = x.sink(x.dk, at.b, kv, first_key), dv = x.sink(x.dv, at.b, kv, first_key);
  dk.rows = dv.rows = least(kWarpRows, problem.keys - first_key);
  if constexpr (Sums::kWantKeys) {
    put_rows<D>(Memory::own_of_warp(0), sums.dk[0], factor);
    store_rows<D>(dk, Memory::own_of_warp(0));
  }
  if constexpr (Sums::kWantValues) {
    put_rows<D>(Memory::own_of_warp(1), sums.dv[0], factor);
    store_rows<D>(dv, Memory::own_of_warp(1));
  }
}

template <class Memory>
void start(Backward<typename Memory::T> x, float* d_scale, Device device) {
  const AttentionProblem& problem = x.problem;
  const int64_t batch = problem.batch, rows = batch * problem.heads * problem.queries;
  const int64_t query_blocks = (problem.queries + Memory::kOwn - 1) / Memory::kOwn * batch;  // of a head
  const int64_t key_blocks = (problem.keys + Memory::kOwn - 1) / Memory::kOwn * batch * problem.kv_heads;
  x.slots.count = KeySlots::wanted(device, key_blocks, problem.heads / problem.kv_heads);
  const bool divided = x.slots.count > 1;
  const int64_t of_slots = divided ? 2 * x.slots.elements(problem, Memory::D) * int64_t(sizeof(float)) : 0;
  const int64_t of_scales = query_blocks * problem.heads * int64_t(sizeof(double));
  std::byte* memory = keel::cuda::workspace(device, of_slots + of_scales + rows * int64_t(sizeof(float)));
  if (divided) x.slots.partial = reinterpret_cast<float*>(memory);
  x.d_scale = reinterpret_cast<double*>(memory + of_slots);
  x.mean = reinterpret_cast<float*>(memory + of_slots + of_scales);

  const cudaStream_t stream = keel::cuda::current_stream(device);
  const auto launch_keys = [&](void (*kernel)(Backward<typename Memory::T>)) {
    launch(kernel, unsigned(key_blocks * x.slots.count), Memory::kThreads, Memory::kBytes, stream, x);
  };
  launch(backward_queries<Memory>, unsigned(query_blocks * problem.heads), Memory::kThreads, Memory::kBytes, stream, x);
  if constexpr (Memory::D <= 128) {
    launch_keys(backward_keys<Memory, Wanted::both>);
  } else {
    launch_keys(backward_keys<Memory, Wanted::dk>);
    launch_keys(backward_keys<Memory, Wanted::dv>);
  }
  if (x.slots.partial) add_all_slots<Memory::D>(x.dk, x.dv, x.slots, problem, device);
  join_blocks({nullptr, d_scale, nullptr, x.d_scale, problem.heads, int(query_blocks)}, stream);
}

// f.operator()<Memory>() with the tiles that fit the device.
template <class T, class F>
void dispatch_tiles(Device device, int head_dim, const F& f) {
  dispatch_head_dim(head_dim, [&]<int D>() {
    if constexpr (D == 256) {
      if (!has_room_for(device, Tiles<T, D>::kBytes)) {
        require_room_for(device, SmallTiles<T, D>::kBytes, D);
        return f.template operator()<SmallTiles<T, D>>();
      }
    }
    require_room_for(device, Tiles<T, D>::kBytes, D);
    f.template operator()<Tiles<T, D>>();
  });
}

template <class T>
void run_backward(const AttentionGradients& gradients, const ConstTensor& d_out, const AttentionOutputs& outputs,
                  const AttentionInputs& inputs, const AttentionOptions& options) {
  const Device device = inputs.q.device();
  Backward<T> x{};
  x.problem = problem_of(inputs, options);
  x.problem.wide = x.problem.wide && is_wide(outputs.out) && is_wide(d_out) && is_wide(gradients.dq) &&
                   is_wide(gradients.dk) && is_wide(gradients.dv);
  x.q = head_rows<const T>(inputs.q);
  x.k = head_rows<const T>(inputs.k);
  x.v = head_rows<const T>(inputs.v);
  x.out = head_rows<const T>(outputs.out);
  x.d_out = head_rows<const T>(d_out);
  x.dq = head_rows<T>(gradients.dq);
  x.dk = head_rows<T>(gradients.dk);
  x.dv = head_rows<T>(gradients.dv);
  x.log_sum_exp = at<float>(outputs.log_sum_exp);
  dispatch_tiles<T>(device, x.problem.head_dim,
                    [&]<class Memory>() { start<Memory>(x, at<float>(gradients.d_scale), device); });
}

}  // namespace

void attention_backward(const AttentionGradients& gradients, ConstTensor d_out, const AttentionOutputs& outputs,
                        const AttentionInputs& inputs, const AttentionOptions& options) {
  dispatch_device_float(inputs.q.dtype(),
                        [&]<class T>() { run_backward<T>(gradients, d_out, outputs, inputs, options); });
}

void require_backward_fits(Device device, DType dtype, int64_t head_dim) {
  dispatch_device_float(dtype, [&]<class T>() { dispatch_tiles<T>(device, int(head_dim), [&]<class>() {}); });
}

std::vector<KernelUse> backward_kernels() {
  std::vector<KernelUse> all;
  for (int head_dim : {64, 96, 128, 256})
    dispatch_head_dim(head_dim, [&]<int D>() {
      using Usual = Tiles<__nv_bfloat16, D>;
      using Small = SmallTiles<__nv_bfloat16, D>;
      const size_t least = D == 256 ? Usual::kBytes + kReservedBytes : 0;
      all.push_back(use_of<Usual>("attention backward", backward_queries<Usual>, 1, least));
      if constexpr (D == 256) all.push_back(use_of<Small>("attention backward", backward_queries<Small>, 1, 0));
    });
  return all;
}

}  // namespace keel::ops::cuda
