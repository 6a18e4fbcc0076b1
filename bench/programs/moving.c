/* moving COLD HOT DEVIATION SHIFT ROUNDS OPERATIONS WORK: a working set that moves. An operation is a
 * load and WORK thousand instructions. A quarter of the loads is uniform over COLD pages. The others
 * are normally distributed over the HOT pages after them; the mean moves by SHIFT after each round of
 * OPERATIONS (SHIFT and DEVIATION are shares of the hot pages). Prints the kernel's counters and where
 * pages are, at the start and at each tenth of the run. */
#define _GNU_SOURCE
#include <linux/mempolicy.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, TENTHS = 10, CHUNK = 512, SAMPLES = 20000, CALIBRATION = 20000 };
/* QEMU's TLB evicts no translations, and sets no accessed bit while it holds one. Protecting
 * FLUSH_PAGES pages, every FLUSH_PERIOD operations, flushes it. */
enum { FLUSH_PAGES = 40, FLUSH_PERIOD = 1024 };
/* Parts of equal probability into which the normal distribution is divided. */
enum { PARTS = 1 << 14 };

static uint64_t state = 1, cold, hot, rounds, operations, work;
static double deviation, shift;
static char *memory, *protected, *is_fast;

static uint64_t draw(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return state >> 32;
}

/* Where each part of the distribution begins, in 1/256 of a hot page. */
static uint32_t parts[PARTS + 1];

static double density(uint64_t page)
{
	double distance = ((double)page / hot - 0.5) / deviation;
	return exp(-0.5 * distance * distance);
}

static void divide(void)
{
	double all = 0, sum = 0;
	uint64_t part = 0;
	for (uint64_t i = 0; i < hot; i++)
		all += density(i);
	for (uint64_t i = 0; i < hot; i++) {
		double weight = density(i);
		for (; part < PARTS && all * part / PARTS <= sum + weight; part++)
			parts[part] = (i + (all * part / PARTS - sum) / weight) * 256;
		sum += weight;
	}
	while (part <= PARTS)
		parts[part++] = hot * 256;
}

static uint64_t page(uint64_t round)
{
	if (draw() % 4 == 0)
		return draw() * cold >> 32;
	uint64_t random = draw(), part = random * PARTS >> 32, rest = random * PARTS & 0xffffffff;
	uint64_t place = (parts[part] + ((parts[part + 1] - parts[part]) * rest >> 32)) / 256;
	double moved = round * shift;
	return cold + (place + (uint64_t)((moved - floor(moved)) * hot)) % hot;
}

static void operate(const char *at, uint64_t number)
{
	(void)*(volatile const char *)at;
	/* An iteration is about a thousand instructions, those of the loop included. */
	for (uint64_t i = 0; i < work; i++)
		__asm__ volatile(".rept 996\n\tnop\n\t.endr");
	if (number % FLUSH_PERIOD == 0) {
		mprotect(protected, FLUSH_PAGES * PAGE, PROT_READ);
		mprotect(protected, FLUSH_PAGES * PAGE, PROT_READ | PROT_WRITE);
	}
}

