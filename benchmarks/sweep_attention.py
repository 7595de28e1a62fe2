"""Attention over N: four forms by uopc, and what other libraries do, each in a process of its own.

    python benchmarks/sweep_attention.py                        N = 256 to 16384, one head of 64 elements
    python benchmarks/sweep_attention.py --causal --heads 12 --n 256:2048:x2 --plot attention.svg

It is ``python -m uopc sweep attention`` with other defaults, and takes the same options.  With four forms of uopc and
torch it ends in under three minutes on two cores; Ctrl-C loses no finished point, and ``--resume`` goes on.
"""

from __future__ import annotations

import sys

from uopc.__main__ import main

DEFAULTS = {"--n": "256:16384:x2", "--d": "64", "--impl": "unfused,recompute,online,derived,torch"}

if __name__ == "__main__":
    given = sys.argv[1:]
    defaults = [x for name, value in DEFAULTS.items() if name not in given for x in (name, value)]
    sys.exit(main(["sweep", "attention", *defaults, *given]))
