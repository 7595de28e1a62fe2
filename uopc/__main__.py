"""python -m uopc: what can be asked of uopc without writing a program.

Each subcommand is a function that adds its own parser and says what runs; `COMMANDS` is the list of them.  Those that
look into plans stand in `uopc.inspect.commands`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from uopc.inspect.commands import COMMANDS as INSPECT

if TYPE_CHECKING:
    from uopc.runtime.cache import DiskCache

Parsers = Any  # what add_subparsers returns has no public name


def main(arguments: list[str] | None = None) -> int:
    """Run a command line.  Returns the exit code; argparse ends the process itself for a wrong one (code 2)."""
    parser = argparse.ArgumentParser(
        prog="uopc" if os.path.basename(sys.argv[0]) == "uopc" else "python -m uopc",
        description="uopc compiles NumPy-style tensor expressions to multi-threaded, vectorised C.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    chosen = parser.parse_args(arguments)
    try:
        return chosen.run(chosen)
    except BrokenPipeError:  # whoever read has read enough; what is left to be flushed goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _command(
    commands: Parsers, name: str, summary: str, examples: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """A subcommand with a summary, examples, and the function that runs it."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


# ---------------------------------------------------------------------------------------------------------- cache --


def _add_cache(commands: Parsers) -> None:
    parser = _command(
        commands,
        "cache",
        "show or empty the cache of compiled kernels and of the schedules that tuning found",
        "  python -m uopc cache info\n"
        "  python -m uopc cache clear\n"
        "  UOPC_CACHE_DIR=/tmp/uopc python -m uopc cache info\n\n"
        "The cache is in $UOPC_CACHE_DIR, else ~/.cache/uopc, and holds at most $UOPC_CACHE_LIMIT bytes (1 GiB);\n"
        "UOPC_CACHE=0 does without. Clearing it is safe at any time: running processes keep what they loaded.",
        _cache,
    )
    parser.add_argument(
        "action",
        choices=("info", "clear"),
        help="info: where it is, how full, and when it was last used; clear: remove everything",
    )


def _cache(chosen: argparse.Namespace) -> int:
    from uopc.options import environment
    from uopc.runtime.cache import CacheRefused, DiskCache
    from uopc.runtime.compiler import cache_folder

    settings = environment()
    if not settings.cache or settings.cache_limit == 0:
        print("there is no cache: UOPC_CACHE or UOPC_CACHE_LIMIT is 0")
        return 0
    folder = cache_folder()
    if not os.path.isdir(folder):
        print(f"{folder}: empty")
        return 0
    try:
        cache = DiskCache(folder, settings.cache_limit)
    except CacheRefused as refusal:
        print(f"the cache cannot be used: {refusal}", file=sys.stderr)
        return 1
    if chosen.action == "clear":
        print(f"{cache.path}: removed {_files(cache.clear())}")
    else:
        _describe(cache)
    return 0


def _describe(cache: DiskCache) -> None:
    from uopc.runtime.cache import TUNED

    files = cache.files()
    kernels = sum(name.endswith(".so") for _, _, name in files)
    size = cache.bytes_on_disk()
    print(f"folder     {cache.path}")
    print(f"kernels    {kernels}")
    print(f"tuned      {sum(name.endswith(TUNED) for _, _, name in files)}")
    print(f"size       {_bytes(size)} of {_bytes(cache.limit)} ({100 * size / cache.limit:.1f} %)")
    if files:
        print(f"last used  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(files[-1][0]))}")
        print(f"oldest     {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(files[0][0]))}")


def _files(n: int) -> str:
    return "1 file" if n == 1 else f"{n} files"


def _bytes(n: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"


def _add_inspect(commands: Parsers) -> None:
    """``info``, ``explain``, ``sweep`` and ``bench``."""
    for add in INSPECT:
        add(partial(_command, commands))


COMMANDS = (_add_cache, _add_inspect)

if __name__ == "__main__":
    sys.exit(main())
