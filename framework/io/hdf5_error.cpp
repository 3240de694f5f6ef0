#include "framework/io/hdf5_error.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "framework/base/text.h"
#include "framework/io/files.h"

namespace keel::io {
namespace {

herr_t collect(unsigned, const H5E_error2_t* entry, void* lines) {
  if (entry->desc && *entry->desc) static_cast<std::vector<std::string>*>(lines)->push_back(entry->desc);
  return 0;
}

std::vector<std::string> take_error_stack() {  // the innermost first
  std::vector<std::string> lines;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &lines);
  H5Eclear2(H5E_DEFAULT);
  return lines;
}

// The number behind "label = " in a line of HDF5's, or 0.
uint64_t number_after(std::string_view line, std::string_view label) {
  uint64_t number = 0;
  size_t at = line.find(label);
  if (at != line.npos) std::from_chars(line.data() + at + label.size(), line.data() + line.size(), number);
  return number;
}

// What went wrong, as far as it matters for the advice.
struct Cause {
  std::string line;  // the innermost that names an errno, else the innermost
  int system_error = 0;
  bool lock = false;
  bool mpi = false;  // MPI-IO failed, and keeps the errno to itself
};

// "MPI_File_open failed: MPI error string is 'MPI_ERR_ACCESS: permission denied'" -> the part in quotes.
std::string without_frame(const std::string& line) {
  const std::string_view frame = "MPI error string is '";
  size_t at = line.find(frame);
  if (at == line.npos) return line;
  at += frame.size();
  return line.substr(at, line.rfind('\'') - at);
}

Cause cause_of(const std::vector<std::string>& lines) {
  Cause cause;
  for (const std::string& line : lines) {
    if (cause.line.empty()) cause.line = without_frame(line);
    if (cause.system_error != 0) continue;
    cause.system_error = int(number_after(line, "errno = "));
    if (cause.system_error != 0) cause.line = line;
  }
  for (const std::string& line : lines) cause.mpi |= line.find("MPI") != line.npos;
  for (const std::string& line : lines) cause.lock |= line.find("lock the file") != line.npos;
  cause.lock |= cause.line.find("lock file") != cause.line.npos;
  return cause;
}

std::string lock_advice(int system_error) {
  if (system_error == EAGAIN || system_error == EACCES)
    return "another process holds the file's lock: wait until it closes the file, or, if nobody writes to it, set the "
           "environment variable HDF5_USE_FILE_LOCKING=FALSE";
  return "this file system refuses file locks: set the environment variable HDF5_USE_FILE_LOCKING=FALSE";
}

std::string advice(const Cause& cause) {
  auto has = [&](const char* text) { return cause.line.find(text) != std::string::npos; };
  if (cause.lock) return lock_advice(cause.system_error);
  if (std::string next = advice_for(cause.system_error); !next.empty()) return next;
  if (has("NO_SPACE")) return advice_for(ENOSPC);  // MPI's word for it
  if (has("file write failed"))                    // MPI-IO keeps the reason to itself
    return "look on this rank's host for a full disk, a quota that is used up, or a limit on file sizes (ulimit -f)";
  if (has("truncated file"))
    return "the file is cut short, or its writer never finished: use an older one, or copy it again";
  if (has("signature not found")) return "this is not an HDF5 file, or its beginning is damaged";
  if (has("already open for")) return "a writer has the file open now, or was killed while it had";
  return "";
}

// Calls that only read. What they cannot make sense of, where the system has read it well, is the file's fault.
bool only_reads(std::string_view call) {
  constexpr std::string_view kCalls[] = {"H5Fopen(",    "H5Gopen2(",    "H5Dopen2(",   "H5Dread(",  "H5Lexists(",
                                         "H5Literate(", "H5Lget_info(", "H5Lget_val(", "H5Lunpack", "H5Gget_",
                                         "H5Dget_",     "H5Pget_",      "H5Sget_",     "H5Tget_",   "H5Tis_"};
  return std::ranges::any_of(kCalls, [&](std::string_view one) { return call.starts_with(one); });
}

bool is_input(const Cause& cause, std::string_view call) {
  if (cause.lock || is_input_error(cause.system_error)) return true;
  for (const char* text : {"truncated file", "signature not found", "already open for", "NO_SUCH_FILE", "ERR_ACCESS"})
    if (cause.line.find(text) != std::string::npos) return true;
  return cause.system_error == 0 && !cause.mpi && only_reads(call);
}

}  // namespace

void start_hdf5() {
  // The I/O thread ends with every file closed; nothing is left for a handler on another thread at exit. It returns
  // an error where the library runs already, which a second I/O thread of the process may find.
  H5dont_atexit();
  if (H5open() < 0 || H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) < 0)
    throw Error(ErrorKind::internal, "the HDF5 library does not start");
}

Error hdf5_error(std::string_view subject, std::string_view call, std::source_location where) {
  Cause cause = cause_of(take_error_stack());
  std::string what = cause.system_error != 0 ? std::strerror(cause.system_error) : cause.line;
  if (what.empty()) what = "failed without a reason";
  std::string line = fmt::format("{}: {} ({}", subject, what, call.substr(0, call.find('(')));
  if (cause.system_error != 0) line += fmt::format(", errno {}", cause.system_error);
  if (uint64_t bytes = number_after(cause.line, "total write size = "))
    line += fmt::format(", writing {}", human_bytes(double(bytes)));
  line += ")";
  if (std::string next = advice(cause); !next.empty()) line += ": " + next;
  return Error(is_input(cause, call) ? ErrorKind::input : ErrorKind::internal, line, where);
}

}  // namespace keel::io
