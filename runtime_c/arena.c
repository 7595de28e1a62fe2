/* Memory for results and for the temporaries of plans.
 *
 * Fresh memory costs a page fault a page, several times what computing its content costs, so memory that dies is kept.
 * An idle block is on two lists at once, whose links are in the block itself: the list of its kind (a size class for
 * results, one list a plan for arenas), from which the newest is taken, because it is the likeliest to be in a cache;
 * and one list of all idle blocks by age, from whose end memory goes back to the system when too much is idle.
 */
#define _GNU_SOURCE
#include "arena.h"
#include "include/uopc_runtime.h"
#include "platform.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAPPED_FROM ((size_t)128 << 10) /* smaller blocks come from malloc */
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_FROM (2 * HUGE_PAGE) /* below, alignment to huge pages wastes more than they gain */
#define SMALL_PAGE ((size_t)4096)
#define LIMITLESS_KEEP_SHARE 4 /* without a limit, a quarter of the machine's memory is kept idle at most */

/* Sizes are rounded up to 2^k * (1 + j/steps): 4 steps to a doubling while small, 16 from FINE_FROM on, where rounding
 * up by a quarter could be what makes an allocation fail. */
#define COARSE_STEP_BITS 2
#define FINE_STEP_BITS 4
#define FINE_FROM ((size_t)1 << 20)
#define N_CLASSES (64 << FINE_STEP_BITS)

struct block {
    struct block *newer_of_kind, *older_of_kind;
    struct block *newer, *older;
    struct idle_list *home;
    size_t bytes;
};
_Static_assert(sizeof(struct block) <= CACHE_LINE, "the smallest block must hold its links");

