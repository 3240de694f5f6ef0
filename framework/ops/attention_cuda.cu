#include "framework/ops/attention_cuda.h"
#include "framework/ops/attention_problem_cuda.h"

// FlashAttention-2, forward: a block owns 16 rows of queries per warp and walks over the keys that they see, tile by
// tile, the next one on its way while this one is used.
namespace keel::ops::cuda {
namespace {

// bf16: 128 queries by 64 keys, or by 32 with heads of 256, where the sums take half of the registers. One block per
// multiprocessor: at most 255 registers for each of its 256 threads, 37 to 203 KB of shared memory.
template <class T, int D>
struct Tiling {
  static constexpr int kWarps = 8, kKeys = D > 128 ? 32 : 64;
};
template <int D>
struct Tiling<float, D> {
  static constexpr int kWarps = 2, kKeys = 32;
};

template <class T>
struct Forward {
  AttentionProblem problem;
  HeadRows<const T> q, k, v;
  HeadRows<T> out;
  float* log_sum_exp;  // [B, H, T_q]
  float* largest;      // [H, B * blocks]: of each block
  double* entropy;     // the same, or null

  __device__ RowSource<T> queries(int b, int h) const {
    return {q.head(b, h), q.of_row, problem.queries, problem.head_dim, problem.wide};
  }
  __device__ RowSource<T> keys(int b, int h) const {
    return {k.head(b, problem.kv_head(h)), k.of_row, problem.keys, problem.head_dim, problem.wide};
  }
};

template <class T, int D>
struct ForwardMemory {
  static constexpr int kWarps = Tiling<T, D>::kWarps, kKeys = Tiling<T, D>::kKeys, kQueries = kWarps * kWarpRows;
  static constexpr int kThreads = kWarps * device::kWarp;
  static constexpr size_t kOwn = tile_bytes<T, D>(kQueries), kTile = tile_bytes<T, D>(kKeys);
  static constexpr size_t kBad = kOwn + 4 * kTile, kSmall = kBad + kKeys * sizeof(int);
  static constexpr size_t kBytes = kSmall + 4 * kWarps * sizeof(double);

  __device__ static T* queries() { return device::shared_memory<T>(); }
  __device__ static T* keys(int stage) { return device::shared_memory<T>(kOwn + size_t(2 * stage) * kTile); }
  __device__ static T* values(int stage) { return device::shared_memory<T>(kOwn + size_t(2 * stage + 1) * kTile); }
  __device__ static int* bad() { return device::shared_memory<int>(kBad); }
  template <class S>
  __device__ static S* small() {
    return device::shared_memory<S>(kSmall);
  }
};

// The running softmax of a lane's two rows (Milakov & Gimelshein 2018). Sums are of the lane's own columns.
struct Softmax {
  float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  float weighted[2] = {0, 0};  // of exp(s - maximum) (s - maximum), for the entropy
  float largest = 0;           // |s| before the soft-cap
};

// Which of a tile's scores count. `bad` is null in the first try.
struct TileMask {
  const WarpView& view;
  int first_key;
  bool whole;  // all do
  const int* bad;
};

// Products q . k to scores after soft-cap and mask, -infinity where hidden.
template <int N>
__device__ __forceinline__ void scores_of(float (&s)[N][4], Softmax& state, const TileMask& mask, float scale,
                                          float softcap) {
  const int column = mask.first_key + int(device::lane()) % 4 * 2;
#pragma unroll
  for (int n = 0; n < N; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float score = s[n][i] * scale;
      const int key = 8 * n + i % 2;
      if (mask.bad && mask.bad[key + column - mask.first_key]) score = NAN;
      if (mask.whole || mask.view.row[i / 2].holds(column + key)) {
        state.largest = fmaxf(state.largest, fabsf(score));
        if (softcap != 0) score = softcap * tanhf(score / softcap);
      } else {
        score = -INFINITY;
      }
      s[n][i] = score;
    }
}

// Scores to exp(s - maximum), and out to the new maximum.
template <int N, int M>
__device__ __forceinline__ void exponentials_of(float (&s)[N][4], float (&out)[M][4], Softmax& state,
                                                bool want_entropy) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float maximum = state.maximum[i];
#pragma unroll
    for (int n = 0; n < N; ++n) maximum = fmaxf(maximum, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
    maximum = quad_max(maximum);
    const float shift = maximum == -INFINITY ? 0.f : maximum;  // a row that has seen nothing yet
    const float rise = state.maximum[i] - shift, factor = exponential(rise);
    state.maximum[i] = maximum;
    if (want_entropy) state.weighted[i] = state.sum[i] == 0 ? 0.f : factor * (state.weighted[i] + state.sum[i] * rise);
    state.sum[i] *= factor;
    if (device::any(factor != 1)) {  // after the first tiles, maxima seldom rise
#pragma unroll
      for (int n = 0; n < M; ++n) {
        out[n][2 * i] *= factor;
        out[n][2 * i + 1] *= factor;
      }
    }
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float t = s[n][2 * i + j] - shift, p = exponential(t);
        if (want_entropy) state.weighted[i] += p == 0 ? 0.f : p * t;
        state.sum[i] += p;
        s[n][2 * i + j] = p;
      }
  }
}

