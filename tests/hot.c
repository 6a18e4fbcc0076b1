// A program with a known working set: hot HOT_MIB ALL_MIB. Touches all memory once; then uses
// HOT_MIB over and over, each page about every 10 ms.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

int main(int count, char **words) {
    long hot = atol(words[1]) << 20, all = atol(words[2]) << 20;
    char *memory = mmap(0, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, all, MADV_NOHUGEPAGE);
    for (long at = 0; at < all; at += 4096) memory[at] = at >> 12;
    puts("ready");
    fflush(stdout);
    for (;;) {
        for (long at = 0; at < hot; at += 4096) memory[at]++;
        nanosleep(&(struct timespec){0, 10000000}, 0);
    }
}
