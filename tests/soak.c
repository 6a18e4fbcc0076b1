/* Writes a check of address and version into every page of its memory and verifies it, from several
 * threads, while pages are released, moved, unmapped, copied by fork, and read into and written from by
 * O_DIRECT.
 * usage: soak MIB STEPS THREADS FILE; STEPS may be a duration: 60s. Prints how many pages were wrong, and
 * exits with 1 if any was. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define CHUNK 64 /* pages that are moved and unmapped together */

static size_t chunks;
static long steps;
static time_t end; /* if not 0, replaces steps */
static const char *path;
static long wrong;

struct part {
  uint64_t **at;      /* address, by chunk */
  uint32_t *versions; /* by page; 0: released, so the page reads as zeros */
  char *split;        /* by chunk: may be more than one mapping */
  uint64_t state;
  size_t number;
  long done, forks, transfers, unmaps;
};

static uint64_t draw(struct part *part, uint64_t below) {
  part->state = part->state * 6364136223846793005ull + 1442695040888963407ull;
  return (part->state >> 33) % below;
}

static uint64_t check_of(size_t page, uint32_t version) {
  return version == 0 ? 0 : (page + 1) * 0x9E3779B97F4A7C15ull ^ version * 0xBF58476D1CE4E5B9ull;
}

static uint64_t *words_of(struct part *part, size_t page) {
  return part->at[page / CHUNK] + page % CHUNK * (PAGE / 8);
}

static void verify(struct part *part, size_t page) {
  uint64_t *words = words_of(part, page);
  uint64_t check = check_of(page, part->versions[page]);
  if (words[0] != check || words[PAGE / 8 - 1] != check)
    __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
}

static void put(struct part *part, size_t page) {
  uint64_t *words = words_of(part, page);
  uint64_t check = check_of(page, ++part->versions[page]);
  words[0] = words[PAGE / 8 - 1] = check;
}

static void forget(struct part *part, size_t chunk) {
  memset(part->versions + chunk * CHUNK, 0, CHUNK * sizeof *part->versions);
}

static void *map(void) {
  void *at = mmap(NULL, CHUNK * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    abort();
  return at;
}

static void fork_and_verify(struct part *part) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    wrong = 0;
    for (size_t page = 0; page < chunks * CHUNK; page++) {
      verify(part, page);
      if (page % 7 == 0)
        put(part, page);
    }
    _exit(wrong != 0);
  }
  int status;
  waitpid(child, &status, 0);
  if (status != 0)
    __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
}

/* Read the page from the file, by O_DIRECT if possible. */
static void read_into(struct part *part, size_t page, int file) {
  uint64_t *words = words_of(part, page);
  if (pread(file, words, PAGE, 0) != (ssize_t)PAGE)
    abort();
  part->versions[page] = 1;
  uint64_t check = words[0];
  if (check != words[PAGE / 8 - 1] || check != 0x5555555555555555ull)
    __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
  words[0] = words[PAGE / 8 - 1] = check_of(page, 1);
}

/* Write the page to the part's own place in the file, and read that into another page. */
static void write_and_read(struct part *part, size_t page, int file) {
  size_t other = draw(part, chunks * CHUNK);
  off_t at = (part->number + 1) * PAGE;
  verify(part, page);
  if (pwrite(file, words_of(part, page), PAGE, at) != (ssize_t)PAGE ||
      pread(file, words_of(part, other), PAGE, at) != (ssize_t)PAGE)
    abort();
  if (*words_of(part, other) != check_of(page, part->versions[page]))
    __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
  put(part, other);
}

static void *run(void *of) {
  struct part *part = of;
  int file = open(path, O_RDWR | O_DIRECT);
  if (file < 0)
    file = open(path, O_RDWR);
  for (long step = 0; end ? step % 4096 || time(NULL) < end : step < steps; step++) {
    part->done++;
    size_t pages = chunks * CHUNK;
    /* Half of the references are to a working set of an eighth of the memory, which moves. */
    size_t page = draw(part, 2) ? draw(part, pages)
                                : (step / 20000 * (pages / 8) + draw(part, pages / 8)) % pages;
    verify(part, page);
    if (draw(part, 4) == 0)
      put(part, page);
    size_t chunk = page / CHUNK;
    switch (draw(part, 4000)) {
    case 0: /* released */
      madvise(part->at[chunk], CHUNK * PAGE, MADV_DONTNEED);
      forget(part, chunk);
      break;
    case 1: /* unmapped, and mapped anew, often at the same place */
      munmap(part->at[chunk], CHUNK * PAGE);
      part->at[chunk] = map();
      forget(part, chunk);
      part->split[chunk] = 0;
      part->unmaps++;
      break;
    case 2: { /* moved; not every kernel can move several mappings at once */
      if (part->split[chunk])
        break;
      void *to = map();
      part->at[chunk] =
          mremap(part->at[chunk], CHUNK * PAGE, CHUNK * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to);
      break;
    }
    case 3:
    case 4:
      read_into(part, page, file);
      part->transfers++;
      break;
    case 5:
      if (draw(part, 2) == 0) {
        fork_and_verify(part);
        part->forks++;
      }
      break;
    case 6:
      write_and_read(part, page, file);
      part->transfers++;
      break;
    case 7: { /* a part of it replaced by a new mapping */
      size_t from = draw(part, CHUNK), pages = 1 + draw(part, CHUNK - from);
      mmap(part->at[chunk] + from * (PAGE / 8), pages * PAGE, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      memset(part->versions + chunk * CHUNK + from, 0, pages * sizeof *part->versions);
      part->split[chunk] = 1;
      part->unmaps++;
      break;
    }
    }
  }
  for (size_t page = 0; page < chunks * CHUNK; page++)
    verify(part, page);
  close(file);
  return NULL;
}

int main(int count, char **words) {
  if (count != 5)
    return 2;
  int threads = atoi(words[3]);
  chunks = strtoul(words[1], NULL, 10) * 256 / CHUNK / threads;
  char *unit;
  steps = strtol(words[2], &unit, 10);
  if (*unit == 's')
    end = time(NULL) + steps;
  path = words[4];
  static uint64_t page[PAGE / 8];
  memset(page, 0x55, sizeof page);
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || write(file, page, sizeof page) != sizeof page)
    return 2;
  close(file);
  pthread_t thread[64];
  struct part *parts[64];
  for (int i = 0; i < threads; i++) {
    struct part *part = parts[i] = calloc(1, sizeof *part);
    part->split = calloc(chunks, 1);
    part->number = i;
    part->at = calloc(chunks, sizeof *part->at);
    part->versions = calloc(chunks * CHUNK, sizeof *part->versions);
    part->state = i + 1;
    for (size_t chunk = 0; chunk < chunks; chunk++)
      part->at[chunk] = map();
    pthread_create(&thread[i], NULL, run, part);
  }
  for (int i = 0; i < threads; i++)
    pthread_join(thread[i], NULL);
  if (end) {
    struct part all = {0};
    for (int i = 0; i < threads; i++) {
      all.done += parts[i]->done;
      all.forks += parts[i]->forks;
      all.transfers += parts[i]->transfers;
      all.unmaps += parts[i]->unmaps;
    }
    printf("%ld steps, %ld children, %ld unmaps, %ld transfers by O_DIRECT: ", all.done, all.forks,
           all.unmaps, all.transfers);
  }
  printf("%ld pages were wrong\n", wrong);
  return wrong != 0;
}
