// Breadth-first search and PageRank over a graph with random edges: the two kernels that most graph
// benchmarks begin with. `make demo` compiles and captures the program. Page size matters to it, as
// each edge leads to a random place in memory.
//
//     cc -O2 -g -o graph graph.c && ./graph 19 4
//
// has 2^19 vertices with 4 edges each.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct graph {
    uint32_t vertices;
    uint32_t *first;  // index of each vertex's first edge; then the number of edges
    uint32_t *target; // vertex to which each edge leads
};

static uint64_t state = 1;

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
static uint64_t draw(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static void *room(size_t count, size_t size) {
    void *made = calloc(count, size);
    if (made == NULL) {
        fprintf(stderr, "graph: no memory for %zu x %zu bytes\n", count, size);
        exit(1);
    }
    return made;
}

struct graph build(unsigned scale, uint32_t degree) {
    struct graph g = {.vertices = 1u << scale};
    uint32_t edges = g.vertices * degree;
    g.first = room(g.vertices + 1, sizeof *g.first);
    g.target = room(edges, sizeof *g.target);
    for (uint32_t v = 0; v <= g.vertices; v++)
        g.first[v] = v * degree;
    for (uint32_t e = 0; e < edges; e++)
        g.target[e] = draw() >> (64 - scale);
    return g;
}

// Returns the number of vertices that can be reached from vertex 0.
uint32_t breadth_first(const struct graph *g) {
    uint32_t *distance = room(g->vertices, sizeof *distance);
    uint32_t *queue = room(g->vertices, sizeof *queue);
    uint32_t head = 0, tail = 0;
    distance[0] = 1; // 0: not reached
    queue[tail++] = 0;
    while (head < tail) {
        uint32_t v = queue[head++];
        for (uint32_t e = g->first[v]; e < g->first[v + 1]; e++) {
            uint32_t next = g->target[e];
            if (distance[next] == 0) {
                distance[next] = distance[v] + 1;
                queue[tail++] = next;
            }
        }
    }
    free(distance);
    free(queue);
    return tail;
}

// Returns the largest rank after `rounds` rounds. Each vertex pulls ranks along its edges.
double page_rank(const struct graph *g, int rounds) {
    double *rank = room(g->vertices, sizeof *rank);
    double *share = room(g->vertices, sizeof *share);
    double largest = 0;
    for (uint32_t v = 0; v < g->vertices; v++)
        rank[v] = 1.0 / g->vertices;
    for (int round = 0; round < rounds; round++) {
        largest = 0;
        for (uint32_t v = 0; v < g->vertices; v++)
            share[v] = rank[v] / (g->first[v + 1] - g->first[v]);
        for (uint32_t v = 0; v < g->vertices; v++) {
            double sum = 0;
            for (uint32_t e = g->first[v]; e < g->first[v + 1]; e++)
                sum += share[g->target[e]];
            rank[v] = 0.15 / g->vertices + 0.85 * sum;
            if (rank[v] > largest)
                largest = rank[v];
        }
    }
    free(rank);
    free(share);
    return largest;
}

int main(int argc, char **argv) {
    unsigned scale = argc > 1 ? atoi(argv[1]) : 19;
    unsigned degree = argc > 2 ? atoi(argv[2]) : 4;
    if (scale < 1 || scale > 26 || degree < 1 || degree > 32) {
        fprintf(stderr, "usage: graph [SCALE 1..26] [EDGES OF A VERTEX 1..32]\n");
        return 2;
    }
    struct graph g = build(scale, degree);
    uint32_t reached = breadth_first(&g);
    double largest = page_rank(&g, 3);
    printf("%u of %u vertices reached, largest rank %.3g\n", reached, g.vertices, largest);
    return 0;
}
