"""Runs from random weights are trained once for all models of one shape on one task."""

import shutil

import pytest

from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.results.manifest import check_folder
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config
from tests.training.separable_task import make_task_config, weights_of

pytestmark = pytest.mark.any_backend

FEW = {"epochs": 1, "random_max_epochs": 1, "batch_size": 32, "learning_rate": 0.001, "sequence_length": 16}


@pytest.fixture(scope="module")
def results(place):
    """A folder of results with the first, and two models to fine-tune next: of the same shape, and of another one."""
    results = place / "results"
    shape = make_tiny_config().model
    for name, model in (("same", shape), ("other", shape.model_copy(update={"intermediate_dim": 20}))):
        save_model_directory(make_pretrainer(model, 50), place / name, place / "vocab.txt")
    finetune(make_task_config(place, **FEW), place / "model", results / "first", lambda line: None)
    return results


def are_trained(place, output, model="same", **settings):
    """Fine-tune, and return whether runs from random weights were trained."""
    lines = []
    finetune(make_task_config(place, **FEW | settings), place / model, output, lines.append)
    assert any("random" not in line["run"] for line in lines)
    places = [(line["run"], line["step"]) for line in lines]  # the points of a grid have the same names for both starts
    return len(set(places)) < len(places) or any("random" in run for run, _ in places)


@pytest.mark.slow
def test_another_model_of_the_shape_takes_them(place, results, tmp_path):
    assert not are_trained(place, results / "second")
    assert are_trained(place, tmp_path / "alone")
    for seed in (1, 2):
        theirs, ours, alone = (
            folder / f"random/seed-{seed}" for folder in (results / "first", results / "second", tmp_path / "alone")
        )
        assert weights_of(ours) == weights_of(theirs) == weights_of(alone)
        found = read_json_object(ours / "run.json")
        assert found["reused_from"] == str(results / "first")
        assert found["identity"] == read_json_object(alone / "run.json")["identity"]
    first, second, alone = (
        {
            file.name: file.results or file.sha256
            for file in check_folder(folder).files
            if "random" in file.name and not file.informational
        }
        for folder in (results / "first", results / "second", tmp_path / "alone")
    )
    assert first == second == alone  # later stages have the same key


@pytest.mark.slow
def test_seeds_are_taken_one_by_one(place, results):
    assert are_trained(place, results / "other seeds", seeds=(2, 3))
    runs = [read_json_object(results / f"other seeds/random/seed-{seed}/run.json") for seed in (2, 3)]
    assert ["reused_from" in run for run in runs] == [True, False]


@pytest.mark.parametrize(
    ("model", "settings"), [("other", {}), ("same", {"learning_rate": 0.002}), ("same", {"random_max_epochs": 2})]
)
@pytest.mark.first_form
def test_what_decides_them_is_in_their_key(place, results, model, settings):
    name = f"{model}-{settings}"
    assert are_trained(place, results / name, model, seeds=(1,), **settings)


@pytest.mark.slow
def test_another_table_is_in_their_key(place, results):
    table = (place / "dev.tsv").read_text().splitlines(keepends=True)
    (place / "shorter.tsv").write_text("".join(table[:-1]))
    assert are_trained(place, results / "shorter", dev="shorter.tsv", seeds=(1,))


@pytest.mark.slow
def test_damaged_ones_are_trained_again(place, results, tmp_path, caplog):
    shutil.copytree(results / "first", tmp_path / "results/first")
    weights = tmp_path / "results/first/random/seed-1/model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert are_trained(place, tmp_path / "results/second")
    assert "trained again, since those of" in caplog.text


@pytest.mark.slow
def test_a_grid_is_taken_with_its_points(place, results):
    grid = {"learning_rate": [0.001, 0.002], "epochs": [1], "batch_size": [32]}
    assert are_trained(place, results / "grid", grid=grid, seeds=(1,))
    assert not are_trained(place, results / "next grid", "model", grid=grid, seeds=(1,))
    assert weights_of(results / "grid/random/seed-1") == weights_of(results / "next grid/random/seed-1")
    assert read_json_object(results / "grid/grid-random.json") == read_json_object(
        results / "next grid/grid-random.json"
    )
