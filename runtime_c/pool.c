/* The thread pool: the only owner of threads in uopc.
 *
 * One region is served at a time. Its caller publishes the job, opens the `ticket`, bumps `generation` and starts on
 * chunks. Workers that see the new generation join by adding one to the ticket while it is open; they leave by
 * subtracting one. When no chunk is left the caller closes the ticket and waits for those who had joined. A worker that
 * was asleep all along is never waited for, so a cold launch costs what the serial loop costs, and a wake-up.
 *
 * Between regions workers spin for a short while and then sleep, each on a futex word of its own, so that exactly the
 * wanted ones are woken: the caller wakes two and every worker that joins wakes two more, as in a binary heap.
 *
 * Who wakes a worker also keeps it off its own processor. Schedulers like to put a woken thread beside its waker, above
 * all in virtual machines, where Linux takes a halted processor for a busy one; the worker then waits, for
 * milliseconds, for the very thread that it is to help.
 */
#define _GNU_SOURCE
#include "include/uopc_runtime.h"
#include "platform.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Workers stay awake this long after work: longer than Python takes between two calls, short enough that an idle
 * process uses no processor time to speak of. */
#define SPIN_US 500
/* The same when there are more threads than processors: a spinning worker then keeps a working one from running. */
#define SPIN_CROWDED_US 5
/* Regions known to be shorter than this run on the caller: the launch costs as much as it gains. */
#define LAUNCH_PAYS_NS 600
/* One sleeping worker is woken for each WAKE_PAYS_US of work: waking costs the waker 1 to 3 us, and it takes 5 us (bare
 * metal) to 50 us (virtual machine) until the worker runs. */
#define WAKE_PAYS_US 50
/* The caller spins this long for the last workers, then sleeps: they may be off the processor. */
#define FINISH_SPIN_US 200
/* Where threads are refused, asking again for each region would cost more than the region. */
#define ASK_AGAIN_US 100000
#define WORKER_STACK (8u << 20) /* as a main thread: kernels keep their tiles on the stack */
#define FRAMES (256u << 10)     /* of a kernel's stack what is no tile: spilled registers, calls, a signal's handler */

/* The ticket: bit 31 open, bit 30 the caller sleeps until the last worker leaves, then wanted and joined threads. */
#define TICKET_OPEN 0x80000000u
#define TICKET_AWAITED 0x40000000u
#define TICKET_WANTED_SHIFT 15
#define TICKET_JOINED 0x7fffu
#define ticket_wanted(t) (((t) >> TICKET_WANTED_SHIFT) & 0x7fffu)

struct job {
    uopc_range_fn fn;
    void *const *args;
    long trips, chunk, n_chunks;
    int schedule;
    int threads; /* how many may take part, the caller included */
    int useful;  /* how many are worth waking */
    uopc_span *spans;
    int n_spans;
};

/* The chunks [next, end) that one thread starts on. */
struct part {
    APART atomic_long next;
    long end;
};

struct worker {
    APART atomic_uint asleep; /* futex word: 1 from before the worker looks at `generation` for the last time */
    atomic_int processor;     /* the one it was last seen on */
    atomic_int kept_off;      /* the one its affinity mask leaves out, or -1 */
    atomic_int tid;           /* 0 until it has started */
    pthread_t thread;
    int id; /* 1 and up: the caller is 0 */
    int spin_us;
};

static struct {
    APART atomic_uint generation; /* changes when there is something to look at */
    APART atomic_uint ticket;
    APART atomic_long next;     /* dynamic schedules: the next chunk */
    APART atomic_int launching; /* lock: owns everything below, and the right to open the ticket */
    struct job job;
    uint64_t refused; /* when the system last refused a thread, in ticks; 0: never */
    atomic_int n_workers;
    APART atomic_int threads; /* 0: not yet decided; read by every launch, written rarely */
    atomic_int processors;
    atomic_int shut_down;
} pool;

static struct part parts[UOPC_MAX_THREADS];
static struct worker workers[UOPC_MAX_THREADS];
static _Thread_local int thread_override;
static _Thread_local char *stack_low;                          /* where this thread's stack ends; NULL: not yet asked */
static atomic_size_t kernel_stack = WORKER_STACK - 2 * FRAMES; /* what a kernel's tiles take at most */

