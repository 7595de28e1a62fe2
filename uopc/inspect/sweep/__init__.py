"""Sweeps: one computation by several implementations over a range of sizes, timed beside each other.

``problems`` says what is computed and how much work it is, ``forms`` and ``peers`` do it, each implementation in a
process of its own (``worker``); ``run`` drives them, and ``results`` keeps, shows and plots what they measured.
"""
