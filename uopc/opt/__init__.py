"""Optimisation policy: which sizes a kernel's loops get, and the passes that carry the decision out."""