// What a block works on.
struct ForwardPlace {
  int b, h, block, blocks;
};

// All keys that the block sees, for one try.
template <class T, int D>
__device__ void walk_keys(const Forward<T>& x, const ForwardPlace& at, const WarpView& view, float (&out)[D / 8][4],
                          Softmax& state) {
  using Memory = ForwardMemory<T, D>;
  constexpr int kKeys = Memory::kKeys, kWarps = Memory::kWarps;
  const AttentionProblem& problem = x.problem;
  const int warp = int(device::thread_index().x) / device::kWarp, kv = problem.kv_head(at.h);
  const RowSource<T> k = x.keys(at.b, at.h);
  const RowSource<T> v{x.v.head(at.b, kv), x.v.of_row, problem.keys, problem.head_dim, problem.wide};
  const KeyInterval seen = joined_over_block<kWarps>(view.any, Memory::template small<int>());
  const float scale = problem.scale[at.h];
  const auto load = [&](int tile) {
    load_rows<D>(Memory::keys(tile % 2), k, tile * kKeys, kKeys);
    load_rows<D>(Memory::values(tile % 2), v, tile * kKeys, kKeys);
    device::commit_copies();
  };
  bool careful = false;
  while (true) {
    clear(out);
    state = {};
    const int tiles = (seen.end + kKeys - 1) / kKeys, first = seen.empty() ? tiles : seen.begin / kKeys;
    device::sync_threads();
    if (first < tiles) load(first);
    for (int tile = first; tile < tiles; ++tile) {
      T *keys = Memory::keys(tile % 2), *values = Memory::values(tile % 2);
      device::wait_copies<0>();
      device::sync_threads();  // this tile is here, and nobody uses the last one any more
      if (tile + 1 < tiles) load(tile + 1);
      if (careful) {
        mark_bad_rows<D>(keys, values, kKeys, Memory::bad());
        device::sync_threads();
      }
      if (view.any.meets(tile * kKeys, kKeys)) {
        float s[kKeys / 8][4];
        clear(s);
        add_rows_product<D>(s, Memory::queries() + warp * kWarpRows * kTileStride<T, D>, keys);
        const bool whole = !careful && view.all.begin <= tile * kKeys && view.all.end >= (tile + 1) * kKeys;
        scores_of(s, state, {view, tile * kKeys, whole, careful ? Memory::bad() : nullptr}, scale, problem.softcap);
        exponentials_of(s, out, state, x.entropy != nullptr);
        add_columns_product<D>(out, s, values);
      }
      if (careful) device::sync_threads();  // before the marks are written again
    }
    device::wait_copies<0>();  // of the queries, where there are no keys
    if (careful || block_all<kWarps>(all_finite(out), Memory::template small<int>())) return;
    careful = true;
  }
}