static void futex_wait(atomic_uint *word, unsigned value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

/* Pause; now and then let another thread have the processor. Count from 0 in *n. */
static void relax(unsigned *n) {
    if (++*n % 64)
        cpu_relax();
    else
        sched_yield();
}

/* ---------------------------------------------------------------------------------------------- working on a job -- */

static void run_chunk(const struct job *job, long c) {
    long lo = c * job->chunk;
    long hi = c == job->n_chunks - 1 ? job->trips : lo + job->chunk;
    job->fn(job->args, lo, hi);
}

/* Relaxed order suffices: what a chunk reads and writes is ordered by the ticket. */
static long claim(atomic_long *next, long end) {
    if (atomic_load_explicit(next, memory_order_relaxed) >= end) return -1;
    long c = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    return c < end ? c : -1;
}

/* Take chunks until none is left. Returns how many this thread ran. */
static long run_chunks(const struct job *job, int self) {
    long c, done = 0;
    if (job->schedule == UOPC_STATIC) {
        for (int k = 0; k < job->threads; k++) {
            struct part *part = &parts[(self + k) % job->threads]; /* the own part first */
            for (; (c = claim(&part->next, part->end)) >= 0; done++) run_chunk(job, c);
        }
    } else {
        int reversed = job->schedule == UOPC_DYNAMIC_LAST_FIRST;
        for (; (c = claim(&pool.next, job->n_chunks)) >= 0; done++)
            run_chunk(job, reversed ? job->n_chunks - 1 - c : c);
    }
    return done;
}

static void run_serially(const struct job *job) {
    int reversed = job->schedule == UOPC_DYNAMIC_LAST_FIRST;
    for (long c = 0; c < job->n_chunks; c++) run_chunk(job, reversed ? job->n_chunks - 1 - c : c);
}

static long run_spanned(const struct job *job, int self) {
    int spanned = self < job->n_spans;
    long long start = spanned ? now_ns() : 0;
    long done = run_chunks(job, self);
    if (spanned && done) job->spans[self] = (uopc_span){start, now_ns()};
    return done;
}

/* ------------------------------------------------------------------------------------------------------- workers -- */

/* The processors that this thread may use, but for the current one. 0 if there are none, or if they cannot be told. */
static int all_but(int processor, cpu_set_t *set) {
    if (sched_getaffinity(0, sizeof *set, set) || processor < 0 || processor >= CPU_SETSIZE) return 0;
    CPU_CLR(processor, set);
    return CPU_COUNT(set) > 0;
}

/* A worker that is awake and elsewhere is left alone. The mask outlives the region: as long as the callers stay where
 * they are, nothing has to be done again. */
static void keep_off(struct worker *w, int processor) {
    cpu_set_t set;
    int tid = atomic_load_explicit(&w->tid, memory_order_relaxed);
    if (tid == 0 || atomic_load_explicit(&w->kept_off, memory_order_relaxed) == processor) return;
    int asleep = (int)atomic_load_explicit(&w->asleep, memory_order_relaxed);
    if (!asleep && atomic_load_explicit(&w->processor, memory_order_relaxed) != processor) return;
    if (!all_but(processor, &set) || sched_setaffinity(tid, sizeof set, &set)) return;
    atomic_store_explicit(&w->kept_off, processor, memory_order_relaxed);
}

static void note_processor(struct worker *self) {
    int processor = sched_getcpu();
    if (processor != atomic_load_explicit(&self->processor, memory_order_relaxed))
        atomic_store_explicit(&self->processor, processor, memory_order_relaxed);
}

static void wake(int id) {
    struct worker *w = &workers[id];
    /* Pairs with doze(): we wrote `generation` and now read `asleep`; it wrote `asleep` and then reads `generation`.
     * All four are sequentially consistent, so at least one of us sees what the other wrote. */
    if (atomic_load(&w->asleep) && atomic_exchange(&w->asleep, 0)) futex_wake(&w->asleep);
}

static void wake_children(int id, int useful) {
    if (2 * id + 1 >= useful) return;
    int processor = sched_getcpu();
    for (int child = 2 * id + 1; child <= 2 * id + 2 && child < useful; child++) {
        keep_off(&workers[child], processor);
        wake(child);
    }
}

/* Sleep until woken, unless `generation` is no longer `seen`. */
static void doze(struct worker *self, unsigned seen) {
    atomic_store(&self->asleep, 1);
    while (atomic_load(&pool.generation) == seen && atomic_load(&self->asleep)) futex_wait(&self->asleep, 1);
    atomic_store(&self->asleep, 0);
}

static unsigned await_generation(struct worker *self, unsigned seen) {
    uint64_t deadline = ticks_now() + (uint64_t)self->spin_us * ticks_per_us();
    unsigned generation, n = 0;
    while ((generation = atomic_load_explicit(&pool.generation, memory_order_acquire)) == seen) {
        relax(&n);
        if (n % 64) continue;
        note_processor(self);
        if (ticks_now() > deadline) doze(self, seen);
    }
    return generation;
}

/* Join whatever job is open. It need not be the one whose generation brought us here. */
static int join_job(int id) {
    unsigned t = atomic_load_explicit(&pool.ticket, memory_order_relaxed);
    while ((t & TICKET_OPEN) && (unsigned)id < ticket_wanted(t))
        if (atomic_compare_exchange_weak_explicit(&pool.ticket, &t, t + 1, memory_order_acquire, memory_order_relaxed))
            return 1;
    return 0;
}

static void leave_job(void) {
    unsigned t = atomic_fetch_sub_explicit(&pool.ticket, 1, memory_order_release);
    /* The caller may return and another open the ticket right now: the wake-up is then spurious, which is harmless. */
    if ((t & TICKET_AWAITED) && (t & TICKET_JOINED) == 1) futex_wake(&pool.ticket);
}

static int spin_time(int threads) {
    return threads > atomic_load_explicit(&pool.processors, memory_order_relaxed) ? SPIN_CROWDED_US : SPIN_US;
}

static void *worker_main(void *argument) {
    struct worker *self = argument;
    unsigned seen = 0; /* generation never is 0 */
    atomic_store_explicit(&self->tid, (int)syscall(SYS_gettid), memory_order_relaxed);
    note_processor(self);
    for (;;) {
        seen = await_generation(self, seen);
        if (join_job(self->id)) {
            if (pool.job.fn == NULL) break; /* shutdown */
            wake_children(self->id, pool.job.useful);
            self->spin_us = spin_time(pool.job.threads);
            fp_restore(FP_DEFAULT); /* a new thread inherits its maker's, and a kernel may leave its own */
            run_spanned(&pool.job, self->id);
            leave_job();
        }
    }
    leave_job();
    return NULL;
}

/* Make workers until there are n - 1, or as many as the system allows. Needs `launching`. */
static void grow(int n) {
    int have = atomic_load_explicit(&pool.n_workers, memory_order_relaxed);
    if (have >= n - 1) return;
    if (pool.refused && ticks_now() - pool.refused < ASK_AGAIN_US * ticks_per_us()) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the threads of the application */
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, WORKER_STACK);
    int here = sched_getcpu();
    cpu_set_t elsewhere;
    int apart = all_but(here, &elsewhere) && !pthread_attr_setaffinity_np(&attr, sizeof elsewhere, &elsewhere);
    for (; have < n - 1; have++) {
        struct worker *w = &workers[have + 1];
        w->id = have + 1;
        w->spin_us = spin_time(n);
        atomic_store(&w->asleep, 0);
        atomic_store(&w->tid, 0);
        atomic_store(&w->kept_off, apart ? here : -1);
        if (pthread_create(&w->thread, &attr, worker_main, w)) break;
    }
    pool.refused = have < n - 1 ? ticks_now() : 0;
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    atomic_store_explicit(&pool.n_workers, have, memory_order_relaxed);
}

