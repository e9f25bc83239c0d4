/* Loaded by LD_PRELOAD: kills the process, or fails a write, at the n-th call that changes a file.

   The file PROFPIPE_CHAOS with ROLE,ACTION,N,ONCE arms a process whose command line holds ROLE. The first process that reaches the
   call makes the file ONCE, and no other process acts. ACTION: k (SIGKILL), s (ENOSPC), i (EIO), c (set the clock back
   by an hour from the n-th call on), n (count into ONCE). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char action;
static long at, count;
static char once[4096];

void chaos_arm(char what, long number, const char *file) {
    action = what, at = number, count = 0;
    snprintf(once, sizeof once, "%s", file);
}

long chaos_count(void) { return count; }

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("PROFPIPE_CHAOS");
    char given[8192] = "", role[64], what, file[4096], line[65536];
    long number;
    int order = name ? open(name, O_RDONLY) : -1;
    if (order < 0) return;
    if (read(order, given, sizeof given - 1) < 0) given[0] = 0;
    close(order);
    if (sscanf(given, "%63[^,],%c,%ld,%4095s", role, &what, &number, file) != 4) return;
    int fd = open("/proc/self/cmdline", O_RDONLY);
    ssize_t size = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    close(fd);
    for (ssize_t i = 0; i < size; i++) if (!line[i]) line[i] = ' ';
    line[size < 0 ? 0 : size] = 0;
    if (strstr(line, role)) chaos_arm(what, number, file);
}

__attribute__((destructor)) static void end(void) {
    if (action != 'n') return;
    FILE *file = fopen(once, "a");
    if (file) fprintf(file, "%ld\n", count), fclose(file);
}

static int is_due(int is_write) {
    if (!action || (action != 'k' && action != 'n' && !is_write)) return 0;
    if (__sync_add_and_fetch(&count, 1) != at || action == 'n' || action == 'c') return 0;
    long fd = syscall(SYS_openat, AT_FDCWD, once, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (fd < 0) return 0;
    syscall(SYS_close, fd);
    if (action == 'k') syscall(SYS_kill, getpid(), SIGKILL);
    errno = action == 's' ? ENOSPC : EIO;
    return 1;
}

static int is_file(int fd) {
    struct stat about;
    return fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    return action && is_file(fd) && is_due(1) ? -1 : NEXT(write)(fd, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    return action && is_file(fd) && is_due(1) ? -1 : NEXT(pwrite64)(fd, data, size, offset);
}

int renameat(int a, const char *from, int b, const char *to) { return is_due(0) ? -1 : NEXT(renameat)(a, from, b, to); }
int rename(const char *from, const char *to) { return is_due(0) ? -1 : NEXT(rename)(from, to); }
int mkdir(const char *path, mode_t mode) { return is_due(0) ? -1 : NEXT(mkdir)(path, mode); }
int unlinkat(int fd, const char *path, int flags) { return is_due(0) ? -1 : NEXT(unlinkat)(fd, path, flags); }
int symlink(const char *from, const char *to) { return is_due(0) ? -1 : NEXT(symlink)(from, to); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && action == 'c' && clock == CLOCK_REALTIME && __sync_add_and_fetch(&count, 1) >= at) now->tv_sec -= 3600;
    return failed;
}
