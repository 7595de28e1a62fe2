"""Memory in and out: NumPy in every layout, lists, buffers, DLPack, refusals; and that the caller's memory is safe."""

from __future__ import annotations

import array
import copy
import pickle

import numpy as np
import pytest
from tensors import ALL, same, sample

from uopc import Tensor, dtypes
from uopc.ops import Ops
from uopc.tensor import dlpack


@pytest.mark.parametrize("dtype", ALL)
def test_arrays_are_read_in_place(dtype):
    a = sample(dtype)
    t = Tensor(a)
    assert t.uop.op is Ops.BUFFER
    assert np.shares_memory(t.numpy(), a)
    same(t, a)
    same(Tensor(a[1, 2]), a[1, 2])
    same(Tensor(np.array(a[1, 2])), a[1, 2])


LAYOUTS = {
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1, ::-1],
    "steps": lambda a: a[1::2, ::3],
    "column": lambda a: a[:, 1],
    "broadcast": lambda a: np.broadcast_to(a[:, :1], (6, 8)),
    "zero strides": lambda a: np.broadcast_to(a[:1, :1], (2, 3)),
    "empty": lambda a: a[:0],
    "empty column": lambda a: a[3:3, ::2],
    "fortran": np.asfortranarray,
    "one": lambda a: a[2:3, ::-1][:, 4:5],
    "diagonal": np.diagonal,
    "new axes": lambda a: a[None, ::2, None],
    "negative and zero": lambda a: np.broadcast_to(a[::-2, None, 3], (3, 4)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["int8", "float64", "bool"])
def test_strided_arrays_are_read_in_place(layout, dtype):
    a = sample(dtype, (6, 8))
    view = LAYOUTS[layout](a)
    t = Tensor(view)
    same(t, view)
    same(t.T, view.T)
    same(t.cast("float64") + 1, view.astype("float64") + 1)
    if view.size and layout != "fortran":
        assert np.shares_memory(t.numpy(), a)


def test_what_cannot_be_addressed_in_elements_is_copied():
    swapped = np.arange(5, dtype=">i4")
    same(Tensor(swapped), np.arange(5, dtype="i4"))
    same(Tensor(swapped[::-2]), np.arange(5, dtype="i4")[::-2])
    raw = np.zeros(41, np.uint8)
    unaligned = raw[1:].view(np.float64)
    unaligned[:] = np.arange(5)
    same(Tensor(unaligned), np.arange(5.0))
    records = np.zeros(4, [("a", "i1"), ("b", "f4")])
    records["b"] = np.arange(4)
    same(Tensor(records["b"]), np.arange(4, dtype="f4"))


def test_read_only_arrays():
    a = sample("float32")
    a.flags.writeable = False
    same(Tensor(a) + 1, a + 1)
    same(Tensor(a[:, ::-1]) + 1, a[:, ::-1] + 1)


def test_values_cannot_be_written_through():
    a = sample("float32")
    for t in (Tensor(a), Tensor(a) + 1, Tensor(a).T, Tensor(a).bfloat16(), Tensor.ones(3)):
        with pytest.raises(ValueError, match="read-only"):
            t.numpy()[0] = 1
    out = Tensor(a).numpy().copy()
    out[0] = 9
    same(Tensor(a), sample("float32"))


def test_a_tensor_keeps_the_memory_alive():
    t = Tensor(np.arange(1000.0)[::2])
    same(t + 0, np.arange(1000.0)[::2])


def test_python_numbers_and_lists():
    same(Tensor(3), 3)
    same(Tensor(2.5), np.float32(2.5))
    same(Tensor(True), True)
    same(Tensor(2**63), np.uint64(2**63))
    same(Tensor([1, 2]), [1, 2])
    same(Tensor([[1.0, 2], [3, 4]]), np.float32([[1, 2], [3, 4]]))
    same(Tensor([1, 2.5]), np.float32([1, 2.5]))
    same(Tensor((True, False)), [True, False])
    same(Tensor(range(3)), [0, 1, 2])
    same(Tensor([]), np.zeros(0, np.float32))
    same(Tensor([[], []]), np.zeros((2, 0), np.float32))
    same(Tensor([np.float64(1), np.float64(2)]), [1.0, 2.0])
    same(Tensor([Tensor([1, 2]), Tensor([3, 4])]), [[1, 2], [3, 4]])
    same(Tensor(np.float16(1.5)), np.float16(1.5))
    same(Tensor([1, 2], dtype="float16"), np.float16([1, 2]))
    same(Tensor(sample("int8"), dtype=np.float64), sample("int8").astype(np.float64))
    same(Tensor(Tensor([1]), dtype="bool"), [True])


