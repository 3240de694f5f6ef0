// The device headers, the same kernels by nvcc and on the stand-in: every call against its plain meaning.
#include <device/math.h>
#include <device/matrix.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "framework/ops/attention/attention_cuda.h"
#include "framework/ops/attention/attention_key_slots_cuda.h"
#include "framework/ops/support/kernel.h"
#include "tests/support/compare.h"
#include "tests/support/cuda_host/matrix_layout.h"

namespace keel::ops::cuda {
namespace {

using namespace keel::testing;

// n elements on the GPU, whatever the device under test.
template <class T>
struct Memory {
  explicit Memory(const std::vector<T>& values)
      : owned({int64_t(values.size())}, dtype_of<T>(), Device{DeviceKind::cuda}) {
    copy(owned, ConstTensor(values.data(), owned.tensor.shape(), dtype_of<T>()));
  }
  std::vector<T> values() const {
    const OnHost host(owned);
    return {host.as<T>(), host.as<T>() + owned.tensor.elements()};
  }
  template <class As = T>
  As* get() const {
    return static_cast<As*>(owned.tensor.data());
  }
  OwnedTensor owned;
};

__global__ void __launch_bounds__(64) indices(int* to) {
  const uint3 thread = device::thread_index(), block = device::block_index();
  const dim3 threads = device::block_size(), blocks = device::grid_size();
  const unsigned in_block = (thread.z * threads.y + thread.y) * threads.x + thread.x;
  const unsigned number = (block.z * blocks.y + block.y) * blocks.x + block.x;
  to[number * threads.x * threads.y * threads.z + in_block] = int(number * 100 + in_block);
}

TEST(DeviceApi, Indices) {
  const Memory<int> to(std::vector<int>(8 * 64, -1));
  launch(indices, dim3(2, 2, 2), dim3(8, 4, 2), 0, nullptr, to.get());
  const std::vector<int> got = to.values();
  for (int i = 0; i < 8 * 64; ++i) ASSERT_EQ(got[size_t(i)], i / 64 * 100 + i % 64);
}

constexpr int kExchanges = 7;

__global__ void __launch_bounds__(64) exchanges(int* to) {
  const unsigned own = device::lane();
  int* out = to + device::thread_index().x * kExchanges;
  out[0] = int(device::shuffle_xor(double(own) + 0.5, 5) * 2);
  out[1] = device::shuffle(int(own), 40);
  out[2] = int(device::ballot(own % 5 == 0));
  out[3] = device::any(own == 31) + 2 * device::any(false);
  out[4] = device::all(own < 32) + 2 * device::all(own < 31);
  out[5] = device::count_bits(own);
  out[6] = own < 16 ? device::shuffle_xor(int(own), 8, 0xffffu) : -1;
  device::sync_warp();
}

TEST(DeviceApi, LanesExchange) {
  const Memory<int> to(std::vector<int>(64 * kExchanges, -7));
  launch(exchanges, 1, 64, 0, nullptr, to.get());
  const std::vector<int> got = to.values();
  for (int thread = 0; thread < 64; ++thread) {
    const int own = thread % 32;
    const std::vector<int> expected{2 * (own ^ 5) + 1,      8, 0x42108421, 1, 1, int(std::popcount(unsigned(own))),
                                    own < 16 ? own ^ 8 : -1};
    for (int i = 0; i < kExchanges; ++i)
      EXPECT_EQ(got[size_t(thread * kExchanges + i)], expected[size_t(i)]) << "thread " << thread << " exchange " << i;
  }
}

// Each thread's share of 1 + 2 + ... in three ways; the second block_sum reuses the shared memory of the first.
__global__ void __launch_bounds__(96) sums(double* to) {
  const unsigned thread = device::thread_index().x;
  auto* partial = device::shared_memory<double>(16);
  const double first = block_sum(double(thread), partial), second = block_sum(double(2 * thread), partial);
  to[3 * thread] = warp_sum(double(device::lane()));
  to[3 * thread + 1] = first;
  to[3 * thread + 2] = second;
}

TEST(DeviceApi, Sums) {
  const Memory<double> to(std::vector<double>(3 * 96, -1));
  launch(sums, 1, 96, 16 + 3 * sizeof(double), nullptr, to.get());
  const std::vector<double> got = to.values();
  for (size_t i = 0; i < 96; ++i) {
    EXPECT_EQ(got[3 * i], 31 * 16);
    EXPECT_EQ(got[3 * i + 1], 95 * 48);
    EXPECT_EQ(got[3 * i + 2], 95 * 96);
  }
}

// Two groups in flight; the second group's last 8 bytes are not valid and become zero.
__global__ void __launch_bounds__(32) copy_groups(float* to, const float* from) {
  float* shared = device::shared_memory<float>();
  const unsigned i = device::thread_index().x * 8;
  device::copy_async(shared + i, from + i);
  device::commit_copies();
  device::copy_async(shared + i + 4, from + i + 4, 8);
  device::commit_copies();
  device::wait_copies<1>();
  for (unsigned j = 0; j < 4; ++j) to[i + j] = shared[i + j];
  device::wait_copies<0>();
  device::sync_threads();
  const unsigned other = (i + 8) % 256;
  for (unsigned j = 4; j < 8; ++j) to[other + j] = shared[other + j];
}

TEST(DeviceApi, AsynchronousCopies) {
  std::vector<float> from(256), expected(256);
  for (size_t i = 0; i < 256; ++i) {
    from[i] = float(i + 1);
    expected[i] = i % 8 < 6 ? from[i] : 0;
  }
  const Memory<float> in(from), to(std::vector<float>(256, -1));
  launch(copy_groups, 1, 32, 1024, nullptr, to.get(), in.get());
  EXPECT_EQ(to.values(), expected);
}

// Every third word is not valid and becomes zero.
__global__ void __launch_bounds__(32) copy_words(float* to, const float* from) {
  float* shared = device::shared_memory<float>();
  const unsigned i = device::thread_index().x;
  device::copy_word_async(shared + i, from + i, i % 3 != 0);
  device::commit_copies();
  device::wait_copies<0>();
  device::sync_threads();
  to[i] = shared[(i + 1) % 32];
}

TEST(DeviceApi, AsynchronousCopiesOfWords) {
  std::vector<float> from(32), expected(32);
  for (size_t i = 0; i < 32; ++i) from[i] = float(i + 1);
  for (size_t i = 0; i < 32; ++i) expected[i] = (i + 1) % 32 % 3 == 0 ? 0 : from[(i + 1) % 32];
  const Memory<float> in(from), to(std::vector<float>(32, -1));
  launch(copy_words, 1, 32, 128, nullptr, to.get(), in.get());
  EXPECT_EQ(to.values(), expected);
}

// Each lane's registers of four matrices, plain and transposed.
__global__ void __launch_bounds__(32) matrix_loads(int* to, const int* from) {
  int* shared = device::shared_memory<int>();
  const unsigned lane = device::lane();
  for (unsigned i = lane; i < 128; i += 32) shared[i] = from[i];
  device::sync_warp();
  uint32_t plain[4], turned[4];
  device::load_matrices(plain, shared + lane * 4);
  device::load_matrices_transposed(turned, shared + lane * 4);
  int* out = to + lane * 8;
  for (int i = 0; i < 4; ++i) out[i] = int(plain[i]);
  for (int i = 0; i < 4; ++i) out[4 + i] = int(turned[i]);
}

// Element [row][col] of matrix m holds 64 m + 8 row + col in 16 bits.
TEST(DeviceApi, MatrixLoads) {
  std::vector<int> from;
  for (int i = 0; i < 128; ++i) from.push_back(2 * i | (2 * i + 1) << 16);
  const Memory<int> in(from), to(std::vector<int>(32 * 8, -1));
  launch(matrix_loads, 1, 32, 512, nullptr, to.get(), in.get());
  const std::vector<int> got = to.values();
  for (int lane = 0; lane < 32; ++lane)
    for (int m = 0; m < 4; ++m) {
      const int low = 64 * m + 8 * (lane % 4 * 2) + lane / 4;
      EXPECT_EQ(got[size_t(lane * 8 + m)], from[size_t(32 * m + lane)]) << lane << " " << m;
      EXPECT_EQ(got[size_t(lane * 8 + 4 + m)], low | (low + 8) << 16) << lane << " " << m;
    }
}

// --- which elements each lane holds, as the device says, against tests/support/cuda_host/matrix_layout.h ------------

// Where each element of a lane's fragment lies: [lane][i].
using Layout = std::vector<std::vector<cuda_host::Position>>;

template <size_t N>
Layout by_table(const cuda_host::FragmentElement (&elements)[N]) {
  Layout layout(32);
  for (int lane = 0; lane < 32; ++lane)
    for (const auto& element : elements) layout[size_t(lane)].push_back(position_of(element, lane));
  return layout;
}

std::string text_of(const std::vector<cuda_host::Position>& of_lane) {
  std::string text;
  for (const auto& at : of_lane) text += fmt::format("{}[{}, {}]", text.empty() ? "" : ", ", at.row, at.col);
  return text;
}

// "" or the first lane that differs.
std::string difference(const Layout& device, const Layout& table) {
  for (size_t lane = 0; lane < 32; ++lane)
    if (text_of(device[lane]) != text_of(table[lane]))
      return fmt::format("lane {} holds {} on the device, {} in the table", lane, text_of(device[lane]),
                         text_of(table[lane]));
  return "";
}

// Into the test's JSON, which launch/gpu-check.sh puts into its report.
void expect_layout(const std::string& name, const Layout& device, const Layout& table) {
  const auto json_of = [](const Layout& layout) {
    std::string text;
    for (size_t lane = 0; lane < 32; ++lane)
      text += fmt::format("{}\"{}\": [{}]", lane == 0 ? "" : ", ", lane, text_of(layout[lane]));
    return "{" + text + "}";
  };
  const std::string differs = difference(device, table);
  ::testing::Test::RecordProperty(
      "layout of " + name,
      fmt::format("{{\"device\": {}, \"table\": {}, \"differs\": \"{}\"}}", json_of(device), json_of(table), differs));
  EXPECT_EQ(differs, "") << name;
}

// Of the first matrix, whose elements are numbered 8 row + col; two to a word, of eight words a lane.
Layout loaded_layout(const std::vector<int>& words, size_t first) {
  Layout layout(32);
  for (size_t lane = 0; lane < 32; ++lane)
    for (int half : {0, 1}) {
      const int number = words[lane * 8 + first] >> (16 * half) & 0xffff;
      layout[lane].push_back({number / 8, number % 8});
    }
  return layout;
}

TEST(DeviceApi, LayoutOfMatrixLoads) {
  std::vector<int> from;
  for (int i = 0; i < 128; ++i) from.push_back(2 * i | (2 * i + 1) << 16);
  const Memory<int> in(from), to(std::vector<int>(32 * 8, -1));
  launch(matrix_loads, 1, 32, 512, nullptr, to.get(), in.get());
  const std::vector<int> got = to.values();
  expect_layout("ldmatrix", loaded_layout(got, 0), by_table(cuda_host::kLoaded));
  expect_layout("ldmatrix.trans", loaded_layout(got, 4), by_table(cuda_host::kLoadedTransposed));
}

// A 32 x 4 words, B 32 x 2 words and C 32 x 4 numbers, lane by lane; c = a b, for each block of the grid.
__global__ void __launch_bounds__(32) bare_products(float* c, const uint32_t* a, const uint32_t* b) {
  const unsigned at = device::block_index().x * 32 + device::lane();
  float sums[4] = {};
  device::multiply_add(sums, {a[4 * at], a[4 * at + 1], a[4 * at + 2], a[4 * at + 3]}, {b[2 * at], b[2 * at + 1]});
  for (unsigned i = 0; i < 4; ++i) c[4 * at + i] = sums[i];
}

// One operand in registers: element i of the fragment of each lane is f(lane, i), as bf16.
template <size_t kElements, class F>
std::vector<uint32_t> registers_of(const F& f) {
  std::vector<uint32_t> words(32 * kElements / 2);
  for (size_t lane = 0; lane < 32; ++lane)
    for (size_t i = 0; i < kElements; ++i)
      words[(lane * kElements + i) / 2] |= uint32_t(std::bit_cast<uint16_t>(bf16(f(lane, i)))) << (16 * (i % 2));
  return words;
}

// c of one product per operand pair.
std::vector<float> products_of(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  const std::vector<int> ints_a(a.begin(), a.end()), ints_b(b.begin(), b.end());
  const Memory<int> of_a(ints_a), of_b(ints_b);
  const Memory<float> c(std::vector<float>(a.size(), -1.f));
  launch(bare_products, unsigned(a.size() / 128), 32, 0, nullptr, c.get(), of_a.get<uint32_t>(), of_b.get<uint32_t>());
  return c.values();
}

// The layouts of A, B and C by products alone, each with the two others by the table: element (lane, i) of one operand
// is 1 and meets numbers 1 + row + 16 col, exact in bf16, that say where it is.
struct ProductLayouts {
  Layout a, b, c;
};
ProductLayouts product_layouts(const Layout& of_a, const Layout& of_b, const Layout& of_c) {
  const auto number = [](const cuda_host::Position& at) { return float(1 + at.row + 16 * at.col); };
  const auto a_numbers = registers_of<8>([&](size_t lane, size_t i) { return number(of_a[lane][i]); });
  const auto b_numbers = registers_of<4>([&](size_t lane, size_t i) { return number(of_b[lane][i]); });
  std::vector<uint32_t> a, b, all_a, all_b;
  const auto add = [](std::vector<uint32_t>& to, const std::vector<uint32_t>& words) {
    to.insert(to.end(), words.begin(), words.end());
  };
  for (size_t one = 0; one < 256; ++one) {
    add(a, registers_of<8>([&](size_t lane, size_t i) { return float(lane * 8 + i == one); }));
    add(all_b, b_numbers);
  }
  for (size_t one = 0; one < 128; ++one) {
    add(b, registers_of<4>([&](size_t lane, size_t i) { return float(lane * 4 + i == one); }));
    add(all_a, a_numbers);
  }
  // Element [row][col] of each product.
  const auto matrix = [&](const std::vector<float>& c, size_t product) {
    std::vector<std::vector<int>> rows(16, std::vector<int>(8));
    for (size_t lane = 0; lane < 32; ++lane)
      for (size_t i = 0; i < 4; ++i)
        rows[size_t(of_c[lane][i].row)][size_t(of_c[lane][i].col)] = int(c[product * 128 + lane * 4 + i]);
    return rows;
  };
  ProductLayouts found{Layout(32), Layout(32), Layout(32)};
  const std::vector<float> by_a = products_of(a, all_b), by_b = products_of(all_a, b);
  for (size_t one = 0; one < 256; ++one) {  // row `row` of c is row `k` of B
    cuda_host::Position at{-1, -1};
    const auto rows = matrix(by_a, one);
    for (int row = 0; row < 16; ++row)
      if (rows[size_t(row)][0] != 0) at = {row, rows[size_t(row)][0] - 1};
    found.a[one / 8].push_back(at);
  }
  for (size_t one = 0; one < 128; ++one) {  // column `col` of c is column `k` of A
    cuda_host::Position at{-1, -1};
    const auto rows = matrix(by_b, one);
    for (int col = 0; col < 8; ++col)
      if (rows[0][size_t(col)] != 0) at = {(rows[0][size_t(col)] - 1) / 16, col};
    found.b[one / 4].push_back(at);
  }
  const std::vector<float> by_identity = products_of(
      registers_of<8>([&](size_t lane, size_t i) { return float(of_a[lane][i].row == of_a[lane][i].col); }), b_numbers);
  for (size_t i = 0; i < 128; ++i) {
    const int at = int(by_identity[i]) - 1;
    found.c[i / 4].push_back({at % 16, at / 16});
  }
  return found;
}

TEST(DeviceApi, LayoutOfMatrixProducts) {
  const Layout a = by_table(cuda_host::kFragmentA), b = by_table(cuda_host::kFragmentB),
               c = by_table(cuda_host::kFragmentC);
  const ProductLayouts found = product_layouts(a, b, c);
  expect_layout("mma A", found.a, a);
  expect_layout("mma B", found.b, b);
  expect_layout("mma C", found.c, c);
}

// Registers 1 and 2 of A exchanged, and two columns of B, in the table: the device says otherwise.
TEST(DeviceApi, AWrongTableIsSeenAndItsFirstLaneNamed) {
  const Layout a = by_table(cuda_host::kFragmentA), b = by_table(cuda_host::kFragmentB),
               c = by_table(cuda_host::kFragmentC);
  Layout wrong = a;
  for (auto& lane : wrong) std::swap_ranges(lane.begin() + 2, lane.begin() + 4, lane.begin() + 4);
  EXPECT_EQ(difference(product_layouts(wrong, b, c).a, wrong),
            "lane 0 holds [0, 0], [0, 1], [8, 0], [8, 1], [0, 8], [0, 9], [8, 8], [8, 9] on the device, "
            "[0, 0], [0, 1], [0, 8], [0, 9], [8, 0], [8, 1], [8, 8], [8, 9] in the table");
  Layout exchanged = b;
  std::swap(exchanged[9], exchanged[13]);
  EXPECT_EQ(
      difference(product_layouts(a, exchanged, c).b, exchanged),
      "lane 9 holds [2, 2], [3, 2], [10, 2], [11, 2] on the device, [2, 3], [3, 3], [10, 3], [11, 3] in the table");
}

// One warp: c [16, 8] = 1 + a [16, 16] b [16, 8]. a is loaded as four 8x8 matrices: rows 0-7, rows 8-15, then the right
// halves. b is stored by rows [k][n], so it is loaded transposed. `planted` swaps two of a's registers.
__global__ void __launch_bounds__(32) product(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b, bool planted) {
  auto* shared_a = device::shared_memory<__nv_bfloat16>();
  __nv_bfloat16* shared_b = shared_a + 256;
  const unsigned lane = device::lane();
  for (unsigned i = lane; i < 256; i += 32) shared_a[i] = a[i];
  for (unsigned i = lane; i < 128; i += 32) shared_b[i] = b[i];
  device::sync_warp();
  uint32_t of_a[4], of_b[4];  // b twice: four matrices are loaded at a time
  float sums[4] = {1, 1, 1, 1};
  device::load_matrices(of_a, shared_a + (lane % 16) * 16 + lane / 16 * 8);
  device::load_matrices_transposed(of_b, shared_b + (lane % 16) * 8);
  if (planted) {
    const uint32_t other = of_a[1];
    of_a[1] = of_a[2];
    of_a[2] = other;
  }
  device::multiply_add(sums, of_a, {of_b[0], of_b[1]});
  for (unsigned i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

TEST(DeviceApi, MatrixProductAndAWrongFragmentIsSeen) {
  std::vector<bf16> a, b;
  for (int i = 0; i < 256; ++i) a.emplace_back(float(i * 37 % 19 - 9));
  for (int i = 0; i < 128; ++i) b.emplace_back(float(i * 53 % 23 - 11));
  std::vector<float> expected(128, 1.f);
  for (size_t row = 0; row < 16; ++row)
    for (size_t col = 0; col < 8; ++col)
      for (size_t k = 0; k < 16; ++k) expected[row * 8 + col] += float(a[row * 16 + k]) * float(b[k * 8 + col]);
  const Memory<bf16> of_a(a), of_b(b);
  const Memory<float> c(std::vector<float>(128, 0.f));
  for (bool planted : {false, true}) {
    launch(product, 1, 32, 768, nullptr, c.get(), of_a.get<__nv_bfloat16>(), of_b.get<__nv_bfloat16>(), planted);
    EXPECT_EQ(c.values() == expected, !planted);
  }
}

__global__ void __launch_bounds__(32) fill_much(float* to, int count) {
  float* shared = device::shared_memory<float>();
  for (int i = int(device::thread_index().x); i < count; i += 32) shared[i] = float(i);
  device::sync_threads();
  if (device::thread_index().x == 0) *to = shared[count - 1];
}

TEST(DeviceApi, SharedMemoryBeyond48KiBAndRefusedLaunches) {
  const Memory<float> to({0.f});
  // As much as a block may have: 163 to 227 KiB.
  const size_t most = keel::cuda::shared_bytes_per_block(Device{DeviceKind::cuda});
  const int count = int(most / sizeof(float));
  ASSERT_GT(most, size_t(48) << 10);
  launch(fill_much, 1, 32, most, nullptr, to.get(), count);
  EXPECT_EQ(to.values()[0], float(count - 1));
  EXPECT_THROW(launch(fill_much, 1, 2048, 4, nullptr, to.get(), 1), Error);
  EXPECT_THROW(launch(fill_much, 1, 32, most + 1024, nullptr, to.get(), 1), Error);
  launch(fill_much, 0, 32, 4, nullptr, to.get(), 1);
  EXPECT_EQ(to.values()[0], float(count - 1)) << "no blocks, nothing done";
}

__global__ void __launch_bounds__(32) exponentials(float* values) {
  const unsigned i = device::lane();
  values[i] = device::fast_exp2(values[i]);
}

TEST(DeviceApi, FastExponential) {
  std::vector<float> exponents = {0, 1, -1, 127, -126, -127, -1000, 1000, -INFINITY, INFINITY, NAN};
  for (int i = 0; exponents.size() < 32; ++i) exponents.push_back(-0.37f * float(i * i) + 1.9f);
  const Memory<float> values(exponents);
  launch(exponentials, 1, 32, 0, nullptr, values.get());
  const std::vector<float> got = values.values();
  for (size_t i = 0; i < 32; ++i) {
    const double exact = exponents[i] < -126 ? 0 : std::exp2(double(exponents[i]));
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(got[i]));
    } else if (exponents[i] >= 128) {
      EXPECT_EQ(got[i], INFINITY);
    } else {
      EXPECT_NEAR(got[i], exact, exact * std::ldexp(1, -21)) << exponents[i];
    }
  }
}

// 164 KiB on sm_80, 228 KiB on sm_90 and sm_100, of which each block takes 1 KiB more than it asks for.
TEST(DeviceApi, AsManyBlocksOfAttentionAsItClaimsFitAMultiprocessor) {
  for (const auto& kernels : {forward_kernels(), backward_kernels()})
    for (size_t total : {size_t(164) << 10, size_t(228) << 10}) {
      std::map<std::string, KernelUse> taken;  // those for larger multiprocessors come first
      for (const KernelUse& use : kernels)
        if (use.least_total_bytes <= total) taken.insert({use.name, use});
      EXPECT_EQ(taken.size(), 4u) << "sizes of heads";
      for (const auto& [name, use] : taken)
        EXPECT_LE(size_t(use.blocks) * (use.shared_bytes + 1024), total) << name << " " << use.mangled;
    }
  for (const KernelUse& use : forward_kernels())
    EXPECT_GE(held_blocks(Device{DeviceKind::cuda}, use).value_or(use.blocks), use.blocks) << use.name;
}

// Two blocks for each multiprocessor, where the heads suffice.
TEST(DeviceApi, KeySlotsFillTheDevice) {
  const Device device{DeviceKind::cuda};
  const int enough = 2 * keel::cuda::multiprocessors(device);
  EXPECT_EQ(KeySlots::wanted(device, enough, 8), 1);
  EXPECT_EQ(KeySlots::wanted(device, enough - 1, 8), 2);
  EXPECT_EQ(KeySlots::wanted(device, (enough + 2) / 3, 8), 4) << "3 slots do not divide 8 heads";
  EXPECT_EQ(KeySlots::wanted(device, 1, 1), 1);
  EXPECT_EQ(KeySlots::wanted(device, 1, enough / 2), enough / 2) << "all that there are";
}

TEST(DeviceApi, UrgentStreamsComeBeforeOthers) {
  const Stream ordinary(Device{DeviceKind::cuda}), urgent(Device{DeviceKind::cuda}, true);
  int least = 0, greatest = 0, of_ordinary = 0, of_urgent = 0;
  KEEL_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  KEEL_CUDA(cudaStreamGetPriority(static_cast<cudaStream_t>(ordinary.native()), &of_ordinary));
  KEEL_CUDA(cudaStreamGetPriority(static_cast<cudaStream_t>(urgent.native()), &of_urgent));
  EXPECT_EQ(of_ordinary, least);
  EXPECT_EQ(of_urgent, greatest);
}

}  // namespace
}  // namespace keel::ops::cuda
