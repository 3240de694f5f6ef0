// Chosen where HDF5 was built with MPI.
#include "framework/io/hdf5_parallel.h"

namespace keel::io {
namespace {

void check_mpi(int code, const std::string& path, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(ErrorKind::internal, fmt::format("{}: {}: {}", path, call, text));
}

// The hints as MPI wants them; HDF5 keeps a copy of its own.
class Info {
 public:
  Info(const FileOptions& options, const std::string& path) {
    if (options.mpi_hints.empty()) return;
    check_mpi(MPI_Info_create(&info_), path, "MPI_Info_create");
    for (const auto& [key, value] : options.mpi_hints)
      if (int code = MPI_Info_set(info_, key.c_str(), value.c_str()); code != MPI_SUCCESS) {
        MPI_Info_free(&info_);
        throw input_error("checkpoint.mpi_hints: MPI does not take the hint {}: {}", key, value);
      }
  }
  Info(const Info&) = delete;
  Info& operator=(const Info&) = delete;
  ~Info() {
    if (info_ != MPI_INFO_NULL) MPI_Info_free(&info_);
  }
  MPI_Info get() const { return info_; }

 private:
  MPI_Info info_ = MPI_INFO_NULL;
};

}  // namespace

bool parallel_hdf5() {
  return true;
}

Sharing share_file(const PropertyList& access, const std::string& path, const FileOptions& options) {
  if (options.communicator == MPI_COMM_NULL) return {};
  int rank = 0;
  check_mpi(MPI_Comm_rank(options.communicator, &rank), path, "MPI_Comm_rank");
  Info info(options, path);
  KEEL_HDF5(path, H5Pset_fapl_mpio(access.id(), options.communicator, info.get()));
  require(options.largest_transfer_bytes > 0, "{}: transfers of no bytes", path);
  return {.parallel = true, .first = rank == 0, .largest_transfer_bytes = options.largest_transfer_bytes};
}

}  // namespace keel::io
