"""Vectors fine-tuned on pairs: both objectives learn, what is published is an embedder, a killed run goes on."""

import json

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.evaluation.evaluate import evaluate_model
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config

TOPICS = 15
WORDS = tuple(f"word{number}" for number in range(3 * TOPICS))  # a word of the first text, one of the second, and any
RUNS = ("pretrained/seed-1", "pretrained/seed-2")


def write_pairs(path, count, seed):
    """Write pairs of which one word each tells the topic, by turns; the words of first and second texts differ."""
    rng = np.random.default_rng(seed)
    lines = ["text\ttext_pair"]
    for row in range(count):
        topic = row % TOPICS
        texts = [[WORDS[place + topic], *rng.choice(WORDS[2 * TOPICS :], rng.integers(1, 4))] for place in (0, TOPICS)]
        lines.append("\t".join(" ".join(rng.permutation(text)) for text in texts))
    path.write_text("\n".join(lines) + "\n")


def write_scores(path, count, seed):
    """Write pairs with a score of 4, or of 1 where the texts are of another half of the words."""
    rng = np.random.default_rng(seed)
    lines = ["text\ttext_pair\tlabel"]
    for _ in range(count):
        halves = rng.integers(2, size=2)
        texts = (" ".join(rng.choice(WORDS[half : 2 * TOPICS : 2], rng.integers(2, 5))) for half in halves)
        lines.append("\t".join((*texts, "4" if halves[0] == halves[1] else "1")))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("pairs")
    write_vocabulary(place / "vocab.txt", [*SPECIAL_PIECES, *WORDS])
    seed_everything(5)
    save_model_directory(make_pretrainer(make_tiny_config().model, 50), place / "model", place / "vocab.txt")
    for part, count, seed in (("train", 121, 0), ("dev", TOPICS, 1)):  # 121 is no multiple of the batch
        write_pairs(place / f"pairs-{part}.tsv", count, seed)
        write_scores(place / f"scores-{part}.tsv", count, seed)
    return place


def make_task_config(place, table, task=(), **finetuning):
    files = {part: str(place / f"{table}-{part}.tsv") for part in ("train", "dev")}
    settings = {"batch_size": 16, "epochs": 10, "sequence_length": 12, "learning_rate": 0.02, "seeds": (1,)}
    values = {
        "task": {"name": table, "kind": "sentence_embedding", **files, **dict(task)},
        "finetuning": settings | {"compare_random": False} | finetuning,
    }
    return make_config(type(make_tiny_config()), values, "task")


def weights_of(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.any_backend
def test_pairs_are_found_and_their_embedder_is_published(place):
    config = make_task_config(place, "pairs", {"pooling": "max", "normalize": False}, publish="best")
    run = finetune(config, place / "model", place / "found", lambda line: None) / RUNS[0]
    dev = [line for line in read_log(run) if "dev_mrr" in line]
    assert dev[-1]["dev_mrr"] > 0.8 > 0.5 > dev[0]["dev_mrr"]
    assert dev[-1]["dev_loss"] < dev[0]["dev_loss"]
    assert {"loss", "accuracy", "dev_accuracy"} <= set(dev[-1])
    model = run / "model"
    pooling = json.loads((model / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_max_tokens"] and not (model / "2_Normalize").exists()
    assert json.loads((model / "sentence_bert_config.json").read_text())["max_seq_length"] == 12
    scores = evaluate_model(config, model)
    assert scores["mrr"] == pytest.approx(max(line["dev_mrr"] for line in dev))

    texts = [line.split("\t") for line in (place / "pairs-dev.tsv").read_text().splitlines()[1:4]]
    predictor = kbf.load(model)
    answers = predictor.predict([*texts, texts[0][0], texts[0][1]])
    assert [set(answer) for answer in answers] == [{"cosine"}] * 3 + [{"embedding"}] * 2
    first, second = (np.array(answer["embedding"]) for answer in answers[3:])
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert answers[0]["cosine"] == pytest.approx(cosine, abs=1e-5)
    assert abs(np.linalg.norm(first) - 1) > 1e-3  # as it is not normalised
    embedder = kbf.TextEmbedder.from_preset(model)
    features = predictor.task.encode(predictor.tokenizer, [predictor.task.make_example(texts[0][0])], 12)
    ids = features.token_ids[0][None]
    inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": np.ones_like(ids)}
    np.testing.assert_allclose(embedder.predict(inputs, verbose=0)[0], first, atol=1e-5)


@pytest.mark.slow
@pytest.mark.any_backend
def test_scores_are_learnt(place):
    config = make_task_config(place, "scores", {"objective": "cosine", "lowest": 1, "highest": 4})
    run = finetune(config, place / "model", place / "scored", lambda line: None) / RUNS[0]
    last = read_log(run)[-1]
    assert last["dev_spearman"] > 0.8 and last["dev_pearson"] > 0.8
    assert last["dev_loss"] < 0.1 and last["root_mean_squared_error"] < 0.3
    assert evaluate_model(config, run / "model")["spearman"] == pytest.approx(last["dev_spearman"])


@pytest.mark.slow
@pytest.mark.any_backend
def test_killed_pairs_go_on_to_the_same_weights(place):
    class Killed(BaseException):
        pass

    def die(line):
        if line["run"] == RUNS[1]:
            raise Killed

    config = make_task_config(place, "pairs", seeds=(1, 2), epochs=2)
    whole = finetune(config, place / "model", place / "whole", lambda line: None)
    with pytest.raises(Killed):
        finetune(config, place / "model", place / "killed", die)
    changed = make_task_config(place, "pairs", {"scale": 10}, seeds=(1, 2), epochs=2)
    with pytest.raises(ValueError, match=r"another task\.scale \(20\.0, now 10\.0\)\. Undo"):
        finetune(changed, place / "model", place / "killed", lambda line: None)
    again = finetune(config, place / "model", place / "killed", lambda line: None)
    assert [weights_of(again / run) for run in RUNS] == [weights_of(whole / run) for run in RUNS]
    assert weights_of(whole / RUNS[0]) != weights_of(whole / RUNS[1])


@pytest.mark.any_backend
def test_vectors_begin_as_the_model_says(place, tmp_path):
    """What a configuration leaves out comes from the directory with which the training begins."""
    kbf.TextEmbedder.from_preset(place / "model", pooling="cls").save_to_preset(
        tmp_path / "cls", vocabulary_path=place / "vocab.txt"
    )
    config = make_task_config(place, "pairs", epochs=1)
    run = finetune(config, tmp_path / "cls", tmp_path / "out", lambda line: None) / RUNS[0]
    assert kbf.Embedder(run / "model").model.pooling == "cls"
    assert kbf.load(run / "model").model.pooling == "cls"
