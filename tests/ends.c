/* Processes that verify their memory after their parent has ended.
 *
 * usage: ends MODE MIB FILE SEED [NAME]
 *
 * Every page holds a pattern of its number, its version and the seed. Each event appends a line to FILE:
 *
 *     fork NAME PID           process PID is about to fork a child NAME
 *     begin NAME PID          NAME runs as process PID
 *     ok NAME PID             all of its pages were right
 *     WRONG NAME PID page N   its page N was wrong
 *     gone NAME PID           it is about to exit or exec without verifying
 *     near NAME PID           more than half of its pages stayed in fast memory
 *
 * So a child that was forked and is neither ok, WRONG nor gone has been lost. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / 8)
#define THREADS 3
#ifndef PATIENCE
#define PATIENCE 20 /* seconds to wait for pages to get far; 0 without a far tier */
#endif

static char **words; /* the command line */
static size_t pages;
static uint64_t *memory;
static uint32_t *versions; /* by page */
static uint64_t seed, state;
static int results;
static char name[200];

static void say_of(const char *what, const char *who, const char *more) {
  char line[300];
  int length = snprintf(line, sizeof line, "%s %s %d%s\n", what, who, getpid(), more);
  if (write(results, line, length) != length)
    abort();
}

static void say(const char *what) { say_of(what, name, ""); }

static uint64_t draw(uint64_t below) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (state >> 33) % below;
}

static uint64_t word_of(size_t page, uint32_t version, size_t word) {
  return ((page + 1) * 0x9E3779B97F4A7C15ull ^ (version + seed) * 0xBF58476D1CE4E5B9ull) + word;
}

static void put(size_t page) {
  uint32_t version = versions[page] + 1;
  volatile uint64_t *at = memory + page * WORDS; /* written in this order */
  for (size_t word = 0; word < WORDS; word++)
    at[word] = word_of(page, version, word);
  versions[page] = version;
}

static int is_right(size_t page) {
  volatile uint64_t *at = memory + page * WORDS;
  for (size_t word = 0; word < WORDS; word++)
    if (at[word] != word_of(page, versions[page], word))
      return 0;
  return 1;
}

static _Noreturn void wrong(const char *who, size_t page) {
  char more[60];
  snprintf(more, sizeof more, " page %zu", page);
  say_of("WRONG", who, more);
  _exit(1);
}

static void verify(const char *who, size_t page) {
  if (!is_right(page))
    wrong(who, page);
}

static void verify_all(const char *who) {
  for (size_t page = 0; page < pages; page++)
    verify(who, page);
}

static void rest(long microseconds) {
  struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
  nanosleep(&time, NULL);
}

static long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000l + time.tv_nsec / 1000;
}

/* Read and write at random for a while. */
static void use(long microseconds) {
  for (long end = now() + microseconds; now() < end;) {
    size_t page = draw(pages);
    verify(name, page);
    if (draw(3) == 0)
      put(page);
  }
}

/* Verify all pages, write some, verify all again, and exit. */
static _Noreturn void finish(void) {
  verify_all(name);
  for (size_t page = draw(7); page < pages; page += 7)
    put(page);
  verify_all(name);
  say("ok");
  _exit(0);
}

static _Noreturn void leave(void) {
  say("gone");
  _exit(0);
}

static void become(const char *who) {
  strcpy(name, who);
  state = state * 31 + getpid();
  say("begin");
}

static void child_of(char *who, int number) {
  if (snprintf(who, sizeof name, "%s.%d", name, number) >= (int)sizeof name)
    abort();
  say_of("fork", who, "");
}

/* Fork; the child gets its own name and 0. */
static pid_t split(int number) {
  char who[sizeof name];
  child_of(who, number);
  pid_t pid = fork();
  if (pid < 0)
    abort();
  if (pid == 0)
    become(who);
  return pid;
}