template <class T, int D>
__global__ void __launch_bounds__(ForwardMemory<T, D>::kThreads, 1) forward(Forward<T> x) {
  using Memory = ForwardMemory<T, D>;
  constexpr int kWarps = Memory::kWarps, kQueries = Memory::kQueries;
  const AttentionProblem& problem = x.problem;
  const int blocks = (problem.queries + kQueries - 1) / kQueries;
  const auto [b, h, number] = problem.place(int(device::block_index().x), problem.heads);
  const ForwardPlace at = {b, h, blocks - 1 - number, blocks};  // the last rows see most keys: they come first
  const int warp = int(device::thread_index().x) / device::kWarp, lane = int(device::lane());
  const int first_row = at.block * kQueries + warp * kWarpRows;
  load_rows<D>(Memory::queries(), x.queries(at.b, at.h), at.block * kQueries, kQueries);
  device::commit_copies();

  const WarpView view(problem, at.b, first_row);
  float out[D / 8][4], factor[2];
  Softmax state;
  walk_keys<T, D>(x, at, view, out, state);

  double entropy = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sum = quad_sum(state.sum[i]), weighted = quad_sum(state.weighted[i]);
    const bool blind = view.row[i].empty();
    factor[i] = blind ? 0.f : 1 / sum;
    const int row = first_row + lane / 4 + 8 * i;
    if (lane % 4 != 0 || row >= problem.queries) continue;
    x.log_sum_exp[(int64_t(at.b) * problem.heads + at.h) * problem.queries + row] =
        blind ? -INFINITY : state.maximum[i] + logf(sum);
    if (!blind) entropy += double(logf(sum)) - double(weighted) / double(sum);
  }
  T* own = Memory::queries() + warp * kWarpRows * kTileStride<T, D>;
  device::sync_warp();
  put_rows<D>(own, out, factor);
  store_rows<D>(RowSink<T>{x.out.head(at.b, at.h) + first_row * x.out.of_row, x.out.of_row,
                           least(kWarpRows, problem.queries - first_row), problem.head_dim, problem.wide},
                own);

  auto* largest = Memory::template small<float>();
  for (unsigned bits = 1; bits < 32; bits *= 2)
    state.largest = fmaxf(state.largest, device::shuffle_xor(state.largest, bits));
  device::sync_threads();
  if (lane == 0) largest[warp] = state.largest;
  device::sync_threads();
  const int64_t slot = (int64_t(at.h) * problem.batch + at.b) * blocks + at.block;
  if (device::thread_index().x == 0) {
    for (int i = 1; i < kWarps; ++i) largest[0] = fmaxf(largest[0], largest[i]);
    x.largest[slot] = largest[0];
  }
  if (!x.entropy) return;
  entropy = block_sum(entropy, Memory::template small<double>());
  if (device::thread_index().x == 0) x.entropy[slot] = entropy;
}

// One warp per head.
__global__ void __launch_bounds__(device::kWarp) join_blocks_kernel(BlockTotals x) {
  const int64_t h = device::block_index().x;
  float largest = x.largest ? x.largest[h] : 0.f;
  int raised_by = INT_MAX;
  double sum = 0;
  for (int i = int(device::lane()); i < x.blocks; i += device::kWarp) {
    if (x.largest && x.largest_of_blocks[h * x.blocks + i] > largest)
      largest = x.largest_of_blocks[h * x.blocks + i], raised_by = i;
    if (x.sum) sum += x.sum_of_blocks[h * x.blocks + i];
  }
  for (unsigned bits = 1; bits < device::kWarp; bits *= 2) {
    const float other = device::shuffle_xor(largest, bits);
    const int other_block = device::shuffle_xor(raised_by, bits);
    if (other > largest || (other == largest && other_block < raised_by)) largest = other, raised_by = other_block;
  }
  sum = warp_sum(sum);
  if (device::lane() != 0) return;
  if (x.largest) x.largest[h] = largest;
  if (x.raised_by) x.raised_by[h] = raised_by == INT_MAX ? -1 : raised_by;
  if (x.sum) x.sum[h] += float(sum);
}

// A logit and LogitPlace's number.
struct Found {
  float logit = 0;
  int64_t place = 0;

  __device__ void join(const Found& other) {
    if (other.logit > logit || (other.logit == logit && other.place > place)) *this = other;
  }
};

struct Places {
  int64_t* places;       // [H]
  const int* raised_by;  // [H]
  int64_t first;         // LogitPlace's number of the batch's first sequence
};

