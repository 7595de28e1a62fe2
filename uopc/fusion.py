"""fusion: cuts that rules of thumb have made, compared with others by the price of the kernels that they make.

In: a graph without STAGEs, and the values of it that are to be written down.  Out: those that are written down when
prices have been asked, and a ``Comparison`` for each time that two prices were compared.

A product (a REDUCE that reads its operands many times) runs at full speed where it has a kernel's register tile, panels
and blocks to itself.  A kernel in which something else stands above or beside it is *contended*: another reduction, a
movement, a second product.  Whether it keeps them all, and what it becomes if not, ``price`` tells of the kernel.
So each contended kernel is compared with those that a further cut would make of it, and each cut below a product with
the kernel that would take it in; what is predicted to take less time is chosen, until nothing does.

Asks for no other kernel: planning is as fast as before where nothing is contended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from uopc.isolate import isolated
from uopc.ops import ALU, Ops
from uopc.uop import UOp, toposort

# Elements that a REDUCE runs over, for each element that it reads: from here on it is a product, which needs a tile.
REUSE = 8
# A change of the cuts that is predicted to gain less than this is within what predictions are worth.
GAIN = 1.05
# A cascade of one reduction is a product whose operand is one, fused; of several, a product that other kernels may ask
# for too.  Blocks of cascades run closer to what is predicted of them than products and what lies between do: only what
# gains more is real (measured from 48 to 1000 rows).
CHAIN_GAIN = 1.5
# Cuts that are tried in a kernel, those nearest its result first; and changes in all, for each kernel at the start.
MOST_PLACES = 12
MOST_CHANGES = 8

# Seconds of a value, written down by itself.
Price = Callable[[UOp], float]
_RUNNING = frozenset({Ops.STATE, Ops.COMPONENT})  # which have their places in the kernel of their cascade
_CHOICE = frozenset({Ops.STACK, Ops.CAT, Ops.PAD})  # of one value or another for each element
_ORDERS = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.FLIP})  # which move to the place that is written to


@dataclass(frozen=True)
class Comparison:
    """Two prices: seconds of the kernels in question with ``value`` computed where it is used, and written down."""

    value: UOp
    fused: float
    cut: float

    @property
    def written(self) -> bool:
        """What was chosen."""
        return self.cut < self.fused


class _Kernels:
    """The kernels that some cuts make of a graph, and their prices."""

    def __init__(self, root: UOp, cuts: Iterable[UOp], price: Price) -> None:
        self.place = {u: k for k, u in enumerate(toposort(root))}
        self.cuts = set(cuts)
        self.price = price
        self.cones: dict[UOp, dict[UOp, None]] = {}
        self.leaves: dict[UOp, list[UOp]] = {}

    def cone(self, cut: UOp) -> dict[UOp, None]:
        """The nodes that the kernel of a cut computes, the cut first."""
        if cut not in self.cones:
            inside: dict[UOp, None] = {}
            leaves: dict[UOp, None] = {}
            stack = [cut]
            while stack:
                u = stack.pop()
                if u is not cut and (u in self.cuts or u.op is Ops.BUFFER):
                    leaves[u] = None
                elif u not in inside:
                    inside[u] = None
                    stack += u.src
            self.cones[cut], self.leaves[cut] = inside, list(leaves)
        return self.cones[cut]

    def users(self, value: UOp) -> list[UOp]:
        """The cuts whose kernels compute a value, or read it if it is a cut, sources first."""
        behind = (c for c in self.cuts if self.place[c] > self.place[value])
        return sorted((c for c in behind if self._has(c, value)), key=self.place.__getitem__)

    def _has(self, cut: UOp, value: UOp) -> bool:
        return value in self.cone(cut) or value in self.leaves[cut]

    def seconds(self, cuts: Iterable[UOp], change: frozenset[UOp] = frozenset()) -> float:
        """The price of the kernels of some cuts, if the values of ``change`` were cuts and are not, or the reverse.

        Those that ask for values of one cascade will be one kernel, which runs it once.
        """
        written = self.cuts ^ change
        taken: dict[UOp, float] = {}
        for cut in cuts:
            alone = isolated(cut, written)
            shared = _cascade(cut, written) if any(u.op is Ops.CASCADE for u in toposort(alone)) else None
            kernel = shared or cut
            taken[kernel] = max(taken.get(kernel, 0.0), self.price(alone))
        return sum(taken.values())

    def change(self, change: frozenset[UOp]) -> None:
        self.cuts ^= change
        self.cones.clear()


def _cascade(cut: UOp, written: set[UOp]) -> UOp | None:
    """A cascade that the kernel of a cut runs."""
    seen, stack = {cut}, [cut]
    while stack:
        u = stack.pop()
        if u.op is Ops.CASCADE:
            return u
        new = [s for s in u.src if s not in seen and s not in written]
        seen.update(new)
        stack += new
    return None


# ------------------------------------------------------------------------------------------------------- contended --


def _product(u: UOp, inside: dict[UOp, None]) -> bool:
    """Whether a REDUCE runs over its operands again and again."""
    read, seen, stack = 0, {u}, [u.src[0]]
    while stack:
        s = stack.pop()
        if s in seen or s.op is Ops.CONST:
            continue
        seen.add(s)
        if s in inside and s.op is not Ops.REDUCE:
            stack += s.src
        else:
            read += math.prod(s.shape)
    return math.prod(u.src[0].shape) >= REUSE * max(read, 1)


def _under_cascades(inside: dict[UOp, None]) -> tuple[set[UOp], bool]:
    """What the reductions of a kernel's cascades are of, which blocks of them compute; and whether any of them is one
    of several reductions.  Those keep in tiles what would be the square of a length in memory."""
    nodes = [u for u in inside if u.op is Ops.CASCADE]
    out: set[UOp] = set()
    stack = [s for u in nodes for s in u.src]
    while stack:
        u = stack.pop()
        if u in inside and u not in out:
            out.add(u)
            stack += u.src
    return out, any(len(u.arg.components) > 1 for u in nodes)


def _contended(cut: UOp, inside: dict[UOp, None]) -> float:
    """What a further cut must gain in a kernel that has a product which something else stands above or beside, or a
    reduction of what is a choice for each element; 0 for a kernel without one."""
    reduces = [u for u in inside if u.op is Ops.REDUCE]
    if not reduces:
        return 0.0
    if any(_chooses(u, inside) for u in reduces):
        return GAIN
    if any(u.op is Ops.CASCADE for u in inside):
        under, several = _under_cascades(inside)
        own = under - _above_cascades(cut, inside)
        if not several and any(u in own and _product(u, inside) for u in reduces):
            return CHAIN_GAIN
    else:
        own = _elementwise(cut, inside) if len(reduces) == 1 and not _reordered(cut) else set()
    return GAIN if any(u not in own and _product(u, inside) for u in reduces) else 0.0


def _chooses(reduce: UOp, inside: dict[UOp, None]) -> bool:
    """Whether an operand is a choice for each element.  One that is read in windows has a tile of it instead."""
    seen, stack = set[UOp](), [reduce.src[0]]
    while stack:
        u = stack.pop()
        if u.op in _CHOICE and u in inside:
            return True
        if u not in seen and u in inside and (u.op in ALU or u.op in _ORDERS or u.op is Ops.EXPAND):
            seen.add(u)
            stack += u.src
    return False


def _reordered(cut: UOp) -> bool:
    """Whether a kernel writes its result in another order than it has by itself."""
    while cut.op in _ORDERS and cut.op is not Ops.PERMUTE:
        cut = cut.src[0]
    return cut.op is Ops.PERMUTE


def _elementwise(cut: UOp, inside: dict[UOp, None]) -> set[UOp]:
    """What a kernel computes at the place of its result: below it in order, or element by element."""
    out, stack = set[UOp](), [_computed(cut)]
    while stack:
        u = stack.pop()
        if u in inside and u not in out:
            out.add(u)
            stack += u.src if u.op in ALU else ()
    return out


def _above_cascades(cut: UOp, inside: dict[UOp, None]) -> set[UOp]:
    """What a kernel computes without its cascades."""
    out, stack = set[UOp](), [cut]
    while stack:
        u = stack.pop()
        if u in inside and u not in out and u.op is not Ops.COMPONENT:
            out.add(u)
            stack += u.src
    return out


def _places(cut: UOp, kernels: _Kernels) -> list[frozenset[UOp]]:
    """Further cuts of a contended kernel that are worth a price: its reductions and choices, what is computed from
    reductions before it is moved or reduced again, and all of its products at once."""
    inside = kernels.cone(cut)
    order = sorted(inside, key=kernels.place.__getitem__)
    with_reduce: set[UOp] = set()
    running: set[UOp] = set()
    for u in order:
        if u.op is Ops.REDUCE or any(s in with_reduce for s in u.src):
            with_reduce.add(u)
        if u.op in _RUNNING or (u.op is not Ops.CASCADE and any(s in running for s in u.src)):
            running.add(u)
    found: dict[UOp, None] = {}
    for u in reversed(order):
        if u.op is Ops.REDUCE or u.op in _CHOICE:
            found[u] = None
        if (u.op not in ALU and u.op not in _ORDERS) or u.op is Ops.PERMUTE:
            found.update(dict.fromkeys(_computed(s) for s in u.src if s in with_reduce and not _unrounded(s, u)))
    fits = ALU | _CHOICE | {Ops.REDUCE}
    fit = [u for u in found if u is not cut and u.op in fits and u not in running]
    products = frozenset(u for u in fit if u.op is Ops.REDUCE and _product(u, inside))
    out = dict.fromkeys(frozenset({u}) for u in fit[:MOST_PLACES])
    return [*out, *([products] if len(products) > 1 else [])]


def _unrounded(u: UOp, user: UOp) -> bool:
    """Whether a sum takes a value as it is before it is rounded, which memory would do."""
    return u.op is Ops.MUL and user.op is Ops.REDUCE and user.arg.op is Ops.ADD


def _computed(u: UOp) -> UOp:
    """A value before it is put into another order."""
    while u.op in _ORDERS:
        u = u.src[0]
    return u


# ------------------------------------------------------------------------------------------------------------ moves --


class _Search:
    """Changes of the cuts, one after the other, as long as one of them gains."""

    def __init__(self, kernels: _Kernels, fixed: set[UOp]) -> None:
        self.kernels, self.fixed = kernels, fixed
        self.made: dict[UOp, Comparison] = {}

    def run(self) -> None:
        kernels = self.kernels
        place = kernels.place.__getitem__
        for cut in sorted(kernels.cuts, key=place):
            if cut in kernels.cuts and cut not in self.fixed:
                self.join(cut)
        todo = sorted(kernels.cuts, key=place)
        for _ in range(MOST_CHANGES * len(todo)):
            if not todo:
                break
            cut = todo.pop()
            gain = self.asked(cut) if cut in kernels.cuts else 0.0
            if gain:
                todo += self.divide(cut, gain)

    def asked(self, cut: UOp) -> float:
        """What a further cut must gain in the kernel of a cut; 0 where none is looked for."""
        inside = self.kernels.cone(cut)
        gain = _contended(cut, inside)
        if gain or not any(u.op is Ops.CASCADE for u in inside):
            return gain
        products = (u for u in _under_cascades(inside)[0] if u.op is Ops.REDUCE and _product(u, inside))
        return CHAIN_GAIN if any(len(self.cascades_of(u)) > 1 for u in products) else 0.0

    def cascades_of(self, value: UOp) -> set[UOp]:
        """The cascades that are computed of a value, each once more."""
        users = self.kernels.users(value)
        return {u for c in users for u in self.kernels.cone(c) if u.op is Ops.CASCADE}

    def divide(self, cut: UOp, gain: float) -> list[UOp]:
        """Cut a contended kernel where that gains most, and as much as is asked; the kernels to look at next."""
        kernels = self.kernels
        best, least = None, math.inf
        for change in _places(cut, kernels):
            users = dict.fromkeys(u for v in change for u in kernels.users(v))
            fused, apart = kernels.seconds(users), kernels.seconds((*users, *change), change)
            for value in change if len(change) == 1 else ():
                self.made[value] = Comparison(value, fused, apart)
            if apart * gain < fused and apart - fused < least:
                best, least = (change, list(users), fused, apart), apart - fused
        if best is None:
            return []
        change, changed, fused, apart = best
        kernels.change(change)
        self.made.update({value: Comparison(value, fused, apart) for value in change})
        for user in changed:
            self.rejoin(user)
        return [*changed, *change]

    def rejoin(self, user: UOp) -> None:
        """Undo the cuts at what a cascade gave that now is plain reductions: only a cascade has its results at the
        place of its kernel's, and a row's reductions can share the row."""
        kernels = self.kernels
        kernels.cone(user)
        given = frozenset(
            u
            for u in kernels.leaves[user]
            if u.op is Ops.COMPONENT
            and u not in self.fixed
            and kernels.users(u) == [user]
            and _cascade(isolated(u, kernels.cuts), set()) is None
        )
        if given:
            self.undo(given, [user])

    def join(self, cut: UOp) -> None:
        """Undo a cut that one product reads, where its kernel can take it in for less."""
        users = self.kernels.users(cut)
        if len(users) == 1 and cut.op in ALU and self.feeds_product(cut, users[0]):
            self.undo(frozenset({cut}), users)

    def undo(self, change: frozenset[UOp], users: list[UOp]) -> None:
        """Undo some cuts that others read, where that takes less time."""
        fused, apart = self.kernels.seconds(users, change), self.kernels.seconds((*users, *change))
        self.made.update({cut: Comparison(cut, fused, apart) for cut in change})
        if fused * GAIN < apart:
            self.kernels.change(change)

    def feeds_product(self, cut: UOp, user: UOp) -> bool:
        inside = self.kernels.cone(user)
        if any(u.op is Ops.CASCADE for u in (*inside, *self.kernels.cone(cut))):
            return False  # a cascade runs over blocks of its own kernel
        with_cut = {cut}
        for u in sorted(inside, key=self.kernels.place.__getitem__):
            if any(s in with_cut for s in u.src):
                if u.op is Ops.REDUCE and _product(u, inside):
                    return True
                with_cut.add(u)
        return False


def fusion(root: UOp, cuts: set[UOp], fixed: set[UOp], price: Price) -> tuple[set[UOp], list[Comparison]]:
    """The values of ``root`` (without STAGEs) that are written down, and what was compared.

    fixed: those of ``cuts`` that stay.  price: seconds of a value that is written down by itself, its buffers numbered
    in the order in which they stand.
    """
    kernels = _Kernels(root, cuts, price)
    search = _Search(kernels, fixed)
    search.run()
    return kernels.cuts, list(search.made.values())
