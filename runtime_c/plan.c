/* Plans: kernels in order, their arguments, and temporaries that share one arena. */
#include "arena.h"
#include "include/uopc_runtime.h"
#include "platform.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ASK_INTERRUPTED_US 10000 /* asking takes the GIL: seldom enough to cost nothing, often enough for a human */
#define POINTERS_ON_STACK 128
#define TOUCH_FROM ((size_t)1 << 20) /* a smaller arena faults in less time than a launch takes */
#define TOUCH_PAGE 4096
#define TOUCH_CHUNK 512 /* pages: one huge page */

struct uopc_plan {
    int n_kernels, n_buffers, n_temps, n_args;
    uopc_kernel *kernels;
    uopc_arg *args;       /* of all kernels; those of temporaries have the arena as their slot n_buffers */
    size_t *temp_offsets; /* in the arena */
    size_t arena_size;
    struct idle_list arenas;
};

/* ----------------------------------------------------------------------------------------------- laying out temps --
 */

struct temp {
    int index;
    int first, last; /* kernels; first > last for one that nobody uses */
    size_t size, offset;
};

static int larger_first(const void *a, const void *b) {
    const struct temp *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? 1 : -1;
    return x->index - y->index;
}

static int alive_together(const struct temp *a, const struct temp *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest offset at which `t` overlaps no placed temporary that is alive with it. `placed` is in order of offset. */
static size_t lowest_free(const struct temp *t, struct temp *const *placed, int n_placed) {
    size_t offset = 0;
    for (int i = 0; i < n_placed; i++) {
        if (!alive_together(t, placed[i])) continue;
        if (offset + t->size <= placed[i]->offset) break;
        size_t end = placed[i]->offset + placed[i]->size;
        if (end > offset) offset = end;
    }
    return offset;
}

static void insert_by_offset(struct temp *t, struct temp **placed, int n_placed) {
    int i = n_placed;
    for (; i > 0 && placed[i - 1]->offset > t->offset; i--) placed[i] = placed[i - 1];
    placed[i] = t;
}

static void find_lifetimes(const uopc_plan *plan, struct temp *temps) {
    for (int k = 0; k < plan->n_kernels; k++)
        for (int i = 0; i < plan->kernels[k].n_args; i++) {
            int slot = plan->kernels[k].args[i].slot - plan->n_buffers;
            if (slot < 0) continue;
            if (k < temps[slot].first) temps[slot].first = k;
            temps[slot].last = k;
        }
}

/* Largest first, each at the lowest offset where it fits: optimal or nearly so on real plans (Pisarchyk and Lee,
 * Efficient Memory Management for Deep Neural Net Inference, 2020, "greedy by size"). */
static int lay_out(uopc_plan *plan, const size_t *temp_sizes) {
    int n = plan->n_temps;
    struct temp *temps = calloc((size_t)n + 1, sizeof *temps);
    struct temp **placed = calloc((size_t)n + 1, sizeof *placed);
    if (!temps || !placed) {
        free(temps);
        free(placed);
        return ENOMEM;
    }
    for (int i = 0; i < n; i++)
        temps[i] = (struct temp){.index = i, .first = plan->n_kernels, .last = -1, .size = temp_sizes[i]};
    find_lifetimes(plan, temps);
    int error = 0;
    for (int i = 0; i < n; i++) {
        if (temps[i].last < 0) temps[i].size = 0;
        if (temps[i].size > SIZE_MAX / 4 / (size_t)n) error = ENOMEM; /* no sum of sizes can overflow below */
        temps[i].size = (temps[i].size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    }
    if (!error) {
        qsort(temps, (size_t)n, sizeof *temps, larger_first);
        for (int i = 0; i < n; i++) {
            struct temp *t = &temps[i];
            t->offset = t->size ? lowest_free(t, placed, i) : 0;
            insert_by_offset(t, placed, i);
            plan->temp_offsets[t->index] = t->offset;
            if (t->offset + t->size > plan->arena_size) plan->arena_size = t->offset + t->size;
        }
    }
    free(temps);
    free(placed);
    return error;
}

/* -------------------------------------------------------------------------------------------------- making a plan --
 */

static int copy_kernels(uopc_plan *plan, const uopc_kernel *kernels) {
    uopc_arg *next = plan->args;
    for (int k = 0; k < plan->n_kernels; k++) {
        uopc_kernel *kernel = &plan->kernels[k];
        *kernel = kernels[k];
        kernel->args = next;
        for (int i = 0; i < kernel->n_args; i++) {
            *next = kernels[k].args[i];
            if (next->slot < 0 || next->slot >= plan->n_buffers + plan->n_temps) return EINVAL;
            next++;
        }
    }
    return 0;
}

/* A temporary's argument becomes an offset into the arena. */
static void point_into_arena(uopc_plan *plan) {
    for (int i = 0; i < plan->n_args; i++) {
        uopc_arg *arg = &plan->args[i];
        if (arg->slot < plan->n_buffers) continue;
        arg->offset += plan->temp_offsets[arg->slot - plan->n_buffers];
        arg->slot = plan->n_buffers;
    }
}

uopc_plan *uopc_plan_new(const uopc_kernel *kernels, int n_kernels, int n_buffers, const size_t *temp_sizes,
                         int n_temps) {
    uopc_plan *plan = calloc(1, sizeof *plan);
    int error = plan ? 0 : ENOMEM;
    if (!error) {
        plan->n_kernels = n_kernels;
        plan->n_buffers = n_buffers;
        plan->n_temps = n_temps;
        for (int k = 0; k < n_kernels; k++) plan->n_args += kernels[k].n_args;
        plan->kernels = calloc((size_t)n_kernels + 1, sizeof *plan->kernels);
        plan->args = calloc((size_t)plan->n_args + 1, sizeof *plan->args);
        plan->temp_offsets = calloc((size_t)n_temps + 1, sizeof *plan->temp_offsets);
        if (!plan->kernels || !plan->args || !plan->temp_offsets) error = ENOMEM;
    }
    if (!error) error = copy_kernels(plan, kernels);
    if (!error) error = lay_out(plan, temp_sizes);
    if (error) {
        uopc_plan_free(plan);
        errno = error;
        return NULL;
    }
    point_into_arena(plan);
    return plan;
}

void uopc_plan_free(uopc_plan *plan) {
    if (!plan) return;
    uopc_arena_free_all(&plan->arenas);
    free(plan->kernels);
    free(plan->args);
    free(plan->temp_offsets);
    free(plan);
}

size_t uopc_plan_arena_size(const uopc_plan *plan) { return plan->arena_size; }

size_t uopc_plan_temp_offset(const uopc_plan *plan, int temp) { return plan->temp_offsets[temp]; }

/* -------------------------------------------------------------------------------------------------------- running --
 */

static void touch_pages(void *const *args, long lo, long hi) {
    volatile char *base = args[0];
    for (long page = lo; page < hi; page++) base[page * TOUCH_PAGE] = 0;
}

/* Have each thread fault in the part of the arena that a static schedule gives it, so that it lies in its own node. */
static void touch(void *arena, size_t size) {
    uopc_region region = {touch_pages, (long)((size - 1) / TOUCH_PAGE + 1), TOUCH_CHUNK, UOPC_STATIC, 0};
    uopc_pool_run(&region, &arena, NULL, 0);
}

static void resolve(const uopc_plan *plan, void *const *buffers, char *arena, void **pointers) {
    for (int i = 0; i < plan->n_args; i++) {
        const uopc_arg *arg = &plan->args[i];
        char *base = arg->slot == plan->n_buffers ? arena : buffers[arg->slot];
        pointers[i] = base + arg->offset;
    }
}

static int run_kernels(uopc_plan *plan, void *const *pointers, const uopc_run_options *options) {
    uint64_t patience = options->interrupted ? ASK_INTERRUPTED_US * ticks_per_us() : 0;
    uint64_t asked = patience ? ticks_now() : 0;
    for (int k = 0; k < plan->n_kernels; k++) {
        uopc_kernel *kernel = &plan->kernels[k];
        uopc_span *threads =
            options->thread_spans ? options->thread_spans + (size_t)k * (size_t)options->n_thread_spans : NULL;
        if (k && patience && ticks_now() - asked > patience) {
            if (options->interrupted(options->context)) return EINTR;
            asked = ticks_now();
        }
        long long start = options->kernel_spans ? now_ns() : 0;
        uopc_pool_run(&kernel->region, pointers, threads, threads ? options->n_thread_spans : 0);
        if (options->kernel_spans) options->kernel_spans[k] = (uopc_span){start, now_ns()};
        pointers += kernel->n_args;
    }
    return 0;
}

int uopc_plan_run(uopc_plan *plan, void *const *buffers, const uopc_run_options *options) {
    static const uopc_run_options nothing_more;
    void *on_stack[POINTERS_ON_STACK];
    void **pointers = on_stack;
    char *arena = NULL;
    int fresh = 0;
    if (plan->n_args > POINTERS_ON_STACK) {
        pointers = malloc((size_t)plan->n_args * sizeof *pointers);
        if (!pointers) return ENOMEM;
    }
    int error = 0;
    if (plan->arena_size) {
        arena = uopc_arena_lease(&plan->arenas, plan->arena_size, &fresh);
        if (!arena) error = ENOMEM;
    }
    if (!error) {
        if (fresh && plan->arena_size >= TOUCH_FROM) touch(arena, plan->arena_size);
        resolve(plan, buffers, arena, pointers);
        error = run_kernels(plan, pointers, options ? options : &nothing_more);
    }
    if (arena) uopc_arena_return(&plan->arenas, arena, plan->arena_size);
    if (pointers != on_stack) free(pointers);
    return error;
}
