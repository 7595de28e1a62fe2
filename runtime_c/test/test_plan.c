/* Memory comes back and is bounded; plans compute what their kernels in a row compute, from any number of threads. */
#include "../include/uopc_runtime.h"
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif

#define MB ((size_t)1 << 20)

static uopc_memory_stats stats(void) {
    uopc_memory_stats s;
    uopc_memory_get_stats(&s);
    return s;
}

/* ---------------------------------------------------------------------------------------------------------- memory --
 */

static void memory_is_aligned_and_recycled(void) {
    static const size_t sizes[] = {0,      1,      63,     64, 65,     1000,   4096,   100000,
                                   131072, 131073, MB - 1, MB, MB + 1, 5 * MB, 20 * MB};
    for (int i = 0; i < COUNT(sizes); i++) {
        char *p = uopc_memory_take(sizes[i]);
        CHECK(p && (uintptr_t)p % 64 == 0);
        memset(p, 1, sizes[i]);
        uopc_memory_give(p, sizes[i]);
        char *q = uopc_memory_take(sizes[i]);
        CHECK(q == p);
        uopc_memory_give(q, sizes[i]);
    }
    uopc_memory_trim();
    CHECK(stats().idle_bytes == 0 && stats().live_bytes == 0);
}

static void sizes_of_one_class_share(void) {
    unsigned long before = stats().recycled;
    for (size_t size = 5 * MB; size > 4 * MB + 3 * MB / 4; size -= MB / 8 + 1) {
        void *p = uopc_memory_take(size);
        memset(p, 1, size);
        uopc_memory_give(p, size);
    }
    CHECK(stats().recycled > before || stats().idle_bytes <= 10 * MB);
    uopc_memory_trim();
}

static void impossible_sizes_are_refused(void) {
    CHECK(uopc_memory_take(SIZE_MAX) == NULL);
    CHECK(uopc_memory_take(SIZE_MAX / 2) == NULL);
    CHECK(uopc_memory_take((size_t)1 << 60) == NULL);
    CHECK(stats().live_bytes == 0);
}

static void idle_memory_is_bounded_and_the_oldest_goes(void) {
    uopc_memory_trim();
    uopc_memory_set_limit(10 * MB);
    void *a = uopc_memory_take(4 * MB), *b = uopc_memory_take(3 * MB), *c = uopc_memory_take(5 * MB);
    uopc_memory_give(a, 4 * MB);
    uopc_memory_give(b, 3 * MB);
    CHECK(stats().idle_bytes == 7 * MB);
    uopc_memory_give(c, 5 * MB);
    CHECK(stats().idle_bytes == 8 * MB);
    unsigned long fresh = stats().allocations;
    void *again = uopc_memory_take(3 * MB);
    CHECK(again == b && stats().allocations == fresh);
    uopc_memory_give(again, 3 * MB);
    uopc_memory_set_limit(3 * MB);
    CHECK(stats().idle_bytes == 3 * MB);
    uopc_memory_set_limit(0);
    CHECK(uopc_memory_trim() == 3 * MB);
}

static void *take_and_give(void *seed) {
    unsigned state = (unsigned)(uintptr_t)seed;
    for (int i = 0; i < 3000; i++) {
        state = state * 1664525 + 1013904223;
        size_t size = (state >> 8) % (i % 100 ? 3000 : 300000) + 1;
        unsigned char *p = uopc_memory_take(size), mark = (unsigned char)(uintptr_t)seed;
        p[0] = p[size - 1] = mark;
        CHECK(p[0] == mark && p[size - 1] == mark);
        uopc_memory_give(p, size);
    }
    return NULL;
}

static void memory_from_many_threads(void) {
    pthread_t threads[4];
    for (int i = 0; i < COUNT(threads); i++)
        CHECK(!pthread_create(&threads[i], NULL, take_and_give, (void *)(uintptr_t)(i + 1)));
    for (int i = 0; i < COUNT(threads); i++) pthread_join(threads[i], NULL);
    CHECK(stats().live_bytes == 0);
    uopc_memory_trim();
}

