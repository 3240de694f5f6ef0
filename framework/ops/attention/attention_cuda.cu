#include <type_traits>

#include "framework/ops/attention/attention_cuda.h"
#include "framework/ops/attention/attention_problem_cuda.h"
#include "framework/ops/attention/attention_softmax_cuda.h"

// FlashAttention-2, forward: a block owns 16 M rows of queries per warp and walks over the keys that they see, tile by
// tile, the next one on its way while this one is used.
namespace keel::ops::cuda {
namespace {

// bf16: 128 queries by 64 keys or, where their sums leave less room, 48. A warp has 32 queries, so that each fragment
// of keys and values, which is what a tile waits for, is loaded once for two products. Of 255 registers for a thread,
// sums and scores take D + keys; the queries' fragments fit beside them up to D = 64. With heads of 256 the sums of 16
// queries take half of the registers, and 32 keys are the most. 37 to 203 KB of shared memory. Four warps leave half of
// a multiprocessor idle: where two blocks of D = 96 or 128 do not fit one (sm_80), tiles have 16 keys fewer.
template <class T, int D>
struct Tiling {
  static constexpr int M = 2, kWarps = 4, kKeys = D <= 96 ? 64 : 48, kFewKeys = D <= 64 ? kKeys : kKeys - 16;
  static constexpr int kBlocks = 2;
  static constexpr bool kKeptQueries = D <= 64;
};
template <>
struct Tiling<__nv_bfloat16, 256> {
  static constexpr int M = 1, kWarps = 8, kKeys = 32, kFewKeys = kKeys, kBlocks = 1;
  static constexpr bool kKeptQueries = false;
};
template <int D>
struct Tiling<float, D> {
  static constexpr int M = 1, kWarps = 2, kKeys = 32, kFewKeys = kKeys, kBlocks = 1;
  static constexpr bool kKeptQueries = false;
};

// fp32 has no fragments that want registers, and with heads of 256 no room left on sm_80.
template <class T>
constexpr bool kSharedSums = !std::is_same_v<T, float>;

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

// What a warp works on. It lies in shared memory, where each use reads it: in a loop whose sums fill the registers,
// what a tile needs once would be spilled.
template <class T>
struct alignas(16) WarpWork {
  WarpView view;
  const T *k, *v;
  LogitScale scale;
  int b, h, block;
  int first_row, first_tile, tiles;
};

// Shared memory of a block.
template <class Element, int HeadDim, int Keys>
struct ForwardMemory {
  using T = Element;
  static constexpr int D = HeadDim, kKeys = Keys, M = Tiling<T, D>::M, kWarps = Tiling<T, D>::kWarps;
  static constexpr int kBlocks = Tiling<T, D>::kBlocks;  // of a multiprocessor
  static constexpr bool kKeptQueries = Tiling<T, D>::kKeptQueries;
  static constexpr int kRows = M * kWarpRows, kQueries = kWarps * kRows;  // kRows: of a warp
  static constexpr int kThreads = kWarps * device::kWarp;
  static constexpr size_t kOwn = tile_bytes<T, D>(kQueries), kTile = tile_bytes<T, D>(kKeys);
  static constexpr size_t kWork = kOwn + 4 * kTile, kBad = kWork + kWarps * sizeof(WarpWork<T>);
  static constexpr size_t kSums = kBad + kKeys * sizeof(int);
  static constexpr size_t kSmall = kSums + (kSharedSums<T> ? kThreads * sizeof(RowSums<M>) : 0);
  static constexpr size_t kBytes = kSmall + 4 * kWarps * sizeof(double);

