/* alloc ROUNDS: allocates and frees objects of many sizes in phases, so that the allocator releases
 * memory to the kernel and allocates it again. DECAY: jemalloc's decay time, milliseconds.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 60000

const char *malloc_conf = "dirty_decay_ms:" DECAY ",muzzy_decay_ms:" DECAY;
static uint64_t state = 1, sum;
static char *objects[COUNT];

static uint64_t draw(void)
{
	state = state * 6364136223846793005UL + 1442695040888963407UL;
	return state >> 20;
}

int main(int count, char **words)
{
	long rounds = count > 1 ? atol(words[1]) : 1;
	while (rounds--) {
		for (int n = 0; n < COUNT; n++) {
			size_t bytes = 16 + draw() % 2048;
			if (!objects[n] && (objects[n] = malloc(bytes)))
				memset(objects[n], n, bytes);
		}
		for (int n = 0; n < COUNT; n++)
			if (draw() % 8) {
				free(objects[n]);
				objects[n] = NULL;
			}
		for (long n = 0; n < 2000000; n++) {
			char *object = objects[draw() % COUNT];
			sum += object ? ++*object : 1;
			if (n % 1000 == 0)
				free(malloc(64 + draw() % 4096));
		}
	}
	printf("%lu\n", (unsigned long)sum);
	return 0;
}
