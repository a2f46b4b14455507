import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import keras
import pytest

import keras_bert_flow
from keras_bert_flow import _REGISTERED, _RENAMED
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.any_backend
# Nothing here depends on the backend, and JAX is the quickest to load.
ENVIRONMENT = os.environ | ({"KERAS_BACKEND": "jax"} if find_spec("jax") else {})


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_registered_names_every_class_that_registers_itself():
    root, found = Path(keras_bert_flow.__file__).parent, {}
    for path in root.rglob("*.py"):
        pattern = r"register_keras_serializable\((.*)\).*\nclass (\w+)"
        if classes := re.findall(pattern, path.read_text(encoding="utf-8")):
            home = ".".join(path.relative_to(root).with_suffix("").parts)
            found[home] = {(re.findall(r'name="(\w+)"', how) or [name])[0]: name for how, name in classes}
    assert {home: tuple(names) for home, names in found.items()} == _REGISTERED
    for home, names in found.items():
        for registered, name in names.items():
            known = getattr(import_module(f"keras_bert_flow.{home}"), name)
            assert keras.saving.get_registered_object(f"keras_bert_flow>{registered}") is known
            assert _RENAMED.get(registered, registered) == name


def test_import_loads_no_backend_and_no_own_module():
    run(
        "import sys, importlib.util, keras_bert_flow; importlib.util.find_spec('keras');"
        "assert not {'keras', 'tensorflow', 'jax', 'torch', 'grain', 'pydantic', 'numpy'} & set(sys.modules);"
        "assert [n for n in sys.modules if n.startswith('keras_bert_flow.')] == []"
    )


@pytest.mark.parametrize(
    "first",
    ["import keras, keras_bert_flow", pytest.param("import keras_bert_flow, keras", marks=pytest.mark.slow)],
)
@pytest.mark.first_form
def test_keras_builds_a_class_that_was_not_imported(first):
    run(
        f"{first}; name = 'keras_bert_flow>WarmupDecay';"
        "import sys; assert 'keras_bert_flow.training.optimizers.schedules' not in sys.modules;"
        "config = {'peak': 1.0, 'warmup_steps': 2, 'total_steps': 4, 'decay': 'linear', 'decay_from': 'warmup'};"
        "made = keras.saving.deserialize_keras_object({'module': 'keras_bert_flow.training.optimizers.schedules',"
        " 'class_name': 'WarmupDecay', 'registered_name': name, 'config': config});"
        "assert made.get_config() == config, made; assert keras.saving.get_registered_object(name) is type(made);"
        "assert not [f for f in sys.meta_path if 'keras_bert_flow' in type(f).__module__]"
    )


HIDING = """
import sys, importlib.machinery as machinery
class Hiding:
    def find_spec(name, path=None, target=None):
        return None if name in HIDDEN else machinery.PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(machinery.PathFinder)] = Hiding
import keras_bert_flow
"""


def run_without(code, hidden, **environment):
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"} | environment
    code = f"HIDDEN = {hidden!r}\n{HIDING}\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


@pytest.mark.slow
def test_keras_takes_the_backend_that_is_installed(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "tensorflow"}')  # as Keras writes it when it is first imported
    code = "import keras; print(keras.backend.backend())"
    done = run_without(code, ("tensorflow", "jax"), KERAS_HOME=str(tmp_path))
    assert done.stdout == "torch\n", done.stderr[-2000:]
    assert done.stderr.count("Keras runs on torch, which is installed. Set KERAS_BACKEND to choose another.") == 1
    done = run_without(code, ("tensorflow", "jax", "torch"), KERAS_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "ImportError: Keras needs a backend. Received: none of jax, tensorflow, torch" in done.stderr
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    done = run_without(code, ("tensorflow",), KERAS_HOME=str(tmp_path))
    assert (done.stdout, "Keras runs on" in done.stderr) == ("torch\n", False)
    done = run_without(code, ("tensorflow",), KERAS_HOME=str(tmp_path), KERAS_BACKEND="jax")
    assert (done.stdout, "Keras runs on" in done.stderr) == ("jax\n", False)


@pytest.mark.slow
def test_import_of_a_module_leaves_its_own_classes_registered():
    run(
        "from keras_bert_flow.models.backbone import BertBackbone; import keras;"
        "assert keras.saving.get_registered_object('keras_bert_flow>BertBackbone') is BertBackbone"
    )
