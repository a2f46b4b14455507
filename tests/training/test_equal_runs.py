"""Two equal runs under different clocks, memory and umasks: equal keys of all that is made, modes by the umask."""

import os
import time

import keras
import pytest

from keras_bert_flow.evaluation.evaluate import write_evaluation
from keras_bert_flow.results.manifest import check_folder, read_manifest
from keras_bert_flow.results.stages.keys import folder_digest
from keras_bert_flow.results.stages.tasks import evaluation_key
from keras_bert_flow.training.finetuning import task_runs
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.pretraining import pretrain as pretraining
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.training.separable_task import make_task_config, write_table

pytestmark = pytest.mark.any_backend

UMASKS = {0o027: (0o640, 0o750), 0o022: (0o644, 0o755)}
GRID = {"learning_rate": [0.01, 0.03], "epochs": [1], "batch_size": [8]}
STAGES = ("records", "pretraining", "finetuning", "evaluation")


def silent(line):
    pass


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Make every folder from records on once for each umask; the first run's clock goes a thousand times as fast."""
    found = {}
    read_clock = time.perf_counter
    for speed, umask in zip((1000, 1), UMASKS, strict=True):
        place = tmp_path_factory.mktemp("run")
        for name, rows in (("train", 24), ("dev", 9)):
            write_table(place / f"{name}.tsv", rows, seed=rows)
        config = make_task_config(place, epochs=1, grid=GRID, seeds=(1,)).model_copy(
            update={"backend": keras.backend.backend()}
        )
        small = make_tiny_config(total_steps=4, log_every_steps=2, checkpoint_every_steps=2, evaluate_every_steps=2)
        config = config.model_copy(update={"model": small.model, "pretraining": small.pretraining})
        before = os.umask(umask)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(time, "perf_counter", lambda speed=speed: speed * read_clock())
                patch.setattr(task_runs, "read_peak_bytes", lambda speed=speed: speed * 10**6)
                records = write_tiny_records(place / "records")
                pretrained = pretraining.pretrain(config, records, place / "pretraining", silent)
                finetuned = finetune(config, pretrained / "model", place / "finetuning", silent)
                write_evaluation(config, finetuned, pretrained, records, place / "evaluation")
        finally:
            os.umask(before)
        found[umask] = place
    return found


@pytest.mark.slow
def test_keys_of_everything_made_are_equal_though_timings_differ(runs):
    first, second = runs.values()
    for name in ("model/README.md", "log.jsonl", "metrics.json"):
        assert (first / "pretraining" / name).read_bytes() != (second / "pretraining" / name).read_bytes()
    for name in ("grid.json", "grid-random.json", "pretrained/seed-1/run.json"):
        assert (first / "finetuning" / name).read_bytes() != (second / "finetuning" / name).read_bytes()
    for stage in STAGES:
        manifests = [read_manifest(place / stage) for place in (first, second)]
        assert manifests[0].key == manifests[1].key
        assert manifests[0].inputs == manifests[1].inputs
        assert folder_digest(first / stage) == folder_digest(second / stage)
    assert folder_digest(first / "pretraining" / "model") == folder_digest(second / "pretraining" / "model")


@pytest.mark.slow
@pytest.mark.parametrize("umask", UMASKS)
def test_published_files_follow_the_umask(runs, umask):
    file_mode, folder_mode = UMASKS[umask]
    paths = [path for stage in STAGES for path in (runs[umask] / stage).rglob("*")]
    names = {path.name for path in paths}
    expected = {"model.safetensors", "vocab.txt", "events.out.tfevents.log", "report.html", "metrics.json", "task.json"}
    assert expected | {"manifest.json", "log.jsonl", "run.json", "grid.json", "README.md"} <= names
    modes = {path: path.stat().st_mode & 0o777 for path in paths}
    assert {path: mode for path, mode in modes.items() if path.is_file() and mode != file_mode} == {}
    assert {path: mode for path, mode in modes.items() if path.is_dir() and mode != folder_mode} == {}


@pytest.mark.slow
def test_checkpoints_follow_the_umask(tmp_path):
    class Killed(BaseException):
        pass

    def die(line):
        if line["step"] > 4:
            raise Killed

    before = os.umask(0o027)
    try:
        records = write_tiny_records(tmp_path / "records")
        with pytest.raises(Killed):
            pretraining.pretrain(make_tiny_config(), records, tmp_path / "out", die)
    finally:
        os.umask(before)
    states = [*tmp_path.glob(".out.work/checkpoints/*/*")]
    assert any(path.name == "state.safetensors" for path in states)
    assert {path.stat().st_mode & 0o777 for path in states if path.is_file()} == {0o640}


@pytest.mark.slow
def test_changed_score_changes_the_keys_of_what_shows_it(runs, tmp_path):
    place = next(iter(runs.values()))
    manifest = check_folder(place / "pretraining")
    (metrics,) = [file for file in manifest.files if file.name == "metrics.json"]
    assert metrics.results not in (None, metrics.sha256) and not metrics.informational
    config = make_task_config(place)
    folders = (place / "finetuning", place / "records")
    with_scores = evaluation_key(config, *folders, [place / "pretraining"])
    assert with_scores != evaluation_key(config, *folders)