// One block per head: the scores of those rows once more that raised the largest logit.
template <class T, int D>
__global__ void __launch_bounds__(ForwardMemory<T, D>::kThreads, 1) find_places(Forward<T> x, Places out) {
  using Memory = ForwardMemory<T, D>;
  constexpr int kKeys = Memory::kKeys, kWarps = Memory::kWarps, kQueries = Memory::kQueries;
  const AttentionProblem& problem = x.problem;
  const int h = int(device::block_index().x), block = out.raised_by[h];
  if (block < 0) return;
  const int blocks = (problem.queries + kQueries - 1) / kQueries, b = block / blocks;
  const int warp = int(device::thread_index().x) / device::kWarp, lane = int(device::lane());
  const int first_row = block % blocks * kQueries + warp * kWarpRows, column = lane % 4 * 2;
  load_rows<D>(Memory::queries(), x.queries(b, h), block % blocks * kQueries, kQueries);
  const WarpView view(problem, b, first_row);
  const KeyInterval seen = joined_over_block<kWarps>(view.any, Memory::template small<int>());
  Found found;
  for (int first_key = seen.begin / kKeys * kKeys; first_key < seen.end; first_key += kKeys) {
    device::sync_threads();  // nobody uses the last tile any more
    load_rows<D>(Memory::keys(0), x.keys(b, h), first_key, kKeys);
    device::commit_copies();
    device::wait_copies<0>();
    device::sync_threads();
    float s[kKeys / 8][4];
    clear(s);
    add_rows_product<D>(s, Memory::queries() + warp * kWarpRows * kTileStride<T, D>, Memory::keys(0));
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + column + 8 * n + i % 2, row = first_row + lane / 4 + 8 * (i / 2);
        const int64_t from_first =
            (int64_t(b) << LogitPlace::kSequenceShift) + (int64_t(row) << LogitPlace::kKeyBits) + key;
        if (view.row[i / 2].holds(key)) found.join({fabsf(s[n][i] * problem.scale[h]), out.first - from_first});
      }
  }
  for (unsigned bits = 1; bits < device::kWarp; bits *= 2)
    found.join({device::shuffle_xor(found.logit, bits), device::shuffle_xor(found.place, bits)});
  auto* of_warps = Memory::template small<Found>();
  device::sync_threads();
  if (lane == 0) of_warps[warp] = found;
  device::sync_threads();
  if (device::thread_index().x != 0) return;
  for (int i = 1; i < kWarps; ++i) found.join(of_warps[i]);
  out.places[h] = found.place;
}

template <class T, int D>
void run_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs, const AttentionOptions& options) {
  using Memory = ForwardMemory<T, D>;
  const Device device = inputs.q.device();
  require_room_for(device, Memory::kBytes, D);
  Forward<T> x{};
  x.problem = problem_of(inputs, options);
  x.problem.wide = x.problem.wide && is_wide(outputs.out);
  x.q = head_rows<const T>(inputs.q);
  x.k = head_rows<const T>(inputs.k);
  x.v = head_rows<const T>(inputs.v);
  x.out = head_rows<T>(outputs.out);
  x.log_sum_exp = at<float>(outputs.log_sum_exp);
  const int64_t per_head = (x.problem.queries + Memory::kQueries - 1) / Memory::kQueries * int64_t(x.problem.batch);
  const int64_t count = per_head * x.problem.heads;
  const int64_t of_head = x.problem.heads * int64_t(sizeof(int));
  std::byte* partial = keel::cuda::workspace(device, count * int64_t(sizeof(double) + sizeof(float)) + of_head);
  x.largest = reinterpret_cast<float*>(partial + count * int64_t(sizeof(double)));
  int* raised_by = outputs.place.defined() ? reinterpret_cast<int*>(x.largest + count) : nullptr;
  if (options.want_entropy) x.entropy = reinterpret_cast<double*>(partial);
  const cudaStream_t stream = keel::cuda::current_stream(device);
  launch(forward<T, D>, unsigned(count), Memory::kThreads, Memory::kBytes, stream, x);
  join_blocks({at<float>(outputs.largest_logit), options.want_entropy ? at<float>(outputs.entropy) : nullptr, x.largest,
               x.entropy, x.problem.heads, int(per_head), raised_by},
              stream);
  if (!raised_by) return;
  const Places places{outputs.place.as<int64_t>(), raised_by, LogitPlace::number_of({options.first_sequence, 0, 0})};
  launch(find_places<T, D>, unsigned(x.problem.heads), Memory::kThreads, Memory::kBytes, stream, x, places);
}

}  // namespace

void join_blocks(const BlockTotals& totals, cudaStream_t stream) {
  launch(join_blocks_kernel, unsigned(totals.heads), device::kWarp, 0, stream, totals);
}

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                       const AttentionOptions& options) {
  dispatch_device_float(inputs.q.dtype(), [&]<class T>() {
    dispatch_head_dim(int(inputs.q.size(3)), [&]<int D>() { run_forward<T, D>(outputs, inputs, options); });
  });
}

void require_forward_fits(Device device, DType dtype, int64_t head_dim) {
  dispatch_device_float(dtype, [&]<class T>() {
    dispatch_head_dim(int(head_dim), [&]<int D>() { require_room_for(device, ForwardMemory<T, D>::kBytes, D); });
  });
}

}  // namespace keel::ops::cuda