/* Become this program in another mode. */
static _Noreturn void exec_as(const char *mode, const char *who) {
  execl("/proc/self/exe", words[0], mode, words[2], words[3], words[4], who, (char *)NULL);
  abort();
}

/* The number of pages that are not far. */
static size_t present(void) {
  static uint64_t entries[4096];
  int map = open("/proc/self/pagemap", O_RDONLY);
  size_t found = 0;
  for (size_t at = 0; at < pages;) {
    size_t count = pages - at < 4096 ? pages - at : 4096;
    ssize_t got = pread(map, entries, count * 8, ((uintptr_t)memory / PAGE + at) * 8);
    if (got <= 0)
      abort();
    for (ssize_t i = 0; i < got / 8; i++)
      found += entries[i] >> 63;
    at += got / 8;
  }
  close(map);
  return found;
}

static void *map(size_t length) {
  void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    abort();
  return at;
}

static void fill(void) {
  pages = strtoul(words[2], NULL, 10) * 256;
  memory = map(pages * PAGE);
  versions = map(pages * sizeof *versions);
  for (size_t page = 0; page < pages; page++)
    put(page);
}

static void wait_until_most_is_far(void) {
  long end = now() + PATIENCE * 1000000l;
  while (present() > pages / 2) {
    if (now() > end) {
      say("near");
      break;
    }
    rest(2000);
  }
}

/* --- modes */

static void mode_daemon(void) {
  char who[sizeof name];
  child_of(who, 1);
  say("gone");
  if (daemon(1, 1) != 0)
    abort();
  become(who);
  finish();
}

static void mode_double(void) {
  pid_t pid = split(1);
  if (pid == 0) {
    setsid();
    if (split(1) == 0)
      finish();
    leave();
  }
  waitpid(pid, NULL, 0);
  finish();
}

static void mode_exit(void) {
  if (split(1) == 0)
    finish();
  leave();
}

/* Children, some with a child of their own; each process exits at a random time. */
static void mode_loop(void) {
  for (int number = 0; number < 8; number++) {
    use(draw(4000));
    if (split(number) != 0)
      continue;
    if (draw(3) == 0 && split(0) != 0) {
      rest(draw(2000));
      leave();
    }
    use(draw(3000));
    finish();
  }
  rest(draw(3000));
  if (draw(3) == 0)
    finish();
  leave();
}

/* A binary tree of processes, of which only the eight leaves verify; the others exit. */
static void mode_grandchildren(void) {
  int depth = 0;
  for (int number = 0; number < 2; number++) {
    if (split(number) != 0)
      continue;
    if (++depth == 3)
      finish();
    number = -1;
  }
  leave();
}

/* A vfork child shares its parent's memory, so the parent reads what the child writes. */
static void mode_vfork(void) {
  char who[sizeof name];
  for (int number = 0; number < 3; number++) {
    child_of(who, number);
    pid_t pid = vfork();
    if (pid == 0) {
      say_of("begin", who, "");
      if (number == 2)
        exec_as("exit", who);
      verify_all(who);
      for (size_t page = number; page < pages; page += 5)
        put(page);
      say_of("ok", who, "");
      _exit(0);
    }
    waitpid(pid, NULL, 0);
    verify_all(name);
  }
  finish();
}

/* A vfork child kills its parent before it verifies their memory. */
static void mode_vforkkill(void) {
  char who[sizeof name];
  child_of(who, 1);
  say("gone");
  pid_t parent = getpid();
  if (vfork() == 0) {
    say_of("begin", who, "");
    kill(parent, SIGKILL);
    while (getppid() == parent)
      rest(1000);
    verify_all(who);
    say_of("ok", who, "");
    _exit(0);
  }
  _exit(1);
}

/* The first child and, after a second one, this process exec a program that forks and exits. */
static void mode_forkexec(void) {
  char who[sizeof name];
  if (split(1) == 0)
    exec_as("exit", name);
  if (split(2) == 0)
    finish();
  child_of(who, 3);
  say("gone");
  exec_as("exit", who);
}

