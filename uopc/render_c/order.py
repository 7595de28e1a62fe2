"""Which values get a name: what is used twice, used inside another loop than it is computed in, or read before it is
overwritten.

All of it is found in two passes over the list.
"""

from __future__ import annotations

from uopc.ops import Ops
from uopc.render_c.memory import identity, spread
from uopc.uop import UOp


class Order:
    """Uses of the nodes of a LINEAR list."""

    def __init__(self, statements: tuple[UOp, ...]) -> None:
        self.statements = statements
        self.position = {u: k for k, u in enumerate(statements)}
        self.loop: dict[UOp, UOp | None] = {}  # the loop body that a node stands in
        self.uses: dict[UOp, int] = {}
        self.user: dict[UOp, UOp] = {}  # the last one
        self._count()
        self.overwritten = self._overwritten()
        self.printed = self._printed()

    def _count(self) -> None:
        loops: list[UOp | None] = [None]
        for u in self.statements:
            self.loop[u] = loops[-1]
            if u.op is Ops.RANGE:
                loops.append(u)
            elif u.op is Ops.END:
                loops.pop()
        for u in reversed(self.statements):
            if u.op is Ops.AFTER:
                self._use(u.src[0], self.user.get(u, u), max(self.uses.get(u, 0), 1))
            elif u.op is Ops.INDEX:
                self._count_address(u)
            else:
                gates = u.src[1:] if u.op is Ops.LOAD else u.src[2:] if u.op is Ops.STORE else ()
                by_lane = any(g.dtype.count > 1 for g in gates)  # each lane prints its gate and its address
                for s in u.src:
                    self._use(s, u, 2 if by_lane and (s in gates or s.op is Ops.INDEX) else 1)

    def _count_address(self, index: UOp) -> None:
        """Each user of an INDEX prints its address, and each lane that is accessed by itself its own."""
        user = self.user.get(index, index)
        users = max(self.uses.get(index, 0), 1)
        at = index.src[1]
        steps = spread(at)
        if steps is not None:
            self._use(steps[0], user, 2 * users)
        else:
            self._use(at, user, users if at.dtype.count == 1 else 2 * users)

    def _use(self, s: UOp, user: UOp, times: int) -> None:
        self.uses[s] = self.uses.get(s, 0) + times
        self.user[s] = user

    def _overwritten(self) -> dict[UOp, int]:
        """For each LOAD, where its memory is stored to next."""
        out: dict[UOp, int] = {}
        stored: dict[tuple[Ops, int], int] = {}
        for k in range(len(self.statements) - 1, -1, -1):
            u = self.statements[k]
            if u.op is Ops.STORE:
                stored[identity(u)] = k
            elif u.op is Ops.LOAD:
                out[u] = stored.get(identity(u), len(self.statements))
        return out

    def _printed(self) -> dict[UOp, int]:
        """The last position at which the text of a value is evaluated, if nothing on the way to it gets a name.

        The end of a loop is evaluated at each of its turns.
        """
        out: dict[UOp, int] = {}
        ends = {r: k for k, u in enumerate(self.statements) if u.op is Ops.END for r in u.src[1:]}
        for u in reversed(self.statements):
            user = self.user.get(u)
            if user is None:
                out[u] = 0
            elif user.op is Ops.RANGE:
                out[u] = ends[user]
            elif self.uses[u] == 1 and user.op is not Ops.STORE and user in out:
                out[u] = out[user]
            else:
                out[u] = self.position.get(user, len(self.statements))
        return out

    def inlines(self, u: UOp) -> bool:
        """Whether the text of ``u`` may stand in its user's."""
        if self.uses.get(u) != 1 or self.loop[u] is not self.loop.get(self.user[u]):
            return False
        return u.op is not Ops.LOAD or self.printed[u] <= self.overwritten[u]
