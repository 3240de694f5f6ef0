// main() of every test that runs under mpirun. A failure on any rank fails the run and is printed with its rank; a rank
// that leaves a test early (a throw, an ASSERT), and a test that takes too long, end all ranks instead of hanging them.
#include <gtest/gtest.h>
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

namespace {

constexpr auto kTestLimit = std::chrono::seconds(120);
constexpr auto kOthersLimit = std::chrono::seconds(5);  // from one rank's failure to the others' end of the same test

using Clock = std::chrono::steady_clock;

void print(int rank, const std::string& line) {
  std::string text = "[rank " + std::to_string(rank) + "] " + line + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

class Referee : public testing::EmptyTestEventListener {
 public:
  explicit Referee(int rank) : rank_(rank) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    watch_ = std::thread([this] { watch(); });
  }
  ~Referee() override {
    done_ = true;
    watch_.join();
    MPI_Comm_free(&comm_);
  }

  void OnTestStart(const testing::TestInfo& test) override {
    name_ = std::string(test.test_suite_name()) + "." + test.name();
    deadline_ = (Clock::now() + kTestLimit).time_since_epoch().count();
  }

  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (!part.failed() || rank_ == 0) return;  // rank 0 has GoogleTest's own printer
    print(rank_, name_ + "\n" + (part.file_name() ? part.file_name() : "") + ":" + std::to_string(part.line_number()) +
                     ": Failure\n" + part.message());
  }

  // All ranks end a test together. One that failed gives the others little time: it may be the one they wait for.
  void OnTestEnd(const testing::TestInfo& test) override {
    const bool failed = test.result()->Failed();
    const auto limit = Clock::now() + (failed ? Clock::duration(kOthersLimit) : Clock::duration(kTestLimit));
    MPI_Request request;
    MPI_Ibarrier(comm_, &request);
    for (int all = 0; !all;) {
      MPI_Test(&request, &all, MPI_STATUS_IGNORE);
      if (!all && Clock::now() > limit)
        abort(failed ? "failed while other ranks wait in the test" : "waits for others");
      if (!all) usleep(100);
    }
    deadline_ = kNoDeadline;
  }

 private:
  static constexpr Clock::rep kNoDeadline = Clock::duration::max().count();

  void watch() {
    while (!done_) {
      usleep(20000);
      if (Clock::now().time_since_epoch().count() > deadline_) abort("takes too long");
    }
  }

  [[noreturn]] void abort(const char* what) {
    print(rank_, name_ + " " + what + "; all ranks end");
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
  }

  int rank_;
  MPI_Comm comm_;
  std::string name_;
  std::atomic<Clock::rep> deadline_ = kNoDeadline;
  std::atomic<bool> done_ = false;
  std::thread watch_;
};

}  // namespace

int main(int argc, char** argv) {
  int provided = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) delete listeners.Release(listeners.default_result_printer());
  auto* referee = new Referee(rank);
  listeners.Append(referee);
  int failed = RUN_ALL_TESTS(), any = 0;
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  delete listeners.Release(referee);
  MPI_Finalize();
  return any;
}
