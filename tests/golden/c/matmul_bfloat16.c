/* r_64_96: writes d0 bfloat16[64, 96], reads d1 bfloat16[64, 128], reads d2 bfloat16[128, 96] */
typedef float f32x16 __attribute__((vector_size(64)));
typedef unsigned short u16x16 __attribute__((vector_size(32)));
typedef u16x16 u16x16u __attribute__((aligned(2), may_alias));
typedef unsigned int u32x16 __attribute__((vector_size(64)));
#define INLINE static inline __attribute__((always_inline))
INLINE u32x16 u32x16_from_u16x16(u16x16 a) {
#if __AVX512F__ && !__clang__
  u32x16 r;
  __asm__("vpmovzxwd %1, %0" : "=v"(r) : "vm"(a));
  return r;
#else
  return __builtin_convertvector(a, u32x16);
#endif
}
typedef u32x16 u32x16u __attribute__((aligned(4), may_alias));
typedef unsigned int u32u2 __attribute__((aligned(2), may_alias));
INLINE f32x16 dot2_f32x16(u32x16 a, u32x16 b, f32x16 c) {
#if __AVX512BF16__ && __AVX512VL__ && __clang__
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#elif __AVX512BF16__ && __AVX512VL__
#if __GNUC__ >= 13
  typedef __bf16 half __attribute__((vector_size(64)));
#else
  typedef short half __attribute__((vector_size(64)));
#endif
  return __builtin_ia32_dpbf16ps_v16sf(c, (half)a, (half)b);
#else
  return c + (f32x16)(a & 0xffff0000u) * (f32x16)(b & 0xffff0000u) + (f32x16)(a << 16) * (f32x16)(b << 16);
#endif
}
typedef int i32x16 __attribute__((vector_size(64)));
INLINE u32x16 select_u32x16(i32x16 m, u32x16 a, u32x16 b) { return (u32x16)((m & (i32x16)a) | (~m & (i32x16)b)); }

