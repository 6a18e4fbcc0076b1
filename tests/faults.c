/* A preloaded library that makes the n-th call of a kind fail, once armed (tests/faults.py). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NONE, OPEN, READ, WRITE, MAP, ALLOCATE };

static enum kind armed = NONE;
static long fails_at = 0;
static atomic_long calls = 0;

/* Count calls of a kind from now on, and let the n-th fail; 0: none. */
void faults_arm(int kind, long n) {
    fails_at = n;
    calls = 0;
    armed = kind;
}

/* Stop counting; the number of calls since faults_arm. */
long faults_counted(void) {
    armed = NONE;
    return calls;
}

static int fails(enum kind kind) {
    return armed == kind && ++calls == fails_at;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define FAIL(kind, error) \
    if (fails(kind)) { errno = error; return -1; }

#define OPENING(name, ...) \
    { \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        REAL(name); \
        FAIL(OPEN, EMFILE) \
        return real(__VA_ARGS__, flags, mode); \
    }

int open(const char *path, int flags, ...) OPENING(open, path)
int open64(const char *path, int flags, ...) OPENING(open64, path)
int openat(int at, const char *path, int flags, ...) OPENING(openat, at, path)
int openat64(int at, const char *path, int flags, ...) OPENING(openat64, at, path)

ssize_t read(int fd, void *to, size_t n) { REAL(read); FAIL(READ, EIO) return real(fd, to, n); }
ssize_t pread64(int fd, void *to, size_t n, off64_t at) {
    REAL(pread64); FAIL(READ, EIO) return real(fd, to, n, at);
}
ssize_t write(int fd, const void *of, size_t n) {
    REAL(write);
    if (fd > 2) { FAIL(WRITE, ENOSPC) }
    return real(fd, of, n);
}
ssize_t pwrite64(int fd, const void *of, size_t n, off64_t at) {
    REAL(pwrite64); FAIL(WRITE, ENOSPC) return real(fd, of, n, at);
}
ssize_t writev(int fd, const struct iovec *of, int n) {
    REAL(writev); FAIL(WRITE, ENOSPC) return real(fd, of, n);
}
int fsync(int fd) { REAL(fsync); FAIL(WRITE, EIO) return real(fd); }

#define MAPPING(name, offset) \
    void *name(void *at, size_t n, int protection, int flags, int fd, offset from) { \
        REAL(name); \
        if (fails(MAP)) { errno = ENOMEM; return MAP_FAILED; } \
        return real(at, n, protection, flags, fd, from); \
    }
MAPPING(mmap, off_t)
MAPPING(mmap64, off64_t)

/* Only large allocations fail, as on a system short of memory. */
enum { LARGE = 1 << 16 };
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
#define ALLOCATING(size) \
    if ((size) >= LARGE && fails(ALLOCATE)) { errno = ENOMEM; return NULL; }
void *malloc(size_t n) { ALLOCATING(n) return __libc_malloc(n); }
void *calloc(size_t n, size_t of) { ALLOCATING(n * of) return __libc_calloc(n, of); }
void *realloc(void *old, size_t n) { ALLOCATING(n) return __libc_realloc(old, n); }