/* ----------------------------------------------------------------------------------------------------------- plans --
 */

/* args[0][i] = args[1][i] + 1, on ints */
static void increment(void *const *args, long lo, long hi) {
    int *out = args[0];
    const int *in = args[1];
    for (long i = lo; i < hi; i++) out[i] = in[i] + 1;
}

#define N 5000
#define BYTES (N * sizeof(int))
#define INCREMENT {increment, N, 128, UOPC_STATIC, 0}

/* out = in + 4 through a chain of three temporaries, of which two are never alive together */
static uopc_plan *chain(void) {
    static const uopc_arg args[4][2] = {{{2, 0}, {1, 0}}, {{3, 0}, {2, 0}}, {{4, 0}, {3, 0}}, {{0, 0}, {4, 0}}};
    uopc_kernel kernels[4];
    for (int k = 0; k < 4; k++) kernels[k] = (uopc_kernel){INCREMENT, args[k], 2};
    size_t temps[] = {BYTES, BYTES, BYTES};
    uopc_plan *plan = uopc_plan_new(kernels, 4, 2, temps, 3);
    CHECK(plan);
    return plan;
}

static void check_chain(uopc_plan *plan, int start) {
    static _Thread_local int in[N], out[N];
    for (int i = 0; i < N; i++) in[i] = start + i;
    void *buffers[] = {out, in};
    CHECK(uopc_plan_run(plan, buffers, NULL) == 0);
    for (int i = 0; i < N; i++) CHECK(out[i] == start + i + 4);
}

static void temporaries_share_memory(void) {
    uopc_plan *plan = chain();
    CHECK(uopc_plan_temp_offset(plan, 0) == uopc_plan_temp_offset(plan, 2));
    CHECK(uopc_plan_temp_offset(plan, 0) != uopc_plan_temp_offset(plan, 1));
    CHECK(uopc_plan_arena_size(plan) == 2 * ((BYTES + 63) / 64 * 64));
    for (int i = 0; i < 50; i++) check_chain(plan, i);
    uopc_memory_stats s = stats();
    CHECK(s.arena_bytes > 0 && s.live_bytes == 0);
    uopc_plan_free(plan);
    CHECK(stats().arena_bytes == 0 && stats().idle_bytes == 0);
}

static unsigned next_random(unsigned *state) { return (*state = *state * 1664525 + 1013904223) >> 8; }

/* Random lifetimes: no two temporaries that are alive together overlap. */
static void layout_never_overlaps(void) {
    enum { KERNELS = 30, TEMPS = 40 };
    unsigned state = 1;
    for (int round = 0; round < 50; round++) {
        static uopc_arg args[KERNELS][TEMPS];
        uopc_kernel kernels[KERNELS];
        size_t sizes[TEMPS];
        int first[TEMPS], last[TEMPS];
        for (int k = 0; k < KERNELS; k++) kernels[k] = (uopc_kernel){INCREMENT, args[k], 0};
        for (int t = 0; t < TEMPS; t++) {
            sizes[t] = next_random(&state) % 10000;
            first[t] = (int)(next_random(&state) % KERNELS);
            last[t] = first[t] + (int)(next_random(&state) % 5);
            if (last[t] >= KERNELS) last[t] = KERNELS - 1;
            args[first[t]][kernels[first[t]].n_args++] = (uopc_arg){t, 0};
            if (last[t] != first[t]) args[last[t]][kernels[last[t]].n_args++] = (uopc_arg){t, 0};
        }
        uopc_plan *plan = uopc_plan_new(kernels, KERNELS, 0, sizes, TEMPS);
        CHECK(plan);
        for (int a = 0; a < TEMPS; a++)
            for (int b = 0; b < a; b++) {
                size_t x = uopc_plan_temp_offset(plan, a), y = uopc_plan_temp_offset(plan, b);
                CHECK(x % 64 == 0 && x + sizes[a] <= uopc_plan_arena_size(plan));
                int together = first[a] <= last[b] && first[b] <= last[a];
                CHECK(!together || x + sizes[a] <= y || y + sizes[b] <= x);
            }
        uopc_plan_free(plan);
    }
}

