"""Walk every import and fail on an edge that the design does not allow."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
PACKAGES = ("keras_bert_flow", "beam_jobs", "flows")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
BACKENDS = ("keras", "tensorflow", "jax", "torch")

# room → rooms of ours, and packages of others, that it may import; it may always import itself and the standard library
EVERYTHING = None
ALLOWED = {
    "console": "rich",
    "files": "console yaml",
    "config": "console files tasks text pydantic",  # of tasks and text what is registered, and the settings of tasks
    "results": "config console files installed text pydantic",
    # The last two, which come with Beam, only where a file needs them.
    "text": "by_name console files numpy tokenizers pyarrow zstandard",
    "records": "files results numpy google_crc32c",
    # What lies elsewhere is fetched; `fsspec` is loaded when something does, the next two when it is on HDFS.
    "stores": "console files installed records results fsspec requests urllib3 huggingface_hub",
    "tasks": "by_name files text numpy pydantic scipy sklearn threadpoolctl pyarrow",
    "data": "files records results stores tasks text grain numpy",
    "backends": "config keras numpy grain jax tensorflow torch",
    "layers": "backends by_name keras numpy",
    "models": "backends by_name layers keras numpy",
    # The backends where the file of one is loaded.
    "distribution": "backends config data layers models keras numpy jax jax_plugins tensorflow torch",
    "conversion": (
        "backends by_name config console files installed layers models records results stores text "
        "h5py keras keras_hub ml_dtypes numpy safetensors tokenizers"
    ),
    "training": (
        "backends config console conversion data distribution files installed layers models records results stores "
        "tasks text keras numpy safetensors scipy"
    ),
    "prediction": "by_name console conversion data files models results stores tasks text numpy scipy",
    "evaluation": ("config console conversion data files prediction results tasks training matplotlib numpy yaml"),
    # The runtimes of its formats, each where its file is loaded.
    "export": (
        "backends by_name console conversion data files installed models prediction results stores tasks text "
        "ai_edge_litert jax keras numpy onnx onnxruntime tensorflow tensorflow_text tf2onnx torch"
    ),
    "serving": "prediction fastapi numpy prometheus_client pydantic starlette uvicorn",
    # Each of the two where the file of its logger is loaded.
    "tracking": "by_name console results mlflow wandb",
    "tuning": "config files optuna",
    "checks": (
        "config console conversion data distribution files installed models prediction records results stores tasks "
        "text training keras numpy scipy yaml"  # Keras where a step is compiled for a device
    ),
    "beam_jobs": "config console files records results stores text apache_beam numpy zstandard",
    "flows": EVERYTHING,
    "cli": EVERYTHING,
    "by_name": "",
    "installed": "",
    "__main__": "cli console installed",
    "__init__": "",  # public names are loaded by `importlib` when they are first used
}
NOBODY_IMPORTS = {"flows": ("flows", "cli"), "cli": ("cli", "__main__"), "beam_jobs": ("beam_jobs", "flows", "cli")}


def room_of(module: str) -> str:
    """Name the room of a dotted module: `keras_bert_flow.text.pairs` is in `text`, `numpy.random` in `numpy`."""
    parts = module.split(".")
    return parts[1] if parts[0] == "keras_bert_flow" and len(parts) > 1 else parts[0]


@cache
def imported_modules(path: Path) -> set[str]:
    """Return every module that a file imports, wherever in the file, with dots."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports by a relative name"
            modules |= (
                {f"{node.module}.{name.name}" for name in node.names} if node.module in PACKAGES else {node.module}
            )
    return modules


def edges_of(path: Path) -> set[str]:
    return {room_of(module) for module in imported_modules(path)} - set(sys.stdlib_module_names)