def test_buffers_and_array_protocols():
    same(Tensor(b"abc"), np.frombuffer(b"abc", np.uint8))
    same(Tensor(bytearray(b"abc")), np.frombuffer(b"abc", np.uint8))
    same(Tensor(array.array("d", [1, 2])), [1.0, 2.0])
    same(Tensor(memoryview(array.array("h", [1, 2, 3]))[::2]), np.array([1, 3], np.int16))

    class Holder:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3, dtype=np.int16)

    same(Tensor(Holder()), np.arange(3, dtype=np.int16))
    same(Tensor([1, 2]) + Holder().__array__()[:2], [1, 3])


@pytest.mark.parametrize(
    "data",
    [
        None,
        "abc",
        1j,
        object(),
        {"a": 1},
        {1, 2},
        np.array([1j]),
        np.array(["a"]),
        np.array([None]),
        [None],
        ["a"],
        [2**70],
        np.array(0, "M8[s]"),
        np.zeros(2, [("a", "i4")]),
        np.ma.masked_array([1, 2], [0, 1]),
    ],
    ids=lambda d: f"{type(d).__name__}-{getattr(d, 'dtype', '')}",
)
def test_refusals_name_the_type_and_what_is_accepted(data):
    with pytest.raises(TypeError, match=r"accepted|masked"):
        Tensor(data)


def test_more_refusals():
    with pytest.raises(TypeError, match="dtype object is not supported; accepted are bool_, int8"):
        Tensor(np.array([None]))
    with pytest.raises(OverflowError, match="64 bits"):
        Tensor(2**70)
    for call in (lambda: Tensor([[1, 2], [3]]), lambda: Tensor([1, 2]) + [1, [2]], lambda: Tensor([1, 2])[[0, [1]]]):
        with pytest.raises(ValueError, match=r"lists of one length, which \[.*\] does not"):
            call()
    with pytest.raises(TypeError, match="a NoneType has no __dlpack__"):
        Tensor.from_dlpack(None)
    with pytest.raises(TypeError, match="'complex64' is not a dtype"):
        Tensor([1], dtype="complex64")


def test_out():
    a = sample("float32")
    t = Tensor(a) + 1
    assert t.tolist() == (a + 1).tolist()
    assert Tensor(2.5).item() == 2.5
    assert type(Tensor([[3]]).item()) is int
    assert type(Tensor([True]).item()) is bool
    np.testing.assert_array_equal(np.asarray(t), a + 1)
    assert np.asarray(t, dtype=np.float64).dtype == np.float64
    assert np.array(t).flags.writeable
    assert t.data().shape == (3, 4)
    with pytest.raises(ValueError, match=r"one element, and shape \(3, 4\)"):
        t.item()
    with pytest.raises(ValueError, match="copy"):
        t.__array__(np.float64, copy=False)


def test_numbers():
    assert float(Tensor([2.5])) == 2.5
    assert int(Tensor(2.9)) == 2
    assert complex(Tensor(2.0)) == 2
    assert bool(Tensor([0.0])) is False
    assert [10, 20][Tensor(1)] == 20
    for attempt, error in (
        (lambda: bool(Tensor([1, 2])), ValueError),
        (lambda: bool(Tensor([])), ValueError),
        (lambda: float(Tensor([1, 2])), TypeError),
        (lambda: [1, 2][Tensor([1])], TypeError),
        (lambda: [1, 2][Tensor(1.0)], TypeError),
        (lambda: len(Tensor(1)), TypeError),
    ):
        with pytest.raises(error):
            attempt()
    with pytest.raises(ValueError, match=r"shape \(2,\) is ambiguous"):
        bool(Tensor([1, 2]))
    assert len(Tensor.zeros(4, 2)) == 4
    assert (Tensor.zeros(4, 2).ndim, Tensor.zeros(4, 2).numel()) == (2, 8)


@pytest.mark.parametrize("dtype", ALL)
def test_dlpack_both_ways(dtype):
    a = sample(dtype)
    t = Tensor.from_dlpack(a)
    same(t, a)
    assert np.shares_memory(t.numpy(), a)
    made = Tensor(a).where(1, 0) + 1
    out = np.from_dlpack(made)
    same(made, out)
    assert np.shares_memory(out, made.numpy())
    assert Tensor(a).__dlpack_device__() == (1, 0)
    same(Tensor.from_dlpack(Tensor(a).T), a.T)


class Capsule:
    """What another library's array is to DLPack."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **wishes):
        return self.tensor.__dlpack__(**wishes)

    def __dlpack_device__(self):
        return (1, 0)


class Unreadable(Capsule):
    """One whose type NumPy lacks, so that ``__array__`` refuses, as PyTorch's bfloat16."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("unsupported ScalarType")


@pytest.mark.parametrize("make", [Capsule, Unreadable])
def test_dlpack_of_bfloat16_both_ways(make):
    values = np.array([[1, -2.5, np.nan], [np.inf, 0, 3]], np.float32)
    source = Tensor(values).bfloat16().realize()
    for given, expected in ((source, values), (source.T, values.T), (source[:, ::-2], values[:, ::-2])):
        for t in (Tensor(make(given)), Tensor.from_dlpack(make(given))):
            assert t.dtype is dtypes.bfloat16
            np.testing.assert_array_equal(t.numpy(), expected)
            assert np.shares_memory(t._array(), source._array())


