"""What is built, shipped and said about it: packages, compiled modules and their stubs, the README's commands."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest

import uopc

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = Path(uopc.__file__).parent
COMPILED = sorted(file.stem for file in (ROOT / "src" / "uopc" / "_hot").glob("*.pyx"))
STUBS = sorted((ROOT / "uopc" / "_hot").glob("*.pyi"))


def setup_list(name: str) -> list[str]:
    """A list of strings that setup.py assigns to `name`."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            value = ast.literal_eval(node.value)
            assert isinstance(value, list)
            return value
    raise AssertionError(f"setup.py assigns no list {name}")


# ---- what is built and shipped ----


def test_every_package_folder_is_listed() -> None:
    folders = {file.parent.relative_to(ROOT) for file in (ROOT / "uopc").rglob("*.py")}
    assert {".".join(folder.parts) for folder in folders} <= set(setup_list("PACKAGES"))
    for folder in folders:
        assert (ROOT / folder / "__init__.py").exists(), f"{folder} is a package without __init__.py"


def test_every_cython_source_is_listed() -> None:
    assert set(COMPILED) <= {*setup_list("PURE"), "runtime", "call"}


def shipped() -> set[PurePosixPath]:
    """The files of the installed distribution; skips where it is an editable one, which records none of them."""
    if INSTALLED.parent == ROOT:
        pytest.skip("installed in editable mode")
    # of the installed package, not of the checkout, whose build leaves a list of its sources
    (found,) = importlib.metadata.distributions(name="uopc", path=[str(INSTALLED.parent)])
    files = found.files
    assert files is not None
    return {PurePosixPath(file) for file in files if file.parts[0] == "uopc" and "__pycache__" not in file.parts}


def test_the_wheel_holds_the_package_and_nothing_else() -> None:
    files = shipped()
    python = {PurePosixPath(file.relative_to(ROOT)) for file in (ROOT / "uopc").rglob("*.py*") if file.suffix != ".pyc"}
    binaries = {file for file in files if file.suffix == ".so"}
    assert PurePosixPath("uopc/py.typed") in files
    assert python <= files
    assert {file.name.split(".")[0] for file in binaries} == set(COMPILED)
    sources = (".py", ".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h", ".o")
    strays = {str(file) for file in files - python - binaries if file.suffix in sources}
    assert not strays, "shipped, but not in the tree; does an old build/ folder still hold them?"