static void offsets_and_bad_slots(void) {
    static const uopc_arg args[] = {{0, 4 * sizeof(int)}, {0, 0}}, bad[] = {{2, 0}, {-1, 0}};
    int data[8] = {1, 2, 3, 4};
    void *buffers[] = {data};
    uopc_kernel kernel = {{increment, 4, 1, UOPC_STATIC, 0}, args, 2};
    uopc_plan *plan = uopc_plan_new(&kernel, 1, 1, NULL, 0);
    CHECK(plan && uopc_plan_run(plan, buffers, NULL) == 0);
    for (int i = 0; i < 4; i++) CHECK(data[4 + i] == i + 2);
    uopc_plan_free(plan);
    kernel.args = bad;
    CHECK(uopc_plan_new(&kernel, 1, 1, NULL, 0) == NULL && errno == EINVAL);
    plan = uopc_plan_new(NULL, 0, 0, NULL, 0);
    CHECK(plan && uopc_plan_run(plan, NULL, NULL) == 0);
    uopc_plan_free(plan);
}

static void too_large_an_arena_is_refused(void) {
    uopc_plan *plan = chain();
    uopc_memory_set_limit(BYTES);
    static int in[N], out[N];
    void *buffers[] = {out, in};
    CHECK(uopc_plan_run(plan, buffers, NULL) == ENOMEM);
    CHECK(out[0] == 0);
    uopc_memory_set_limit(0);
    check_chain(plan, 7);
    uopc_plan_free(plan);
    size_t huge[] = {SIZE_MAX / 8, SIZE_MAX / 2};
    static const uopc_arg args[] = {{0, 0}, {1, 0}};
    uopc_kernel kernel = {INCREMENT, args, 2};
    CHECK(uopc_plan_new(&kernel, 1, 0, huge, 2) == NULL && errno == ENOMEM);
}

static size_t arena_of(const uopc_plan *plan) { return (uopc_plan_arena_size(plan) + 4095) / 4096 * 4096; }

/* Room for two arenas: the plan that ran longest ago gives up its own. */
static void arenas_are_bounded_together(void) {
    uopc_plan *plans[] = {chain(), chain(), chain()};
    size_t one = arena_of(plans[0]);
    uopc_memory_trim();
    uopc_memory_set_limit(2 * one);
    for (int i = 0; i < 30; i++) {
        check_chain(plans[i % 3], i);
        CHECK(stats().arena_bytes <= 2 * one && stats().live_bytes == 0);
    }
    unsigned long allocations = stats().allocations;
    check_chain(plans[1], 5); /* the last two that ran, 1 and 2, have theirs */
    check_chain(plans[2], 5);
    CHECK(stats().allocations == allocations);
    check_chain(plans[0], 5);
    CHECK(stats().allocations == allocations + 1);
    uopc_memory_set_limit(0);
    for (int i = 0; i < 3; i++) uopc_plan_free(plans[i]);
    CHECK(stats().arena_bytes == 0);
}

struct nested {
    uopc_plan *inner;
    int outcome;
};

/* args[0]: struct nested. A run inside a run, as another thread's would be. */
static void run_inner(void *const *args, long lo, long hi) {
    static int in[N], out[N];
    struct nested *nested = args[0];
    void *buffers[] = {out, in};
    for (; lo < hi; lo++) nested->outcome = uopc_plan_run(nested->inner, buffers, NULL);
}