/* ------------------------------------------------------------------------------------------------------ launching --
 */

static int usable_processors(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1; /* more than 1024 processors: the caller is to say how many */
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

static int default_threads(void) {
    int n = atomic_load_explicit(&pool.threads, memory_order_relaxed);
    if (n == 0) {
        uopc_pool_set_threads(0);
        n = atomic_load_explicit(&pool.threads, memory_order_relaxed);
    }
    return n;
}

static int try_lock(void) {
    return !atomic_load_explicit(&pool.launching, memory_order_relaxed) &&
           !atomic_exchange_explicit(&pool.launching, 1, memory_order_acquire);
}

static void unlock(void) { atomic_store_explicit(&pool.launching, 0, memory_order_release); }

static void open_ticket(int wanted) {
    atomic_store_explicit(&pool.ticket, TICKET_OPEN | (unsigned)wanted << TICKET_WANTED_SHIFT, memory_order_release);
    unsigned generation = atomic_load_explicit(&pool.generation, memory_order_relaxed) + 1;
    atomic_store(&pool.generation, generation ? generation : 1);
}

/* Let nobody join any more, and wait for those who had. */
static void close_ticket(void) {
    unsigned t = atomic_fetch_and_explicit(&pool.ticket, ~TICKET_OPEN, memory_order_acquire) & ~TICKET_OPEN;
    uint64_t deadline = 0;
    for (unsigned n = 0; t & TICKET_JOINED; t = atomic_load_explicit(&pool.ticket, memory_order_acquire)) {
        relax(&n);
        if (n % 64) continue;
        if (!deadline) deadline = ticks_now() + FINISH_SPIN_US * ticks_per_us();
        if (ticks_now() < deadline) continue;
        t = atomic_fetch_or_explicit(&pool.ticket, TICKET_AWAITED, memory_order_acquire) | TICKET_AWAITED;
        if (t & TICKET_JOINED) futex_wait(&pool.ticket, t);
    }
}

static void deal_parts(const struct job *job) {
    if (job->schedule != UOPC_STATIC) {
        atomic_store_explicit(&pool.next, 0, memory_order_relaxed);
        return;
    }
    long each = job->n_chunks / job->threads, more = job->n_chunks % job->threads, start = 0;
    for (int t = 0; t < job->threads; t++) {
        atomic_store_explicit(&parts[t].next, start, memory_order_relaxed);
        parts[t].end = start += each + (t < more);
    }
}

static int worth_waking(const struct job *job, uint64_t work_ticks) {
    if (work_ticks == 0) return job->threads;
    uint64_t n = 1 + work_ticks / (WAKE_PAYS_US * ticks_per_us());
    return n < (uint64_t)job->threads ? (int)n : job->threads;
}

/* Run the job with the workers. Needs `launching`. Returns what the whole job takes on one thread, in ticks. */
static uint64_t launch(const struct job *asked, uint64_t work_ticks) {
    grow(asked->threads);
    pool.job = *asked;
    pool.job.useful = worth_waking(asked, work_ticks);
    int present = atomic_load_explicit(&pool.n_workers, memory_order_relaxed) + 1;
    if (pool.job.useful > present) pool.job.useful = present; /* the others may be another process's, or long gone */
    deal_parts(&pool.job);
    open_ticket(asked->threads);
    wake_children(0, pool.job.useful);
    uint64_t start = ticks_now();
    long done = run_spanned(&pool.job, 0);
    uint64_t elapsed = ticks_now() - start;
    close_ticket();
    return done ? elapsed / (uint64_t)done * (uint64_t)asked->n_chunks : work_ticks;
}

/* Whether a kernel may run on this thread. A stack that is not the thread's own (a coroutine's) is taken to be enough.
 */
static int has_room(void) {
    char *here = __builtin_frame_address(0);
    if (!stack_low) {
        pthread_attr_t attr;
        void *low = NULL;
        size_t size = 0;
        if (!pthread_getattr_np(pthread_self(), &attr)) {
            pthread_attr_getstack(&attr, &low, &size);
            pthread_attr_destroy(&attr);
        }
        stack_low = low ? low : (char *)1;
    }
    return here < stack_low || here - stack_low > (ptrdiff_t)(atomic_load(&kernel_stack) + FRAMES);
}

int uopc_pool_set_kernel_stack(size_t bytes) {
    if (bytes > WORKER_STACK - 2 * FRAMES) return -1;
    atomic_store(&kernel_stack, bytes);
    return 0;
}

struct moved {
    uopc_region *region;
    void *const *args;
    uopc_span *spans;
    int n_spans, override;
};

static void *run_moved(void *argument) {
    const struct moved *m = argument;
    thread_override = m->override;
    stack_low = (char *)1; /* as much as there can be */
    uopc_pool_run(m->region, m->args, m->spans, m->n_spans);
    return NULL;
}

/* Run a region on a thread made for it, since this one's stack is too small. 0 if there is none to be had. */
static int run_on_larger_stack(struct moved *m) {
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, WORKER_STACK);
    int refused = pthread_create(&thread, &attr, run_moved, m);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!refused) pthread_join(thread, NULL);
    return !refused;
}