def test_bfloat16_and_pytorch_share_memory():
    torch = pytest.importorskip("torch")
    theirs = torch.randn(4, 6).to(torch.bfloat16)
    for t in (Tensor(theirs), Tensor.from_dlpack(theirs)):
        assert t.dtype is dtypes.bfloat16
        np.testing.assert_array_equal(t.numpy(), theirs.float().numpy())
    back = torch.from_dlpack(Tensor(theirs) * 2)
    assert back.dtype is torch.bfloat16 and torch.equal(back, theirs * 2)
    assert torch.from_dlpack(Tensor(theirs)).data_ptr() == theirs.data_ptr()


class Strange:
    """Elements of a type that neither NumPy nor uopc has."""

    def __dlpack__(self, **wishes):
        capsule = np.ones(2, np.uint8).__dlpack__(**wishes)
        dlpack._type_of(capsule)[0] = 10
        return capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_dlpack_refusals():
    with pytest.raises(TypeError, match=r"Unsupported dtype.*; accepted are bool_, int8"):
        Tensor.from_dlpack(Strange())
    with pytest.raises(TypeError, match=r"complex64 is not supported; accepted are bool_, int8"):
        Tensor.from_dlpack(np.ones(2, np.complex64))
    with pytest.raises((BufferError, RuntimeError), match="Unsupported dtype"):
        np.from_dlpack(Tensor([1.0]).bfloat16())  # NumPy has no such type

    class Elsewhere:
        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(ValueError, match="device type 2"):
        Tensor.from_dlpack(Elsewhere())


def test_bfloat16_from_other_libraries():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = np.array([1, 2.5, np.nan], ml_dtypes.bfloat16)
    assert Tensor(a).dtype is dtypes.bfloat16
    np.testing.assert_array_equal(Tensor(a).numpy(), a.astype(np.float32))


@pytest.mark.parametrize("dtype", [*ALL, "bfloat16"])
def test_pickle_and_copy(dtype):
    t = Tensor(sample("float32")).cast(dtype)
    for made in (pickle.loads(pickle.dumps(t)), copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t.T)).T):
        assert (made.dtype, made.shape) == (t.dtype, t.shape)
        np.testing.assert_array_equal(made.numpy(), t.numpy())


def test_repr_computes_nothing(monkeypatch):
    from uopc.tensor import core

    monkeypatch.setattr(core, "compute", None)
    assert repr(Tensor([1.0, 2.0]) + 1) == "Tensor(lazy ADD, shape=(2,), dtype=float32)"
    assert repr(Tensor([1.5, 2.0])) == "Tensor([1.5, 2. ], dtype=float32)"
    assert repr(Tensor.zeros(0, 3)) == "Tensor([], shape=(0, 3), dtype=float32)"
    assert repr(Tensor(True)) == "Tensor(True, dtype=bool_)"


def test_format():
    assert f"{Tensor(2.5):.3f} {Tensor([[7]]):3d} {Tensor(True)}" == "2.500   7 Tensor(True, dtype=bool_)"
    assert f"{Tensor([1.5, 2.0])}" == repr(Tensor([1.5, 2.0]))
    with pytest.raises(TypeError, match="format"):
        format(Tensor([1.5, 2.0]), ".3f")


def test_realize():
    a = Tensor([1.0, 2.0])
    b, c = a + 1, a * 2
    d = b + c
    assert b.realize(c, d, b, a) is b
    assert b.uop.op is c.uop.op is d.uop.op is Ops.BUFFER
    same(d, np.float32([4, 7]))
    e = Tensor([1.0]) + 1
    again = Tensor(e.uop)
    e.realize()
    assert again.numpy().tolist() == [2.0]  # the node knows where its value stands
    kept = (a + 3).contiguous()
    assert kept.uop.op is Ops.STAGE
    assert kept.contiguous() is kept
    assert a.contiguous() is a
    same(kept, np.float32([4, 5]))
    same(a.detach(), np.float32([1, 2]))
    with pytest.raises(TypeError, match="realize takes Tensors, not list"):
        b.realize([c, d])


def test_options_reach_the_compiler(monkeypatch):
    import uopc
    from uopc.tensor import core

    seen = []

    def fake(roots, options):
        seen.append(options)
        raise InterruptedError

    monkeypatch.setattr(core, "compute", fake)
    monkeypatch.setattr(Tensor, "fuse_reduce", False)
    for block in ({}, {"fuse_reduce": True}, {"opt": "mine"}):
        with uopc.options(**block), pytest.raises(InterruptedError):
            (Tensor([1.0]) + 1).realize()
    assert [(o.fuse_reduce, o.opt) for o in seen] == [(False, None), (True, None), (False, "mine")]
    with pytest.raises(TypeError, match="batch_invariant='yes'"), uopc.options(batch_invariant="yes"):
        pass
