"""The C tests of runtime_c, plain and under each sanitizer."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUNTIME_C = Path(__file__).parents[2] / "runtime_c"


@pytest.mark.skipif(not shutil.which("make") or not shutil.which("cc"), reason="needs make and cc")
@pytest.mark.skipif(not RUNTIME_C.exists(), reason="not a source tree")
@pytest.mark.parametrize("sanitizer", ["", "address", "undefined", "thread"])
def test_c_tests(tmp_path, sanitizer):
    if sanitizer:
        empty = subprocess.run(
            ["cc", f"-fsanitize={sanitizer}", "-x", "c", "-", "-o", str(tmp_path / "probe")],
            input="int main(void) { return 0; }",
            text=True,
            capture_output=True,
        )
        if empty.returncode or subprocess.run([tmp_path / "probe"], capture_output=True).returncode:
            pytest.skip(f"the {sanitizer} sanitizer does not work here: {empty.stderr.strip()[-200:]}")
    command = ["make", "test", f"SANITIZE={sanitizer}", f"BUILD={tmp_path}"]
    env = {**os.environ, "TSAN_OPTIONS": "die_after_fork=0"}  # clang's refuses threads in a child otherwise
    result = subprocess.run(command, cwd=RUNTIME_C, env=env, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
