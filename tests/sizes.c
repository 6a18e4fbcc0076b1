// Programs whose memory demand is easily misjudged: sizes lock|populate|fork|late|phases|cold
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, PAGE = 4096 };

static char *map(long bytes, int flags) {
    return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static void touch(char *at, long bytes) {
    for (long i = 0; i < bytes; i += PAGE) at[i]++;
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "lock")) {
        char *locked = map(16 * MIB, 0);
        if (mlock(locked, 16 * MIB)) return 1;
        char *hot = map(2 * MIB, 0);
        for (int round = 0; round < 200; round++) touch(hot, 2 * MIB);
    } else if (!strcmp(what, "populate")) {
        char *hot = map(24 * MIB, MAP_POPULATE);
        for (int round = 0; round < 200; round++) touch(hot, MIB);
    } else if (!strcmp(what, "fork")) {
        char *shared = map(16 * MIB, 0);
        touch(shared, 16 * MIB);
        int ready[2], end[2];
        char byte = 0;
        if (pipe(ready) || pipe(end)) return 1;
        for (int child = 0; child < 4; child++)
            if (!fork()) {
                close(end[1]);
                touch(shared, 4 * MIB);
                _exit(write(ready[1], &byte, 1) != 1 || read(end[0], &byte, 1) != 0);
            }
        for (int child = 0; child < 4; child++)
            if (read(ready[0], &byte, 1) != 1) return 1;
        close(end[1]);
        while (wait(0) > 0) continue;
    } else if (!strcmp(what, "late")) {
        // 20 MiB are filled at once; after a while, only 1 MiB is used.
        char *all = map(20 * MIB, 0);
        touch(all, 20 * MIB);
        time_t until = time(0) + (count > 2 ? atoi(words[2]) : 0);
        do {
            touch(all, MIB);
            usleep(10000);
        } while (time(0) < until);
    } else if (!strcmp(what, "phases")) {
        char *small = map(2 * MIB, 0);
        for (int round = 0; round < 900; round++) touch(small, 2 * MIB);
        char *large = map(30 * MIB, 0);
        for (int round = 0; round < 7; round++) touch(large, 30 * MIB);
    } else if (!strcmp(what, "cold")) {
        char *hot = map(4 * MIB, 0), *all = map(64 * MIB, 0);
        for (int part = 0; part < 64; part++) {
            touch(all + part * MIB, MIB);
            for (int round = 0; round < 40; round++) touch(hot, 4 * MIB);
        }
    } else {
        return 2;
    }
    return 0;
}