static int threads_for(long n_chunks) {
    if (atomic_load_explicit(&pool.shut_down, memory_order_relaxed)) return 1;
    int n = uopc_pool_threads();
    return n_chunks < n ? (int)n_chunks : n;
}

void uopc_pool_run(uopc_region *region, void *const *args, uopc_span *spans, int n_spans) {
    struct job job = {.fn = region->fn, .args = args, .trips = region->trips, .schedule = region->schedule};
    if (job.trips <= 0) return;
    if (!has_room() && run_on_larger_stack(&(struct moved){region, args, spans, n_spans, thread_override})) return;
    job.chunk = region->chunk < 1 ? job.trips : region->chunk;
    job.n_chunks = job.trips / job.chunk + (job.trips % job.chunk != 0);
    job.threads = threads_for(job.n_chunks);
    job.spans = spans;
    job.n_spans = spans ? n_spans : 0;
    if (job.n_spans) memset(spans, 0, sizeof *spans * (size_t)n_spans);

    fp_state caller_state = fp_save();
    fp_restore(FP_DEFAULT);
    /* work_ticks is a hint that several callers may read and write at once. */
    uint64_t work = __atomic_load_n(&region->work_ticks, __ATOMIC_RELAXED);
    int alone = job.threads == 1 || (work && work * 1000 < LAUNCH_PAYS_NS * ticks_per_us());
    if (!alone && try_lock()) {
        work = launch(&job, work);
        unlock();
        __atomic_store_n(&region->work_ticks, work, __ATOMIC_RELAXED);
    } else {
        uint64_t start = job.threads == 1 ? 0 : ticks_now();
        long long start_ns = job.n_spans ? now_ns() : 0;
        run_serially(&job);
        if (job.n_spans) spans[0] = (uopc_span){start_ns, now_ns()};
        if (job.threads > 1) __atomic_store_n(&region->work_ticks, ticks_now() - start, __ATOMIC_RELAXED);
    }
    fp_restore(caller_state);
}

