/* Unusual but correct programs, which nearfar run must not end; one KIND per run.
 * usage: healthy KIND NUMBER. Prints the outcome; exits with 1 if it read wrong data. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define MIB (1ul << 20)
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif

static void rest(double seconds) {
  struct timespec time = {seconds, (seconds - (long)seconds) * 1e9};
  while (nanosleep(&time, &time) != 0) {
  }
}

/* Give the manager, which scans for new memory at least every 40 ms, time to move it away. */
static void be_seen(void) { rest(0.3); }

static uint64_t *map(size_t length, int flags) {
  void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (at == MAP_FAILED) {
    perror("mmap");
    exit(2);
  }
  return at;
}

/* Write a page's first and last word. */
static void put(uint64_t *at, size_t page, uint64_t version) {
  uint64_t *words = at + page * (PAGE / 8);
  words[0] = words[PAGE / 8 - 1] = (page + 1) * 0x9E3779B97F4A7C15ull + version;
}

static size_t wrong(uint64_t *at, size_t from, size_t to, uint64_t version) {
  size_t found = 0;
  for (size_t page = from; page < to; page++) {
    volatile uint64_t *words = at + page * (PAGE / 8);
    uint64_t check = (page + 1) * 0x9E3779B97F4A7C15ull + version;
    found += words[0] != check || words[PAGE / 8 - 1] != check;
  }
  return found;
}

static uint64_t *filled(size_t bytes) {
  uint64_t *at = map(bytes, 0);
  for (size_t page = 0; page < bytes / PAGE; page++)
    put(at, page, 1);
  be_seen();
  return at;
}

/* Fork with NUMBER MiB of far memory; parent and child verify it. */
static int forks(size_t number) {
  size_t pages = number * MIB / PAGE;
  uint64_t *at = filled(number * MIB);
  pid_t child = fork();
  if (child == 0) {
    size_t found = wrong(at, 0, pages, 1);
    printf("child: %zu pages were wrong\n", found);
    fflush(stdout);
    _exit(found != 0);
  }
  for (size_t page = 0; page < pages; page += 16)
    put(at, page, 2);
  int status = 1;
  waitpid(child, &status, 0);
  size_t found = 0;
  for (size_t page = 0; page < pages; page++)
    found += wrong(at, page, page + 1, page % 16 ? 1 : 2);
  printf("child ended with %d, %zu pages were wrong\n", status, found);
  return status != 0 || found != 0;
}

static int locks(size_t number) {
  size_t pages = number * MIB / PAGE;
  uint64_t *at = filled(number * MIB);
  int answer = mlockall(MCL_CURRENT);
  size_t found = wrong(at, 0, pages, 1);
  uint64_t *more = filled(number * MIB);
  found += wrong(more, 0, pages, 1) + wrong(at, 0, pages, 1);
  printf("mlockall: %d, %zu pages were wrong\n", answer, found);
  return found != 0;
}

/* Map NUMBER TiB, of which only two pages are touched. */
static int reserves(size_t number) {
  size_t bytes = number << 40, middle = bytes / PAGE / 2;
  uint64_t *at = map(bytes, MAP_NORESERVE);
  put(at, middle, 1);
  rest(4);
  put(at, middle + 2, 1);
  be_seen();
  size_t found = wrong(at, middle, middle + 1, 1) + wrong(at, middle + 2, middle + 3, 1);
  printf("%zu pages were wrong\n", found);
  return found != 0;
}

/* Map NUMBER TiB, of which one page per GiB is used. */
static int is_sparse(size_t number) {
  size_t bytes = number << 40, step = (1ul << 30) / PAGE, found = 0;
  uint64_t *at = map(bytes, MAP_NORESERVE);
  for (int round = 1; round <= 4; round++) {
    for (size_t page = 0; page < bytes / PAGE; page += step)
      put(at, page, round);
    rest(1);
    for (size_t page = 0; page < bytes / PAGE; page += step)
      found += wrong(at, page, page + 1, round);
  }
  printf("%zu pages were wrong\n", found);
  return found != 0;
}

