import ast
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from keras_bert_flow.results.manifest import write_manifest
from keras_bert_flow.results.stages import STAGES
from tests.golden.import_closure import PACKAGES, ROOT, code_digests, describe_tree
from tests.oracles.tiny_model import TINY_SHAPE, write_tiny_model
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.patience import PATIENCE_SECONDS

# Modules that a stage may load without being made with them, and why they cannot change a result.
NEVER_COUNTED = {
    "keras_bert_flow": "looks up public names, and the classes of `.keras` files, which no stage reads",
}
# Files that import by name; what they import is seen as `module:name`, or is listed above, or is no part of a stage.
IMPORT_BY_NAME = {"__init__.py", "by_name.py", "cli/__init__.py"}
MUTATION = "\nMUTATED_FOR_A_TEST = 1\n"


@pytest.fixture
def tree(tmp_path):
    """A copy of the sources that a test may change."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def write_package(root, **sources):
    for name, source in {"__init__": "", **sources}.items():
        path = root / "keras_bert_flow" / Path(*name.split("__0__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


def closure_of(root, module="keras_bert_flow.a"):
    return {name.removeprefix("keras_bert_flow.") for name in code_digests(module, root)}


def source_of(tree, module):
    path = tree.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def closures():
    """Return stage → module of its closure → digest."""
    return {name: code_digests(stage.made_by) for name, stage in STAGES.items()}


def change_constant(source):
    """Return a source with another value for its first number, or text of one line, that is no docstring."""
    tree = ast.parse(source)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings among them
    texts |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float, str) and id(node) not in texts:
            lines = source.encode().splitlines(keepends=True)
            if node.lineno == node.end_lineno:
                line = lines[node.lineno - 1]
                changed = repr(node.value + ("x" if isinstance(node.value, str) else 1)).encode()
                lines[node.lineno - 1] = line[: node.col_offset] + changed + line[node.end_col_offset :]
                return b"".join(lines).decode()
    return None


def test_change_of_a_constant_is_one():
    assert change_constant('"""A 1."""\nNAME = f"{2}"\nSIZE = 3\n') == '"""A 1."""\nNAME = f"{2}"\nSIZE = 4\n'
    assert change_constant("def f(x='a'):\n    pass\n") == "def f(x='ax'):\n    pass\n"
    assert change_constant('"""Only words."""\n') is None
    changeable = [change_constant(source_of(ROOT, name).read_text()) for name in closures()["evaluation"]]
    assert changeable.count(None) < len(changeable) / 5


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import keras_bert_flow.b", {"a", "b"}),
        ("from keras_bert_flow import b", {"a", "b"}),
        ("from keras_bert_flow.b import name", {"a", "b"}),
        ("from .b import name", {"a", "b"}),
        ("from . import b", {"a", "b"}),
        ("def f():\n    from keras_bert_flow import b", {"a", "b"}),
        ("from keras_bert_flow import public_name", {"a", "b"}),
        ("TABLE = {'k': 'keras_bert_flow.b:Class'}", {"a", "b"}),
        ("from keras_bert_flow.room import c", {"a", "room", "room.c", "b"}),
        ("if TYPE_CHECKING:\n    import keras_bert_flow.b", {"a"}),
        ("if typing.TYPE_CHECKING:\n    import keras_bert_flow.b\nelse:\n    import keras_bert_flow.room.c",
         {"a", "room", "room.c", "b"}),
        ("import numpy, json", {"a"}),
    ],
)  # fmt: skip
def test_import_is_found(tmp_path, source, found):
    init = "_HOMES = {'public_name': 'b'}"
    write_package(tmp_path, __init__=init, a=source, b="", room__0____init__="", room__0__c="from ..b import x")
    assert closure_of(tmp_path) == found


def test_unknown_module_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Received: keras_bert_flow\.none"):
        code_digests("keras_bert_flow.none", tmp_path)


@pytest.mark.slow
def test_changed_constant_changes_a_digest_and_a_comment_or_docstring_does_not(tree):
    """In every module of every stage."""
    before = {name: code_digests(stage.made_by, tree) for name, stage in STAGES.items()}
    assert before == closures()
    sources = {name: source_of(tree, name).read_text() for name in set().union(*before.values())}
    for name, source in sources.items():
        body = ast.parse(source).body
        start = body[0].end_lineno if body and isinstance(body[0], ast.Expr) else 0
        code = "\n".join(source.splitlines()[start:])
        source_of(tree, name).write_text(f'"""Another docstring."""\n{code}\n# A comment.\n')
    assert {name: code_digests(stage.made_by, tree) for name, stage in STAGES.items()} == before
    for name, source in sources.items():
        source_of(tree, name).write_text(source + MUTATION)
    for stage, module in ((name, stage.made_by) for name, stage in STAGES.items()):
        after = code_digests(module, tree)
        assert after.keys() == before[stage].keys() and not after.items() & before[stage].items()
    for name, source in sources.items():
        source_of(tree, name).write_text(source)
    for name, source in sources.items():  # one at a time: a constant may name a module, and so change the closure
        if changed := change_constant(source):
            stage = next(stage for stage in STAGES if name in before[stage])
            source_of(tree, name).write_text(changed)
            assert code_digests(STAGES[stage].made_by, tree) != before[stage], name
            source_of(tree, name).write_text(source)


def test_nested_docstrings_do_not_count_and_values_in_bodies_do(tmp_path):
    digests = set()
    for text, value in (("one", 1), ("two", 1), ("two", 2)):
        write_package(
            tmp_path, a=f'class A:\n    """{text}"""\n    def f(self):\n        """{text}"""\n        return {value}'
        )
        digests.add(code_digests("keras_bert_flow.a", tmp_path)["keras_bert_flow.a"])
    assert len(digests) == 2


LAID_OUT = """
def f(a, *, b=(1, 2)):
    return f"{a!r:>{b}} {{}}" "c", [a, b], u"d"
