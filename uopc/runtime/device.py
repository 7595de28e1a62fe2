"""What the compiler and the pool need to know of this machine, read once from /proc and /sys.

Everything has a default that is safe where a file is missing: in containers, on other processors, under emulation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from uopc.target import Target, target_of

NO_LIMIT = 1 << 60  # version 1 of cgroups says 2**63 less a page


@dataclass(frozen=True)
class Device:
    """A machine by its name, and as the compiler sees it: the Target's cores are those that this process may use, by
    its affinity mask and its cgroup's quota, and its caches are the machine's."""

    cpu_model: str
    page_size: int
    cpu_features: frozenset[str] = field(repr=False)
    target: Target

    @property
    def identity(self) -> str:
        """What code compiled for this processor alone depends on."""
        return f"{os.uname().machine} {self.cpu_model} {' '.join(sorted(self.cpu_features))}"


@lru_cache(maxsize=1)
def device() -> Device:
    """The facts of this machine."""
    return read_device(Path("/"))


def read_device(root: Path) -> Device:
    """The facts as told by root/proc and root/sys."""
    fields = _first_processor(root / "proc/cpuinfo")
    features = frozenset((fields.get("flags") or fields.get("Features") or "").split())
    arm_name = " ".join(f"{key}={fields[key]}" for key in sorted(fields) if key.startswith("CPU "))
    vendor = fields.get("vendor_id") or fields.get("CPU implementer") or ""
    family, model = (
        _number(fields, x86, arm) for x86, arm in (("cpu family", "CPU architecture"), ("model", "CPU part"))
    )
    caches = _cache_sizes(root / "sys/devices/system/cpu/cpu0/cache")
    return Device(
        target=target_of(vendor, family, model, features, usable_cores(root), caches),
        cpu_model=fields.get("model name") or arm_name or os.uname().machine,
        page_size=os.sysconf("SC_PAGESIZE"),
        cpu_features=features,
    )


def host() -> Target:
    """This machine as the compiler sees it."""
    return device().target


def _number(fields: dict[str, str], *names: str) -> int:
    """The number that one of these fields holds; 0 where none does."""
    for name in names:
        try:
            return int(fields.get(name, ""), 0)
        except ValueError:
            continue
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    """The first paragraph of cpuinfo.  The rest is not read: the kernel takes a while to write hundreds of them."""
    fields: dict[str, str] = {}
    try:
        with cpuinfo.open(errors="replace") as lines:
            for line in lines:
                key, colon, value = line.partition(":")
                if not colon and fields:
                    break
                fields[key.strip()] = value.strip()
    except OSError:
        pass
    return fields


def _cache_sizes(folder: Path) -> dict[int, int]:
    """Bytes of the data cache at each level."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        level, size = _read(index / "level"), _read(index / "size")
        if _read(index / "type") not in ("Data", "Unified") or not level.isdigit() or not size:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
        digits = size.rstrip("KMG")
        if digits.isdigit() and int(digits):
            sizes[int(level)] = int(digits) * unit
    return sizes


# ----------------------------------------------------------------------------------- what this process may use of it --


def usable_cores(root: Path = Path("/")) -> int:
    """How many threads can run at once: the affinity mask, cut to the cgroup's processor quota, rounded up."""
    affinity = len(os.sched_getaffinity(0))
    quota = min((q for q in _quotas(root) if q > 0), default=math.inf)
    return affinity if quota == math.inf else max(1, min(affinity, math.ceil(quota)))


def memory_quota(root: Path = Path("/")) -> int | None:
    """The bytes that the cgroup lets this process have; None where it sets no limit."""
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    texts = (_read(folder / names[version]) for version, folder in _cgroups(root, "memory"))
    least = min((int(text) for text in texts if text.isdigit()), default=NO_LIMIT)
    return least if least < NO_LIMIT else None


def _quotas(root: Path) -> Iterator[float]:
    """The quotas, in processors, of this process's cgroup and of each one above it."""
    for version, folder in _cgroups(root, "cpu"):
        if version == 2:
            yield _quota(*(_read(folder / "cpu.max").split() + ["", ""])[:2])
        else:
            yield _quota(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _cgroups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """The folders of this process's cgroup and of each one above it, with the version of its files, 2 or 1."""
    mounted = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            yield from ((2, folder) for folder in _upwards(mounted, path))
        elif controller in controllers.split(","):
            for name in (controller, controllers):
                yield from ((1, folder) for folder in _upwards(mounted / name, path))


def _upwards(mounted: Path, path: str) -> Iterator[Path]:
    """The folder of a cgroup and those above it.  A container finds its own at the mount point, whatever its path."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for n in range(len(parts), -1, -1):
        yield mounted.joinpath(*parts[:n])


def _quota(quota: str, period: str) -> float:
    """Processors; infinity where there is no quota ("max" in version 2, -1 in version 1)."""
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else math.inf
