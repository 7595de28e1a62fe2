/* What differs between processors: waiting politely, reading the time cheaply, floating-point control. */
#ifndef UOPC_PLATFORM_H
#define UOPC_PLATFORM_H

#include <stdint.h>
#include <time.h>

#define CACHE_LINE 64
#define APART _Alignas(128) /* processors fetch lines in pairs: what must not share a line must not share a pair */

static inline long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

#if defined(__x86_64__)

#include <x86intrin.h>

static inline void cpu_relax(void) { _mm_pause(); }

/* Time-stamp counters tick at 2 to 4 GHz. Ticks only ever choose between two right ways, so a nominal rate is enough.
 */
static inline uint64_t ticks_now(void) { return __rdtsc(); }
static inline uint64_t ticks_per_us(void) { return 2500; }

/* SSE has control and flags in one register. Kernels compute nothing in the x87 unit, but fesetround() sets its
 * rounding too, so its control word is put back where it changed. */
typedef struct {
    uint32_t mxcsr;
    uint16_t x87_control;
} fp_state;
#define FP_DEFAULT                                                                                                     \
    ((fp_state){0x1f80, 0x37f}) /* round to nearest, denormals kept, exceptions masked, no flags raised */
static inline uint16_t x87_control(void) {
    uint16_t word;
    __asm__ volatile("fnstcw %0" : "=m"(word));
    return word;
}
static inline fp_state fp_save(void) { return (fp_state){_mm_getcsr(), x87_control()}; }
static inline void fp_restore(fp_state s) {
    _mm_setcsr(s.mxcsr);
    if (x87_control() != s.x87_control) __asm__ volatile("fldcw %0" ::"m"(s.x87_control));
}

#elif defined(__aarch64__)

static inline void cpu_relax(void) { __asm__ volatile("yield" ::: "memory"); }

static inline uint64_t ticks_now(void) {
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
}
static inline uint64_t ticks_per_us(void) {
    uint64_t hz;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
    return hz < 1000000 ? 1 : hz / 1000000;
}

typedef struct {
    uint64_t control, status;
} fp_state;
#define FP_DEFAULT ((fp_state){0, 0})
static inline fp_state fp_save(void) {
    fp_state s;
    __asm__ volatile("mrs %0, fpcr" : "=r"(s.control));
    __asm__ volatile("mrs %0, fpsr" : "=r"(s.status));
    return s;
}
static inline void fp_restore(fp_state s) {
    __asm__ volatile("msr fpcr, %0" ::"r"(s.control));
    __asm__ volatile("msr fpsr, %0" ::"r"(s.status));
}

#else

#include <fenv.h>

static inline void cpu_relax(void) { __asm__ volatile("" ::: "memory"); }
static inline uint64_t ticks_now(void) { return (uint64_t)now_ns(); }
static inline uint64_t ticks_per_us(void) { return 1000; }

typedef struct {
    fenv_t env;
    int is_default;
} fp_state;
#define FP_DEFAULT ((fp_state){.is_default = 1})
static inline fp_state fp_save(void) {
    fp_state s = {.is_default = 0};
    fegetenv(&s.env);
    return s;
}
static inline void fp_restore(fp_state s) { fesetenv(s.is_default ? FE_DFL_ENV : &s.env); }

#endif

#endif
