"""Pre-training from records to a published model, over any number of kills, to the same bits."""

import json
import resource
import signal

import numpy as np
import pytest

from keras_bert_flow.cli import explain
from keras_bert_flow.console.interrupts import CHECKPOINTED, USER_ERROR
from keras_bert_flow.data.pretraining import ordered_batches
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer
from keras_bert_flow.results.manifest import check_folder
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.training.loop.logs import Interrupted, read_log
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.validation import score_pretraining
from tests.oracles.tiny_records import make_tiny_config
from tests.training.kill_server import Killer
from tests.training.pretrain_child import SETTINGS, arrange

LOGGED = [3, 6, 7, 8, 9, 12, 14, 15, 16, 18, 21, 24]
SCORES = {
    "masked_lm_loss",
    "masked_lm_perplexity",
    "masked_lm_accuracy",
    "unigram_accuracy",
    "next_sentence_loss",
    "next_sentence_accuracy",
}


@pytest.fixture(scope="module")
def finished(records):
    """A run that nothing interrupts, in this process: dropout, shuffling and five epochs."""
    return pretrain(make_tiny_config(**SETTINGS), records, records.parent / "finished", lambda line: None)


def weights_of(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def fail(line):
    raise AssertionError(f"trained again to step {line['step']}")


@pytest.fixture(scope="module")
def killer(records):
    with Killer(records=records) as killer:
        yield killer


MOMENTS = {
    "report:3": LOGGED[:1],  # before the first checkpoint
    "written:7": LOGGED[:3],  # the first checkpoint has not its name yet
    "renamed:7": LOGGED[:3],  # it has
    "pruning:7": LOGGED[3:11],  # two newer ones are there
    "model": LOGGED[11:],  # all steps are done
    "removed": [],  # the whole folder is, but for its name
}
FEW_MOMENTS = {"written:7": LOGGED[:3], "removed": LOGGED}


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(MOMENTS, marks=[pytest.mark.any_backend, pytest.mark.slow], id="all"),
        pytest.param(FEW_MOMENTS, marks=pytest.mark.any_backend, id="few"),
    ],
)
def test_killed_runs_end_in_the_same_bits(records, finished, killer, moments):
    output = records.parent / f"killed-{len(moments)}"
    for moment, steps in moments.items():
        status, done, _ = killer.run(output, moment)
        assert status == -signal.SIGKILL and not output.exists(), moment
        assert done == steps, moment
    pretrain(make_tiny_config(**SETTINGS), records, output, fail)
    assert weights_of(output) == weights_of(finished)
    assert without_times(output) == without_times(finished)
    assert [line["step"] for line in read_log(output)] == LOGGED
    assert sorted(path.name for path in output.iterdir()) == sorted(path.name for path in finished.iterdir())
    assert [path.name for path in records.parent.glob(".killed-*")] == []


@pytest.mark.any_backend
def test_stopped_runs_end_in_the_same_bits(records, finished, killer):
    output = records.parent / "stopped"
    status, done, _ = killer.run(output, "step:4")  # after step 4, of an interval from 3 to 6
    assert status == CHECKPOINTED
    steps = [done]
    for moment in ("step:5", "held_out:8", "step:14", "held_out:24"):
        with pytest.MonkeyPatch.context() as patch:
            arrange(moment, patch.setattr)
            lines = []
            with pytest.raises(Interrupted):
                pretrain(make_tiny_config(**SETTINGS), records, output, lines.append)
            steps.append([line["step"] for line in lines])
    assert steps == [[3], [], [6, 7], [8, 9, 12, 14], [15, 16, 18, 21]]
    lines = []
    pretrain(make_tiny_config(**SETTINGS), records, output, lines.append)
    assert [line["step"] for line in lines] == [24]
    assert weights_of(output) == weights_of(finished)
    assert without_times(output) == without_times(finished)


