// steps COUNT MIB SECONDS: touches COUNT regions once, prints "ready", then writes every page of one
// region over and over for SECONDS, then of the next, and so on.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    int regions = atoi(words[1]);
    long bytes = atol(words[2]) << 20;
    double seconds = atof(words[3]);
    char *memory = mmap(0, regions * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, regions * bytes, MADV_NOHUGEPAGE);
    for (long at = 0; at < regions * bytes; at += 4096) memory[at] = at >> 12;
    puts("ready");
    fflush(stdout);
    for (int region = 0;; region = (region + 1) % regions)
        for (double end = now() + seconds; now() < end;)
            for (long at = 0; at < bytes; at += 4096) memory[region * bytes + at]++;
}
