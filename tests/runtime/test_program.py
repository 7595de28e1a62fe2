"""Program: one kernel from source, called with arrays."""

import os

import numpy as np
import pytest

from uopc.render_c import render_c
from uopc.runtime import CompileError, Program
from uopc.uop import Ops, ParamArg, UOp, dtypes, range_, sink


@pytest.fixture
def program(axpy_source):
    return Program(axpy_source, "axpy")


@pytest.fixture
def arrays():
    return np.zeros(10000, "f"), np.arange(10000, dtype="f"), np.full(10000, 3, "f")


def test_call(program, arrays):
    out, x, y = arrays
    assert program(out, x, y) is None
    assert (out == x * 2 + y).all()


def test_any_shape_and_any_buffer(program, arrays):
    out, x, y = arrays
    program(out.reshape(100, 100), memoryview(x), y.tobytes())
    assert (out == x * 2 + y).all()


def test_read_only_inputs_are_fine_and_outputs_are_not(program, arrays):
    for a in arrays[1:]:
        a.flags.writeable = False
    program(*arrays)
    arrays[0].flags.writeable = False
    with pytest.raises(ValueError, match="slot 0 is an output, and its array is read-only"):
        program(*arrays)
    with pytest.raises(BufferError):
        program(arrays[0].tobytes(), *arrays[1:])


def test_outputs_are_as_declared(axpy_source, arrays):
    program = Program(axpy_source, "axpy", outputs=(0, 1))
    arrays[1].flags.writeable = False
    with pytest.raises(ValueError, match="slot 1 is an output"):
        program(*arrays)


def test_refusals(program, arrays):
    out, x, y = arrays
    with pytest.raises(ValueError, match=r"slot 1 with shape \(10000,\) and strides \(8,\) is not C-contiguous"):
        program(out, np.zeros(20000, "f")[::2], y)
    with pytest.raises(TypeError, match="slot 2 is an array of objects"):
        program(out, x, y.astype(object))
    with pytest.raises(ValueError, match="axpy takes 3 arrays; 2 were given"):
        program(out, x)
    for wrong in (None, [1.0, 2.0], "text", 1, 0, -1, 2**70, True, 1.5):
        with pytest.raises(
            TypeError, match=f"slot 1 takes an array or a buffer of numbers, not {type(wrong).__name__}"
        ):
            program(out, wrong, y)
    assert (out == 0).all()


def test_bad_source_and_bad_name(axpy_source):
    with pytest.raises(LookupError, match="other"):
        Program(axpy_source, "other")
    with pytest.raises(CompileError) as caught:
        Program("int x = ;", "x")
    os.unlink(caught.value.path)


def test_time(program, arrays):
    assert 0 < program.time(*arrays, repeat=3) < 10


def test_flags(axpy_source):
    Program("#ifndef GIVEN\n#error not given\n#endif\n" + axpy_source, "axpy", flags=("-O1", "-DGIVEN"))


def test_rendered_kernels_refuse_arrays_of_another_dtype_or_too_few_elements() -> None:
    x = UOp(Ops.BUFFER, (), ParamArg(1, dtypes.float32, (4, 5)))
    out = UOp(Ops.BUFFER, (), ParamArg(0, dtypes.float32, (4, 5)))
    i = range_(20, 0)
    double = Program(render_c(sink(out.index(i).store(x.index(i).load() * 2.0).end(i)), "twice"), "twice")
    good, result = np.ones((4, 5), np.float32), np.empty(20, np.float32)
    double(result, good)
    assert (result == 2).all()
    with pytest.raises(TypeError, match="slot 1 holds float32, not float64"):
        double(result, good.astype(np.float64))
    with pytest.raises(ValueError, match=r"slot 0 has shape \(4, 5\), 20 elements"):
        double(np.empty(19, np.float32), good)
    double(bytearray(80), good.tobytes())
    with pytest.raises(ValueError, match=r"slot 1 has shape \(4, 5\), 80 bytes; the buffer has 79"):
        double(result, bytes(79))
