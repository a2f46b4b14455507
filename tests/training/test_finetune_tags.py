"""Fine-tuning on tags: one counts alike among short sentences and long ones; of any sentences a batch has the mean."""

import json

import numpy as np
import pytest

from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.config.loading import load_config, make_config
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.finetuning.task_data import read_task_data
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config

TAGS = {"O": ("is", "the", "of"), "B-PER": ("anna", "bert"), "B-LOC": ("paris", "ghent")}
WORDS = [word for words in TAGS.values() for word in words]


@pytest.fixture
def place(tmp_path):
    """A folder with `model/` and `tags.txt`: short sentences are all names, long ones have hardly any."""
    write_vocabulary(tmp_path / "vocab.txt", [*SPECIAL_PIECES, *WORDS, *(f"filler{n}" for n in range(38))])
    seed_everything(5)
    save_model_directory(make_pretrainer(make_tiny_config().model, 50), tmp_path / "model", tmp_path / "vocab.txt")
    rng = np.random.default_rng(0)
    sentences = []
    for number in range(77):  # not a multiple of the batch
        chosen = rng.choice(["B-PER", "B-LOC"], 2) if number % 2 else rng.choice([*TAGS], 12, p=[0.9, 0.05, 0.05])
        sentences.append("".join(f"{rng.choice(TAGS[tag])} {tag}\n" for tag in chosen))
    (tmp_path / "tags.txt").write_text("\n".join(sentences))
    return tmp_path


def finetune_tags(place, output="finished", **changes):
    """Return the log of a run whose losses are all those of the first weights, but for the changes."""
    table = str(place / "tags.txt")
    settings = {
        "batch_size": 8,
        "epochs": 1,
        "sequence_length": 16,
        "learning_rate": 1e-12,
        "dropout_rate": 0,
        "seeds": (1,),
        "compare_random": False,
    }
    settings |= changes
    task = {"name": "tags", "kind": "token_classification", "train": table, "dev": table, "scheme": "IOB2"}
    config = make_config(type(make_tiny_config()), {"task": task, "finetuning": settings}, "task")
    finished = finetune(config, place / "model", place / output, lambda line: None)
    log = read_log(finished / "pretrained" / "seed-1")
    assert [line["step"] for line in log] == list(range(1, 11))
    return [line["loss"] for line in log], log[-1]["dev_loss"]


@pytest.mark.any_backend
def test_loss_of_a_pass_is_the_mean_over_all_tags(place):
    losses, dev_loss = finetune_tags(place, group_by_length=True)
    assert np.mean(losses) == pytest.approx(dev_loss, rel=1e-4)  # float32, and means of 8 rows
    assert np.ptp(losses) > 0.5 * np.mean(losses)  # those of short sentences are smaller: fewer tags


@pytest.mark.any_backend
def test_loss_of_a_batch_of_any_sentences_is_the_mean_over_its_tags(place):
    losses, dev_loss = finetune_tags(place)
    # Eight sentences have 12 tags or 2 each: 56, with a deviation of 5 * sqrt(8), a quarter; so would sums of losses.
    # Of means only which tags they are of, out of three, is left to differ.
    assert np.ptp(losses) < 0.1 * np.mean(losses)
    assert np.mean(losses) == pytest.approx(dev_loss, rel=0.01)  # a mean of means; batches have unlike many tags


@pytest.mark.slow
@pytest.mark.any_backend
def test_epsilon_is_that_of_the_settings(place):
    settings = {
        "learning_rate": 0.01,
        "warmup_fraction": 0.0,
        "weight_decay": 0.0,
        "max_widths": 1,
        "group_by_length": True,
    }
    losses, dev_loss = finetune_tags(place, epsilon=1e6, **settings)
    assert np.mean(losses) == pytest.approx(dev_loss, rel=1e-4)  # divided by so much, no step moves a weight
    losses, dev_loss = finetune_tags(place, output="learnt", **settings)
    assert dev_loss < 0.8 * np.mean(losses)


@pytest.mark.any_backend
def test_words_out_of_reach_of_further_dev_files_are_logged(place, caplog):
    tables = {name: str(place / "tags.txt") for name in ("train", "dev")}
    (place / "more.txt").write_text("anna B-PER\nzebra O\n")
    task = {"name": "tags", "kind": "token_classification", "extra_dev": {"more": str(place / "more.txt")}} | tables
    config = make_config(type(make_tiny_config()), {"task": task, "finetuning": {"sequence_length": 16}}, "task")
    data = read_task_data(config, read_tokenizer(place / "model"))
    assert data.unreachable == {"extra_dev.more": {"words": {"total": 2, "unknown": 1}}}
    tags, same = data.remarks
    assert "read as IOB2, as detected" in tags and same.startswith("dev is the training file itself")
    assert caplog.messages[:2] == [tags, same]
    words, characters = caplog.messages[2:]
    assert words.startswith("extra_dev.more: 1 of 2 words")
    assert characters.startswith("extra_dev.more: 55.56 % of the characters of the texts become [UNK]")
    assert data.texts["extra_dev.more"] == {"characters": 9, "stripped_characters": 0} | {
        "unknown_characters": 5,
        "long_word_characters": 0,
    }


@pytest.mark.any_backend
def test_words_out_of_reach_are_logged_and_written(place, caplog):
    with (place / "tags.txt").open("a") as table:
        table.write("\nzebra O\n\nberta B-PER\n")
    finetune_tags(place, max_widths=1)
    found = {"words": {"total": 546, "unknown": 2}}
    assert json.loads((place / "finished/unreachable.json").read_text()) == {"train": found, "dev": found}
    assert [message for message in caplog.messages if "with [UNK]" in message] == [
        f"{name}: 2 of 546 words are not shown to the model as written (0.37%): 2 with [UNK]."
        for name in ("train", "dev")
    ]


@pytest.mark.any_backend
def test_packed_sentences_have_the_losses_of_a_row_each(place):
    losses, dev_loss = finetune_tags(place)
    packed, packed_dev_loss = finetune_tags(place, "packed", packing=True)
    np.testing.assert_allclose(packed, losses, rtol=1e-5)  # float32, of sums in another order
    assert packed_dev_loss == pytest.approx(dev_loss, rel=1e-6)
    manifests = [json.loads((place / name / "manifest.json").read_text()) for name in ("finished", "packed")]
    assert manifests[0]["key"] != manifests[1]["key"]


@pytest.mark.any_backend
def test_tasks_with_an_answer_a_row_are_not_packed():
    with pytest.raises(ValueError, match="`finetuning.packing` must go with a task of kind token_classification"):
        load_config(None, ["finetuning.packing=true"])
