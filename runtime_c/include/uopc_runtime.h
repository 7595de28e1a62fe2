/* The native runtime of uopc: a thread pool, memory, and plans. This is its only public header.
 *
 * Every call is defined by the serial loop or the plain C call it is equivalent to. Unless said otherwise, calls may be
 * made from any thread, and from several at once. Nothing here calls Python.
 */
#ifndef UOPC_RUNTIME_H
#define UOPC_RUNTIME_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------------------- pool -- */

#define UOPC_MAX_THREADS 1024 /* callers included; larger requests are clamped */

/* Iterations [lo, hi) of a kernel's parallel loop. args[i] is the address of the first element of slot i. */
typedef void (*uopc_range_fn)(void *const *args, long lo, long hi);

/* How chunks are handed to threads. The result never depends on it. */
enum {
    UOPC_STATIC = 0,  /* thread t starts on the t-th contiguous part of the chunks, and helps others when it is done */
    UOPC_DYNAMIC = 1, /* every thread takes the lowest chunk left: put the longest chunks first */
    UOPC_DYNAMIC_LAST_FIRST = 2 /* every thread takes the highest chunk left, for loops whose last chunks are longest */
};

/* One parallel loop. `work_ticks` belongs to the pool: what the loop took the last time it ran, summed over threads, in
 * ticks of the time-stamp counter. Start it at 0 (unknown). It decides who is woken, never what is computed. */
typedef struct uopc_region {
    uopc_range_fn fn;
    long trips;
    long chunk;
    int schedule;
    unsigned long work_ticks;
} uopc_region;

/* When one thread worked, in nanoseconds of CLOCK_MONOTONIC; both 0 for a thread that took no part. */
typedef struct uopc_span {
    long long start_ns;
    long long stop_ns;
} uopc_span;

/* Run a region on the calling thread and the pool's workers, and return when all of it is done. Equivalent to
 *
 *     for (long lo = 0; lo < region->trips; lo += region->chunk)
 *         region->fn(args, lo, min(lo + region->chunk, region->trips));
 *
 * in which the calls may happen at once and in any order. The caller starts at once and never waits for a worker that
 * has not begun. A region that starts inside another, or while another thread's region has the workers, runs as the
 * loop above. `fn` runs with the default floating-point environment; the caller's is put back. A caller whose stack
 * has less left than a kernel may take waits for a thread that is made for the region and has more. A chunk below 1
 * means one chunk. spans[t] is filled for each thread t < n_spans (0 is the caller); spans may be NULL. */
void uopc_pool_run(uopc_region *region, void *const *args, uopc_span *spans, int n_spans);

/* Kernels take so many bytes of a thread's stack at most; before anybody says so, as many as a worker has. Returns -1,
 * and changes nothing, where workers have less than that: theirs are 8 MB. */
int uopc_pool_set_kernel_stack(size_t bytes);

/* Use n threads (callers included) from now on, for all callers; n < 1 means as many as the affinity mask allows.
 * Also restarts a pool that was shut down. Returns the count that was in force. */
int uopc_pool_set_threads(int n);

/* As above for regions that the calling thread starts, whatever the pool's count is; 0 ends the override.
 * Returns the override that was in force (0: none). */
int uopc_pool_override_threads(int n);

/* The number of threads that a region started now by this thread may use. */
int uopc_pool_threads(void);

/* The number of worker threads that exist. They are made when first needed. */
int uopc_pool_workers(void);

/* Wait for the region that is running, then end and join all workers. Later regions run as the serial loop. */
void uopc_pool_shutdown(void);

/* -------------------------------------------------------------------------------------------------------- memory -- */

