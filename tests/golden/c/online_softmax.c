/* online_softmax: writes d0 float32[64, 32], reads d1 float32[64, 32], reads d2 float32[64, 32],
   reads d3 float32[64, 32] */
typedef float f32x16 __attribute__((vector_size(64)));
typedef f32x16 f32x16u __attribute__((aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))
INLINE f32x16 fma_f32x16(f32x16 a, f32x16 b, f32x16 c) {
#if __FMA__ && __AVX512F__ && __clang__
#pragma clang fp contract(fast)
  return a * b + c;
#elif __FMA__ && __AVX512F__
  return (f32x16)__builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4);
#elif (__FMA__ || __ARM_FEATURE_FMA)
  f32x16 r;
  for (int i = 0; i < 16; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
#else
  return a * b + c;
#endif
}
typedef float f32x8 __attribute__((vector_size(32)));
typedef f32x8 f32x8u __attribute__((aligned(4), may_alias));
typedef float f32x4 __attribute__((vector_size(16)));
typedef f32x4 f32x4u __attribute__((aligned(4), may_alias));
typedef float f32x2 __attribute__((vector_size(8)));
typedef f32x2 f32x2u __attribute__((aligned(4), may_alias));
INLINE float add_lanes_f32x16(f32x16 a) {
  f32x8 h8 = *(f32x8u *)&a + ((f32x8u *)&a)[1];
  f32x4 h4 = *(f32x4u *)&h8 + ((f32x4u *)&h8)[1];
  f32x2 h2 = *(f32x2u *)&h4 + ((f32x2u *)&h4)[1];
  return h2[0] + h2[1];
}
INLINE float max_f32(float a, float b) { return ((a > b) | (a != a)) ? a : b; }
INLINE float at_least_f32(float a, float b) {
#if __AVX__ && __F16C__
  float r;
  __asm__("vmaxss %1, %2, %0" : "=v"(r) : "v"(a), "v"(b));
  return r;
#else
  return a < b ? b : a;
#endif
}
INLINE float at_most_f32(float a, float b) {
#if __AVX__ && __F16C__
  float r;
  __asm__("vminss %1, %2, %0" : "=v"(r) : "v"(a), "v"(b));
  return r;
#else
  return a > b ? b : a;
#endif
}
INLINE float fma_f32(float a, float b, float c) {
#if (__FMA__ || __ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
INLINE int i32_bits_f32(float a) { return ((union { float from; int to; }){a}).to; }
static const float table_52d14c50[16] __attribute__((aligned(64))) = {1.0f, 1.0442737f, 1.0905077f, 1.1387886f, 1.1892071f, 1.2418578f, 1.2968396f, 1.3542556f, 1.4142135f, 1.4768262f, 1.5422108f, 1.6104903f, 1.6817929f, 1.7562522f, 1.8340081f, 1.9152066f};
INLINE float ldexp_float(float a, float b) { return __builtin_ldexpf(a, (int)__builtin_floorf(b)); }

void online_softmax_range(void *const *args, long lo, long hi) {
  float *restrict d0 = args[0];
  const float *restrict d1 = args[1];
  const float *restrict d2 = args[2];
  const float *restrict d3 = args[3];
  for (long i0 = lo; i0 < hi; i0++) {
    float a2[32] __attribute__((aligned(64)));
    float a0, a1;
    long v0 = i0 * 32;
    long v1 = v0 + 16;
    f32x16 v2 = *(const f32x16u *)(d1 + v1);
    f32x16 v3 = *(const f32x16u *)(d1 + v0);
    a0 = -__builtin_inff();
    a1 = 0.0f;
    *(f32x16u *)a2 = (f32x16){};
    *(f32x16u *)(a2 + 16) = (f32x16){};
    for (long i1 = 0; i1 < 64; i1++) {
      float v4 = a0;
      long v5 = i1 * 32;
      long v6 = v5 + 16;
      f32x16 v7 = fma_f32x16(v2, *(const f32x16u *)(d2 + v6), v3 * *(const f32x16u *)(d2 + v5));
      float v8 = add_lanes_f32x16(v7) * 0.17677669f;
      float v9 = max_f32(v4, v8);
      float v10 = -v9;
      float v11 = at_most_f32(at_least_f32(v4 + v10, -104.0f), 89.0f);
      float v12 = fma_f32(v11, 1.442695f, 786432.0f);
      float v13 = table_52d14c50[i32_bits_f32(v12) & 15];
      float v14 = v12 - 786432.0f;
      float v15 = fma_f32(v14, -3.1946183e-05f, fma_f32(v14, -0.69311523f, v11));
      float v16 = fma_f32(fma_f32(0.16666718f, v15, 0.50001615f), v15, 1.0f);
      float v17 = ldexp_float(fma_f32(v13, v16 * v15, v13), v14);
      float v18 = at_most_f32(at_least_f32(v8 + v10, -104.0f), 89.0f);
      float v19 = fma_f32(v18, 1.442695f, 786432.0f);
      float v20 = table_52d14c50[i32_bits_f32(v19) & 15];
      float v21 = v19 - 786432.0f;
      float v22 = fma_f32(v21, -3.1946183e-05f, fma_f32(v21, -0.69311523f, v18));
      float v23 = fma_f32(fma_f32(0.16666718f, v22, 0.50001615f), v22, 1.0f);
      float v24 = ldexp_float(fma_f32(v20, v23 * v22, v20), v21);
      f32x16 v25 = fma_f32x16(*(f32x16u *)a2, v17 - (f32x16){}, v24 * *(const f32x16u *)(d3 + v5));
      f32x16 v26 = *(f32x16u *)(a2 + 16);
      f32x16 v27 = fma_f32x16(v26, v17 - (f32x16){}, v24 * *(const f32x16u *)(d3 + v6));
      a0 = v9;
      a1 = fma_f32(a1, v17, v24);
      *(f32x16u *)a2 = v25;
      *(f32x16u *)(a2 + 16) = v27;
    }
    float v28 = a1;
    *(f32x16u *)(d0 + v0) = *(f32x16u *)a2 / v28;
    *(f32x16u *)(d0 + v1) = *(f32x16u *)(a2 + 16) / v28;
  }
}

const long online_softmax_launch[3] = {64, 2, 1};
void online_softmax(float *restrict d0, const float *restrict d1, const float *restrict d2, const float *restrict d3) {
  void *args[] = {(void *)d0, (void *)d1, (void *)d2, (void *)d3};
  #pragma omp parallel for schedule(dynamic, 1)
  for (long lo = 0; lo < 64; lo += 2)
    online_softmax_range(args, lo, lo + 2);
}
