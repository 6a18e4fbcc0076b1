/* touch PAGES REFERENCES WRITES% uniform|zipf: random references to pages. Half of each page is random
 * data, so that it compresses to about half. Prints how many references found a wrong page. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WORDS = 512 };

static uint64_t state = 1;

static uint64_t draw(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return state >> 16;
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	uint64_t pages = strtoull(argv[1], NULL, 10), references = strtoull(argv[2], NULL, 10);
	uint64_t writes = strtoull(argv[3], NULL, 10), wrong = 0;
	int zipf = strcmp(argv[4], "zipf") == 0;
	double logarithm = log(pages);
	uint64_t *memory = mmap(NULL, pages * WORDS * 8, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 2;
	/* Wait until nearfar run, which polls mappings every 20 to 40 ms, manages this one. */
	usleep(100000);
	for (uint64_t page = 0; page < pages; page++) {
		for (int word = 0; word < WORDS / 2; word++)
			memory[page * WORDS + word] = draw() * draw();
		memory[page * WORDS + WORDS - 1] = page;
	}
	for (uint64_t i = 0; i < references; i++) {
		uint64_t place = draw() % pages;
		/* Zipf with exponent 1: ranks are exponentials of uniform numbers. */
		if (zipf)
			place = (uint64_t)exp(logarithm * (draw() & 0xffffffff) / 4294967296.0)
				* 2654435761u % pages;
		uint64_t *page = memory + place * WORDS;
		wrong += page[WORDS - 1] != place;
		if (draw() % 100 < writes)
			page[draw() % (WORDS / 2)] = i;
	}
	printf("%llu wrong\n", (unsigned long long)wrong);
	return wrong != 0;
}
