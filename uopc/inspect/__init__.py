"""What a plan does and why: explain, rooflines, sweeps, reports and comparisons of benchmarks.

Stands above everything else: no part of the compiler knows of it.
"""
