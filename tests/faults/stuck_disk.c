// Preloaded: one kind of call for paths that end like some name does not come back, on one rank.
//   STUCK_RANK=1 STUCK_CALL=open STUCK_NAME=.h5.writing      calls: open, remove
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char* name, const char* value) {
  const char* set = getenv(name);
  return set != NULL && value != NULL && strcmp(set, value) == 0;
}

static void wait_if_stuck(const char* call, const char* path) {
  const char* name = getenv("STUCK_NAME");
  if (name == NULL || !is("STUCK_CALL", call) || strlen(path) < strlen(name)) return;
  if (strcmp(path + strlen(path) - strlen(name), name) != 0) return;
  while (is("STUCK_RANK", getenv("OMPI_COMM_WORLD_RANK"))) sleep(1);
}

// The mode follows where a file may be made; read where it does not, it is not used.
#define OPEN(name)                                                                                \
  int name(const char* path, int flags, ...) {                                                    \
    va_list rest;                                                                                 \
    va_start(rest, flags);                                                                        \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                 \
    va_end(rest);                                                                                 \
    wait_if_stuck("open", path);                                                                  \
    int (*real)(const char*, int, ...) = (int (*)(const char*, int, ...))dlsym(RTLD_NEXT, #name); \
    return real(path, flags, mode);                                                               \
  }
OPEN(open)
OPEN(open64)

int remove(const char* path) {
  wait_if_stuck("remove", path);
  int (*real)(const char*) = (int (*)(const char*))dlsym(RTLD_NEXT, "remove");
  return real(path);
}