/* Threads write during the fork, so a child's page may begin with words of a new version and end with
 * words of the version before it, but none older than the page's version before the fork. */
static uint32_t *floors; /* that version, by page */

static void *write_pages(void *of) {
  size_t number = (size_t)of;
  uint64_t mine = number + 1;
  for (;;) {
    mine = mine * 6364136223846793005ull + 1442695040888963407ull;
    size_t page = (mine >> 33) % (pages / THREADS) * THREADS + number;
    verify(name, page);
    put(page);
  }
  return NULL;
}

static int is_right_or_torn(size_t page) {
  volatile uint64_t *at = memory + page * WORDS;
  for (uint32_t version = floors[page]; version <= versions[page] + 100; version++) {
    size_t word = 0;
    while (word < WORDS && at[word] == word_of(page, version, word))
      word++;
    if (word == 0)
      continue;
    while (word < WORDS && version > floors[page] && at[word] == word_of(page, version - 1, word))
      word++;
    return word == WORDS;
  }
  return 0;
}

static void mode_threads(void) {
  floors = map(pages * sizeof *floors);
  for (size_t number = 0; number < THREADS; number++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, write_pages, (void *)number) != 0)
      abort();
  }
  for (int number = 0; number < 4; number++) {
    rest(draw(10000));
    for (size_t page = 0; page < pages; page++)
      floors[page] = __atomic_load_n(&versions[page], __ATOMIC_ACQUIRE);
    if (split(number) == 0) {
      for (size_t page = 0; page < pages; page++)
        if (!is_right_or_torn(page))
          wrong(name, page);
      say("ok");
      _exit(0);
    }
  }
  leave();
}

static void mode_prefork(void) {
  for (int number = 0; number < 4; number++) {
    if (split(number) == 0) {
      use(100000);
      finish();
    }
  }
  say("gone");
  kill(getpid(), SIGKILL);
}

/* Children exec about when the root process exits. */
static void mode_late(void) {
  pid_t first = getpid();
  for (int number = 0; number < 6; number++) {
    if (split(number) == 0) {
      while (getppid() == first)
        rest(100);
      rest(draw(3000));
      exec_as("check", name);
    }
  }
  leave();
}

static void mode_check(void) { finish(); }

/* For kills from outside: children, one of which execs, and grandchildren. */
static void mode_tree(void) {
  for (int number = 0; number < 3; number++) {
    use(draw(10000));
    if (split(number) != 0)
      continue;
    if (number == 2)
      exec_as("exit", name);
    use(draw(20000));
    if (split(0) == 0)
      use(draw(30000));
    use(draw(20000));
    finish();
  }
  use(draw(60000));
  if (draw(2) == 0)
    while (wait(NULL) > 0) {
    }
  finish();
}

int main(int count, char **given) {
  if (count < 5)
    return 2;
  words = given;
  seed = strtoul(given[4], NULL, 10);
  state = seed * 0x9E3779B97F4A7C15ull + 1;
  results = open(given[3], O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (results < 0)
    return 2;
  become(count > 5 ? given[5] : "root");
  fill();
  if (strcmp(given[1], "check") != 0)
    wait_until_most_is_far();
  struct {
    const char *name;
    void (*act)(void);
  } modes[] = {
      {"daemon", mode_daemon},     {"double", mode_double},
      {"exit", mode_exit},         {"loop", mode_loop},
      {"vfork", mode_vfork},       {"grandchildren", mode_grandchildren},
      {"threads", mode_threads},   {"vforkkill", mode_vforkkill},
      {"prefork", mode_prefork},   {"forkexec", mode_forkexec},
      {"tree", mode_tree},         {"late", mode_late},
      {"check", mode_check},
  };
  for (size_t mode = 0; mode < sizeof modes / sizeof *modes; mode++)
    if (strcmp(given[1], modes[mode].name) == 0)
      modes[mode].act();
  return 2;
}
