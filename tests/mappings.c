// Changes protection, locks and advice of its memory while it uses it, and counts the pages that do not
// hold what was written.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 1500, PARTS = 30 };
static unsigned long *page_of(char *memory, int page) {
  return (unsigned long *)(memory + (long)page * PAGE);
}

int main(int count, char **words) {
  int wrong = 0, rounds = count > 1 ? atoi(words[1]) : 3;
  unsigned draw = 1;
  for (int round = 0; round < rounds; round++) {
    char *memory = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 2;
    // One half is touched before these changes; the other half afterwards.
    for (int page = 0; page < PAGES / 2; page++) *page_of(memory, page) = page + round;
    usleep(150000);
    for (int part = 0; part < PARTS; part++) {
      draw = draw * 1664525 + 1013904223;
      char *from = memory + (draw >> 8) % (PAGES - 16) * PAGE;
      switch (part % 5) {
      case 0: mprotect(from, 7 * PAGE, PROT_READ); break;
      case 1: mprotect(from, 5 * PAGE, PROT_NONE); break;
      case 2: mlock(from, 3 * PAGE); break;
      case 3: madvise(from, 4 * PAGE, MADV_DONTDUMP); break;
      case 4: madvise(from, 6 * PAGE, MADV_SEQUENTIAL); break;
      }
    }
    // Verify every readable page, read-only ones too; inaccessible ones are skipped.
    for (int page = 0; page < PAGES; page++) {
      char byte;
      int ends[2];
      if (pipe(ends)) return 2;
      // If the page is inaccessible, write() fails, where a read by the program would crash.
      if (write(ends[1], page_of(memory, page), 1) == 1) {
        if (read(ends[0], &byte, 1) != 1) return 2;
        unsigned long expected = page < PAGES / 2 ? page + round : 0;
        wrong += *page_of(memory, page) != expected || byte != (char)expected;
      }
      close(ends[0]);
      close(ends[1]);
    }
    munlockall();
    mprotect(memory, PAGES * PAGE, PROT_READ | PROT_WRITE);
    for (int page = 0; page < PAGES; page++) {
      unsigned long expected = page < PAGES / 2 ? page + round : 0;
      wrong += *page_of(memory, page) != expected;
      *page_of(memory, page) = ~(unsigned long)page;
    }
    for (int page = PAGES - 1; page >= 0; page--) wrong += *page_of(memory, page) != ~(unsigned long)page;
    munmap(memory, PAGES * PAGE);
  }
  printf("%d pages were wrong\n", wrong);
  return wrong != 0;
}