static struct {
    pthread_mutex_t lock;
    struct block *newest, *oldest; /* all idle blocks by age */
    struct idle_list classes[N_CLASSES];
    uopc_memory_stats stats;
    size_t usual_keep; /* without a limit; 0: not yet decided */
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local size_t leased_here; /* bytes of the arenas that this thread has on lease */

/* ------------------------------------------------------------------------------------------- sizes and the system --
 */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* The bytes that a request of `size` occupies, and its class. Returns 0 if there is no such size. */
static size_t class_bytes(size_t size, int *class_index) {
    if (size > SIZE_MAX / 4) return 0;
    if (size < CACHE_LINE) size = CACHE_LINE;
    int bits = size < FINE_FROM ? COARSE_STEP_BITS : FINE_STEP_BITS;
    int log = 63 - __builtin_clzll(size - 1); /* 2^log < size <= 2^(log + 1) */
    size_t step = (size_t)1 << (log > bits ? log - bits : 0);
    if (step < CACHE_LINE) step = CACHE_LINE;
    size_t bytes = round_up(size, step);
    log = 63 - __builtin_clzll(bytes);
    *class_index = (log << FINE_STEP_BITS) | (int)((bytes - ((size_t)1 << log)) >> (log - FINE_STEP_BITS));
    return bytes;
}

static void *map_huge(size_t bytes) {
    char *p = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    char *aligned = (char *)round_up((uintptr_t)p, HUGE_PAGE);
    size_t before = (size_t)(aligned - p), after = HUGE_PAGE - before;
    if (before) munmap(p, before);
    if (after) munmap(aligned + bytes, after);
    madvise(aligned, bytes, MADV_HUGEPAGE); /* a wish: refusal is fine */
    return aligned;
}

static void *system_take(size_t bytes) {
    if (bytes < MAPPED_FROM) return aligned_alloc(CACHE_LINE, bytes);
    if (bytes >= HUGE_FROM) return map_huge(bytes);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void system_give(void *p, size_t bytes) {
    if (bytes < MAPPED_FROM)
        free(p);
    else
        munmap(p, bytes);
}

/* ---------------------------------------------------------------------------------- the idle lists (needs the lock) --
 */

static void idle_add(struct idle_list *home, void *p, size_t bytes) {
    struct block *b = p;
    *b = (struct block){.older_of_kind = home->newest, .older = memory.newest, .home = home, .bytes = bytes};
    if (home->newest) home->newest->newer_of_kind = b;
    home->newest = b;
    if (memory.newest)
        memory.newest->newer = b;
    else
        memory.oldest = b;
    memory.newest = b;
    memory.stats.idle_bytes += bytes;
}

static void idle_remove(struct block *b) {
    if (b->newer_of_kind)
        b->newer_of_kind->older_of_kind = b->older_of_kind;
    else
        b->home->newest = b->older_of_kind;
    if (b->older_of_kind) b->older_of_kind->newer_of_kind = b->newer_of_kind;
    if (b->newer)
        b->newer->older = b->older;
    else
        memory.newest = b->older;
    if (b->older)
        b->older->newer = b->newer;
    else
        memory.oldest = b->newer;
    memory.stats.idle_bytes -= b->bytes;
}

static int is_class(const struct idle_list *home) {
    return home >= memory.classes && home < memory.classes + N_CLASSES;
}

static void forget(struct block *b) {
    idle_remove(b);
    memory.stats.released++;
    if (!is_class(b->home)) memory.stats.arena_bytes -= b->bytes;
}

/* Detach idle blocks, oldest first, until no more than `keep` bytes are idle. Returns them chained by `older`. */
static struct block *detach_beyond(size_t keep) {
    struct block *detached = NULL;
    while (memory.stats.idle_bytes > keep) {
        struct block *b = memory.oldest;
        forget(b);
        b->older = detached;
        detached = b;
    }
    return detached;
}

/* Detach idle arenas, oldest first, until one of `bytes` more fits under the limit. Returns whether it does, and adds
 * what was detached to *detached. */
static int make_room(size_t bytes, struct block **detached) {
    size_t limit = memory.stats.limit_bytes;
    for (struct block *b = memory.oldest, *newer; b && limit && memory.stats.arena_bytes + bytes > limit; b = newer) {
        newer = b->newer;
        if (is_class(b->home)) continue;
        forget(b);
        b->older = *detached;
        *detached = b;
    }
    return !limit || memory.stats.arena_bytes + bytes <= limit;
}

static void note_peak(void) {
    size_t now = memory.stats.live_bytes + memory.stats.idle_bytes;
    if (now > memory.stats.peak_bytes) memory.stats.peak_bytes = now;
}

static void decide_keep(void) {
    if (!memory.usual_keep) {
        long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        size_t all = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : (size_t)1 << 30;
        memory.usual_keep = all / LIMITLESS_KEEP_SHARE;
    }
    memory.stats.keep_bytes = memory.stats.limit_bytes ? memory.stats.limit_bytes : memory.usual_keep;
}

/* --------------------------------------------------------------------------------------------- taking and giving -- */

static void lock(void) { pthread_mutex_lock(&memory.lock); }
static void unlock(void) { pthread_mutex_unlock(&memory.lock); }

/* Outside the lock: returning memory to the system takes as long as it is large. */
static size_t give_back(struct block *detached) {
    size_t bytes = 0;
    while (detached) {
        struct block *next = detached->older;
        bytes += detached->bytes;
        system_give(detached, detached->bytes);
        detached = next;
    }
    return bytes;
}

/* The newest block of `home`, or else memory from the system, if its being an arena does not exceed the limit. */
static void *take(struct idle_list *home, size_t bytes, int *fresh) {
    struct block *detached = NULL;
    int is_arena = !is_class(home);
    lock();
    struct block *b = home->newest;
    int allowed = b || !is_arena || make_room(bytes, &detached);
    if (b) {
        idle_remove(b);
        memory.stats.recycled++;
    } else if (allowed && is_arena) {
        memory.stats.arena_bytes += bytes;
    }
    if (allowed) memory.stats.live_bytes += bytes;
    unlock();
    give_back(detached);
    *fresh = b == NULL;
    if (b || !allowed) return b;
    void *p = system_take(bytes);
    if (!p && uopc_memory_trim()) p = system_take(bytes);
    lock();
    if (p) {
        memory.stats.allocations++;
        note_peak();
    } else {
        memory.stats.live_bytes -= bytes;
        if (is_arena) memory.stats.arena_bytes -= bytes;
    }
    unlock();
    return p;
}

static void give(struct idle_list *home, void *p, size_t bytes) {
    lock();
    decide_keep();
    memory.stats.live_bytes -= bytes;
    idle_add(home, p, bytes);
    struct block *detached = detach_beyond(memory.stats.keep_bytes);
    unlock();
    give_back(detached);
}

void *uopc_memory_take(size_t size) {
    int class_index, fresh;
    size_t bytes = class_bytes(size, &class_index);
    return bytes ? take(&memory.classes[class_index], bytes, &fresh) : NULL;
}

void uopc_memory_give(void *block, size_t size) {
    int class_index;
    size_t bytes = class_bytes(size, &class_index);
    if (block && bytes) give(&memory.classes[class_index], block, bytes);
}

void uopc_memory_set_limit(size_t limit) {
    lock();
    memory.stats.limit_bytes = limit;
    decide_keep();
    struct block *detached = detach_beyond(memory.stats.keep_bytes);
    unlock();
    give_back(detached);
}

void uopc_memory_set_machine(size_t bytes) {
    lock();
    decide_keep();
    if (bytes / LIMITLESS_KEEP_SHARE < memory.usual_keep) memory.usual_keep = bytes / LIMITLESS_KEEP_SHARE;
    decide_keep();
    struct block *detached = detach_beyond(memory.stats.keep_bytes);
    unlock();
    give_back(detached);
}

size_t uopc_memory_trim(void) {
    lock();
    struct block *detached = detach_beyond(0);
    unlock();
    return give_back(detached);
}

void uopc_memory_get_stats(uopc_memory_stats *stats) {
    lock();
    decide_keep();
    *stats = memory.stats;
    unlock();
}

/* ------------------------------------------------------------------------------------------------ arenas of plans --
 */

void *uopc_arena_lease(struct idle_list *home, size_t size, int *fresh) {
    if (size > SIZE_MAX / 4) return NULL;
    size_t bytes = round_up(size, SMALL_PAGE);
    void *arena = take(home, bytes, fresh);
    if (arena) leased_here += bytes;
    return arena;
}

void uopc_arena_return(struct idle_list *home, void *arena, size_t size) {
    size_t bytes = round_up(size, SMALL_PAGE);
    leased_here -= bytes;
    give(home, arena, bytes);
}

void uopc_arena_free_all(struct idle_list *home) {
    struct block *detached = NULL;
    lock();
    while (home->newest) {
        struct block *b = home->newest;
        forget(b);
        b->older = detached;
        detached = b;
    }
    unlock();
    give_back(detached);
}

/* ----------------------------------------------------------------------------------------------------------- fork --
 */

/* A child is made only while nobody is changing the lists. The runs of other threads are not in it, and what they have
 * on lease is never returned: it no longer counts. */
static void after_fork_in_child(void) {
    size_t idle = 0;
    for (const struct block *b = memory.newest; b; b = b->older) idle += is_class(b->home) ? 0 : b->bytes;
    size_t lost = memory.stats.arena_bytes - idle - leased_here;
    memory.stats.arena_bytes -= lost;
    memory.stats.live_bytes -= lost;
    unlock();
}

__attribute__((constructor)) static void register_fork_handlers(void) {
    pthread_atfork(lock, unlock, after_fork_in_child);
}
