// all_reduce against MPI_Allreduce, in one run and interleaved: mpirun -n 2 benchmark_all_reduce
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "framework/comm/mpi.h"
#include "framework/tensor/buffer.h"

namespace keel::comm {
namespace {

double seconds(const std::function<void()>& f, int times) {
  auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / times;
}

struct Best {
  double ours = 1e9;
  double mpi = 1e9;
};

Best measure(const std::function<void()>& ours, const std::function<void()>& mpi, int times) {
  Best best;
  for (int round = 0; round < 9; ++round) {
    best.ours = std::min(best.ours, seconds(ours, times));
    best.mpi = std::min(best.mpi, seconds(mpi, times));
  }
  return best;
}

void compare(Communicator& group, int64_t elements) {
  OwnedTensor x({elements}, DType::f32), y({elements}, DType::f32);
  auto ours = [&] { group.all_reduce(x); };
  auto mpi = [&] {
    KEEL_MPI(MPI_Allreduce(MPI_IN_PLACE, y.tensor.data(), int(elements), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
  };
  const int times = int(std::clamp<int64_t>((int64_t(8) << 20) / (elements * 4), 1, 1000));
  Best best = measure(ours, mpi, times);
  const double bytes = double(elements * 4);
  if (group.rank() == 0)
    std::printf("%10.0f bytes: %10.1f us %7.3f GB/s   MPI_Allreduce %10.1f us %7.3f GB/s   ratio %.2f\n", bytes,
                best.ours * 1e6, bytes / best.ours * 1e-9, best.mpi * 1e6, bytes / best.mpi * 1e-9,
                best.mpi / best.ours);
}

}  // namespace
}  // namespace keel::comm

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  {
    auto group = keel::comm::make_mpi_communicator(MPI_COMM_WORLD);
    for (int64_t elements : {2, 256, 2048, 8192, 16384, 65536, 262144, 1 << 20, 1 << 23})
      keel::comm::compare(*group, elements);
  }
  MPI_Finalize();
}