static int merges(size_t number) {
  size_t pages = number * MIB / PAGE, found = 0;
  uint64_t *at = filled(number * MIB);
  for (int round = 1; round <= 5; round++) {
    int first = prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0);
    int again = prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0);
    found += wrong(at, 0, pages, round);
    for (size_t page = 0; page < pages; page++)
      put(at, page, round + 1);
    printf("merging: %d, %d\n", first, again);
  }
  printf("%zu pages were wrong\n", found);
  return found != 0;
}

static int aborts(size_t number) {
  filled(number * MIB);
  printf("until here\n");
  fflush(stdout);
  abort();
}

/* Replace a part by a new mapping, as V8 and Java do; then move the whole. */
static int renews(size_t number) {
  size_t pages = number * MIB / PAGE, from = pages / 8, to = pages / 4;
  uint64_t *at = filled(number * MIB);
  if (mmap(at + from * (PAGE / 8), (to - from) * PAGE, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
    return 2;
  for (size_t page = from; page < to; page++)
    put(at, page, 1);
  uint64_t *moved = mremap(at, pages * PAGE, 2 * pages * PAGE, MREMAP_MAYMOVE);
  if (moved == MAP_FAILED) {
    perror("mremap");
    return 1;
  }
  size_t found = wrong(moved, 0, pages, 1);
  printf("%zu pages were wrong\n", found);
  return found != 0;
}

/* The only thread ends, and its output is not flushed yet. */
static int leaves(size_t number) {
  filled(number * MIB);
  printf("not flushed, no end of line");
  pthread_exit(NULL);
}

static void *last(void *of) {
  size_t number = *(size_t *)of;
  uint64_t *at = filled(number * MIB);
  printf("%zu pages were wrong", wrong(at, 0, number * MIB / PAGE, 1));
  return NULL;
}

/* The first thread ends before another. */
static int leaves_another(size_t number) {
  static size_t of;
  of = number;
  pthread_t thread;
  if (pthread_create(&thread, NULL, last, &of) != 0)
    return 2;
  pthread_exit(NULL);
}

/* Use memory until killed. */
static int uses(size_t number) {
  size_t pages = number * MIB / PAGE;
  uint64_t *at = filled(number * MIB);
  printf("begun\n");
  fflush(stdout);
  for (uint64_t version = 1;; version++) {
    for (size_t page = 0; page < pages; page++) {
      if (wrong(at, page, page + 1, version) != 0) {
        printf("WRONG page %zu\n", page);
        return 1;
      }
      put(at, page, version + 1);
    }
  }
}

/* Make thread NUMBER exit by itself: replace its next system call by exit. */
static int makes_leave(size_t number) {
  pid_t thread = number;
  if (ptrace(PTRACE_SEIZE, thread, 0, 0) != 0 || ptrace(PTRACE_INTERRUPT, thread, 0, 0) != 0)
    return 2;
  waitpid(thread, NULL, __WALL);
  for (long step = 0; step < 1000000; step++) {
    struct user_regs_struct registers;
    ptrace(PTRACE_GETREGS, thread, 0, &registers);
    uint16_t before = ptrace(PTRACE_PEEKTEXT, thread, registers.rip - 2, 0);
    if (before == 0x050f) { /* syscall */
      registers.rip -= 2;
      registers.rax = 60; /* exit */
      registers.rdi = 0;
      registers.orig_rax = -1;
      ptrace(PTRACE_SETREGS, thread, 0, &registers);
      ptrace(PTRACE_DETACH, thread, 0, 0);
      return 0;
    }
    ptrace(PTRACE_SINGLESTEP, thread, 0, 0);
    waitpid(thread, NULL, __WALL);
  }
  return 3;
}

int main(int count, char **words) {
  if (count < 3)
    return 2;
  struct {
    const char *name;
    int (*act)(size_t);
  } kinds[] = {
      {"forks", forks},   {"locks", locks},   {"reserves", reserves},
      {"sparse", is_sparse}, {"merges", merges}, {"aborts", aborts},
      {"renews", renews}, {"leaves", leaves}, {"leaves-another", leaves_another},
      {"uses", uses},     {"make-leave", makes_leave},
  };
  for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
    if (strcmp(words[1], kinds[kind].name) == 0)
      return kinds[kind].act(strtoul(words[2], NULL, 10));
  return 2;
}