def test_an_unbuilt_source_tree_says_how_to_build_it(tmp_path: Path) -> None:
    package = tmp_path / "uopc" / "_hot"
    package.mkdir(parents=True)
    (tmp_path / "uopc" / "__init__.py").touch()
    (package / "__init__.py").write_text((ROOT / "uopc" / "_hot" / "__init__.py").read_text(encoding="utf-8"))
    command = [sys.executable, "-c", "import uopc._hot"]
    seeing_it = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    run = subprocess.run(command, cwd=tmp_path, env=seeing_it, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert f"ImportError: uopc is imported from the source tree {tmp_path}" in run.stderr
    assert "pip install -e ." in run.stderr


# ---- stubs of compiled modules ----


def own_names(module: ModuleType) -> set[str]:
    """Public names that a compiled module defines itself: what it imported is not its own."""
    names = set()
    for name, value in vars(module).items():
        if name.startswith("_") or isinstance(value, ModuleType):
            continue
        home = getattr(value, "__module__", None)
        if home == module.__name__ or (not isinstance(home, str) and not imported(name, value)):
            names.add(name)
    return names


def imported(name: str, value: object) -> bool:
    """Whether a value without a home, such as a table, came from a Python module of uopc under the same name."""
    homes = ("uopc.dtype", "uopc.ops", "uopc.options")
    return any(getattr(importlib.import_module(home), name, None) is value for home in homes)


def stub_names(body: list[ast.stmt]) -> set[str]:
    """Names that a stub's body says its module or class has; imports and type aliases are for the stub alone."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names |= {node.target.id} if ast.unparse(node.annotation) != "TypeAlias" else set()
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_every_compiled_module_has_a_stub_and_every_stub_a_module() -> None:
    assert [stub.stem for stub in STUBS] == COMPILED


@pytest.mark.parametrize("stub", STUBS, ids=[stub.stem for stub in STUBS])
def test_a_stub_names_what_its_module_has(stub: Path) -> None:
    module = importlib.import_module(f"uopc._hot.{stub.stem}")
    body = ast.parse(stub.read_text(encoding="utf-8")).body
    declared = {name for name in stub_names(body) if not name.startswith("_")}
    assert own_names(module) == declared
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            members = {name for name in vars(getattr(module, node.name)) if not name.startswith("_")}
            assert members == {name for name in stub_names(node.body) if not name.startswith("_")}, node.name


def parameters(node: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """Name, kind and whether there is a default, of each parameter that a stub gives a function."""
    a = node.args
    plain = [*a.posonlyargs, *a.args]
    optional = [False] * (len(plain) - len(a.defaults)) + [True] * len(a.defaults)
    out = [(arg.arg, "plain", has) for arg, has in zip(plain, optional)]
    out += [(a.vararg.arg, "several", False)] if a.vararg else []
    return out + [(arg.arg, "keyword", has is not None) for arg, has in zip(a.kwonlyargs, a.kw_defaults)]


def parameters_of(function: object) -> list[tuple[str, str, bool]] | None:
    """The same of what was compiled; None for slots such as ``__add__``, which do not tell."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    kinds = {inspect.Parameter.VAR_POSITIONAL: "several", inspect.Parameter.KEYWORD_ONLY: "keyword"}
    return [(p.name, kinds.get(p.kind, "plain"), p.default is not p.empty) for p in signature.parameters.values()]


@pytest.mark.parametrize("stub", STUBS, ids=[stub.stem for stub in STUBS])
def test_a_stub_has_the_parameters_of_what_was_compiled(stub: Path) -> None:
    module = importlib.import_module(f"uopc._hot.{stub.stem}")
    compared = 0
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            assert parameters(node) == parameters_of(getattr(module, node.name)), node.name
            compared += 1
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if not isinstance(method, ast.FunctionDef) or method.name.startswith("__"):
                    continue
                kinds = {ast.unparse(d) for d in method.decorator_list}
                value = vars(getattr(module, node.name))[method.name]
                assert ("property" in kinds) is inspect.isdatadescriptor(value), f"{node.name}.{method.name}"
                if not kinds & {"property", "staticmethod"}:
                    assert parameters(method) == parameters_of(value), f"{node.name}.{method.name}"
                    compared += 1
    assert compared


# ---- what the repository says ----


def text_files() -> Iterator[tuple[Path, str]]:
    """(path, text) of the files under version control; of the files that an sdist would hold where there is no git."""
    git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if git.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, git.stdout.split("\0")):
        file = ROOT / name
        if file.is_file() and file.suffix not in (".png", ".npz", ".npy"):
            yield file.relative_to(ROOT), file.read_text(encoding="utf-8")


# Papers, specifications and projects that a comment may cite. What an installation downloads from is the user's choice.
CITABLE = {"arxiv.org", "doi.org", "github.com", "numpy.org", "docs.python.org", "www.w3.org"}
URL = re.compile(r"https?://([\w.-]+)")
MACHINE_PATH = re.compile(r"(?<![\w.$}/])/(?:root|home|Users|work|mnt|opt|srv)/\w")


def test_no_file_names_a_host_or_a_place_on_one_machine() -> None:
    found = []
    for file, text in text_files():
        for number, line in enumerate(text.splitlines(), 1):
            hosts = set(URL.findall(line)) - CITABLE
            if hosts or MACHINE_PATH.search(line):
                found.append(f"{file}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_ci_runs_the_readme_test_command() -> None:
    commands = re.findall(r"^    (pip install .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    tests = [command for command in commands if "pytest" in command]
    assert tests == ["pip install '.[test]' && pytest tests"]
    assert tests[0] in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_no_test_folder_is_a_package() -> None:
    """A package named tests/inspect would shadow the standard library's."""
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_version_has_one_home() -> None:
    assert importlib.metadata.version("uopc") in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
