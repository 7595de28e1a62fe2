"""The machine itself: kernels in C that do nothing but FMAs, copies or reads, run on uopc's threads."""

from __future__ import annotations

import numpy as np
from cases.base import Array
from cases.machine import ACCUMULATORS, SIZE, STEPS, TASKS, Probe

from peers import Prepared, Skip
from uopc.runtime import Program
from uopc.runtime.device import device, host
from uopc.target import Feature

VERSIONS = {"cpu": device().cpu_model}

HEAD = """
#include <immintrin.h>
typedef float vec __attribute__((vector_size({bytes}), aligned({bytes})));
void probe(float *d0{more}) {{}}
const long probe_launch[3] = {{{tasks}, 1, 1}};
void probe_range(void *const *args, long lo, long hi) {{
  for (long task = lo; task < hi; task++) {{
{body}
  }}
}}
"""
FMA = """
    vec x = ((vec *)args[0])[task], y = x + 0.5f, {start};
    for (long step = 0; step < {steps}; step++) {{ {each} }}
    ((vec *)args[0])[task] = {total};
"""
LOOP = """
    long size = {size} / (long)sizeof(vec) / {tasks} * 4;
    vec *restrict out = (vec *)args[0] + task * size;
    const vec *restrict source = (const vec *)args[1] + task * size;
"""
COPY = LOOP + "    for (long i = 0; i < size; i++) out[i] = source[i];"
STREAM = LOOP + "    for (long i = 0; i < size; i++) {intrinsic}((float *)(out + i), source[i]);\n    _mm_sfence();"
READ = (
    LOOP
    + """
    vec a = source[0] * 0, b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    for (long i = 0; i < size; i += 8) {{
      a += source[i], b += source[i + 1], c += source[i + 2], d += source[i + 3];
      e += source[i + 4], f += source[i + 5], g += source[i + 6], h += source[i + 7];
    }}
    out[0] = a + b + c + d + e + f + g + h;
"""
)
STREAM_INTRINSIC = {64: "_mm512_stream_ps", 32: "_mm256_stream_ps", 16: "_mm_stream_ps"}


def _body(name: str) -> str:
    size = host().vector_bytes
    x86 = "sse2" in device().cpu_features
    if name == "fma":
        step = "a{0} = a{0} * y + x;"
    elif name == "fma bfloat16":
        if not (host().has(Feature.BF16_DOT) and size == 64):
            raise Skip("this processor has no bfloat16 dot product that the probe knows")
        step = "a{0} = (vec)_mm512_dpbf16_ps((__m512)a{0}, (__m512bh)x, (__m512bh)y);"
    else:
        if name == "stream copy" and not x86:
            raise Skip("the probe knows no stores around the caches for this processor")
        text = {"copy": COPY, "stream copy": STREAM, "read": READ}[name]
        return text.format(size=SIZE, tasks=TASKS, intrinsic=STREAM_INTRINSIC[size])
    numbers = range(ACCUMULATORS)
    return FMA.format(
        steps=STEPS,
        start=", ".join(f"a{k} = x" for k in numbers),
        each=" ".join(step.format(k) for k in numbers),
        total=" + ".join(f"a{k}" for k in numbers),
    )


def source(name: str) -> str:
    """The C of a probe."""
    body = _body(name)
    more = "" if name.startswith("fma") else ", const float *d1"
    text = HEAD.format(bytes=host().vector_bytes, tasks=TASKS, body=body, more=more)
    return text if "sse2" in device().cpu_features else text.replace("#include <immintrin.h>\n", "")


def build(variant: str, case: Probe, arrays: dict[str, Array]) -> Prepared:
    program = Program(source(case.name), "probe")
    values = list(arrays.values())

    def run() -> None:
        program(*values)

    return Prepared(run, lambda _: np.zeros(1), "uopc.runtime.Program")
