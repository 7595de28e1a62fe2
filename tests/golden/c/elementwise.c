/* e_1000: writes d0 float32[1000], reads d1 float32[1000], reads d2 float32[1000] */
#define INLINE static inline __attribute__((always_inline))
INLINE long min_i64(long a, long b) { return (a < b) ? a : b; }
typedef float f32x16 __attribute__((vector_size(64)));
typedef f32x16 f32x16u __attribute__((aligned(4), may_alias));

void e_1000_range(void *const *args, long lo, long hi) {
  float *restrict d0 = args[0];
  const float *restrict d1 = args[1];
  const float *restrict d2 = args[2];
  for (long i0 = lo; i0 < hi; i0++) {
    long v0 = min_i64(i0 * 32, 968);
    f32x16 v1 = *(const f32x16u *)(d1 + v0) * 2.0f + *(const f32x16u *)(d2 + v0);
    long v2 = v0 + 16;
    f32x16 v3 = *(const f32x16u *)(d1 + v2) * 2.0f + *(const f32x16u *)(d2 + v2);
    *(f32x16u *)(d0 + v0) = v1;
    *(f32x16u *)(d0 + v2) = v3;
  }
}

const long e_1000_launch[3] = {32, 32, 0};
void e_1000(float *restrict d0, const float *restrict d1, const float *restrict d2) {
  void *args[] = {(void *)d0, (void *)d1, (void *)d2};
  #pragma omp parallel for schedule(static)
  for (long lo = 0; lo < 32; lo += 32)
    e_1000_range(args, lo, lo + 32);
}