static void leased_arenas_count(void) {
    static const uopc_arg args[] = {{0, 0}, {1, 0}};
    static const size_t temp[] = {BYTES};
    uopc_kernel kernel = {{run_inner, 1, 1, UOPC_STATIC, 0}, args, 2};
    uopc_plan *outer = uopc_plan_new(&kernel, 1, 1, temp, 1), *inner = chain();
    size_t both = arena_of(outer) + arena_of(inner);
    struct nested nested = {inner, -1};
    void *buffers[] = {&nested};
    uopc_memory_set_limit(both);
    CHECK(uopc_plan_run(outer, buffers, NULL) == 0 && nested.outcome == 0);
    CHECK(stats().arena_bytes == both);
    uopc_memory_set_limit(both - 1);
    CHECK(uopc_plan_run(outer, buffers, NULL) == 0 && nested.outcome == ENOMEM);
    uopc_memory_set_limit(both);
    CHECK(uopc_plan_run(outer, buffers, NULL) == 0 && nested.outcome == 0);
    uopc_memory_set_limit(0);
    uopc_plan_free(outer);
    uopc_plan_free(inner);
    CHECK(stats().arena_bytes == 0 && stats().live_bytes == 0);
}

/* args[0]: atomic_int[2]: says that it runs, and waits for leave to end */
static void wait_range(void *const *args, long lo, long hi) {
    atomic_int *gates = args[0];
    (void)lo, (void)hi;
    gates[0] = 1;
    while (!gates[1]) sched_yield();
}

/* args[0]: pid_t, 0 in the child. Another thread's lease is not in the child. */
static void fork_range(void *const *args, long lo, long hi) {
    (void)lo, (void)hi;
    *(pid_t *)args[0] = fork();
}

static void *run_and_wait(void *gates) {
    static const uopc_arg args[] = {{0, 0}, {1, 0}};
    static const size_t temp[] = {MB};
    uopc_kernel kernel = {{wait_range, 1, 1, UOPC_STATIC, 0}, args, 2};
    uopc_plan *plan = uopc_plan_new(&kernel, 1, 1, temp, 1);
    CHECK(uopc_plan_run(plan, &gates, NULL) == 0);
    uopc_plan_free(plan);
    return NULL;
}

static void a_child_counts_its_own_leases(void) {
    if (UNDER_TSAN) return;
    static const uopc_arg args[] = {{0, 0}, {1, 0}};
    static const size_t temp[] = {BYTES};
    uopc_kernel kernel = {{fork_range, 1, 1, UOPC_STATIC, 0}, args, 2};
    uopc_plan *plan = uopc_plan_new(&kernel, 1, 1, temp, 1);
    pthread_t thread;
    atomic_int gates[2] = {0, 0};
    CHECK(!pthread_create(&thread, NULL, run_and_wait, gates));
    while (!gates[0]) sched_yield();
    pid_t pid = -1;
    void *buffers[] = {&pid};
    CHECK(uopc_plan_run(plan, buffers, NULL) == 0);
    if (pid == 0) _exit(stats().arena_bytes == arena_of(plan) && stats().live_bytes == 0 ? 42 : 1);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 42);
    gates[1] = 1;
    pthread_join(thread, NULL);
    uopc_plan_free(plan);
    CHECK(stats().arena_bytes == 0 && stats().live_bytes == 0);
}

static int stop_at_once(void *asked) {
    ++*(int *)asked;
    return 1;
}

/* args[0]: counts its calls, 4 ms each */
static void slow(void *const *args, long lo, long hi) {
    struct timespec t = {0, 4000000};
    nanosleep(&t, NULL);
    *(int *)args[0] += (int)(hi - lo);
}

