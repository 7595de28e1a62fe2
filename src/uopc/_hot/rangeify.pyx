# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The memoised recursion of rangeify, without the recursion.

A *request* is ``(node, idx, gate)``: the value of a tensor node at an index, where ``gate`` is the bool that must hold
for memory to be read (or None).  Each request is answered once.  What an op does with its index is policy and lives in
Python:

- ``moves[op](node, idx, ctx) -> idx of the source`` for movement ops,
- ``values[op](node, idx, gate, ctx) -> (requests, combine)`` for the others, where ``combine(answers)`` is the value,
  or again a pair where the answers lead to further requests.

ALU ops need no rule: their sources are asked at the same index.
"""
from uopc._hot.uop cimport UOp, rebuild

from uopc.ops import ALU, Ops

cdef enum:
    MAX_OPS = 128

cdef bint IS_ALU[MAX_OPS]
cdef int C_CONST = Ops.CONST

cdef int _code
for _op in Ops:
    _code = _op
    IS_ALU[_code] = _op in ALU


cdef class Frame:
    """A request under way: what it waits for, and what to do then."""
    cdef tuple request
    cdef list waits
    cdef object combine      # None: ALU, rebuild the node over the answers; True: a movement op, pass the answer on


cdef class Engine:
    """Answers requests; keeps the answers for as long as it lives (one kernel)."""
    cdef dict memo
    cdef dict moves, values
    cdef object ctx
    cdef dict by_node        # the indices of the first so many requests of the memo, by node
    cdef Py_ssize_t sorted

    def __init__(self, dict moves not None, dict values not None, ctx):
        self.memo = {}
        self.by_node = {}
        self.sorted = 0
        self.moves = moves
        self.values = values
        self.ctx = ctx

    cdef Frame open(self, tuple request):
        """A frame that knows what the request needs."""
        cdef Frame frame = Frame()
        cdef UOp u = <UOp>request[0], s
        frame.request = request
        frame.combine = None
        if IS_ALU[u.code]:
            frame.waits = [(s, request[1] if s.shape_ else (), request[2]) for s in u.src]
            return frame
        op = u.op
        rule = self.moves.get(op)
        if rule is not None:
            frame.combine = True
            frame.waits = [(u.src[0], rule(u, request[1], self.ctx), request[2])]
            return frame
        rule = self.values.get(op)
        if rule is None:
            raise TypeError(f"rangeify knows no rule for {u!r}")
        waits, frame.combine = rule(u, request[1], request[2], self.ctx)
        frame.waits = list(waits)
        return frame

    def run(self, UOp node, tuple idx, gate=None):
        """The loop-program value of ``node`` at ``idx``, one index expression an axis of its shape."""
        cdef tuple first = (node, idx, gate)
        cdef dict memo = self.memo
        cdef list stack, answers
        cdef Frame frame
        cdef bint ready
        found = memo.get(first)
        if found is not None:
            return found
        stack = [self.open(first)]
        while stack:
            frame = <Frame>stack[len(stack) - 1]
            ready = True
            for request in frame.waits:
                if (<UOp>(<tuple>request)[0]).code != C_CONST and request not in memo:
                    if ready:
                        ready = False
                    stack.append(self.open(<tuple>request))
                    break  # depth first, one at a time: the stack holds no request twice
            if not ready:
                continue
            answers = [(<tuple>r)[0] if (<UOp>(<tuple>r)[0]).code == C_CONST else memo[r] for r in frame.waits]
            if frame.combine is None:
                value = rebuild(<UOp>frame.request[0], tuple(answers))
            elif frame.combine is True:
                value = answers[0]
            else:
                value = frame.combine(answers)
                if type(value) is not UOp:
                    waits, frame.combine = value
                    frame.waits = list(waits)
                    continue
            memo[frame.request] = value
            stack.pop()
        return memo[first]

    def asked(self, UOp node):
        """The indices at which ``node`` was asked for so far."""
        if self.sorted != len(self.memo):
            self.by_node = {}
            for request in self.memo:
                self.by_node.setdefault((<tuple>request)[0], []).append((<tuple>request)[1])
            self.sorted = len(self.memo)
        return list(self.by_node.get(node, ()))
