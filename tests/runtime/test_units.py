"""Several kernels in one unit: nothing clashes, nothing is compiled twice, and each kernel is known by itself."""

import numpy as np
import pytest

from uopc._hot.runtime import NativePlan
from uopc.runtime import CompileError
from uopc.runtime import compiler as module
from uopc.runtime.compiler import Kernels, clear_memory_cache
from uopc.runtime.units import Source, chunks, units_of

TYPES = """typedef float f4 __attribute__((vector_size(16)));
typedef f4 f4u __attribute__((aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))
INLINE float twice(float x) { return x + x; }
INLINE float
many_lines(float x) {
  return x
    * 1.0f;
}
static const float table[2] = {1.0f, 2.0f};
"""


def kernel(name, value, head=TYPES):
    text = f"""{head}void {name}_range(void *const *args, long lo, long hi) {{
  float *restrict d0 = args[0];
  for (long i = lo; i < hi; i++) {{
    d0[i] = {value};
  }}
}}
const long {name}_launch[3] = {{4, 2, 0}};
void {name}(float *restrict d0) {{
  void *args[] = {{(void *)d0}};
  #pragma omp parallel for schedule(static)
  for (long lo = 0; lo < 4; lo += 2)
    {name}_range(args, lo, lo + 2);
}}
"""
    return Source(name, text)


def run(library, symbol):
    out = np.zeros(4, "f")
    NativePlan([(library, symbol, (0,))], 1).run([out])
    assert (out == out[0]).all()
    return float(out[0])


def values(kernels):
    return [run(library, k.symbol) for k, library in zip(kernels, Kernels().compile(kernels))]


@pytest.fixture
def runs(monkeypatch, settings):
    """The sources given to the compiler."""
    seen = []
    build = module._build
    monkeypatch.setattr(
        module, "_build", lambda compiler, text, flags: seen.append(text) or build(compiler, text, flags)
    )
    return seen


def test_chunks_are_whole():
    found = chunks(kernel("k", "twice(1.0f)").text)
    assert len(found) == 9
    assert found[4].startswith("INLINE float\nmany_lines") and found[4].endswith("}")
    assert found[-1].startswith("void k(") and "#pragma" in found[-1]


def test_equal_names_and_helpers_in_one_unit(runs):
    kernels = [kernel("k", "twice(1.0f)"), kernel("k", "twice(2.0f)"), kernel("other", "many_lines(table[1]) + 5.0f")]
    assert len({k.symbol for k in kernels}) == 3
    assert values(kernels) == [2.0, 4.0, 7.0]
    assert len(runs) <= module.host().cores


def test_helpers_of_one_name_that_differ(runs):
    """Two meanings of a name go to two units."""
    other = TYPES.replace("x + x", "x + x + 1.0f")
    assert values([kernel("a", "twice(1.0f)"), kernel("b", "twice(1.0f)", other), kernel("c", "twice(3.0f)")]) == [
        2,
        3,
        6,
    ]
    units = units_of([kernel("a", "twice(1.0f)"), kernel("b", "twice(1.0f)", other)], 1)
    assert len(units) == 2


def test_a_unit_declares_each_helper_once():
    (unit,) = units_of([kernel("a", "1.0f"), kernel("b", "2.0f")], 1)
    assert unit.text.count("typedef float f4 ") == 1 and unit.text.count("INLINE float twice") == 1


def test_units_are_balanced():
    kernels = [kernel(f"k{n}", " + ".join(["1.0f"] * (40 * n + 1))) for n in range(8)]
    units = units_of(kernels, 2)
    assert len(units) == 2
    lengths = sorted(sum(len(k.text) for k in unit.kernels) for unit in units)
    assert lengths[1] - lengths[0] < max(len(k.text) for k in kernels)
    assert len(units_of(kernels[:1], 2)) == 1 and units_of([], 2) == []


def test_only_new_kernels_are_compiled(runs):
    old = [kernel("a", "1.0f"), kernel("b", "2.0f"), kernel("c", "3.0f")]
    values(old)
    runs.clear()
    new = kernel("d", "4.0f")
    assert values([old[1], new, old[2]]) == [2, 4, 3]
    assert len(runs) == 1 and "d_range" in runs[0] and "b_range" not in runs[0]
    runs.clear()
    clear_memory_cache()  # as another process: from disk
    assert values([new, *old]) == [4, 1, 2, 3]
    assert not runs


def test_without_a_disk_cache(runs, settings):
    settings(UOPC_CACHE="0")
    kernels = [kernel("a", "1.0f"), kernel("b", "2.0f")]
    assert values(kernels) == [1, 2]
    runs.clear()
    assert values(kernels) == [1, 2] and not runs


def test_one_file_under_several_names(settings):
    """Kernels of a unit are links to one file; where one goes, the others stay."""
    import os

    kernels = [kernel(f"k{n}", f"{n}.0f") for n in range(6)]
    values(kernels)
    cache = module.disk_cache()
    files = [name for name in os.listdir(cache.path) if name.endswith(".so")]
    assert len(files) == 6
    assert len({os.stat(os.path.join(cache.path, name)).st_ino for name in files}) <= module.host().cores
    clear_memory_cache()
    os.unlink(os.path.join(cache.path, f"{Kernels().key(kernels[0])}.so"))
    assert values(kernels) == [0, 1, 2, 3, 4, 5]


def test_a_library_made_anew_is_not_taken_for_one_of_its_name_that_is_still_loaded(settings):
    """The cache was emptied, and memos let go of them, but plans hold them.  The loader knows files by their names."""
    import os

    kernels = [kernel(f"k{n}", f"{n}.0f") for n in range(6)]
    held = [Kernels().compile([k])[0] for k in kernels]
    clear_memory_cache()
    cache = module.disk_cache()
    for name in os.listdir(cache.path):
        if name.endswith(".so"):
            os.unlink(os.path.join(cache.path, name))
    assert values(kernels) == [0, 1, 2, 3, 4, 5], "several in a library, which has the name of the first"
    assert [run(library, k.symbol) for library, k in zip(held, kernels)] == [0, 1, 2, 3, 4, 5]


def test_no_links_on_the_file_system(settings, monkeypatch):
    import os

    def refuse(*args, **kwargs):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    kernels = [kernel("a", "1.0f"), kernel("b", "2.0f"), kernel("c", "3.0f")]
    values(kernels)
    clear_memory_cache()
    assert Kernels().load([Kernels().key(k) for k in kernels]) is not None


def test_a_kernel_that_does_not_compile(settings):
    import os

    with pytest.raises(CompileError) as caught:
        values([kernel("a", "1.0f"), kernel("bad", "nonsense")])
    assert "nonsense" in caught.value.output
    os.unlink(caught.value.path)
    assert values([kernel("a", "1.0f")]) == [1]