"""
IN_ANOTHER_WAY = """
def f(  # a comment
    a,
    *,
    b=(
        1,
        2,
    ),
):
    'A docstring.'

    return (f'{a!r:>{b}} {{}}c', [a, b,], 'd')
"""


def test_layout_does_not_count_and_what_a_text_says_does():
    first, second, other = (
        describe_tree(ast.parse(source).body[0].body[-1])
        for source in (LAID_OUT, IN_ANOTHER_WAY, LAID_OUT.replace("r:", "s:"))
    )
    assert first == second != other


def test_digest_is_the_same_of_each_minor_version_of_python(tmp_path):
    """The constant was found with Python 3.11, 3.12 and 3.13, which parse f-strings and print trees differently."""
    write_package(tmp_path, a=LAID_OUT)
    assert code_digests("keras_bert_flow.a", tmp_path)["keras_bert_flow.a"] == "97ffb3dfbd57fed7"


def test_closures_hold_what_a_result_depends_on_and_no_more():
    def room_of(name):
        is_configured = name.endswith(".settings") or ROOT.joinpath(*name.split(".")).is_dir()  # or an `__init__`
        return "config" if is_configured else name.split(".")[1]

    rooms = {name: set(map(room_of, modules)) for name, modules in closures().items()}
    assert {"text", "records", "data", "models", "layers", "training"} <= rooms["pretraining"]
    assert {"text", "records", "tasks", "training"} <= rooms["finetuning"] and "prediction" in rooms["evaluation"]
    assert not {"tasks", "evaluation", "prediction", "checks"} & rooms["pretraining"]
    for stage in ("corpus", "vocabulary", "records"):
        assert not {"models", "layers", "training", "tasks", "data", "conversion"} & rooms[stage]
    assert not {"cli", "checks"} & set().union(*rooms.values())
    assert "keras_bert_flow.records.example" not in closures()["vocabulary"]
    assert "keras_bert_flow.tasks.classification" in closures()["finetuning"]


def test_files_that_import_by_name_are_known():
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = {path for path in files if "import_module(" in path.read_text(encoding="utf-8")}
    assert {path.relative_to(ROOT / "keras_bert_flow").as_posix() for path in found} == IMPORT_BY_NAME


# stage → what runs it on the files of `inputs`; `corpus` takes minutes, and only its imports are looked at
RUNS = {
    "corpus": "",
    "vocabulary": "stage.build_vocabulary(config.corpus, config.vocabulary, folder / 'out')",
    "records": "stage.build_records(config.corpus, config.records, folder / 'v.txt', False, folder / 'out')",
    "pretraining": "stage.pretrain(config, folder / 'records', folder / 'out', report=str)",
    "distillation": "stage.distill(config, folder / 'records', folder / 'teacher', folder / 'out', report=str)",
    "augmentation": "stage.augment(config, folder / 'teacher', folder / 'out')",
    "finetuning": "stage.finetune(config, folder / 'model', folder / 'out', report=str)",
    "evaluation": (
        "made = [folder / name for name in ('finetuned', 'pretrained', 'records')]\n"
        "stage.write_evaluation(config, *made, folder / 'out')"
    ),
}


@pytest.fixture
def inputs(tmp_path):
    """Write what every stage reads, and the configuration as JSON."""
    write_tiny_records(tmp_path / "records")
    run = tmp_path / "finetuned" / "pretrained" / "seed-1"
    write_tiny_model(run / "model")
    (run / "run.json").write_text('{"start": "pretrained", "seed": 1, "seconds": 1, "score": 0.5}')
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "metrics.json").write_text('{"seconds": 1}')
    for name, stage in (("finetuned", "finetuning"), ("pretrained", "pretraining")):
        write_manifest(tmp_path / name, stage, "key", {}, {}, {})
    write_tiny_model(tmp_path / "model")
    write_tiny_model(
        tmp_path / "teacher", pieces=(tmp_path / "records" / "vocab.txt").read_text().split(), has_masked_lm=True
    )
    shutil.copy(tmp_path / "model" / "vocab.txt", tmp_path / "v.txt")
    (tmp_path / "corpus.txt").write_text("A cat sat. It ate.\n\nA dog ran. It hid.\n" * 20)
    (tmp_path / "table.tsv").write_text("text\tlabel\n" + "a b\tyes\nc\tno\n" * 4)
    table = str(tmp_path / "table.tsv")
    config = make_tiny_config(total_steps=2, warmup_steps=0).model_dump(mode="json") | {
        "backend": "torch",
        "corpus": {"input": [str(tmp_path / "corpus.txt")]},
        "vocabulary": {"size": 60},
        "task": {"name": "a task", "train": table, "dev": table},
        "distillation": {
            "student": {"family": "distilbert", "num_layers": 1} | TINY_SHAPE,
            "batch_size": 4,
            "total_steps": 2,
            "warmup_steps": 0,
        },
        "finetuning": {"sequence_length": 16, "epochs": 1, "batch_size": 4, "seeds": [1], "compare_random": False},
    }
    config["records"] |= {"sequence_length": 16, "max_predictions": 4, "objective": "mlm"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


QUICK = ("corpus",)  # the others take seconds each, those that import Keras many


@pytest.mark.parametrize(
    "stage",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STAGES],
)
@pytest.mark.slow
def test_every_project_module_that_a_stage_loads_is_in_its_closure(stage, inputs):
    code = (
        f"import importlib, json, pathlib, sys\nstage = importlib.import_module('{STAGES[stage].made_by}')\n"
        "from keras_bert_flow.config.pipeline import PipelineConfig\n"
        f"folder = pathlib.Path({str(inputs)!r})\n"
        "config = PipelineConfig(**json.loads((folder / 'config.json').read_text()))\n"
        f"{RUNS[stage]}\n"
        "make = sys.modules.get('keras_bert_flow.tasks.registry')\n"
        "for kind in make.KINDS if make else (): make.make_task(kind)\n"
        f"print('\\nloaded', *[name for name in sys.modules if name.split('.')[0] in {PACKAGES}])"
    )
    torch = os.environ | {"KERAS_BACKEND": "torch"}  # which has nothing to compile
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=torch
    )
    assert done.returncode == 0, done.stderr
    assert not RUNS[stage] or (inputs / "out" / "manifest.json").is_file()
    loaded = set(done.stdout.rpartition("\nloaded")[2].split()) - set(NEVER_COUNTED) - {"beam_jobs"}
    closure = set(closures()[stage])
    assert STAGES[stage].made_by in loaded and loaded <= closure, loaded - closure