/* -------------------------------------------------------------------------------------------------- thread counts --
 */

static int clamp_threads(int n) { return n > UOPC_MAX_THREADS ? UOPC_MAX_THREADS : n; }

int uopc_pool_set_threads(int n) {
    int processors = usable_processors();
    int count = n < 1 ? processors : clamp_threads(n);
    atomic_store(&pool.processors, processors);
    int before = atomic_exchange(&pool.threads, count);
    atomic_store(&pool.shut_down, 0);
    return before ? before : processors;
}

int uopc_pool_override_threads(int n) {
    int before = thread_override;
    thread_override = n < 1 ? 0 : clamp_threads(n);
    return before;
}

int uopc_pool_threads(void) { return thread_override ? thread_override : default_threads(); }

int uopc_pool_workers(void) { return atomic_load_explicit(&pool.n_workers, memory_order_relaxed); }

/* ------------------------------------------------------------------------------------------------- end, and fork -- */

void uopc_pool_shutdown(void) {
    atomic_store(&pool.shut_down, 1);
    for (unsigned n = 0; !try_lock();) relax(&n);
    int n_workers = atomic_load(&pool.n_workers);
    if (n_workers) {
        pool.job = (struct job){.fn = NULL};
        open_ticket(n_workers + 1);
        for (int id = 1; id <= n_workers; id++) wake(id);
        for (int id = 1; id <= n_workers; id++) pthread_join(workers[id].thread, NULL);
        atomic_store(&pool.ticket, 0);
        atomic_store(&pool.n_workers, 0);
    }
    unlock();
}

/* The child has one thread: no workers, no region in flight, nobody who holds the lock. */
static void after_fork_in_child(void) {
    atomic_store(&pool.n_workers, 0);
    atomic_store(&pool.ticket, 0);
    atomic_store(&pool.launching, 0);
    pool.refused = 0;
}

__attribute__((constructor)) static void register_fork_handler(void) {
    pthread_atfork(NULL, NULL, after_fork_in_child);
}
