"""Run the tests that a change needs, the nearest first, on PyTorch and without the slow ones.

    python -m tests.changed [--list] [--since REV] [--seconds 45]

A change is what differs from the merge base with `main`: commits, what is not committed, and files that git does not
know yet. Its tests are the test files that import a changed module, directly or through other modules; a test file that
changed is its own test. Fewer imports in between make a test nearer. What a test starts as a process is not seen, so
`make test` has the last word.
"""

import argparse
import ast
import hashlib
import json
import os
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.golden.import_closure import PUBLIC, lazy_names, list_imports
from tests.revisions import find_base, list_changed_files

ROOT = Path(__file__).parents[1]
SOURCES = ("keras_bert_flow", "beam_jobs", "flows")
PACKAGES = (*SOURCES, "benchmarks", "tests")
SECONDS = 45.0
NEAREST, BATCH = 2, 6  # files that are imported before the first of their tests runs: at first, and from then on
# For a change of what no test imports: text, records, settings, a model and a batch, in seconds.
SMOKE = (
    "tests/text/test_masking.py",
    "tests/records/test_tfrecord.py",
    "tests/config/test_config.py",
    "tests/layers/test_layer_contract.py",
    "tests/models/test_masked_lm.py",
)
# Files that are not imported, and the tests that read them all.
READ_BY = (
    ("*.md", "tests/test_docs.py"),
    ("CONTRIBUTING.md", "tests/test_contributing.py"),
    ("README.md", "tests/test_readme.py"),
    ("docs/*.py", "tests/test_docs.py"),
    ("examples/*", "tests/test_examples.py"),
    ("configs/*.yaml", "tests/config/test_config.py"),
    ("tests/golden/*.json", "tests/golden/test_recording.py"),
)
# It reads every source, each in a test of its own.
DESIGN = "tests/test_architecture.py"
OF_A_SOURCE = DESIGN + "::test_imports_follow_the_design[{}]"
CACHE = ".pytest_cache"
SHOWN = 5  # names in a line


class Selection(NamedTuple):
    """The tests of a change.

    Attributes:
        distances: argument of pytest → imports between it and the change, the nearest first.
        unmapped: changed files that have no test.
    """

    distances: dict[str, int]
    unmapped: list[str]


def find_tests(root: Path, changed: Iterable[str]) -> Selection:
    """Return the tests of changed files, by the imports of all sources."""
    changed = list(changed)
    importers = _find_importers(root)
    distances: dict[str, int] = {}
    unmapped = []
    for name in changed:
        readers = [test for pattern, test in READ_BY if fnmatch(name, pattern)]
        found = dict.fromkeys((test for test in readers if (root / test).is_file()), 1)
        if name.endswith(".py") and name != "tests/conftest.py":
            found |= _measure(root, importers, _name_module(name))
        if not found and not (name.endswith(".py") and not (root / name).exists()):  # nobody misses a removed module
            unmapped.append(name)
        for test, distance in found.items():
            distances[test] = min(distance, distances.get(test, distance))
    if unmapped:
        distances = {test: 1 for test in SMOKE if (root / test).is_file()} | distances
    nearest = sorted(distances, key=lambda test: (distances[test], _rank(test, changed), test))
    if (root / DESIGN).is_file():
        sources = [name for name in changed if name.endswith(".py") and name.partition("/")[0] in SOURCES]
        nearest = [*(OF_A_SOURCE.format(name) for name in sources if (root / name).is_file()), *nearest]
    return Selection({test: distances.get(test, 0) for test in nearest}, unmapped)


def _rank(test: str, changed: list[str]) -> int:
    """Return 0 for a test named after a changed file, 1 for one of the same folder, 2 for others."""
    if Path(test).stem in {f"test_{Path(name).stem}" for name in changed}:
        return 0
    folders = {Path(name.removeprefix("keras_bert_flow/")).parts[0] for name in changed}
    return 1 if Path(test).parts[1] in folders else 2


def _measure(root: Path, importers: dict[str, set[str]], changed: str) -> dict[str, int]:
    """Return test file → imports from it to a changed module, 0 for the module itself."""
    distances, border = {changed: 0}, [changed]
    while border:
        further = {importer for module in border for importer in importers[module]} - distances.keys()
        distance = distances[border[0]] + 1
        distances |= dict.fromkeys(further, distance)
        border = [*further]
    paths = {f"{module.replace('.', '/')}.py": distance for module, distance in distances.items()}
    return {path: far for path, far in paths.items() if _is_test(path) and (root / path).is_file()}


def _is_test(path: str) -> bool:
    return path.startswith("tests/") and Path(path).name.startswith("test_")


def _name_module(path: str) -> str:
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")


def _find_importers(root: Path) -> dict[str, set[str]]:
    """Return module → the modules that import it, also for a module that is no longer there."""
    importers = defaultdict(set)
    for path, names in _read_imports(root).items():
        module = _name_module(path)
        parent = module.rpartition(".")[0]
        around = {parent} - {"", PUBLIC, "tests"}
        if _is_test(path):
            around |= {f"{parent}.conftest"} - {"tests.conftest"}
        for name in {*names} | around:
            importers[name].add(module)
    return importers