  __device__ static int warp() { return int(device::thread_index().x) / device::kWarp; }
  __device__ static T* queries() { return device::shared_memory<T>(); }
  __device__ static T* queries_of_warp() { return queries() + warp() * kRows * kTileStride<T, D>; }
  __device__ static T* keys(int stage) { return device::shared_memory<T>(kOwn + size_t(2 * stage) * kTile); }
  __device__ static T* values(int stage) { return device::shared_memory<T>(kOwn + size_t(2 * stage + 1) * kTile); }
  __device__ static WarpWork<T>& work() { return device::shared_memory<WarpWork<T>>(kWork)[warp()]; }
  __device__ static RowSums<M>* sums() { return device::shared_memory<RowSums<M>>(kSums) + device::thread_index().x; }
  __device__ static int* bad() { return device::shared_memory<int>(kBad); }
  template <class S>
  __device__ static S* small() {
    return device::shared_memory<S>(kSmall);
  }
};

template <class T>
__device__ int blocks_of(const Forward<T>& x, int queries) {
  return (x.problem.queries + queries - 1) / queries;
}

// Starts to bring the block's queries and leaves what the warps work on.
template <class Memory, class T>
__device__ __forceinline__ void begin_block(const Forward<T>& x) {
  constexpr int D = Memory::D, kQueries = Memory::kQueries, kKeys = Memory::kKeys;
  const AttentionProblem& problem = x.problem;
  const auto [b, h, number] = problem.place(int(device::block_index().x), problem.heads);
  const int block = blocks_of(x, kQueries) - 1 - number;  // the last rows see most keys: they come first
  const int first_row = block * kQueries + Memory::warp() * Memory::kRows, kv = problem.kv_head(h);
  load_rows<D, kQueries, Memory::kThreads>(Memory::queries(), x.queries(b, h), block * kQueries);
  device::commit_copies();
  const WarpView view(problem, b, first_row, Memory::M);
  const KeyInterval seen = joined_over_block<Memory::kWarps>(view.any, Memory::template small<int>());
  const int tiles = (seen.end + kKeys - 1) / kKeys, first = seen.empty() ? tiles : seen.begin / kKeys;
  const LogitScale scale(problem.scale[h], problem.softcap);
  if (device::lane() == 0)
    Memory::work() = {view, x.k.head(b, kv), x.v.head(b, kv), scale, b, h, block, first_row, first, tiles};
  device::sync_warp();
}

template <class Memory, class T>
__device__ __forceinline__ void load_tile(const Forward<T>& x, int tile) {
  constexpr int D = Memory::D, kKeys = Memory::kKeys;
  const AttentionProblem& problem = x.problem;
  const RowSource<T> k{Memory::work().k, x.k.of_row, problem.keys, problem.head_dim, problem.wide};
  const RowSource<T> v{Memory::work().v, x.v.of_row, problem.keys, problem.head_dim, problem.wide};
  load_rows<D, kKeys, Memory::kThreads>(Memory::keys(tile % 2), k, tile * kKeys);
  load_rows<D, kKeys, Memory::kThreads>(Memory::values(tile % 2), v, tile * kKeys);
  device::commit_copies();
}

// All keys that the block sees; once more, with care, where that leaves what is not finite.
template <class Memory, bool kEntropy, class T>
__device__ __forceinline__ void walk_keys(const Forward<T>& x, float (&out)[Memory::M][Memory::D / 8][4],
                                          Softmax<Memory::M>& state) {
  constexpr int D = Memory::D, M = Memory::M, kKeys = Memory::kKeys, kWarps = Memory::kWarps;
  const WarpWork<T>& work = Memory::work();
  if constexpr (Memory::kKeptQueries) {
    device::wait_copies<0>();
    device::sync_threads();
  }
  const OwnRows<T, D, M, Memory::kKeptQueries> queries(Memory::queries_of_warp());
  for (bool careful = false;; careful = true) {
    clear(out);
    state.clear();
    device::sync_threads();
    if (work.first_tile < work.tiles) load_tile<Memory>(x, work.first_tile);
    for (int tile = work.first_tile; tile < work.tiles; ++tile) {
      T *keys = Memory::keys(tile % 2), *values = Memory::values(tile % 2);
      device::wait_copies<0>();
      device::sync_threads();  // this tile is here, and nobody uses the last one any more
      if (tile + 1 < work.tiles) load_tile<Memory>(x, tile + 1);
      if (careful) {
        mark_bad_rows<D>(keys, values, kKeys, Memory::bad());
        device::sync_threads();
      }
      if (work.view.any.meets(tile * kKeys, kKeys)) {
        float s[M][kKeys / 8][4];
        clear(s);
        add_rows_product<D>(s, queries, keys);
        if (careful) poison_columns(s, Memory::bad());
        const bool whole = work.view.all.begin <= tile * kKeys && work.view.all.end >= (tile + 1) * kKeys;
        scores_of(s, state, {work.b, work.first_row, tile * kKeys}, whole, x.problem, work.scale);
        exponentials_of<kEntropy>(s, out, state, work.scale.exponent);
        add_columns_product<D>(out, s, values);
      }
      if (careful) device::sync_threads();  // before the marks are written again
    }
    device::wait_copies<0>();  // of the queries, where there are no keys
    if (careful || block_all<kWarps>(all_finite(out), Memory::template small<int>())) break;
  }
  state.largest *= work.scale.size;
}

// Log-sum-exp of the warp's rows, factors for what they have summed up, the lane's share of their entropy.
template <class Memory, class T>
__device__ __forceinline__ double finish_rows(const Forward<T>& x, const Softmax<Memory::M>& state,
                                              float (&factor)[Memory::M][2]) {
  constexpr float kLn2 = 0.693147180559945309f;
  const AttentionProblem& problem = x.problem;
  const WarpWork<T>& work = Memory::work();
  const float c = work.scale.exponent, size = work.scale.softcap != 0 ? 1.f : work.scale.size;
  double entropy = 0;
#pragma unroll
  for (int m = 0; m < Memory::M; ++m)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int lane = int(device::lane()), row = work.first_row + kWarpRows * m + lane / 4 + 8 * i;
      const float sum = quad_sum(state.sums->sum[m][i]), weighted = quad_sum(state.sums->weighted[m][i]);
      const float maximum = state.maximum[m][i];
      const bool blind = visible(problem, work.b, row).empty();
      factor[m][i] = blind ? 0.f : 1 / sum;
      if (lane % 4 != 0 || row >= problem.queries) continue;
      const float log_sum = logf(sum) - kLn2 * RowBase(maximum, c).residual(maximum, c);
      x.log_sum_exp[(int64_t(work.b) * problem.heads + work.h) * problem.queries + row] =
          blind ? -INFINITY : maximum * size + log_sum;
      if (!blind) entropy += double(logf(sum)) - double(kLn2) * (double(weighted) / double(sum));
    }
  return entropy;
}

template <class Memory, bool kEntropy>
__global__ void __launch_bounds__(Memory::kThreads, Memory::kBlocks) forward(Forward<typename Memory::T> x) {
  using T = typename Memory::T;
  constexpr int D = Memory::D, M = Memory::M, kWarps = Memory::kWarps;
  const AttentionProblem& problem = x.problem;
  begin_block<Memory>(x);
  float out[M][D / 8][4], factor[M][2];
  RowSums<M> sums;
  Softmax<M> state{kSharedSums<T> ? Memory::sums() : &sums, {}, 0};
  walk_keys<Memory, kEntropy>(x, out, state);
  double entropy = finish_rows<Memory>(x, state, factor);
  T* own = Memory::queries_of_warp();
  device::sync_warp();
#pragma unroll
  for (int m = 0; m < M; ++m) put_rows<D>(own + kWarpRows * m * kTileStride<T, D>, out[m], factor[m]);
  const WarpWork<T>& work = Memory::work();
  store_rows<D>(RowSink<T>{x.out.head(work.b, work.h) + work.first_row * x.out.of_row, x.out.of_row,
                           least(Memory::kRows, problem.queries - work.first_row), problem.head_dim, problem.wide},
                own);

  auto* largest = Memory::template small<float>();
  for (unsigned bits = 1; bits < 32; bits *= 2)
    state.largest = fmaxf(state.largest, device::shuffle_xor(state.largest, bits));
  device::sync_threads();
  if (device::lane() == 0) largest[Memory::warp()] = state.largest;
  device::sync_threads();
  const int blocks = blocks_of(x, Memory::kQueries);
  const int64_t slot = (int64_t(work.h) * problem.batch + work.b) * blocks + work.block;
  if (device::thread_index().x == 0) {
    for (int i = 1; i < kWarps; ++i) largest[0] = fmaxf(largest[0], largest[i]);
    x.largest[slot] = largest[0];
  }
  if constexpr (!kEntropy) return;
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
template <class Memory>
__global__ void __launch_bounds__(Memory::kThreads, 1) find_places(Forward<typename Memory::T> x, Places out) {
  using T = typename Memory::T;
  constexpr int D = Memory::D, M = Memory::M, kKeys = Memory::kKeys, kWarps = Memory::kWarps,
                kQueries = Memory::kQueries;
  const AttentionProblem& problem = x.problem;
  const int h = int(device::block_index().x), block = out.raised_by[h];
  if (block < 0) return;
  const int blocks = (problem.queries + kQueries - 1) / kQueries, b = block / blocks;
  const int warp = int(device::thread_index().x) / device::kWarp, lane = int(device::lane());
  const int first_row = block % blocks * kQueries + warp * Memory::kRows, column = lane % 4 * 2;
  load_rows<D, kQueries, Memory::kThreads>(Memory::queries(), x.queries(b, h), block % blocks * kQueries);
  const OwnRows<T, D, M, false> queries(Memory::queries_of_warp());
  const WarpView warp_view(problem, b, first_row, M);
  const KeyInterval seen = joined_over_block<kWarps>(warp_view.any, Memory::template small<int>());
  Found found;
  for (int first_key = seen.begin / kKeys * kKeys; first_key < seen.end; first_key += kKeys) {
    device::sync_threads();  // nobody uses the last tile any more
    load_rows<D, kKeys, Memory::kThreads>(Memory::keys(0), x.keys(b, h), first_key);
    device::commit_copies();
    device::wait_copies<0>();
    device::sync_threads();
    float s[M][kKeys / 8][4];
    clear(s);
    add_rows_product<D>(s, queries, Memory::keys(0));
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const LaneView view(problem, b, first_row + kWarpRows * m);
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + column + 8 * n + i % 2, row = first_row + kWarpRows * m + lane / 4 + 8 * (i / 2);
          const int64_t from_first =
              (int64_t(b) << LogitPlace::kSequenceShift) + (int64_t(row) << LogitPlace::kKeyBits) + key;
          if (view.row[i / 2].holds(key)) found.join({fabsf(s[m][n][i] * problem.scale[h]), out.first - from_first});
        }
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

// f.operator()<Memory>() with the tiles for the device.
template <class T, class F>
void dispatch_tiles(Device device, int head_dim, const F& f) {
  dispatch_head_dim(head_dim, [&]<int D>() {
    using Usual = ForwardMemory<T, D, Tiling<T, D>::kKeys>;
    if constexpr (Tiling<T, D>::kFewKeys < Tiling<T, D>::kKeys) {
      using Few = ForwardMemory<T, D, Tiling<T, D>::kFewKeys>;
      static_assert(Few::kBlocks * (Few::kBytes + kReservedBytes) <= 164 << 10, "a multiprocessor of sm_80");
      if (!blocks_fit(device, Usual::kBlocks, Usual::kBytes) && blocks_fit(device, Few::kBlocks, Few::kBytes))
        return f.template operator()<Few>();
    }
    require_room_for(device, Usual::kBytes, D);
    f.template operator()<Usual>();
  });
}

template <class Memory>
void run_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs, const AttentionOptions& options) {
  using T = typename Memory::T;
  const Device device = inputs.q.device();
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
  if (outputs.entropy.defined()) x.entropy = reinterpret_cast<double*>(partial);
  const cudaStream_t stream = keel::cuda::current_stream(device);
  launch(outputs.entropy.defined() ? forward<Memory, true> : forward<Memory, false>, unsigned(count), Memory::kThreads,
         Memory::kBytes, stream, x);
  join_blocks({at<float>(outputs.largest_logit), at<float>(outputs.entropy), x.largest, x.entropy, x.problem.heads,
               int(per_head), raised_by},
              stream);
  if (!raised_by) return;
  const Places places{outputs.place.as<int64_t>(), raised_by, LogitPlace::number_of({options.first_sequence, 0, 0})};
  launch(find_places<Memory>, unsigned(x.problem.heads), Memory::kThreads, Memory::kBytes, stream, x, places);
}

}  // namespace

void join_blocks(const BlockTotals& totals, cudaStream_t stream) {
  launch(join_blocks_kernel, unsigned(totals.heads), device::kWarp, 0, stream, totals);
}

void attention_forward(const AttentionOutputs& outputs, const AttentionInputs& inputs,
                       const AttentionOptions& options) {
  dispatch_device_float(inputs.q.dtype(), [&]<class T>() {
    dispatch_tiles<T>(inputs.q.device(), int(inputs.q.size(3)),
                      [&]<class Memory>() { run_forward<Memory>(outputs, inputs, options); });
  });
}

void require_forward_fits(Device device, DType dtype, int64_t head_dim) {
  dispatch_device_float(dtype, [&]<class T>() { dispatch_tiles<T>(device, int(head_dim), [&]<class>() {}); });
}

std::vector<KernelUse> forward_kernels() {
  std::vector<KernelUse> all;
  for (int head_dim : {64, 96, 128, 256})
    dispatch_head_dim(head_dim, [&]<int D>() {
      using Shape = Tiling<__nv_bfloat16, D>;
      using Usual = ForwardMemory<__nv_bfloat16, D, Shape::kKeys>;
      const size_t least = Shape::kFewKeys < Shape::kKeys ? Shape::kBlocks * (Usual::kBytes + kReservedBytes) : 0;
      all.push_back(use_of<Usual>("attention forward", forward<Usual, false>, Shape::kBlocks, least));
      if constexpr (Shape::kFewKeys < Shape::kKeys) {
        using Few = ForwardMemory<__nv_bfloat16, D, Shape::kFewKeys>;
        all.push_back(use_of<Few>("attention forward", forward<Few, false>, Shape::kBlocks, 0));
      }
    });
  return all;
}

std::optional<int> held_blocks(Device device, const KernelUse& use) {
  if (use.least_total_bytes > keel::cuda::shared_bytes_per_multiprocessor(device)) return {};
  return keel::cuda::blocks_per_multiprocessor(device, use.kernel, use.threads, use.shared_bytes);
}

}  // namespace keel::ops::cuda