static double now(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

/* Prints the lines of a file that begin with one of the names. */
static void print_lines(const char *path, const char *const *names)
{
	char line[256];
	FILE *file = fopen(path, "r");
	if (file == NULL)
		exit(3);
	while (fgets(line, sizeof line, file))
		for (const char *const *name = names; *name; name++)
			if (strncmp(line, *name, strlen(*name)) == 0)
				fputs(line, stdout);
	fclose(file);
}

static void print_free_pages(void)
{
	print_lines("/sys/devices/system/node/node0/vmstat",
		    (const char *const[]){ "nr_free_pages ", NULL });
}

/* Prints how many pages are on node 0, the share of the round's loads that go there, and counters. */
static void report(double began, uint64_t round)
{
	uint64_t at[2] = { 0, 0 }, fast = 0, before = state;
	for (uint64_t first = 0; first < cold + hot; first += CHUNK) {
		uint64_t count = cold + hot - first < CHUNK ? cold + hot - first : CHUNK;
		void *places[CHUNK];
		int nodes[CHUNK];
		for (uint64_t i = 0; i < count; i++)
			places[i] = memory + (first + i) * PAGE;
		if (syscall(SYS_move_pages, 0, count, places, NULL, nodes, 0) != 0)
			exit(3);
		for (uint64_t i = 0; i < count; i++) {
			is_fast[first + i] = nodes[i] == 0;
			at[first + i >= cold] += nodes[i] == 0;
		}
	}
	for (int i = 0; i < SAMPLES; i++)
		fast += is_fast[page(round)];
	state = before;
	printf("at %.0f\ncold %llu\nhot %llu\nhits %f\n", now(CLOCK_MONOTONIC) - began, (unsigned long long)at[0],
	       (unsigned long long)at[1], (double)fast / SAMPLES);
	print_free_pages();
	print_lines("/proc/vmstat", (const char *const[]){ "pgpromote_", "pgdemote_", "numa_hint_faults ",
							  "numa_pte_updates ", NULL });
}

static void *mapped(uintptr_t at, uint64_t size)
{
	void *made = mmap((void *)at, size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (made == MAP_FAILED)
		exit(3);
	return made;
}

static double page_migration_ns(void)
{
	char *area = memset(mapped(0x180000000000, CHUNK * PAGE), 1, CHUNK * PAGE);
	void *places[CHUNK];
	int nodes[CHUNK], status[CHUNK];
	double began = now(CLOCK_PROCESS_CPUTIME_ID);
	for (int to = 1; to >= 0; to--) {
		for (int i = 0; i < CHUNK; i++) {
			places[i] = area + i * PAGE;
			nodes[i] = to;
		}
		if (syscall(SYS_move_pages, 0, CHUNK, places, nodes, status, MPOL_MF_MOVE) != 0 ||
		    status[0] != to)
			exit(3);
	}
	double spent = now(CLOCK_PROCESS_CPUTIME_ID) - began;
	munmap(area, CHUNK * PAGE);
	return spent / (2 * CHUNK);
}

int main(int argc, char **argv)
{
	if (argc < 8)
		return 2;
	cold = strtoull(argv[1], NULL, 10), hot = strtoull(argv[2], NULL, 10);
	deviation = atof(argv[3]), shift = atof(argv[4]);
	rounds = strtoull(argv[5], NULL, 10), operations = strtoull(argv[6], NULL, 10);
	work = strtoull(argv[7], NULL, 10);
	/* Buffer all output until the end: waiting for the console would take virtual time. */
	static char printed[1 << 16];
	setvbuf(stdout, printed, _IOFBF, sizeof printed);
	/* Away from other mappings; Linux 6.12's NUMA scan reaches only the stack later. */
	memory = mapped(0x300000000000, (cold + hot) * PAGE);
	is_fast = memset(mapped(0x200000000000, cold + hot), 1, cold + hot);
	protected = memset(mapped(0x100000000000, FLUSH_PAGES * PAGE), 1, FLUSH_PAGES * PAGE);
	divide();
	double began = now(CLOCK_PROCESS_CPUTIME_ID);
	for (uint64_t i = 1; i <= CALIBRATION; i++) {
		page(0);
		operate(protected, i);
	}
	printf("operation %f\n", (now(CLOCK_PROCESS_CPUTIME_ID) - began) / CALIBRATION);
	printf("migration %f\n", page_migration_ns());
	print_free_pages();
	began = now(CLOCK_MONOTONIC);
	for (uint64_t i = 0; i < cold + hot; i++)
		memory[i * PAGE] = 1;
	report(began, 0);
	for (uint64_t i = 1; i <= rounds * operations; i++) {
		uint64_t round = (i - 1) / operations;
		operate(memory + page(round) * PAGE, i);
		if (i * TENTHS % (rounds * operations) == 0)
			report(began, round);
	}
	return 0;
}