@pytest.mark.any_backend
@pytest.mark.slow
def test_full_disk_is_one_line_and_the_run_goes_on(records, finished):
    """A limit on file sizes stands in for the disk: from step 8 on no checkpoint fits."""
    output, limits = records.parent / "full", resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(line):
        if line["step"] == 8:
            resource.setrlimit(resource.RLIMIT_FSIZE, (16384, limits[1]))

    try:
        with pytest.raises(OSError, match="must fit on its disk") as caught:
            pretrain(make_tiny_config(**SETTINGS), records, output, fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert explain(caught.value) == USER_ERROR
    kept = records.parent / ".full.work" / "checkpoints"
    assert sorted(path.name for path in kept.iterdir()) == ["best", "step-00000007"]
    pretrain(make_tiny_config(**SETTINGS), records, output, lambda line: None)
    assert weights_of(output) == weights_of(finished)
    assert without_times(output) == without_times(finished)


@pytest.mark.any_backend
def test_all_damaged_is_one_line(records, finished, monkeypatch):
    output = records.parent / "all damaged"
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        arrange("step:8", patch.setattr)
        pretrain(make_tiny_config(**SETTINGS), records, output, lambda line: None)
    for state in (records.parent / ".all damaged.work").rglob("step-*/state.safetensors"):
        state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(ValueError, match="one whole checkpoint to go on from.*all damaged") as caught:
        pretrain(make_tiny_config(**SETTINGS), records, output, fail)
    assert explain(caught.value) == USER_ERROR


def without_times(folder):
    """Return the lines of a log, with the losses of all steps since the line before to the last bit."""
    return [
        {name: value for name, value in line.items() if "second" not in name or "sentence" in name}
        for line in read_log(folder)
    ]


@pytest.mark.slow_compiled
def test_published_folder_is_whole(records, finished):
    manifest = check_folder(finished, "pretraining")
    assert sorted(file.name for file in manifest.files) == [
        "events.out.tfevents.log",
        "log.jsonl",
        "metrics.json",
        "model/README.md",
        "model/config.json",
        "model/model.safetensors",
        "model/tokenizer.json",
        "model/tokenizer_config.json",
        "model/vocab.txt",
    ]
    names = ["costs.jsonl", "events.out.tfevents.log", "log.jsonl", "manifest.json", "metrics.json", "model"]
    assert sorted(path.name for path in finished.iterdir()) == names
    assert manifest.config["pretraining"]["total_steps"] == 24
    assert (finished / "model" / "vocab.txt").read_bytes() == (records / "vocab.txt").read_bytes()


@pytest.mark.slow_compiled
def test_metrics_are_those_of_the_published_model(records, finished):
    metrics = json.loads((finished / "metrics.json").read_text())
    assert set(metrics) == SCORES | {"steps", "tokens", "seconds", "tokens_per_second", "parameters"}
    assert metrics["steps"] == 24 and metrics["tokens"] == 24 * 5 * 16
    model = BertPretrainer.from_preset(finished / "model")
    assert metrics["parameters"] == model.count_params()
    scores = score_plainly(model, PretrainingRecords(records, "held_out"), 6)
    assert {name: metrics[name] for name in SCORES} == pytest.approx(scores, rel=1e-5)  # float32 logits
    last = read_log(finished)[-1]
    assert {name: last[f"held_out_{name}"] for name in SCORES} == {name: metrics[name] for name in SCORES}


def score_plainly(model, records, count):
    """Score records one at a time, in float64."""
    losses, hits, guesses, sentence_losses, sentence_hits = [], [], [], [], []
    for index in range(count):
        record = records[index]
        names = {"token_ids": "input_ids", "segment_ids": "segment_ids", "padding_mask": "input_mask"}
        names["mask_positions"] = "masked_lm_positions"
        logits = model.predict_on_batch({ours: record[theirs][None].astype("int32") for ours, theirs in names.items()})
        mlm, nsp = (np.asarray(logits[name][0], "float64") for name in ("mlm", "nsp"))
        for place in range(int(record["masked_lm_weights"].sum())):
            label = record["masked_lm_ids"][place]
            losses.append(np.log(np.exp(mlm[place]).sum()) - mlm[place][label])
            hits.append(mlm[place].argmax() == label)
            guesses.append(int(label))
        label = record["next_sentence_labels"][0]
        sentence_losses.append(np.log(np.exp(nsp).sum()) - nsp[label])
        sentence_hits.append(nsp.argmax() == label)
    return {
        "masked_lm_loss": np.mean(losses),
        "masked_lm_perplexity": np.exp(np.mean(losses)),
        "masked_lm_accuracy": np.mean(hits),
        "unigram_accuracy": max(guesses.count(guess) for guess in guesses) / len(guesses),
        "next_sentence_loss": np.mean(sentence_losses),
        "next_sentence_accuracy": np.mean(sentence_hits),
    }


@pytest.mark.slow_compiled
def test_scores_do_not_depend_on_padding(records, finished):
    model = BertPretrainer.from_preset(finished / "model")
    held_out = PretrainingRecords(records, "held_out")
    objective = find_objective("mlm_nsp")
    padded = score_pretraining(model, ordered_batches(held_out, 4, 7), objective)
    whole = score_pretraining(model, ordered_batches(held_out, 7, 7), objective)
    assert padded == pytest.approx(whole, rel=1e-5)  # float32 logits
    assert set(padded) == SCORES
    assert score_pretraining(model, [], objective) == {}


@pytest.mark.slow_compiled
def test_finished_run_returns_at_once(records, finished):
    before = weights_of(finished)
    assert pretrain(make_tiny_config(**SETTINGS), records, finished, fail) == finished
    assert weights_of(finished) == before


def test_changed_configuration_is_refused(records, finished):
    with pytest.raises(OSError, match="output folder must be new"):
        pretrain(make_tiny_config(**SETTINGS, weight_decay=0.5), records, finished)


@pytest.mark.any_backend
def test_unfinished_run_of_another_configuration_is_refused(records):
    class Killed(BaseException):
        pass

    def die(line):
        if line["step"] > 1:
            raise Killed

    output = records.parent / "changed"
    settings = {"total_steps": 2, "warmup_steps": 1, "log_every_steps": 1, "checkpoint_every_steps": 1}
    with pytest.raises(Killed):
        pretrain(make_tiny_config(**settings), records, output, die)
    with pytest.raises(ValueError, match=r"another pretraining\.learning_rate \(0\.01, now 0\.02\)\. Undo"):
        pretrain(make_tiny_config(**settings, learning_rate=0.02), records, output)
    lines = []
    pretrain(make_tiny_config(**settings), records, output, lines.append)  # unchanged, it goes on in this process, too
    assert [line["step"] for line in lines] == [2]
