/* huge sparse|again|grow|fork ROUNDS: patterns of memory use that huge pages help or hurt.
 *
 * sparse: uses one page in each 2 MiB of 256 MiB.
 * again: fills 128 MiB, releases every second 128 KiB, uses the rest, and fills the released part again.
 * grow: a mapping that grows by 64 KiB at a time, as a heap does, and is used in between.
 * fork: fills 128 MiB and forks; parent and child write a tenth of it, then the child ends.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L
#define MIB (1L << 20)

static uint64_t state = 1, sum;

/* Increments random bytes of `pages` pages, `step` bytes apart. */
static void work(char *memory, long pages, long step, long references)
{
	for (long i = 0; i < references; i++) {
		state = state * 6364136223846793005UL + 1442695040888963407UL;
		sum += ++memory[(state >> 20) % pages * step + (state >> 50 & (PAGE - 64))];
	}
}

static char *mapped(long bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		perror("huge: mmap");
		exit(1);
	}
	return memory;
}

int main(int count, char **words)
{
	long rounds = count > 2 ? atol(words[2]) : 1, references = 2000000;
	const char *what = count > 1 ? words[1] : "";
	if (!strcmp(what, "sparse")) {
		char *memory = mapped(256 * MIB);
		for (long i = 0; i < rounds; i++)
			work(memory, 128, 2 * MIB, references);
	} else if (!strcmp(what, "again")) {
		char *memory = mapped(128 * MIB);
		memset(memory, 1, 128 * MIB);
		for (long i = 0; i < rounds; i++) {
			for (long at = 0; at < 128 * MIB; at += 256 << 10)
				madvise(memory + at, 128 << 10, MADV_DONTNEED);
			work(memory + (128 << 10), 512, 256 << 10, references);
			for (long at = 0; at < 128 * MIB; at += 256 << 10)
				memset(memory + at, 1, 128 << 10);
			work(memory, 128 * MIB / PAGE, PAGE, references);
		}
	} else if (!strcmp(what, "grow")) {
		char *heap = mapped(100 * MIB);
		munmap(heap, 100 * MIB);
		heap = (char *)(((uintptr_t)heap + 2 * MIB) & -(2 * MIB));
		for (long grown = 0; grown < 96 * MIB; grown += 64 << 10) {
			if (mmap(heap + grown, 64 << 10, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
				return 1;
			memset(heap + grown, 1, 64 << 10);
			work(heap, (grown + (64 << 10)) / PAGE, PAGE, rounds * 5000);
		}
	} else if (!strcmp(what, "fork")) {
		char *memory = mapped(128 * MIB);
		memset(memory, 1, 128 * MIB);
		for (long i = 0; i < rounds; i++) {
			pid_t child = fork();
			for (long page = 0; page < 128 * MIB / PAGE; page += 10)
				memory[page * PAGE] = 2;
			work(memory, 128 * MIB / PAGE / 10, 10 * PAGE, references);
			if (child == 0)
				_exit(sum & 1);
			waitpid(child, NULL, 0);
			work(memory, 128 * MIB / PAGE, PAGE, references);
		}
	} else {
		fprintf(stderr, "usage: huge sparse|again|grow|fork ROUNDS\n");
		return 2;
	}
	printf("%lu\n", (unsigned long)sum);
	return 0;
}
