"""Device facts, from files of machines that are not this one."""

import os
from dataclasses import replace

import pytest

from uopc.runtime.device import device, host, memory_quota, read_device, usable_cores
from uopc.target import Feature, named

WIDE = "avx512f avx512vl avx512bw avx512dq"


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def test_this_machine():
    facts = device()
    assert facts is device()
    target = facts.target
    assert target is host()
    assert target.cores >= 1 and 4096 <= target.l1.size <= target.l2.size and target.vector_bytes in (16, 32, 64)
    assert facts.page_size >= 4096 and facts.cpu_model in facts.identity


def test_nothing_can_be_read(tmp_path):
    facts = read_device(tmp_path)
    assert facts.target == replace(named("x86-64"), cores=8) and facts.cpu_model


def test_x86(tmp_path):
    cpu = (
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 97\nmodel name\t: Some CPU @ 3GHz\n"
        "flags\t\t: fpu avx2 {}\n\nprocessor\t: 1\nflags\t: other\n"
    )
    cache = "sys/devices/system/cpu/cpu0/cache/index{}/{}"
    files = {"proc/cpuinfo": cpu.format(f"fma f16c {WIDE} avx512_bf16")}
    for index, (level, kind, size) in enumerate([(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2M")]):
        files |= {cache.format(index, "level"): f"{level}\n", cache.format(index, "type"): f"{kind}\n"}
        files |= {cache.format(index, "size"): f"{size}\n"}
    facts = read_device(write(tmp_path, files))
    target = facts.target
    assert (target.name, target.cores, target.l1.size, target.l2.size) == ("znver4", 8, 48 << 10, 2 << 20)
    assert target.vector_bytes == 64 and target.has(Feature.BF16_DOT)
    assert facts.cpu_model == "Some CPU @ 3GHz" and "other" not in facts.cpu_features
    other = read_device(write(tmp_path, {"proc/cpuinfo": cpu.format("fma f16c")}))
    assert (other.target.name, other.target.vector_bytes) == ("znver3", 32) and other.identity != facts.identity


def test_aarch64(tmp_path):
    cpu = "processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd40\n"
    facts = read_device(write(tmp_path, {"proc/cpuinfo": cpu}))
    assert facts.target.name == "neoverse-v1" and facts.target.vector_bytes == 16 and "0xd40" in facts.cpu_model


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": "max 100000"}, 8),
        ({"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": "150000 100000"}, 2),
        ({"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": "20000 100000"}, 1),
        ({"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": "9900000 100000"}, 8),
        # a quota above, a path of the host seen in a container, and an escaped path
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "300000 100000"}, 3),
        ({"proc/self/cgroup": "0::/host/path\n", "sys/fs/cgroup/cpu.max": "400000 100000"}, 4),
        ({"proc/self/cgroup": "0::/../up\n", "sys/fs/cgroup/up/cpu.max": "400000 100000"}, 4),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/app\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/app\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        ({"proc/self/cgroup": "garbage\n0::\n", "sys/fs/cgroup/cpu.max": "garbage"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 0"}, 8),
    ],
)
def test_quotas(tmp_path, files, cores):
    assert usable_cores(write(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/memory.max": "1073741824\n"}, 1 << 30),
        ({"proc/self/cgroup": "0::/host\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "5000\n",
                "sys/fs/cgroup/a/b/memory.max": "9000\n",
            },
            5000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/m\n0::/\n",
                "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "7000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            7000,
        ),
        ({"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}"}, None),
    ],
)
def test_memory_quotas(tmp_path, files, quota):
    assert memory_quota(write(tmp_path, files)) == quota
