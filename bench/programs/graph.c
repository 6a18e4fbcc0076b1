/* graph VERTICES SEARCHES: breadth-first searches, and as many rounds of a page rank, on a random graph
 * with 0 to 23 edges from each vertex. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 1;

static uint32_t draw(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return state >> 33;
}

int main(int argc, char **argv)
{
	uint32_t vertices = argc > 1 ? strtoul(argv[1], NULL, 10) : 400000;
	int searches = argc > 2 ? atoi(argv[2]) : 2;
	uint32_t *first = calloc(vertices + 1, sizeof *first);
	uint32_t *depth = malloc(vertices * sizeof *depth);
	uint32_t *queue = malloc(vertices * sizeof *queue);
	float *rank = malloc(vertices * sizeof *rank), *next = malloc(vertices * sizeof *next);
	uint64_t reached = 0;

	for (uint32_t v = 0; v < vertices; v++)
		first[v + 1] = first[v] + draw() % 24;
	uint32_t *target = malloc(first[vertices] * sizeof *target);
	for (uint32_t e = 0; e < first[vertices]; e++)
		target[e] = (uint64_t)(draw() % vertices) * (draw() % vertices) / vertices;
	for (int search = 0; search < searches; search++) {
		uint32_t head = 0, tail = 0;
		for (uint32_t v = 0; v < vertices; v++)
			depth[v] = UINT32_MAX;
		queue[tail++] = draw() % vertices;
		depth[queue[0]] = 0;
		while (head < tail) {
			uint32_t v = queue[head++];
			for (uint32_t e = first[v]; e < first[v + 1]; e++)
				if (depth[target[e]] == UINT32_MAX) {
					depth[target[e]] = depth[v] + 1;
					queue[tail++] = target[e];
				}
		}
		reached += tail;
	}
	for (uint32_t v = 0; v < vertices; v++)
		rank[v] = 1;
	for (int round = 0; round < searches; round++) {
		for (uint32_t v = 0; v < vertices; v++) {
			next[v] = 0.15f;
			for (uint32_t e = first[v]; e < first[v + 1]; e++)
				next[v] += 0.05f * rank[target[e]];
		}
		float *swap = rank;
		rank = next;
		next = swap;
	}
	printf("%llu %f\n", (unsigned long long)reached, rank[0]);
}