void r_64_96_range(void *const *args, long lo, long hi) {
  unsigned short *restrict d0 = args[0];
  const unsigned short *restrict d1 = args[1];
  const unsigned short *restrict d2 = args[2];
  for (long i0 = lo; i0 < hi; i0++) {
    unsigned int a0[3072] __attribute__((aligned(64)));
    f32x16 a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16;
    f32x16 a17, a18, a19, a20, a21, a22, a23, a24;
    long v0 = i0 * 48;
    for (long i1 = 0; i1 < 64; i1++) {
      long v1 = i1 * 48;
      long v2 = v0 + i1 * 192;
      u32x16 v3 = u32x16_from_u16x16((u16x16)*(const u16x16u *)(d2 + v2));
      u32x16 v4 = u32x16_from_u16x16((u16x16)*(const u16x16u *)(d2 + v2 + 96));
      u32x16 v5 = u32x16_from_u16x16((u16x16)*(const u16x16u *)(d2 + v2 + 16));
      u32x16 v6 = u32x16_from_u16x16((u16x16)*(const u16x16u *)(d2 + v2 + 112));
      u32x16 v7 = u32x16_from_u16x16((u16x16)*(const u16x16u *)(d2 + v2 + 32));
      u32x16 v8 = u32x16_from_u16x16((u16x16)*(const u16x16u *)(d2 + v2 + 128));
      *(u32x16u *)(a0 + v1) = v3 | (v4 << 16u);
      *(u32x16u *)(a0 + v1 + 16) = v5 | (v6 << 16u);
      *(u32x16u *)(a0 + v1 + 32) = v7 | (v8 << 16u);
    }
    for (long i2 = 0; i2 < 8; i2++) {
      long v9 = v0 + i2 * 768;
      long v10 = i2 * 1024;
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
      a24 = (f32x16){};
      for (long i3 = 0; i3 < 64; i3++) {
        long v11 = v10 + i3 * 2;
        unsigned int v12 = *(const u32u2 *)(d1 + v11);
        long v13 = i3 * 48;
        u32x16 v14 = *(u32x16u *)(a0 + v13);
        u32x16 v15 = *(u32x16u *)(a0 + v13 + 16);
        u32x16 v16 = *(u32x16u *)(a0 + v13 + 32);
        unsigned int v17 = *(const u32u2 *)(d1 + v11 + 128);
        unsigned int v18 = *(const u32u2 *)(d1 + v11 + 256);
        unsigned int v19 = *(const u32u2 *)(d1 + v11 + 384);
        unsigned int v20 = *(const u32u2 *)(d1 + v11 + 512);
        unsigned int v21 = *(const u32u2 *)(d1 + v11 + 640);
        unsigned int v22 = *(const u32u2 *)(d1 + v11 + 768);
        unsigned int v23 = *(const u32u2 *)(d1 + v11 + 896);
        a1 = dot2_f32x16(v12 - (u32x16){}, v14, a1);
        a2 = dot2_f32x16(v12 - (u32x16){}, v15, a2);
        a3 = dot2_f32x16(v12 - (u32x16){}, v16, a3);
        a4 = dot2_f32x16(v17 - (u32x16){}, v14, a4);
        a5 = dot2_f32x16(v17 - (u32x16){}, v15, a5);
        a6 = dot2_f32x16(v17 - (u32x16){}, v16, a6);
        a7 = dot2_f32x16(v18 - (u32x16){}, v14, a7);
        a8 = dot2_f32x16(v18 - (u32x16){}, v15, a8);
        a9 = dot2_f32x16(v18 - (u32x16){}, v16, a9);
        a10 = dot2_f32x16(v19 - (u32x16){}, v14, a10);
        a11 = dot2_f32x16(v19 - (u32x16){}, v15, a11);
        a12 = dot2_f32x16(v19 - (u32x16){}, v16, a12);
        a13 = dot2_f32x16(v20 - (u32x16){}, v14, a13);
        a14 = dot2_f32x16(v20 - (u32x16){}, v15, a14);
        a15 = dot2_f32x16(v20 - (u32x16){}, v16, a15);
        a16 = dot2_f32x16(v21 - (u32x16){}, v14, a16);
        a17 = dot2_f32x16(v21 - (u32x16){}, v15, a17);
        a18 = dot2_f32x16(v21 - (u32x16){}, v16, a18);
        a19 = dot2_f32x16(v22 - (u32x16){}, v14, a19);
        a20 = dot2_f32x16(v22 - (u32x16){}, v15, a20);
        a21 = dot2_f32x16(v22 - (u32x16){}, v16, a21);
        a22 = dot2_f32x16(v23 - (u32x16){}, v14, a22);
        a23 = dot2_f32x16(v23 - (u32x16){}, v15, a23);
        a24 = dot2_f32x16(v23 - (u32x16){}, v16, a24);
      }
      f32x16 v24 = a1;
      u32x16 v25 = (u32x16)v24;
      u32x16 v26 = v25 >> 16u;
      u32x16 v27 = select_u32x16(v24 != v24, (v26 & 32768u) | 32704u, (v25 + 32767u + (v26 & 1u)) >> 16u);
      f32x16 v28 = a2;
      u32x16 v29 = (u32x16)v28;
      u32x16 v30 = v29 >> 16u;
      u32x16 v31 = select_u32x16(v28 != v28, (v30 & 32768u) | 32704u, (v29 + 32767u + (v30 & 1u)) >> 16u);
      f32x16 v32 = a3;
      u32x16 v33 = (u32x16)v32;
      u32x16 v34 = v33 >> 16u;
      u32x16 v35 = select_u32x16(v32 != v32, (v34 & 32768u) | 32704u, (v33 + 32767u + (v34 & 1u)) >> 16u);
      f32x16 v36 = a4;
      u32x16 v37 = (u32x16)v36;
      u32x16 v38 = v37 >> 16u;
      u32x16 v39 = select_u32x16(v36 != v36, (v38 & 32768u) | 32704u, (v37 + 32767u + (v38 & 1u)) >> 16u);
      f32x16 v40 = a5;
      u32x16 v41 = (u32x16)v40;
      u32x16 v42 = v41 >> 16u;
      u32x16 v43 = select_u32x16(v40 != v40, (v42 & 32768u) | 32704u, (v41 + 32767u + (v42 & 1u)) >> 16u);
      f32x16 v44 = a6;
      u32x16 v45 = (u32x16)v44;
      u32x16 v46 = v45 >> 16u;
      u32x16 v47 = select_u32x16(v44 != v44, (v46 & 32768u) | 32704u, (v45 + 32767u + (v46 & 1u)) >> 16u);
      f32x16 v48 = a7;
      u32x16 v49 = (u32x16)v48;
      u32x16 v50 = v49 >> 16u;
      u32x16 v51 = select_u32x16(v48 != v48, (v50 & 32768u) | 32704u, (v49 + 32767u + (v50 & 1u)) >> 16u);
      f32x16 v52 = a8;
      u32x16 v53 = (u32x16)v52;
      u32x16 v54 = v53 >> 16u;
      u32x16 v55 = select_u32x16(v52 != v52, (v54 & 32768u) | 32704u, (v53 + 32767u + (v54 & 1u)) >> 16u);
      f32x16 v56 = a9;
      u32x16 v57 = (u32x16)v56;
      u32x16 v58 = v57 >> 16u;
      u32x16 v59 = select_u32x16(v56 != v56, (v58 & 32768u) | 32704u, (v57 + 32767u + (v58 & 1u)) >> 16u);
      f32x16 v60 = a10;
      u32x16 v61 = (u32x16)v60;
      u32x16 v62 = v61 >> 16u;
      u32x16 v63 = select_u32x16(v60 != v60, (v62 & 32768u) | 32704u, (v61 + 32767u + (v62 & 1u)) >> 16u);
      f32x16 v64 = a11;
      u32x16 v65 = (u32x16)v64;
      u32x16 v66 = v65 >> 16u;
      u32x16 v67 = select_u32x16(v64 != v64, (v66 & 32768u) | 32704u, (v65 + 32767u + (v66 & 1u)) >> 16u);
      f32x16 v68 = a12;
      u32x16 v69 = (u32x16)v68;
      u32x16 v70 = v69 >> 16u;
      u32x16 v71 = select_u32x16(v68 != v68, (v70 & 32768u) | 32704u, (v69 + 32767u + (v70 & 1u)) >> 16u);
      f32x16 v72 = a13;
      u32x16 v73 = (u32x16)v72;
      u32x16 v74 = v73 >> 16u;
      u32x16 v75 = select_u32x16(v72 != v72, (v74 & 32768u) | 32704u, (v73 + 32767u + (v74 & 1u)) >> 16u);
      f32x16 v76 = a14;
      u32x16 v77 = (u32x16)v76;
      u32x16 v78 = v77 >> 16u;
      u32x16 v79 = select_u32x16(v76 != v76, (v78 & 32768u) | 32704u, (v77 + 32767u + (v78 & 1u)) >> 16u);
      f32x16 v80 = a15;
      u32x16 v81 = (u32x16)v80;
      u32x16 v82 = v81 >> 16u;
      u32x16 v83 = select_u32x16(v80 != v80, (v82 & 32768u) | 32704u, (v81 + 32767u + (v82 & 1u)) >> 16u);
      f32x16 v84 = a16;
      u32x16 v85 = (u32x16)v84;
      u32x16 v86 = v85 >> 16u;
      u32x16 v87 = select_u32x16(v84 != v84, (v86 & 32768u) | 32704u, (v85 + 32767u + (v86 & 1u)) >> 16u);
      f32x16 v88 = a17;
      u32x16 v89 = (u32x16)v88;
      u32x16 v90 = v89 >> 16u;
      u32x16 v91 = select_u32x16(v88 != v88, (v90 & 32768u) | 32704u, (v89 + 32767u + (v90 & 1u)) >> 16u);
      f32x16 v92 = a18;
      u32x16 v93 = (u32x16)v92;
      u32x16 v94 = v93 >> 16u;
      u32x16 v95 = select_u32x16(v92 != v92, (v94 & 32768u) | 32704u, (v93 + 32767u + (v94 & 1u)) >> 16u);
      f32x16 v96 = a19;
      u32x16 v97 = (u32x16)v96;
      u32x16 v98 = v97 >> 16u;
      u32x16 v99 = select_u32x16(v96 != v96, (v98 & 32768u) | 32704u, (v97 + 32767u + (v98 & 1u)) >> 16u);
      f32x16 v100 = a20;
      u32x16 v101 = (u32x16)v100;
      u32x16 v102 = v101 >> 16u;
      u32x16 v103 = select_u32x16(v100 != v100, (v102 & 32768u) | 32704u, (v101 + 32767u + (v102 & 1u)) >> 16u);
      f32x16 v104 = a21;
      u32x16 v105 = (u32x16)v104;
      u32x16 v106 = v105 >> 16u;
      u32x16 v107 = select_u32x16(v104 != v104, (v106 & 32768u) | 32704u, (v105 + 32767u + (v106 & 1u)) >> 16u);
      f32x16 v108 = a22;
      u32x16 v109 = (u32x16)v108;
      u32x16 v110 = v109 >> 16u;
      u32x16 v111 = select_u32x16(v108 != v108, (v110 & 32768u) | 32704u, (v109 + 32767u + (v110 & 1u)) >> 16u);
      f32x16 v112 = a23;
      u32x16 v113 = (u32x16)v112;
      u32x16 v114 = v113 >> 16u;
      u32x16 v115 = select_u32x16(v112 != v112, (v114 & 32768u) | 32704u, (v113 + 32767u + (v114 & 1u)) >> 16u);
      f32x16 v116 = a24;
      u32x16 v117 = (u32x16)v116;
      u32x16 v118 = v117 >> 16u;
      u32x16 v119 = select_u32x16(v116 != v116, (v118 & 32768u) | 32704u, (v117 + 32767u + (v118 & 1u)) >> 16u);
      *(u16x16u *)(d0 + v9) = (u16x16)__builtin_convertvector(v27, u16x16);
      *(u16x16u *)(d0 + v9 + 16) = (u16x16)__builtin_convertvector(v31, u16x16);
      *(u16x16u *)(d0 + v9 + 32) = (u16x16)__builtin_convertvector(v35, u16x16);
      *(u16x16u *)(d0 + v9 + 96) = (u16x16)__builtin_convertvector(v39, u16x16);
      *(u16x16u *)(d0 + v9 + 112) = (u16x16)__builtin_convertvector(v43, u16x16);
      *(u16x16u *)(d0 + v9 + 128) = (u16x16)__builtin_convertvector(v47, u16x16);
      *(u16x16u *)(d0 + v9 + 192) = (u16x16)__builtin_convertvector(v51, u16x16);
      *(u16x16u *)(d0 + v9 + 208) = (u16x16)__builtin_convertvector(v55, u16x16);
      *(u16x16u *)(d0 + v9 + 224) = (u16x16)__builtin_convertvector(v59, u16x16);
      *(u16x16u *)(d0 + v9 + 288) = (u16x16)__builtin_convertvector(v63, u16x16);
      *(u16x16u *)(d0 + v9 + 304) = (u16x16)__builtin_convertvector(v67, u16x16);
      *(u16x16u *)(d0 + v9 + 320) = (u16x16)__builtin_convertvector(v71, u16x16);
      *(u16x16u *)(d0 + v9 + 384) = (u16x16)__builtin_convertvector(v75, u16x16);
      *(u16x16u *)(d0 + v9 + 400) = (u16x16)__builtin_convertvector(v79, u16x16);
      *(u16x16u *)(d0 + v9 + 416) = (u16x16)__builtin_convertvector(v83, u16x16);
      *(u16x16u *)(d0 + v9 + 480) = (u16x16)__builtin_convertvector(v87, u16x16);
      *(u16x16u *)(d0 + v9 + 496) = (u16x16)__builtin_convertvector(v91, u16x16);
      *(u16x16u *)(d0 + v9 + 512) = (u16x16)__builtin_convertvector(v95, u16x16);
      *(u16x16u *)(d0 + v9 + 576) = (u16x16)__builtin_convertvector(v99, u16x16);
      *(u16x16u *)(d0 + v9 + 592) = (u16x16)__builtin_convertvector(v103, u16x16);
      *(u16x16u *)(d0 + v9 + 608) = (u16x16)__builtin_convertvector(v107, u16x16);
      *(u16x16u *)(d0 + v9 + 672) = (u16x16)__builtin_convertvector(v111, u16x16);
      *(u16x16u *)(d0 + v9 + 688) = (u16x16)__builtin_convertvector(v115, u16x16);
      *(u16x16u *)(d0 + v9 + 704) = (u16x16)__builtin_convertvector(v119, u16x16);
    }
  }
}

const long r_64_96_launch[3] = {2, 1, 1};
void r_64_96(unsigned short *restrict d0, const unsigned short *restrict d1, const unsigned short *restrict d2) {
  void *args[] = {(void *)d0, (void *)d1, (void *)d2};
  #pragma omp parallel for schedule(dynamic, 1)
  for (long lo = 0; lo < 2; lo += 1)
    r_64_96_range(args, lo, lo + 1);
}
