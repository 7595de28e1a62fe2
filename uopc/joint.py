"""joint: results of one cascade are written by one kernel.

A cascade runs over its axis once for each kernel that asks for its values.  STAGEs that ask for values of one cascade,
none of which needs another one first, become one kernel with a STORE each, in a common space: their bodies have one
rank, and along each axis one size, or 1.  A STAGE that such a kernel itself writes is not read back by its other bodies
if they use it element by element.

What does not lie in a common space (a cascade's value asked for at an index of another form) keeps a kernel of its own,
which runs the cascade again: slower, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from uopc.ops import Ops
from uopc.rangeify.axes import space
from uopc.rangeify.positions import Places, Probe, body_at, places, result_places
from uopc.uop import UOp, toposort

# A store: where to, and what.
Store = tuple[UOp, UOp]


def at_root(target: UOp, body: UOp) -> Store:
    """A store without movement at its root: what reorders the value reorders the place that it is written to
    instead."""
    while body.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.FLIP):
        if body.op is Ops.RESHAPE:
            target = UOp(Ops.RESHAPE, (target,), body.src[0].shape)
        elif body.op is Ops.FLIP:
            target = UOp(Ops.FLIP, (target,), body.arg)
        else:
            back = tuple(sorted(range(len(body.arg)), key=body.arg.__getitem__))
            target = UOp(Ops.PERMUTE, (target,), back)
        body = body.src[0]
    return target, body


def _cone(u: UOp) -> list[UOp]:
    """The nodes of a STAGE's body, down to other STAGEs."""
    seen: dict[UOp, None] = {}
    stack = [u.src[0]]
    while stack:
        v = stack.pop()
        if v not in seen:
            seen[v] = None
            if v.op is not Ops.STAGE:
                stack += v.src
    return list(seen)


class _Axes:
    """The common space of some results: its sizes, and which of its axes those of a cascade's values are."""

    def __init__(self, node: UOp) -> None:
        self.node = node
        self.sizes: list[int] = []
        self.found: dict[int, Places] = {}
        self.mine: list[dict[int, int]] = []  # for each result, axis -> axis of the space

    def add(self, body: UOp) -> None:
        """Find a place for a further result; ValueError where it has none."""
        probe = Probe()
        idx = probe.index(body.shape)
        found = result_places([body], self.node, idx, probe)
        if self.found and not set(found) & set(self.found):
            found = _followed(self.node, found, idx)
            self.found = _followed(self.node, self.found, Probe().index(tuple(self.sizes)))
        axes: dict[int, int] = {}
        for k in set(found) & set(self.found):
            for a, g in zip(found[k], self.found[k]):
                if (a is None) is not (g is None) or (a is not None and g is not None and axes.setdefault(a, g) != g):
                    raise ValueError(f"axis {a} of a result is axis {g} of another, and an axis besides")
        if (self.found and not axes) or len(set(axes.values())) < len(axes):
            raise ValueError("results without an axis in common")
        # the axes of blocks; others of one size may be one axis
        everywhere = set.intersection(*map(set, self.found.values())) if self.found else set[int | None]()
        for a, n in enumerate(body.shape):
            if a not in axes and n > 1:
                taken = everywhere.union(axes.values())
                axes[a] = next((g for g, m in enumerate(self.sizes) if m == n and g not in taken), len(self.sizes))
                if axes[a] == len(self.sizes):
                    self.sizes.append(n)
        self.found.update({k: tuple(None if a is None else axes[a] for a in where) for k, where in found.items()})
        self.mine.append(axes)

    def placed(self, store: Store, axes: Mapping[int, int]) -> Store:
        """A store in the space."""
        kept = sorted(axes, key=axes.__getitem__)
        sizes = {axes[a]: store[1].shape[a] for a in kept}
        shape = tuple(sizes.get(g, 1) for g in range(len(self.sizes)))
        moved = []
        for u in store:
            if kept != sorted(kept):
                order = (*kept, *(a for a in range(len(u.shape)) if a not in axes))
                u = UOp(Ops.PERMUTE, (u,), order)
            moved.append(u if u.shape == shape else UOp(Ops.RESHAPE, (u,), shape))
        return moved[0], moved[1]


def _followed(node: UOp, found: Mapping[int, Places], idx: tuple[UOp, ...]) -> dict[int, Places]:
    """``found``, and where the bodies of those reductions ask for others."""
    out, known = dict(found), {r: a for a, r in enumerate(idx)}
    for k in reversed(range(len(node.arg.components))):
        if k in out:
            _, _, probe = body_at(node, k, out[k], idx)
            for u in toposort(node):
                asked = probe.asked(u) if u.op is Ops.STATE and u.arg.cascade == node.arg.id else []
                if asked:
                    out.setdefault(u.arg.component, places(asked[0], known))
    return out


