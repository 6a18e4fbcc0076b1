/* Rare uses of memory and descriptors, for nearfar run to survive; one KIND per run.
 * usage: corners KIND MIB. Prints how many pages were wrong, and exits with 1 if any was. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define HUGE (2ul << 20)

static size_t pages;
static volatile uint64_t *memory;

static void *map(size_t length) {
  char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    abort();
  return at;
}

static void fill(uint64_t version) {
  for (size_t page = 0; page < pages; page++)
    memory[page * (PAGE / 8)] = version * page + 1;
}

static long wrong(uint64_t version) {
  long wrong = 0;
  for (int round = 0; round < 3; round++)
    for (size_t page = 0; page < pages; page++)
      wrong += memory[page * (PAGE / 8)] != version * page + 1;
  return wrong;
}

/* Wait for the manager, which scans for new memory at least every 40 ms. */
static void be_seen(void) { usleep(100000); }

/* With huge pages: half of the memory is touched before the manager's scan, all of it afterwards. */
static long huge(void) {
  char *at = map(pages * PAGE + HUGE);
  at = (char *)(((uintptr_t)at + HUGE - 1) & ~(HUGE - 1));
  madvise(at, pages * PAGE, MADV_HUGEPAGE);
  memory = (uint64_t *)at;
  for (size_t page = 0; page < pages / 2; page++)
    memory[page * (PAGE / 8)] = 1;
  be_seen();
  fill(3);
  long found = wrong(3);
  fill(5);
  return found + wrong(5);
}

static long locked(void) {
  fill(3);
  be_seen();
  if (mlock((void *)memory, pages * PAGE / 4) != 0)
    abort();
  long found = wrong(3);
  fill(5);
  munlock((void *)memory, pages * PAGE / 4);
  return found + wrong(5);
}

static long closed(void) {
  be_seen();
  fill(3);
  if (syscall(SYS_close_range, 3, ~0u, 0) != 0)
    abort();
  for (int fd = open("/dev/null", O_RDONLY); fd < 20; fd = dup(fd))
    if (fd < 0)
      abort();
  return wrong(3);
}

static long spawned(void) {
  be_seen();
  fill(3);
  long found = 0;
  for (int child = 0; child < 5; child++) {
    pid_t pid = vfork();
    if (pid == 0) {
      memory[0] += memory[PAGE / 8 * (pages / 2)] != 3 * (pages / 2) + 1;
      execl("/bin/true", "true", (char *)NULL);
      _exit(7);
    }
    int status;
    waitpid(pid, &status, 0);
    found += status != 0;
    found += wrong(3);
  }
  return found;
}

/* Resolve page faults of the program's own userfaultfd. */
static void *serve(void *of) {
  int own = *(int *)of;
  static uint64_t page[PAGE / 8];
  struct uffd_msg message;
  while (read(own, &message, sizeof message) == sizeof message) {
    uint64_t at = message.arg.pagefault.address & ~(PAGE - 1);
    page[0] = 3 * ((at - (uintptr_t)memory) / PAGE) + 1;
    struct uffdio_copy copy = {.dst = at, .src = (uintptr_t)page, .len = PAGE};
    ioctl(own, UFFDIO_COPY, &copy);
  }
  return NULL;
}

static long own_faults(void) {
  int own = syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffdio_api api = {.api = UFFD_API};
  if (own < 0 || ioctl(own, UFFDIO_API, &api) != 0)
    abort();
  memory = map(pages * PAGE);
  struct uffdio_register range = {.range = {(uintptr_t)memory, pages * PAGE},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING};
  /* This fails for memory that the manager has registered first; then map other memory. */
  while (ioctl(own, UFFDIO_REGISTER, &range) != 0) {
    memory = map(pages * PAGE);
    range.range.start = (uintptr_t)memory;
  }
  pthread_t thread;
  pthread_create(&thread, NULL, serve, &own);
  be_seen();
  return wrong(3);
}

int main(int count, char **words) {
  if (count != 3)
    return 2;
  pages = strtoul(words[2], NULL, 10) * 256;
  memory = map(pages * PAGE);
  struct {
    const char *name;
    long (*act)(void);
  } kinds[] = {
      {"huge", huge},       {"locked", locked},         {"closed", closed},
      {"spawned", spawned}, {"own-faults", own_faults},
  };
  for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
    if (strcmp(words[1], kinds[kind].name) == 0) {
      long found = kinds[kind].act();
      printf("%ld pages were wrong\n", found);
      return found != 0;
    }
  }
  return 2;
}
