/* What starting a parallel loop costs: the same loop on the pool of uopc, or with -fopenmp on the OpenMP runtime.
 * Prints nanoseconds, the median of many: `name value` a line. The driver is launch.py. */
#include "../../runtime_c/include/uopc_runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#define MAX_ROUNDS 20001

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* args[0]: float x[trips][16]; args[1]: how often each row is worked on */
static void work_range(void *const *args, long lo, long hi) {
    float *x = args[0];
    long repeat = *(long *)args[1];
    for (long i = lo; i < hi; i++)
        for (long r = 0; r < repeat; r++)
            for (int j = 0; j < 16; j++) x[16 * i + j] = x[16 * i + j] * 0.999f + 1.0f;
}

static void serial(uopc_region *region, void *const *args) {
    for (long lo = 0; lo < region->trips; lo += region->chunk) work_range(args, lo, lo + region->chunk);
}

static void parallel(uopc_region *region, void *const *args) {
#ifdef _OPENMP
    long chunks = region->trips / region->chunk;
#pragma omp parallel for schedule(static)
    for (long c = 0; c < chunks; c++) work_range(args, c * region->chunk, (c + 1) * region->chunk);
#else
    uopc_pool_run(region, args, NULL, 0);
#endif
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef void (*run_fn)(uopc_region *, void *const *);

static void measure(const char *name, run_fn run, long trips, long repeat, int rounds, long sleep_ns, int forget) {
    static float x[64 * 16];
    static double took[MAX_ROUNDS];
    void *args[] = {x, &repeat};
    uopc_region region = {work_range, trips, trips < 16 ? 1 : trips / 16, UOPC_STATIC, 0};
    for (int i = 0; i < rounds + 10; i++) {
        struct timespec pause = {0, sleep_ns};
        if (sleep_ns) nanosleep(&pause, NULL);
        if (forget) region.work_ticks = 0; /* so that even a loop too small to share is launched */
        double start = now_ns();
        run(&region, args);
        if (i >= 10) took[i - 10] = now_ns() - start;
    }
    qsort(took, (size_t)rounds, sizeof *took, ascending);
    printf("%s %.0f\n", name, took[rounds / 2]);
}

int main(void) {
    measure("empty_serial", serial, 2, 0, 20001, 0, 0);
    measure("empty_hot", parallel, 2, 0, 20001, 0, 1);
    measure("small_serial", serial, 2, 200, 2001, 0, 0);
    measure("small_hot", parallel, 2, 200, 2001, 0, 0);
    measure("small_cold_serial", serial, 2, 200, 201, 10000000, 0);
    measure("small_cold", parallel, 2, 200, 201, 10000000, 0);
    measure("large_serial", serial, 64, 4000, 201, 0, 0);
    measure("large_hot", parallel, 64, 4000, 201, 0, 0);
    measure("large_cold", parallel, 64, 4000, 101, 10000000, 0);
    clock_t before = clock();
    struct timespec second = {1, 0};
    nanosleep(&second, NULL);
    printf("idle_cpu_per_second %.0f\n", 1e9 * (double)(clock() - before) / CLOCKS_PER_SEC);
#ifndef _OPENMP
    uopc_pool_shutdown();
#endif
    return 0;
}
