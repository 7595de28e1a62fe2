/* r_200: writes d0 float32[200], reads d1 float32[200, 300] */
typedef float f32x16 __attribute__((vector_size(64)));
typedef f32x16 f32x16u __attribute__((aligned(4), may_alias));
typedef float f32x8 __attribute__((vector_size(32)));
typedef f32x8 f32x8u __attribute__((aligned(4), may_alias));
typedef float f32x4 __attribute__((vector_size(16)));
typedef f32x4 f32x4u __attribute__((aligned(4), may_alias));
typedef float f32x2 __attribute__((vector_size(8)));
typedef f32x2 f32x2u __attribute__((aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))
INLINE float add_lanes_f32x16(f32x16 a) {
  f32x8 h8 = *(f32x8u *)&a + ((f32x8u *)&a)[1];
  f32x4 h4 = *(f32x4u *)&h8 + ((f32x4u *)&h8)[1];
  f32x2 h2 = *(f32x2u *)&h4 + ((f32x2u *)&h4)[1];
  return h2[0] + h2[1];
}

void r_200_range(void *const *args, long lo, long hi) {
  float *restrict d0 = args[0];
  const float *restrict d1 = args[1];
  for (long i0 = lo; i0 < hi; i0++) {
    float a0;
    f32x16 a1, a2;
    long v0 = i0 * 300;
    a2 = (f32x16){};
    for (long i1 = 0; i1 < 4; i1++) {
      long v1 = v0 + i1 * 64;
      f32x16 v2 = *(const f32x16u *)(d1 + v1) + *(const f32x16u *)(d1 + v1 + 16);
      f32x16 v3 = *(const f32x16u *)(d1 + v1 + 32) + *(const f32x16u *)(d1 + v1 + 48);
      a2 += v2 + v3;
    }
    a1 = (f32x16){};
    for (long i2 = 0; i2 < 2; i2++) {
      a1 += *(const f32x16u *)(d1 + v0 + i2 * 16 + 256);
    }
    a0 = 0.0f;
    for (long i3 = 0; i3 < 12; i3++) {
      a0 += d1[v0 + i3 + 288];
    }
    d0[i0] = add_lanes_f32x16(a2) + add_lanes_f32x16(a1) + a0;
  }
}

const long r_200_launch[3] = {200, 21, 1};
void r_200(float *restrict d0, const float *restrict d1) {
  void *args[] = {(void *)d0, (void *)d1};
  #pragma omp parallel for schedule(dynamic, 1)
  for (long lo = 0; lo < 200; lo += 21)
    r_200_range(args, lo, lo + 21 < 200 ? lo + 21 : 200);
}
