"""What tests of training start from; jax compiles each step once for all of them and the processes that they start."""

import keras
import numpy as np
import pytest

from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from keras_bert_flow.training.loop.checkpoints import Checkpoints
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.training.checkpoint_cases import IDENTITY, make_model
from tests.training.separable_task import WORDS, write_table


@pytest.fixture(scope="session", autouse=True)
def compiled_steps(tmp_path_factory):
    """Another folder of tests may have it as well, so what was there before comes back."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("jax")),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            jax.config.update(name, value)
            patch.setenv(name.upper(), str(value))
        yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with `model/`, as pre-training publishes it, and the two tables."""
    place = tmp_path_factory.mktemp("finetune")
    write_vocabulary(place / "vocab.txt", [*SPECIAL_PIECES, *WORDS])
    seed_everything(5)
    save_model_directory(make_pretrainer(make_tiny_config().model, 50), place / "model", place / "vocab.txt")
    write_table(place / "train.tsv", 77, seed=0)  # not a multiple of the batch
    write_table(place / "dev.tsv", 21, seed=1)
    return place


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Tiny records of pre-training, in a folder where there is room for runs on them."""
    return write_tiny_records(tmp_path_factory.mktemp("pretrain") / "records")


@pytest.fixture(scope="module")
def pretrainer():
    """A compiled model of which checkpoints are made."""
    return make_model()


@pytest.fixture
def saved(pretrainer, tmp_path):
    """Checkpoints of the steps 1, 2 and 3, whose states differ in one bias."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", IDENTITY, keep=3)
    bias = pretrainer.get_layer("nsp").bias
    for step in (1, 2, 3):
        bias.assign(np.array([step, -step], "float32"))
        checkpoints.save(pretrainer, step, {"elapsed_seconds": step / 10})
    bias.assign(np.zeros(2, "float32"))
    return checkpoints
