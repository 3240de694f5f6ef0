// Preloaded: a checkpoint's last step to the disk takes 8 seconds, as on a file system that others keep busy.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { kSlow_seconds = 8 };

int fsync(int file) {
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length > 0 && strstr(path, ".writing") != NULL) sleep(kSlow_seconds);
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return real(file);
}
