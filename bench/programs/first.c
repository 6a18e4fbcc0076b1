/* first read FILE | mapped FILE | memory r|w: programs that differ in their first access to memory.
 *
 * read, mapped: reads a file in pieces of 64 KiB, by read(2) or through a mapping, and after each
 * piece increments random bytes of 64 MiB of anonymous memory. memory: touches 64 MiB, each page first
 * by a read and then by a write (r), or by a write alone (w). Then reads random bytes. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, PIECE = 64 << 10, ADDS = 4000, READS = 2000000 };
static const uint64_t SIZE = 64 << 20;

static uint64_t state = 1;

static uint64_t draw(uint64_t below)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (state >> 20) % below;
}

static char *memory(void)
{
	char *found = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return found == MAP_FAILED ? NULL : found;
}

static uint64_t file(const char *path, int mapped)
{
	static char piece[PIECE];
	int opened = open(path, O_RDONLY);
	struct stat about;
	char *words = memory();
	if (opened < 0 || fstat(opened, &about) || !words)
		exit(2);
	memset(words, 1, SIZE);
	char *all = mmap(NULL, about.st_size, PROT_READ, MAP_SHARED, opened, 0);
	uint64_t sum = 0;
	for (off_t at = 0; at < about.st_size; at += PIECE) {
		if (!mapped && read(opened, piece, PIECE) <= 0)
			break;
		const char *bytes = mapped ? all + at : piece;
		for (off_t byte = 0; byte < PIECE && at + byte < about.st_size; byte += 64)
			sum += bytes[byte];
		for (int adds = 0; adds < ADDS; adds++)
			sum += ++words[draw(SIZE)];
	}
	return sum;
}

static uint64_t touch(int reads)
{
	volatile char *words = memory();
	uint64_t sum = 0;
	if (!words)
		exit(2);
	for (uint64_t at = 0; at < SIZE; at += PAGE) {
		if (!reads || words[at] == 0)
			words[at] = 1;
	}
	for (int count = 0; count < READS; count++)
		sum += words[draw(SIZE)];
	return sum;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	uint64_t sum = strcmp(argv[1], "memory") == 0 ? touch(argv[2][0] == 'r')
						     : file(argv[2], argv[1][0] == 'm');
	return printf("%lu\n", sum) < 0;
}
