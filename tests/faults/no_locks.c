// Preloaded: a file system without locks, such as Lustre that is mounted without flock.
#include <errno.h>

int flock(int file, int operation) {
  (void)file;
  (void)operation;
  errno = ENOSYS;
  return -1;
}