def common(stores: list[Store], node: UOp) -> list[Store] | None:
    """The stores, which have values of a cascade in common, in one space; None where there is none."""
    axes = _Axes(node)
    try:
        for _, body in stores:
            axes.add(body)
        moved = [axes.placed(store, mine) for store, mine in zip(stores, axes.mine)]
        results = [body for _, body in moved]
        for u in toposort(results):
            if u.op is Ops.CASCADE:
                probe = Probe()
                found = result_places(results, u, probe.index(space(results)), probe)
                if not found:
                    continue  # what it gives is read from memory
                everywhere = set.intersection(*(set(where) - {None} for where in found.values()))
                if not all(body.shape[a] == space(results)[a] for a in everywhere for body in results if a is not None):
                    return None
    except ValueError:
        return None
    return moved


class _Groups:
    """Which STAGEs share a kernel, and the stores of each such kernel."""

    def __init__(self, root: UOp, targets: Mapping[UOp, UOp]) -> None:
        self.targets = targets
        self.staged = [u for u in toposort(root) if u.op is Ops.STAGE]
        self.cones = {u: _cone(u) for u in self.staged}
        self.needs = {u: {v for v in cone if v.op is Ops.STAGE} for u, cone in self.cones.items()}
        self.group: dict[UOp, list[UOp]] = {}
        self.stores: dict[UOp, list[Store]] = {}

    def users(self) -> dict[UOp, list[UOp]]:
        """The STAGEs that ask for values of each CASCADE."""
        out: dict[UOp, list[UOp]] = {}
        for u, cone in self.cones.items():
            for v in cone:
                if v.op is Ops.CASCADE and 0 not in u.shape:
                    out.setdefault(v, []).append(u)
        return out

    def independent(self, members: list[UOp]) -> bool:
        """Whether no member needs another one through a STAGE in between."""
        stack = [v for m in members for v in self.needs[m] if v not in members]
        seen: set[UOp] = set()
        while stack:
            u = stack.pop()
            if u in members:
                return False
            if u not in seen:
                seen.add(u)
                stack += [v for m in self.group.get(u, [u]) for v in self.needs[m]]
        return True

    def stores_of(self, members: list[UOp], node: UOp) -> list[Store] | None:
        """The stores of a kernel that writes ``members`` (sources first), the largest first; None where it cannot."""
        inner: dict[UOp, UOp] = {}
        for m in members:
            inner[m] = m.src[0].substitute(inner) if self.needs[m].intersection(inner) else m.src[0]
        # a value that is read through another STAGE is not inlined, and makes the members depend on each other
        stores = [at_root(self.targets[m], inner[m]) for m in members]
        return common(sorted(stores, key=lambda s: -math.prod(s[1].shape)), node)

    def join(self) -> dict[UOp, list[Store]]:
        """For each STAGE that shares its kernel, the kernel's stores."""
        for node, users in self.users().items():
            for u in users:
                for other in users:
                    if other is u or u in self.group.get(other, []):
                        continue
                    both = {*self.group.get(other, [other]), *self.group.get(u, [u])}
                    members = [m for m in self.staged if m in both]
                    stores = self.stores_of(members, node) if self.independent(members) else None
                    if stores is not None:
                        for m in members:
                            self.group[m], self.stores[m] = members, stores
                        break
        return self.stores


def joint(root: UOp, targets: Mapping[UOp, UOp]) -> dict[UOp, list[Store]]:
    """The stores of each kernel that writes several of the STAGEs of ``root``, for each of those STAGEs; ``targets``:
    the BUFFER that each is written to."""
    if not any(u.op is Ops.CASCADE for u in toposort(root)):
        return {}
    return _Groups(root, targets).join()


def order(root: UOp, stores: Mapping[UOp, list[Store]]) -> list[UOp]:
    """The nodes of ``root``, and those of ``stores``: each behind its sources, a STAGE behind all that its kernel
    needs."""
    done: dict[UOp, None] = {}
    stack: list[UOp] = [root]
    while stack:
        u = stack[-1]
        below: Iterable[UOp] = (body for _, body in stores[u]) if u in stores else u.src
        missing = [s for s in below if s not in done] if u not in done else []
        if missing:
            stack += reversed(missing)
            continue
        done[stack.pop()] = None
    return list(done)
