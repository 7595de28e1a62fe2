/* r_64_96: writes d0 float32[64, 96], reads d1 float32[64, 128], reads d2 float32[128, 96] */
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

void r_64_96_range(void *const *args, long lo, long hi) {
  float *restrict d0 = args[0];
  const float *restrict d1 = args[1];
  const float *restrict d2 = args[2];
  for (long i0 = lo; i0 < hi; i0++) {
    f32x16 a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15;
    f32x16 a16, a17, a18, a19, a20, a21, a22, a23;
    long v0 = i0 / 8;
    long v1 = i0 * 768 + v0 * -6096;
    long v2 = i0 % 8 * 1024;
    long v3 = v0 * 48;
    a0 = (f32x16){};
    a1 = (f32x16){};
    a2 = (f32x16){};
    a3 = (f32x16){};
    a4 = (f32x16){};
    a5 = (f32x16){};
    a6 = (f32x16){};
    a7 = (f32x16){};
    a8 = (f32x16){};
    a9 = (f32x16){};
    a10 = (f32x16){};
    a11 = (f32x16){};
    a12 = (f32x16){};
    a13 = (f32x16){};
    a14 = (f32x16){};
    a15 = (f32x16){};
    a16 = (f32x16){};
    a17 = (f32x16){};
    a18 = (f32x16){};
    a19 = (f32x16){};
    a20 = (f32x16){};
    a21 = (f32x16){};
    a22 = (f32x16){};
    a23 = (f32x16){};
    for (long i1 = 0; i1 < 128; i1++) {
      long v4 = v2 + i1;
      float v5 = d1[v4];
      long v6 = v3 + i1 * 96;
      f32x16 v7 = *(const f32x16u *)(d2 + v6);
      f32x16 v8 = *(const f32x16u *)(d2 + v6 + 16);
      f32x16 v9 = *(const f32x16u *)(d2 + v6 + 32);
      float v10 = d1[v4 + 128];
      float v11 = d1[v4 + 256];
      float v12 = d1[v4 + 384];
      float v13 = d1[v4 + 512];
      float v14 = d1[v4 + 640];
      float v15 = d1[v4 + 768];
      float v16 = d1[v4 + 896];
      a0 = fma_f32x16(v5 - (f32x16){}, v7, a0);
      a1 = fma_f32x16(v5 - (f32x16){}, v8, a1);
      a2 = fma_f32x16(v5 - (f32x16){}, v9, a2);
      a3 = fma_f32x16(v10 - (f32x16){}, v7, a3);
      a4 = fma_f32x16(v10 - (f32x16){}, v8, a4);
      a5 = fma_f32x16(v10 - (f32x16){}, v9, a5);
      a6 = fma_f32x16(v11 - (f32x16){}, v7, a6);
      a7 = fma_f32x16(v11 - (f32x16){}, v8, a7);
      a8 = fma_f32x16(v11 - (f32x16){}, v9, a8);
      a9 = fma_f32x16(v12 - (f32x16){}, v7, a9);
      a10 = fma_f32x16(v12 - (f32x16){}, v8, a10);
      a11 = fma_f32x16(v12 - (f32x16){}, v9, a11);
      a12 = fma_f32x16(v13 - (f32x16){}, v7, a12);
      a13 = fma_f32x16(v13 - (f32x16){}, v8, a13);
      a14 = fma_f32x16(v13 - (f32x16){}, v9, a14);
      a15 = fma_f32x16(v14 - (f32x16){}, v7, a15);
      a16 = fma_f32x16(v14 - (f32x16){}, v8, a16);
      a17 = fma_f32x16(v14 - (f32x16){}, v9, a17);
      a18 = fma_f32x16(v15 - (f32x16){}, v7, a18);
      a19 = fma_f32x16(v15 - (f32x16){}, v8, a19);
      a20 = fma_f32x16(v15 - (f32x16){}, v9, a20);
      a21 = fma_f32x16(v16 - (f32x16){}, v7, a21);
      a22 = fma_f32x16(v16 - (f32x16){}, v8, a22);
      a23 = fma_f32x16(v16 - (f32x16){}, v9, a23);
    }
    *(f32x16u *)(d0 + v1) = a0;
    *(f32x16u *)(d0 + v1 + 16) = a1;
    *(f32x16u *)(d0 + v1 + 32) = a2;
    *(f32x16u *)(d0 + v1 + 96) = a3;
    *(f32x16u *)(d0 + v1 + 112) = a4;
    *(f32x16u *)(d0 + v1 + 128) = a5;
    *(f32x16u *)(d0 + v1 + 192) = a6;
    *(f32x16u *)(d0 + v1 + 208) = a7;
    *(f32x16u *)(d0 + v1 + 224) = a8;
    *(f32x16u *)(d0 + v1 + 288) = a9;
    *(f32x16u *)(d0 + v1 + 304) = a10;
    *(f32x16u *)(d0 + v1 + 320) = a11;
    *(f32x16u *)(d0 + v1 + 384) = a12;
    *(f32x16u *)(d0 + v1 + 400) = a13;
    *(f32x16u *)(d0 + v1 + 416) = a14;
    *(f32x16u *)(d0 + v1 + 480) = a15;
    *(f32x16u *)(d0 + v1 + 496) = a16;
    *(f32x16u *)(d0 + v1 + 512) = a17;
    *(f32x16u *)(d0 + v1 + 576) = a18;
    *(f32x16u *)(d0 + v1 + 592) = a19;
    *(f32x16u *)(d0 + v1 + 608) = a20;
    *(f32x16u *)(d0 + v1 + 672) = a21;
    *(f32x16u *)(d0 + v1 + 688) = a22;
    *(f32x16u *)(d0 + v1 + 704) = a23;
  }
}

const long r_64_96_launch[3] = {16, 1, 1};
void r_64_96(float *restrict d0, const float *restrict d1, const float *restrict d2) {
  void *args[] = {(void *)d0, (void *)d1, (void *)d2};
  #pragma omp parallel for schedule(dynamic, 1)
  for (long lo = 0; lo < 16; lo += 1)
    r_64_96_range(args, lo, lo + 1);
}
