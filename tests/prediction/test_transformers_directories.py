"""Directories that `transformers` wrote are asked, and the answers are those of `transformers`."""

import json

import numpy as np
import pytest
from scipy.special import expit, softmax

import keras_bert_flow as kbf
from keras_bert_flow.cli import app

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.any_backend

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "paris", "is", "the", "cat", "##s", "old"]
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
TEXTS = ["Paris is old", "the cats", "a b c d e f g h"]
PAIRS = [["Paris", "the cat is old"], ["a b c", "d"]]
TOLERANCE = {"rtol": 0, "atol": 1e-5}  # float32, one layer


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Return a function that saves a model of an architecture, and gives back folder, tokenizer and model."""

    def write(architecture, labels=None, **fields):
        folder = tmp_path_factory.mktemp(architecture)
        (folder / "words.txt").write_text("\n".join(WORDS) + "\n")
        tokenizer = transformers.BertTokenizer(str(folder / "words.txt"))
        if labels:
            fields |= {"id2label": dict(enumerate(labels)), "label2id": {name: n for n, name in enumerate(labels)}}
        torch.manual_seed(3)
        config = transformers.BertConfig(
            vocab_size=len(WORDS), max_position_embeddings=48, initializer_range=0.5, **SIZES, **fields
        )
        model = getattr(transformers, architecture)(config).eval()
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        return folder / "model", tokenizer, model

    return write


def logits_of(model, tokenizer, *texts, name="logits"):
    with torch.no_grad():
        return model(**tokenizer(*texts, return_tensors="pt"))[name].numpy()[0]


@pytest.mark.parametrize("labels", [("no", "yes", "may be"), ("LABEL_0", "LABEL_1")])
def test_classes_and_their_probabilities_agree(write, labels):
    folder, tokenizer, model = write("BertForSequenceClassification", labels)
    for item, found in zip(TEXTS + PAIRS, kbf.load(folder).predict(TEXTS + PAIRS), strict=True):
        expected = softmax(logits_of(model, tokenizer, *([item] if isinstance(item, str) else item)))
        assert found["label"] == labels[expected.argmax()]
        np.testing.assert_allclose([found["probabilities"][name] for name in labels], expected, **TOLERANCE)


def test_unnamed_outputs_are_scored_once_they_are_named(write, tmp_path, capsys):
    folder, _, _ = write("BertForSequenceClassification", ("LABEL_0", "LABEL_1"))
    outputs = [found["label"] for found in kbf.load(folder).predict(TEXTS)]
    names = {"LABEL_0": "pos", "LABEL_1": "neg"}  # not in the order of the alphabet
    gold = [names[outputs[0]], *("neg" if label == "LABEL_0" else "pos" for label in outputs[1:])]
    table = tmp_path / "dev.tsv"
    table.write_text("text\tlabel\n" + "".join(f"{row}\t{label}\n" for row, label in zip(TEXTS, gold, strict=True)))
    (tmp_path / "task.yaml").write_text(f"task: {{name: Films, train: {table}, dev: {table}}}\n")
    command = ["evaluate", "--config", str(tmp_path / "task.yaml"), "--model", str(folder), "--json"]
    with pytest.raises(ValueError, match="LABEL_0 to LABEL_1, and .* with neg, pos. Name them in the order of") as told:
        app(command, standalone_mode=False)
    assert "\n" not in str(told.value) and """--set 'task.labels=["neg", "pos"]'""" in str(told.value)
    with pytest.raises(ValueError, match="Received: 3 names for the 2 outputs"):
        app([*command, "--set", "task.labels=[neg, pos, more]"], standalone_mode=False)
    capsys.readouterr()
    for labels, right in (("[pos, neg]", 1), ("[neg, pos]", 2)):
        app([*command, "--set", f"task.labels={labels}"], standalone_mode=False)
        assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(right / 3)
    app(["predict", "--model", str(folder), "--set", "labels=[pos, neg]", *TEXTS], standalone_mode=False)
    printed = [json.loads(line)["label"] for line in capsys.readouterr().out.splitlines()]
    assert printed == [names[label] for label in outputs]


def test_numbers_agree(write):
    folder, tokenizer, model = write("BertForSequenceClassification", ("LABEL_0",), problem_type="regression")
    expected = [float(logits_of(model, tokenizer, text)[0]) for text in TEXTS]
    np.testing.assert_allclose([found["score"] for found in kbf.load(folder).predict(TEXTS)], expected, **TOLERANCE)


def test_several_labels_agree(write):
    labels, problem = ("war", "law", "art"), "multi_label_classification"
    folder, tokenizer, model = write("BertForSequenceClassification", labels, problem_type=problem)
    for text, found in zip(TEXTS, kbf.load(folder).predict(TEXTS), strict=True):
        expected = expit(logits_of(model, tokenizer, text))
        np.testing.assert_allclose([found["probabilities"][name] for name in labels], expected, **TOLERANCE)
        assert found["labels"] == [name for name, share in zip(labels, expected, strict=True) if share >= 0.5]


def test_tags_agree_at_first_pieces(write):
    labels = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    folder, tokenizer, model = write("BertForTokenClassification", labels)
    words = ["Paris", "cats", "is", "old"]
    encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        shares = softmax(model(**encoded).logits.numpy()[0], axis=-1)
    firsts = [encoded.word_ids().index(number) for number in range(len(words))]
    (found,) = kbf.load(folder).predict([words])
    assert found["tags"] == [labels[place] for place in shares[firsts].argmax(axis=-1)]
    np.testing.assert_allclose(found["probabilities"], shares[firsts].max(axis=-1), **TOLERANCE)


def test_answers_agree_with_the_best_span(write):
    folder, tokenizer, model = write("BertForQuestionAnswering")
    asked = kbf.load(folder)
    for question, context in PAIRS + [["the old", "Paris is the cat a b c d"]]:
        encoded = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            outputs = model(**encoded)
        start, end = (outputs[name].numpy()[0] for name in ("start_logits", "end_logits"))
        places = [n for n, sequence in enumerate(encoded.sequence_ids()) if sequence == 1]
        spans = [(start[i] + end[j], offsets[i][0], offsets[j][1]) for i in places for j in places if i <= j]
        best = max(spans)
        (found,) = asked.predict([{"question": question, "context": context}])
        assert (found["answer"], found["start"], found["end"]) == (context[best[1] : best[2]], best[1], best[2])
        np.testing.assert_allclose(found["n_best"][0]["score"], best[0], **TOLERANCE)


def test_choices_agree(write):
    folder, tokenizer, model = write("BertForMultipleChoice")
    context, choices = "Paris is", ["the cat", "old", "a b c d"]
    encoded = tokenizer([context] * len(choices), choices, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = softmax(model(**{name: rows[None] for name, rows in encoded.items()}).logits.numpy()[0])
    (found,) = kbf.load(folder).predict([{"context": context, "choices": choices}])
    assert found["label"] == expected.argmax()
    np.testing.assert_allclose(found["probabilities"], expected, **TOLERANCE)