/* Bytes and counts, since the start of the process unless they say "now". */
typedef struct uopc_memory_stats {
    size_t live_bytes;         /* now: given out and not yet returned (results and leased arenas) */
    size_t idle_bytes;         /* now: kept for reuse (recycled results and idle arenas) */
    size_t arena_bytes;        /* now: belonging to plans, idle or leased */
    size_t peak_bytes;         /* the most that live + idle ever were */
    size_t limit_bytes;        /* UOPC_ARENA_LIMIT, 0 if there is none */
    size_t keep_bytes;         /* the bound on idle_bytes */
    unsigned long allocations; /* blocks taken from the system */
    unsigned long recycled;    /* blocks served from those kept */
    unsigned long released;    /* blocks given back to the system to keep within bounds */
} uopc_memory_stats;

/* Uninitialised memory, aligned to 64 bytes (to 2 MB when that large), from memory that died if any fits.
 * Equivalent to aligned_alloc(64, max(size, 1)). NULL when it cannot be had, after all idle memory was released. */
void *uopc_memory_take(size_t size);

/* Return what uopc_memory_take(size) gave, for reuse. Equivalent to free(block). `size` must be the same. */
void uopc_memory_give(void *block, size_t size);

/* Bound all arenas together by `limit` bytes. For a run that needs another one, idle arenas are released, those used
 * longest ago first; if what other runs have on lease still leaves too little, the run fails with ENOMEM. No more than
 * `limit` is kept idle. 0: no such bound, a quarter of the machine's memory is kept idle at most. */
void uopc_memory_set_limit(size_t limit);

/* The memory that this process may use, where that is less than the machine has (a container's). */
void uopc_memory_set_machine(size_t bytes);

/* Give all idle memory back to the system. Returns the number of bytes. */
size_t uopc_memory_trim(void);

void uopc_memory_get_stats(uopc_memory_stats *stats);

/* --------------------------------------------------------------------------------------------------------- plans -- */

/* An argument of a kernel: `offset` bytes into slot `slot`. Slots [0, n_buffers) are the buffers passed to each run,
 * slots [n_buffers, n_buffers + n_temps) are the plan's temporaries. */
typedef struct uopc_arg {
    int slot;
    size_t offset;
} uopc_arg;

typedef struct uopc_kernel {
    uopc_region region;
    const uopc_arg *args;
    int n_args;
} uopc_kernel;

typedef struct uopc_plan uopc_plan;

/* A plan that runs `kernels` in order. temp_sizes[i] is the size in bytes of temporary i; temporaries share memory
 * where no kernel runs between the first use of one and the last use of the other. All arguments are copied. NULL with
 * errno = EINVAL if a slot does not exist, ENOMEM if there is no memory. */
uopc_plan *uopc_plan_new(const uopc_kernel *kernels, int n_kernels, int n_buffers, const size_t *temp_sizes,
                         int n_temps);

/* Free the plan and its arenas. No run of it may be in flight. */
void uopc_plan_free(uopc_plan *plan);

/* Bytes of the arena that each concurrent run needs, and the offset of a temporary in it. */
size_t uopc_plan_arena_size(const uopc_plan *plan);
size_t uopc_plan_temp_offset(const uopc_plan *plan, int temp);

/* What a run may be asked to do besides running. Zero-initialise it; every field is optional. */
typedef struct uopc_run_options {
    uopc_span *kernel_spans; /* one a kernel: when it started and stopped */
    uopc_span *thread_spans; /* n_thread_spans a kernel: when each thread worked on it */
    int n_thread_spans;
    int (*interrupted)(void *context); /* asked between kernels, at most every 10 ms: nonzero stops the run */
    void *context;
} uopc_run_options;

/* Run the plan's kernels in order on these buffers. Equivalent to
 *
 *     for each kernel k:
 *         uopc_pool_run(&k.region, addresses of k.args, ...);
 *
 * with the temporaries in an arena of its own for each run in flight. Returns 0; ENOMEM before any kernel ran; or EINTR
 * when `interrupted` said so, with the outputs of later kernels not written. options may be NULL. */
int uopc_plan_run(uopc_plan *plan, void *const *buffers, const uopc_run_options *options);

#ifdef __cplusplus
}
#endif

#endif