def _read_imports(root: Path) -> dict[str, list[str]]:
    """Return path → dotted names that it may import; parsing takes seconds, so they are kept by what a file holds."""
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    homes = lazy_names(root) if (root / PUBLIC / "__init__.py").is_file() else {}
    rule = repr(homes).encode() + Path(__file__).read_bytes() + Path(list_imports.__code__.co_filename).read_bytes()
    cache = root / CACHE / "imports.json"
    try:
        known = json.loads(cache.read_bytes())
    except (OSError, ValueError):
        known = {}
    found, kept = {}, {}
    for path in files:
        source = path.read_bytes()
        key = hashlib.sha256(rule + os.fsencode(path.parent.relative_to(root)) + b"\0" + source).hexdigest()
        kept[key] = known[key] if key in known else _list_names(source, path, root, homes)
        found[path.relative_to(root).as_posix()] = kept[key]
    if kept.keys() != known.keys():
        cache.parent.mkdir(exist_ok=True)
        unfinished = cache.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(kept))
        unfinished.replace(cache)
    return found


def _list_names(source: bytes, path: Path, root: Path, homes: dict[str, str]) -> list[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []  # its own test says so
    package = ".".join(path.parent.relative_to(root).parts)
    names = {name for name in list_imports(tree, package) if name.partition(".")[0] in PACKAGES}
    public = {f"{PUBLIC}.{name}": f"{PUBLIC}.{home}" for name, home in homes.items()}
    if PUBLIC in names:  # import keras_bert_flow as kbf; kbf.MaskedLM
        names |= {f"{PUBLIC}.{node.attr}" for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & public.keys()
    return sorted({public.get(name, name) for name in names})


class Budget:
    """A plugin of pytest that imports no file and begins no test when the time is over, and keeps what it left out."""

    def __init__(self, files: list[str], end: float):
        self.order = {name.partition("::")[0]: place for place, name in enumerate(files)}
        self.end = end
        self.left_out: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector):
        if isinstance(collector, pytest.Module) and collector.nodeid != DESIGN and self._is_over():
            self.left_out.append(collector.nodeid)
            return pytest.CollectReport(collector.nodeid, "passed", None, [])
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: self.order.get(item.nodeid.partition("::")[0], len(self.order)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if not self._is_over():
            return None
        self.left_out.append(item.nodeid)
        return True

    def _is_over(self) -> bool:
        return time.monotonic() > self.end


def run_tests(root: Path, tests: list[str], end: float) -> int:
    """Run tests in order until `end`, of the monotonic clock, or a failure; say what was left out."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    status, left_out, waiting = 0, [], list(tests)
    while waiting and not status and time.monotonic() < end:
        size = BATCH if len(waiting) < len(tests) else NEAREST
        batch, waiting = waiting[:size], waiting[size:]
        budget = Budget(batch, end)
        status = int(pytest.main(["--quiet", "-m", "not slow", f"--rootdir={root}", *batch], plugins=[budget]))
        status = 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status  # all of them slow, or no time for them
        left_out += budget.left_out
    left_out += waiting
    if left_out:
        listed = root / CACHE / "left_out.txt"
        listed.parent.mkdir(exist_ok=True)
        listed.write_text("".join(f"{test}\n" for test in left_out), encoding="utf-8")
        files = list(dict.fromkeys(test.partition("::")[0] for test in left_out))
        command = [_show_path(Path(sys.executable), root), "-m", "pytest", "-m", "not slow", f"@{CACHE}/{listed.name}"]
        reason = "after a failure" if status else "for lack of time"
        print(f"Left out {reason}, of {len(files)} files: {_shorten(files)}. To run them:")
        print(f"KERAS_BACKEND={os.environ['KERAS_BACKEND']} {shlex.join(command)}")
    return status


def _show_path(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _shorten(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the tests and their distances, and run none")
    parser.add_argument("--since", metavar="REV", help="count from the merge base with REV; default: main")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="begin no test after so long; default: %(default)g"
    )
    given = parser.parse_args(arguments)
    end = time.monotonic() + given.seconds
    try:
        base = find_base(root, given.since)
        if not given.seconds > 0:
            raise ValueError(f"`--seconds` must be above 0. Received: {given.seconds:g}. Try {SECONDS:g}.")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    changed = list_changed_files(root, base)
    tests, unmapped = find_tests(root, changed)
    print(f"{len(changed)} changed files since {base[:9]}: {_shorten(changed) or 'none'}.")
    if unmapped:
        print(f"No test imports {_shorten(unmapped)}: the smoke tests are run.")
    if given.list:
        for test, distance in tests.items():
            print(f"{distance}  {test}")
        return 0
    sys.stdout.flush()
    return run_tests(root, list(tests), end) if tests else 0


if __name__ == "__main__":
    sys.exit(main())
