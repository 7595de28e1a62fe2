"""What compare.py prints and records."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import time
from typing import Any

from uopc.runtime.device import device

COLUMNS = "{:32s} {:>9s} {:>8s} {:>7s} {:>6s} {:>8s}  {:30s} {:>9s} {:>6s} {:>6s} {:>5s}"


def load() -> list[float]:
    """How many processes wanted to run, over the last 1, 5 and 15 minutes: ours is one to two."""
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else []


def environment(threads: int, versions: dict[str, str]) -> dict[str, Any]:
    """The machine, the compiler and the versions of all that is measured."""
    machine = device()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cpu": machine.cpu_model,
        "cores": machine.target.cores,
        "vector_bytes": machine.target.vector_bytes,
        "caches": dict(zip(("l1d", "l2", "l3"), (cache.size for cache in machine.target.caches))),
        "threads": threads,
        "system": platform.platform(),
        "python": platform.python_version(),
        "compiler": _first_line([os.environ.get("CC", "cc"), "--version"]),
        "commit": _first_line(
            ["git", "-C", os.path.dirname(os.path.abspath(__file__)), "describe", "--always", "--dirty"]
        ),
        "versions": versions,
        "load": load(),
    }


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.splitlines() or [""])[0]


def table_head(result: dict[str, Any]) -> str:
    facts = result["environment"]
    kib = ", ".join(f"{name.upper()} {size >> 10} KB" for name, size in facts["caches"].items())
    lines = [
        f"{facts['cpu']}, {facts['cores']} cores, vectors of {facts['vector_bytes']} bytes, {kib}",
        f"{facts['threads']} threads, {facts['compiler']}, load {facts['load']}",
        _probes(result["probes"]),
        "",
        COLUMNS.format("case", "uopc ms", "rate", "", "limit", "error", "best peer", "ms", "ratio", "wanted", "load"),
    ]
    return "\n".join(lines)


def _probes(probes: dict[str, float]) -> str:
    units = {True: "GFLOP/s", False: "GB/s"}
    return "machine: " + ", ".join(
        f"{name} {rate * 1e-9:.0f} {units[name.startswith('fma')]}" for name, rate in probes.items()
    )


def line(row: dict[str, Any], verbose: bool = False) -> str:
    """One row: uopc's time, rate and share of the limit, the best peer's time, and the ratio.

    An asterisk is on a ratio or share that falls short.
    """
    ours, peer = row["results"].get("uopc"), row["best_peer"]
    if ours is None:
        text = f"{row['case']:32s} uopc: {row['skipped'].get('uopc', '')}"
    else:
        computes = row["limit"].startswith("fma")
        share, ratio = ours["share_of_limit"], row["ratio"]
        text = COLUMNS.format(
            row["case"],
            f"{ours['min'] * 1e3:.3f}",
            f"{ours['gflops' if computes else 'gbytes']:.1f}",
            "GFLOP/s" if computes else "GB/s",
            "" if share is None else f"{share:.0%}" + _mark(share, row["wanted_share"]),
            f"{ours['error']:.1e}",
            peer or "",
            f"{row['results'][peer]['min'] * 1e3:.3f}" if peer else "",
            "" if ratio is None else f"{ratio:.2f}" + _mark(ratio, row["wanted_ratio"]),
            f"{row['wanted_ratio']:.2f}",
            f"{row['load'][0]:.1f}" if row["load"] else "",
        )
    return "\n".join([text, *_details(row)]) if verbose else text


def _mark(value: float, wanted: float | None) -> str:
    return "*" if wanted is not None and value < wanted else " "


def _details(row: dict[str, Any]) -> list[str]:
    lines = []
    for variant, r in sorted(row["results"].items(), key=lambda item: item[1]["min"]):
        times = f"min {r['min'] * 1e3:9.3f} ms, median {r['median'] * 1e3:9.3f} ms"
        rates = f"{r['gflops']:7.1f} GFLOP/s {r['gbytes']:6.1f} GB/s, error {r['error']:.1e}"
        first = f"first call {r['first_seconds'] * 1e3:.0f} ms, +{r['peak_growth'] >> 20} MB"
        lines.append(f"    {variant:32s} {times}, {rates}, {first}, {r['how']}")
    return lines + [f"    {variant:32s} {reason}" for variant, reason in row["skipped"].items()]


def summary(result: dict[str, Any]) -> str:
    """What falls short, the mean over the matrix products against NumPy, and who was left out."""
    lines = ["", _probes(result["probes"]) + " (the best of all rounds)", f"load at the end {load()}"]
    short = [_short(row, result["probes"]) for row in result["rows"]]
    met = sum(text == "" for text in short)
    lines.append(f"{met} of {len(short)} rows reach what is wanted" + (":" if met < len(short) else ""))
    lines += [text for text in short if text]
    against = [row["results"] for row in result["rows"] if row["suite"] == "matmul"]
    ratios = [r["numpy"]["min"] / r["uopc"]["min"] for r in against if "numpy" in r and "uopc" in r]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"geometric mean of {len(ratios)} matrix products against NumPy: {mean:.2f} (wanted 1.15)")
    lines += [f"absent: {variant}: {reason}" for variant, reason in result["absent"].items()]
    return "\n".join(lines)


def _short(row: dict[str, Any], probes: dict[str, float]) -> str:
    """How a row falls short, if it does."""
    ours = row["results"].get("uopc")
    if ours is None:
        return f"  {row['case']}: uopc did not run: {row['skipped'].get('uopc', '')}"
    faults = []
    if row["ratio"] is not None and row["ratio"] < row["wanted_ratio"]:
        faults.append(f"{row['ratio']:.2f} of {row['best_peer']}, wanted {row['wanted_ratio']:.2f}")
    share, wanted = ours["share_of_limit"], row["wanted_share"]
    if wanted is not None and share is not None and share < wanted:
        faults.append(f"{share:.0%} of the machine's {row['limit']}, wanted {wanted:.0%}")
    return f"  {row['case']}: {'; '.join(faults)}" if faults else ""
