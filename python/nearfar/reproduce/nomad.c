/* NOMAD's micro-benchmark: nomad RSS WSS OPERATIONS ROUNDS read|write|mixed SEED PAUSE. Sizes are in pages,
 * the pause before each round in microseconds.
 *
 * All of RSS is written once in order. A warm-up stores to pages before the working set, which is the last
 * WSS pages, then the rounds load or store, a whole page at a time. Pages are drawn as by YCSB's
 * ScrambledZipfianGenerator, the same in every round. Half of each page is random, so that it compresses to
 * about half. Prints the seconds of each round, the warm-up first, and the number of pages with wrong
 * contents. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

/* YCSB's constants: items, skew, zeta(items, skew). */
static const double ITEMS = 1e10, THETA = 0.99, ZETA = 26.46902820178302;

static uint64_t state;

static uint64_t draw(void)
{
	/* SplitMix64 */
	uint64_t z = state += 0x9E3779B97F4A7C15u;
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
	return z ^ (z >> 31);
}

static uint64_t rank_of(double u)
{
	double share = u * ZETA, second = 1 + pow(0.5, THETA);
	double eta = (1 - pow(2 / ITEMS, 1 - THETA)) / (1 - second / ZETA);
	if (share < 1)
		return 0;
	if (share < second)
		return 1;
	return (uint64_t)(ITEMS * pow(eta * u - eta + 1, 1 / (1 - THETA)));
}

static uint64_t record_of(uint64_t rank, uint64_t records)
{
	/* FNV-1a over the bytes of the rank. */
	uint64_t hash = 0xCBF29CE484222325u;
	for (int byte = 0; byte < 8; byte++, rank >>= 8)
		hash = (hash ^ (rank & 0xFF)) * 0x100000001B3u;
	return hash % records;
}

static uint64_t *memory, scratch[WORDS], wrong;

static void store(uint64_t page)
{
	uint64_t *at = memory + page * WORDS;
	scratch[0] = draw();
	scratch[WORDS - 2] = page;
	scratch[WORDS - 1] = scratch[0];
	memcpy(at, scratch, PAGE);
}

static void load(uint64_t page)
{
	memcpy(scratch, memory + page * WORDS, PAGE);
	wrong += scratch[WORDS - 2] != page || scratch[WORDS - 1] != scratch[0];
}

static void round_of(uint64_t first, uint64_t pages, uint64_t operations, const char *mix)
{
	struct timespec from, to;
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (uint64_t i = 0; i < operations; i++) {
		uint64_t random = draw();
		uint64_t page = first + record_of(rank_of((random >> 11) * 0x1p-53), pages);
		if (mix[0] == 'w' || (mix[0] == 'm' && random & 1))
			store(page);
		else
			load(page);
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("%.6f\n", (to.tv_sec - from.tv_sec) + 1e-9 * (to.tv_nsec - from.tv_nsec));
}

int main(int argc, char **argv)
{
	if (argc < 8)
		return 2;
	uint64_t rss = strtoull(argv[1], NULL, 10), wss = strtoull(argv[2], NULL, 10);
	uint64_t operations = strtoull(argv[3], NULL, 10), rounds = strtoull(argv[4], NULL, 10);
	uint64_t seed = strtoull(argv[6], NULL, 10), first = rss - wss;
	memory = mmap(NULL, rss * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || wss >= rss)
		return 2;
	/* Wait for nearfar run to manage this mapping, which takes 20 to 40 ms. */
	usleep(100000);
	state = seed;
	for (int word = 0; word < WORDS / 2; word++)
		scratch[word] = draw();
	for (uint64_t page = 0; page < rss; page++)
		store(page);
	round_of(0, first, operations, "write");
	for (uint64_t i = 0; i < rounds; i++) {
		usleep(strtoull(argv[7], NULL, 10));
		state = ~seed;
		round_of(first, wss, operations, argv[5]);
	}
	for (uint64_t page = 0; page < rss; page += 97)
		load(page);
	printf("%llu\n", (unsigned long long)wrong);
	return wrong != 0;
}
