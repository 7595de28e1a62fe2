"""Accuracy of the float32 functions that decompose makes, in ULP against float64, measured in C.

    python benchmarks/accuracy.py [--all] [--threads N] [NAME ...]

By default one float32 in 61 is tried, which takes seconds; ``--all`` tries all 2^32: one to three minutes a function.
``pow`` takes pairs: every sample as the base, with exponents that make results of every size.
The code is what a kernel computes: the decomposed graph, in which every FMA is said.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))

from straight_c import FLAGS, function, load, operand

from uopc.decompose import decompose
from uopc.dtype import dtypes
from uopc.ops import ALU, TABLE, Ops
from uopc.uop import UOp, toposort

NAMES = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "tanh", "erf", "ndtr", "pow")
SAMPLED = 61  # a prime: the low bits of the samples take all values

# `measure` runs over inputs first, first + step, ... as bits of a float32.  It fills {worst error, its input, its
# second input, how many are wrong altogether: NaN against number, zero of the wrong sign}.
HARNESS = """
#include <math.h>
#include <string.h>
enum { BLOCK = 4096 };
static double ulp(float got, double want) {
  if (isnan(got) || isnan(want)) return isnan(got) && isnan(want) ? 0 : INFINITY;
  if (want == 0) return got == 0 && !signbit(got) == !signbit(want) ? 0 : INFINITY;
  double past = 0x1p128, a = isinf(got) ? copysign(past, got) : got;
  double b = fabs(want) >= past ? copysign(past, want) : want;
  int e;
  frexp(b, &e);
  e = e - 1 < -126 ? -126 : e - 1 > 127 ? 127 : e - 1;
  return fabs(a - b) * ldexp(1, 23 - e);
}
static float from_bits(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static unsigned mix(unsigned u) {
  u = (u ^ (u >> 16)) * 0x7feb352du;
  u = (u ^ (u >> 15)) * 0x846ca68bu;
  return u ^ (u >> 16);
}
void measure(unsigned long first, unsigned long last, unsigned long step, double *result) {
  float x[BLOCK], y[BLOCK], z[BLOCK];
  double worst = -1, wrong = 0;
  for (unsigned long from = first; from < last; from += BLOCK * step) {
    long n = 0;
    for (unsigned long u = from; u < last && n < BLOCK; u += step, n++) {
      x[n] = from_bits((unsigned)u);
      double size = (mix((unsigned)u) * 0x1p-32 * 290 - 155) / log2(fabs(x[n]));
      z[n] = mix((unsigned)u) % 8 ? (float)size : rintf((float)size);
    }
    CALL;
    for (long i = 0; i < n; i++) {
      double e = ulp(y[i], WANT);
      if (isinf(e)) wrong++;
      if (e > worst) worst = e, result[1] = x[i], result[2] = z[i];
    }
  }
  result[0] = worst, result[3] = wrong;
}
"""


def harness(name: str) -> tuple[ctypes.CDLL, int, int]:
    """The compiled measurement of a function, and how many ALU nodes it is (of all types, of float64)."""
    op = Ops[name.upper()]
    arity = TABLE[op].arity[0]
    root = decompose(UOp(op, tuple(operand(slot, dtypes.float32) for slot in range(arity))))
    nodes = [u for u in toposort(root) if u.op in ALU]
    call = "kernel(y, x, z, n)" if arity == 2 else "kernel(y, x, n)"
    want = f"{name}(x[i], z[i])" if arity == 2 else f"{name}((double)x[i])"
    source = "static " + function("kernel", root) + HARNESS.replace("CALL", call).replace("WANT", want)
    source = "#include <math.h>\nstatic double ndtr(double x) { return 0.5 * erfc(x * -M_SQRT1_2); }\n" + source
    flags = tuple(f for f in FLAGS if f != "-O2") + ("-O3",)
    return load(source, flags), len(nodes), sum(u.dtype is dtypes.float64 for u in nodes)


def measure(library: ctypes.CDLL, step: int, threads: int) -> tuple[float, float, float, int]:
    """The worst error, where it is, and how many results are wrong altogether."""
    chunk = (1 << 32) // (threads * 8)

    def part(k: int) -> list[float]:
        result = (ctypes.c_double * 4)()
        first = -(-k * chunk // step) * step
        library.measure(ctypes.c_ulong(first), ctypes.c_ulong((k + 1) * chunk), ctypes.c_ulong(step), result)
        return list(result)

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(part, range(threads * 8)))
    worst = max(parts)
    return worst[0], worst[1], worst[2], int(sum(p[3] for p in parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--all", action="store_true", help="all 2^32 inputs")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    print(f"{'function':9} {'max ULP':>8} {'wrong':>6} {'nodes':>6} {'of f64':>7} {'seconds':>8}  worst at")
    for name in args.names:
        library, nodes, wide = harness(name)
        start = time.perf_counter()
        error, x, y, wrong = measure(library, 1 if args.all else SAMPLED, args.threads)
        where = f"{x.hex()}, {y.hex()}" if name == "pow" else x.hex()
        seconds = time.perf_counter() - start
        print(f"{name:9} {error:8.3f} {wrong:6} {nodes:6} {wide:7} {seconds:8.1f}  {where}", flush=True)


if __name__ == "__main__":
    main()