static void interrupts_and_spans(void) {
    enum { KERNELS = 12 };
    static const uopc_arg args[] = {{0, 0}};
    uopc_kernel kernels[KERNELS];
    for (int k = 0; k < KERNELS; k++) kernels[k] = (uopc_kernel){{slow, 1, 1, UOPC_STATIC, 0}, args, 1};
    uopc_plan *plan = uopc_plan_new(kernels, KERNELS, 1, NULL, 0);
    int ran = 0, asked = 0;
    void *buffers[] = {&ran};
    uopc_run_options options = {.interrupted = stop_at_once, .context = &asked};
    CHECK(uopc_plan_run(plan, buffers, &options) == EINTR);
    CHECK(asked == 1 && ran >= 2 && ran < KERNELS);
    uopc_span kernel_spans[KERNELS], thread_spans[KERNELS * 2];
    options = (uopc_run_options){.kernel_spans = kernel_spans, .thread_spans = thread_spans, .n_thread_spans = 2};
    CHECK(uopc_plan_run(plan, buffers, &options) == 0);
    for (int k = 0; k < KERNELS; k++) {
        CHECK(kernel_spans[k].stop_ns - kernel_spans[k].start_ns >= 3000000);
        CHECK(k == 0 || kernel_spans[k].start_ns >= kernel_spans[k - 1].stop_ns);
        CHECK(thread_spans[2 * k].start_ns >= kernel_spans[k].start_ns);
        CHECK(thread_spans[2 * k].stop_ns <= kernel_spans[k].stop_ns);
    }
    uopc_plan_free(plan);
}

static uopc_plan *shared_plan;

static void *run_shared_and_own(void *seed) {
    uopc_plan *own = chain();
    for (int i = 0; i < 100; i++) {
        check_chain(shared_plan, (int)(uintptr_t)seed * 1000 + i);
        check_chain(own, i);
    }
    uopc_plan_free(own);
    return NULL;
}

static void plans_from_many_threads(void) {
    pthread_t threads[4];
    uopc_pool_set_threads(3);
    shared_plan = chain();
    for (int i = 0; i < COUNT(threads); i++)
        CHECK(!pthread_create(&threads[i], NULL, run_shared_and_own, (void *)(uintptr_t)i));
    for (int i = 0; i < COUNT(threads); i++) pthread_join(threads[i], NULL);
    uopc_plan_free(shared_plan);
    CHECK(stats().arena_bytes == 0);
}

static void a_large_arena_is_touched(void) {
    static const uopc_arg args[2][2] = {{{2, 0}, {1, 0}}, {{0, 0}, {2, 0}}};
    uopc_kernel kernels[2] = {{INCREMENT, args[0], 2}, {INCREMENT, args[1], 2}};
    size_t temps[] = {9 * MB + 100};
    uopc_plan *plan = uopc_plan_new(kernels, 2, 2, temps, 1);
    static int in[N], out[N];
    void *buffers[] = {out, in};
    CHECK(plan && uopc_plan_run(plan, buffers, NULL) == 0);
    for (int i = 0; i < N; i++) CHECK(out[i] == 2);
    uopc_plan_free(plan);
}

int main(int argc, char **argv) {
    static const struct test tests[] = {
        {"memory_is_aligned_and_recycled", memory_is_aligned_and_recycled},
        {"sizes_of_one_class_share", sizes_of_one_class_share},
        {"impossible_sizes_are_refused", impossible_sizes_are_refused},
        {"idle_memory_is_bounded_and_the_oldest_goes", idle_memory_is_bounded_and_the_oldest_goes},
        {"memory_from_many_threads", memory_from_many_threads},
        {"temporaries_share_memory", temporaries_share_memory},
        {"layout_never_overlaps", layout_never_overlaps},
        {"offsets_and_bad_slots", offsets_and_bad_slots},
        {"too_large_an_arena_is_refused", too_large_an_arena_is_refused},
        {"arenas_are_bounded_together", arenas_are_bounded_together},
        {"leased_arenas_count", leased_arenas_count},
        {"a_child_counts_its_own_leases", a_child_counts_its_own_leases},
        {"interrupts_and_spans", interrupts_and_spans},
        {"plans_from_many_threads", plans_from_many_threads},
        {"a_large_arena_is_touched", a_large_arena_is_touched},
    };
    run_tests(tests, COUNT(tests), argc, argv);
    uopc_memory_trim();
    uopc_pool_shutdown();
    return 0;
}
