"""Gradients: reverse mode over tensor graphs, a rule for each operation.

A gradient is a graph of the same operations, which the compiler fuses as any other and which has a gradient itself.
``elementwise`` and ``structure`` are the tables of rules, ``reverse`` the walk.
"""

from __future__ import annotations

from uopc.gradient.reverse import gradients

__all__ = ["gradients"]
