/* Every iteration runs exactly once, whoever runs it, however regions meet, and whatever becomes of the pool. */
#include "../include/uopc_runtime.h"
#include "check.h"

#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif

static void pause_us(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* args[0]: int counts[trips] */
static void count_range(void *const *args, long lo, long hi) {
    int *counts = args[0];
    for (long i = lo; i < hi; i++) counts[i]++;
}

static void check_once_each(long trips, long chunk, int schedule) {
    int *counts = calloc((size_t)trips + 1, sizeof *counts);
    void *args[] = {counts};
    uopc_region region = {count_range, trips, chunk, schedule, 0};
    for (int round = 1; round <= 3; round++) {
        uopc_pool_run(&region, args, NULL, 0);
        for (long i = 0; i < trips; i++) CHECK(counts[i] == round);
        CHECK(counts[trips] == 0);
    }
    free(counts);
}

static void every_iteration_once(void) {
    static const long trips[] = {0, 1, 2, 3, 7, 64, 1000, 4097}, chunks[] = {0, 1, 3, 64, 5000};
    static const int threads[] = {1, 2, 3, 4, 16};
    for (int t = 0; t < COUNT(threads); t++) {
        uopc_pool_set_threads(threads[t]);
        for (int i = 0; i < COUNT(trips); i++)
            for (int c = 0; c < COUNT(chunks); c++)
                for (int schedule = 0; schedule < 3; schedule++) check_once_each(trips[i], chunks[c], schedule);
    }
    uopc_pool_set_threads(0);
}

/* args[0]: atomic_int seen; chunks are never wider than asked, and start where the serial loop would start them */
static void aligned_range(void *const *args, long lo, long hi) {
    CHECK(lo % 7 == 0 && (hi == lo + 7 || hi == 100));
    atomic_fetch_add((atomic_int *)args[0], 1);
}

static void chunks_are_those_of_the_serial_loop(void) {
    for (int threads = 1; threads <= 5; threads++) {
        atomic_int seen = 0;
        void *args[] = {&seen};
        uopc_region region = {aligned_range, 100, 7, threads % 3, 0};
        uopc_pool_set_threads(threads);
        uopc_pool_run(&region, args, NULL, 0);
        CHECK(seen == 15);
    }
}

static void sleep_range(void *const *args, long lo, long hi) {
    (void)args, (void)lo, (void)hi;
    pause_us(2000);
}

static void many_small_regions_and_sleeps(void) {
    uopc_pool_set_threads(4);
    int counts[64] = {0};
    void *args[] = {counts};
    uopc_region region = {count_range, 64, 1, UOPC_DYNAMIC, 0};
    for (int i = 0; i < 2000; i++) {
        region.work_ticks = 0; /* unknown: wake everybody */
        uopc_pool_run(&region, args, NULL, 0);
        if (i % 500 == 499) pause_us(5000); /* long enough that the workers sleep */
    }
    for (int i = 0; i < 64; i++) CHECK(counts[i] == 2000);
}

static void caller_waits_for_a_slow_worker(void) {
    uopc_pool_set_threads(3);
    uopc_region region = {sleep_range, 6, 1, UOPC_STATIC, 0};
    uopc_span spans[3];
    uopc_pool_run(&region, NULL, spans, 3);
    CHECK(spans[0].stop_ns > spans[0].start_ns);
    long long last = 0;
    for (int t = 0; t < 3; t++) last = spans[t].stop_ns > last ? spans[t].stop_ns : last;
    CHECK(last > 0);
}

/* args[0]: counts[64]; every outer iteration runs a whole inner region */
static void nest_range(void *const *args, long lo, long hi) {
    uopc_region inner = {count_range, 8, 1, UOPC_STATIC, 0};
    for (long i = lo; i < hi; i++) {
        void *inner_args[] = {(int *)args[0] + 8 * i};
        uopc_pool_run(&inner, inner_args, NULL, 0);
    }
}

static void nested_regions(void) {
    uopc_pool_set_threads(4);
    int counts[64] = {0};
    void *args[] = {counts};
    uopc_region outer = {nest_range, 8, 1, UOPC_STATIC, 0};
    for (int i = 0; i < 100; i++) uopc_pool_run(&outer, args, NULL, 0);
    for (int i = 0; i < 64; i++) CHECK(counts[i] == 100);
}

static void *launch_many(void *unused) {
    (void)unused;
    int counts[100] = {0};
    void *args[] = {counts};
    uopc_region region = {count_range, 100, 3, UOPC_STATIC, 0};
    for (int i = 0; i < 500; i++) {
        region.schedule = i % 3;
        region.work_ticks = 0;
        uopc_pool_run(&region, args, NULL, 0);
    }
    for (int i = 0; i < 100; i++) CHECK(counts[i] == 500);
    return NULL;
}

static void several_callers(void) {
    pthread_t threads[6];
    uopc_pool_set_threads(3);
    for (int i = 0; i < COUNT(threads); i++) CHECK(!pthread_create(&threads[i], NULL, launch_many, NULL));
    for (int i = 0; i < COUNT(threads); i++) CHECK(!pthread_join(threads[i], NULL));
}

static void counts_of_threads(void) {
    int before = uopc_pool_set_threads(3);
    CHECK(before >= 1);
    CHECK(uopc_pool_threads() == 3);
    CHECK(uopc_pool_override_threads(2) == 0);
    CHECK(uopc_pool_threads() == 2);
    CHECK(uopc_pool_set_threads(5) == 3);
    CHECK(uopc_pool_threads() == 2);
    CHECK(uopc_pool_override_threads(0) == 2);
    CHECK(uopc_pool_threads() == 5);
    uopc_pool_set_threads(1 << 30);
    CHECK(uopc_pool_threads() == UOPC_MAX_THREADS);
    uopc_pool_set_threads(0);
    CHECK(uopc_pool_threads() >= 1);
}

static void shutdown_and_restart(void) {
    uopc_pool_set_threads(4);
    check_once_each(1000, 1, UOPC_STATIC);
    CHECK(uopc_pool_workers() >= 1);
    uopc_pool_shutdown();
    CHECK(uopc_pool_workers() == 0);
    check_once_each(1000, 1, UOPC_DYNAMIC);
    CHECK(uopc_pool_workers() == 0);
    uopc_pool_shutdown();
    uopc_pool_set_threads(4);
    check_once_each(1000, 1, UOPC_DYNAMIC);
    CHECK(uopc_pool_workers() >= 1);
}

static atomic_int stop;

static void *launch_until_stopped(void *unused) {
    (void)unused;
    while (!stop) check_once_each(1000, 1, UOPC_STATIC);
    return NULL;
}

static void shutdown_while_a_region_runs(void) {
    pthread_t thread;
    stop = 0;
    uopc_pool_set_threads(3);
    CHECK(!pthread_create(&thread, NULL, launch_until_stopped, NULL));
    for (int i = 0; i < 20; i++) {
        pause_us(500);
        uopc_pool_shutdown();
        uopc_pool_set_threads(3);
    }
    stop = 1;
    pthread_join(thread, NULL);
}

/* Whether a worker takes part: a pool that believes in workers it lost with a fork computes alone, and rightly. */
static int helped(void) {
    uopc_region region = {sleep_range, 6, 1, UOPC_DYNAMIC, 0};
    uopc_span spans[2];
    for (int i = 0; i < 20; i++) {
        uopc_pool_run(&region, NULL, spans, 2);
        if (spans[1].stop_ns) return 1;
    }
    return 0;
}

static void run_in_child(void) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        check_once_each(1000, 1, UOPC_STATIC);
        check_once_each(1000, 1, UOPC_DYNAMIC);
        _exit(helped() ? 42 : 1);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

static void fork_after_and_during_a_region(void) {
    if (UNDER_TSAN) return; /* it does not support threads in the child of a threaded process */
    pthread_t thread;
    uopc_pool_set_threads(3);
    check_once_each(1000, 1, UOPC_STATIC);
    run_in_child();
    stop = 0;
    CHECK(!pthread_create(&thread, NULL, launch_until_stopped, NULL));
    for (int i = 0; i < 20; i++) run_in_child();
    stop = 1;
    pthread_join(thread, NULL);
}

/* args[0]: atomic_int, how many ran with the default environment. Each leaves another one behind. */
static void fenv_range(void *const *args, long lo, long hi) {
    int clean = fegetround() == FE_TONEAREST && !fetestexcept(FE_ALL_EXCEPT);
    pause_us(50); /* so that workers come, too */
    atomic_fetch_add((atomic_int *)args[0], clean ? (int)(hi - lo) : 0);
}

static void spoil_range(void *const *args, long lo, long hi) {
    (void)args, (void)lo, (void)hi;
    pause_us(200);
    fesetround(FE_UPWARD);
    feraiseexcept(FE_DIVBYZERO);
}

static void floating_point_state_does_not_leak(void) {
    uopc_pool_set_threads(4);
    atomic_int clean = 0;
    void *args[] = {&clean};
    uopc_region spoil = {spoil_range, 4, 1, UOPC_STATIC, 0}, look = {fenv_range, 16, 1, UOPC_STATIC, 0};
    feclearexcept(FE_ALL_EXCEPT);
    fesetround(FE_DOWNWARD);
    for (int i = 0; i < 50; i++) {
        uopc_pool_run(&spoil, args, NULL, 0);
        CHECK(fegetround() == FE_DOWNWARD);
        CHECK(!fetestexcept(FE_DIVBYZERO));
        uopc_pool_run(&look, args, NULL, 0);
    }
    CHECK(clean == 50 * 16);
    fesetround(FE_TONEAREST);
}

/* args[0]: int counts[8]. Tiles of 3.9 MB on the stack, of the 4 MB that kernels may take. */
static void deep_range(void *const *args, long lo, long hi) {
    volatile char tile[3900 << 10];
    for (long i = lo; i < hi; i++) {
        for (size_t at = 0; at < sizeof tile; at += 1000) tile[at] = 1;
        ((int *)args[0])[i] += tile[1000 * i];
    }
}

static void *run_deep(void *counts) {
    void *args[] = {counts};
    uopc_region region = {deep_range, 8, 1, UOPC_DYNAMIC, 0};
    uopc_span spans[3];
    uopc_pool_override_threads(2);
    for (int i = 0; i < 20; i++) uopc_pool_run(&region, args, spans, 3);
    CHECK(spans[2].stop_ns == 0); /* as many threads as this one may use */
    return NULL;
}

static void a_callers_stack_may_be_small(void) {
    static const size_t stacks[] = {128 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20};
    CHECK(uopc_pool_set_kernel_stack(64 << 20) == -1 && !uopc_pool_set_kernel_stack(4 << 20));
    uopc_pool_set_threads(3);
    for (int i = 0; i < COUNT(stacks); i++) {
        int counts[8] = {0};
        pthread_t thread;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, stacks[i]);
        CHECK(!pthread_create(&thread, &attr, run_deep, counts));
        pthread_attr_destroy(&attr);
        pthread_join(thread, NULL);
        for (int k = 0; k < 8; k++) CHECK(counts[k] == 20);
    }
}

int main(int argc, char **argv) {
    static const struct test tests[] = {
        {"every_iteration_once", every_iteration_once},
        {"chunks_are_those_of_the_serial_loop", chunks_are_those_of_the_serial_loop},
        {"many_small_regions_and_sleeps", many_small_regions_and_sleeps},
        {"caller_waits_for_a_slow_worker", caller_waits_for_a_slow_worker},
        {"nested_regions", nested_regions},
        {"several_callers", several_callers},
        {"counts_of_threads", counts_of_threads},
        {"shutdown_and_restart", shutdown_and_restart},
        {"shutdown_while_a_region_runs", shutdown_while_a_region_runs},
        {"fork_after_and_during_a_region", fork_after_and_during_a_region},
        {"floating_point_state_does_not_leak", floating_point_state_does_not_leak},
        {"a_callers_stack_may_be_small", a_callers_stack_may_be_small},
    };
    run_tests(tests, COUNT(tests), argc, argv);
    uopc_pool_shutdown();
    return 0;
}
