"""What starting a parallel loop costs on two threads: uopc's pool beside libgomp, waiting actively and by default.

Run `python benchmarks/runtime/launch.py`.  "hot" launches follow one another; "cold" ones follow 10 ms of sleep.
"""

import os
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
RUNTIME_C = HERE.parents[1] / "runtime_c"
FLAGS = ["-std=gnu11", "-O2", "-march=native", "-pthread"]
VARIANTS = {
    "serial and uopc": ([], {}),
    "libgomp active": (["-fopenmp"], {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "active"}),
    "libgomp default": (["-fopenmp"], {"OMP_NUM_THREADS": "2"}),
}


def measure(flags: list[str], environment: dict[str, str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "launch"
        sources = [HERE / "launch.c", *RUNTIME_C.glob("*.c")]
        subprocess.run([os.environ.get("CC", "cc"), *FLAGS, *flags, *sources, "-o", program, "-lm"], check=True)
        said = subprocess.run([program], env={**os.environ, **environment}, check=True, capture_output=True, text=True)
    return {name: float(value) for name, value in (line.split() for line in said.stdout.splitlines())}


def main() -> None:
    results = {name: measure(flags, environment) for name, (flags, environment) in VARIANTS.items()}
    print(f"{'microseconds':24}" + "".join(f"{name:>18}" for name in results))
    for row in results["serial and uopc"]:
        print(f"{row:24}" + "".join(f"{1e-3 * result[row]:18.2f}" for result in results.values()))


if __name__ == "__main__":
    main()
