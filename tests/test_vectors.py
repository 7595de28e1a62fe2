"""Vectors of other widths than this machine's widest: the same expressions, compiled without the wider instructions."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

X86 = platform.machine() in ("x86_64", "AMD64")


@pytest.mark.skipif(not X86 or shutil.which("gcc") is None, reason="needs gcc for x86")
@pytest.mark.parametrize("vector_bytes, without", [(32, "-mno-avx512f"), (16, "-mno-avx"), (64, "-mno-avx")])
def test_narrow_vectors_give_the_same_values(vector_bytes: int, without: str, tmp_path: Path) -> None:
    """In the last case the compiler makes vectors of 64 bytes of smaller ones."""
    env = {**os.environ, "CC": f"gcc {without}", "UOPC_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(Path(__file__).with_name("narrow_vectors.py")), str(vector_bytes)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stderr[-2000:]