def room_of_file(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return room_of(".".join(parts))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_design(path):
    room, name = room_of_file(path), str(path.relative_to(ROOT))
    assert room in ALLOWED, f"{name} is in no room of the design"
    edges = edges_of(path) - {room}
    for target, sources in NOBODY_IMPORTS.items():
        assert target not in edges or room in sources, f"{name} imports {target}"
    if ALLOWED[room] is not EVERYTHING:
        forbidden = edges - {*ALLOWED[room].split()}
        assert not forbidden, f"{name} imports {', '.join(sorted(forbidden))}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_are_public(path):
    for module in imported_modules(path):
        assert not module.startswith("keras.src"), f"{path.relative_to(ROOT)} imports {module}"
        parts = module.split(".")
        private = [part for part in parts if part.startswith("_") and not part.startswith("__")]
        assert not private, f"{path.relative_to(ROOT)} imports {module}"


def find_cycle(arrows: dict[str, set[str]]) -> set[str]:
    """Find what imports itself by way of others: what is left when everything that leads nowhere is removed."""
    while ends := {name for name, targets in arrows.items() if not targets & arrows.keys()}:
        arrows = {name: targets for name, targets in arrows.items() if name not in ends}
    return {*arrows}


def test_rooms_have_no_cycle():
    arrows = {room: set() for room in ALLOWED}
    for path in SOURCES:
        room = room_of_file(path)
        arrows[room] |= {edge for edge in edges_of(path) if edge in ALLOWED} - {room}
    assert not find_cycle(arrows)


def test_files_have_no_cycle():
    """Imports for type checkers alone count as well; those of a package itself, its `__init__`, do not."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    assert not find_cycle({name: {*imported_modules(path)} - {name} for name, path in names.items()})


def test_every_module_of_the_house_is_looked_at():
    assert len(SOURCES) > 50
    assert {room_of_file(path) for path in SOURCES} <= set(ALLOWED)


def light_modules() -> list[str]:
    """Name the modules that a Beam worker loads, which must not load a backend."""
    folders = (
        "keras_bert_flow/text",
        "keras_bert_flow/records",
        "keras_bert_flow/files",
        "keras_bert_flow/results",
        "beam_jobs",
    )
    files = [
        path.relative_to(ROOT).with_suffix("") for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    modules = [".".join(file.parts).removesuffix(".__init__") for file in files]
    return ["keras_bert_flow", "beam_jobs", "keras_bert_flow.config.loading", *modules]


def test_light_modules_load_no_backend():
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1].split(','):\n"
        "    importlib.import_module(name)\n"
        f"    loaded = [backend for backend in {BACKENDS} if backend in sys.modules]\n"
        "    if loaded: sys.exit(f'{name} loads {loaded}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, ",".join(light_modules())],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr


# Packages that a user may do without → in the names of the modules that need them to be imported.
OPTIONAL = {
    "jax": r"\.jax_",
    "tensorflow": r"[._]tensorflow",
    "tensorflow_text": r"\.tensorflow_strings$",
    "torch": r"[._]torch",
    "apache_beam": r"^beam_jobs\.",
    "zstandard": r"^beam_jobs\.",
    "prefect": r"^flows\.",
    "httpx": r"^flows\.",
    "fastapi": r"\.serving\.|^flows\.",
    "uvicorn": r"\.serving\.|^flows\.",
    "prometheus_client": r"\.serving\.",
    "requests": r"\.hdfs$",
    "mlflow": r"\.mlflow_run$",
    "wandb": r"\.wandb_run$",
    "optuna": r"\.tuning$",
} | dict.fromkeys(
    [
        "ai_edge_litert",
        "huggingface_hub",
        "keras_hub",
        "matplotlib",
        "onnx",
        "onnxruntime",
        "pandas",
        "pyarrow",
        "tf2onnx",
    ],
    "^$",
)


def imported_at_once(node: ast.AST) -> Iterator[str]:
    """Yield each module that is imported when a file is: not in a function, for types, or where it may be absent."""
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (node.module, *(f"{node.module}.{name.name}" for name in node.names))
    elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try):
        for child in ast.iter_child_nodes(node):
            yield from imported_at_once(child)


def test_optional_packages_are_needed_by_the_modules_that_are_named_so():
    """A user of one backend has no other, and `kbf export` needs nothing of a format that is not asked for."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    arrows = {name: {*imported_at_once(ast.parse(path.read_bytes()))} for name, path in names.items()}

    @cache
    def needed(name: str) -> frozenset[str]:
        """Return the packages of others that a module needs to be imported; files have no cycle."""
        ours = {target for target in arrows[name] if target in arrows} - {name}
        others = {target.partition(".")[0] for target in arrows[name] - ours}
        return frozenset(others.union(*map(needed, ours)))

    misplaced = {(name, package) for name in names for package in needed(name) & OPTIONAL.keys()}
    assert not {(name, package) for name, package in misplaced if not re.search(OPTIONAL[package], name)}
    assert {package for _, package in misplaced} >= {"jax", "tensorflow", "torch", "apache_beam", "prefect"}


def test_commands_are_loaded_without_what_takes_seconds():
    """`kbf --help` loads the modules of all commands."""
    heavy = [*BACKENDS, "apache_beam", "prefect", "sklearn", "scipy.stats", "pandas", "pyarrow", "matplotlib"]
    code = f"import sys, keras_bert_flow.cli as cli; cli.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    "path",
    [path for path in SOURCES if path.name == "__init__.py"],
    ids=lambda path: str(path.parent.relative_to(ROOT)),
)
def test_rooms_say_what_lives_there(path):
    assert ast.get_docstring(ast.parse(path.read_bytes()))
