import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from keras_bert_flow.tasks.core.texts import TextExample, describe_unreachable
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.tasks.sentence_embedding import SentenceEmbedding
from tests.oracles.pair_losses import contrastive_loss, cosine_loss, cosines
from tests.tasks.files import CLS, DATA, SEP, TOKENIZER, A, B, C, message_of, needs_data, real_task, shuffled, write

STSB = SentenceEmbedding("cosine", "sentence1", "sentence2", "score", lowest=0.0, highest=5.0)
RNG = np.random.default_rng(2)
PAIRS = [TextExample(*texts, True, f"t.tsv, row {texts}") for texts in (("a b", "c"), ("b", "d e"), ("a b", "g"))]
SCORED = [TextExample(*texts) for texts in (("a", "b", 0.0), ("c", "d", 0.25), ("e", "g", 1.0))]


@needs_data
def test_stsb_goes_the_whole_walk():
    task, training, examples = real_task(STSB, "stsb")
    assert task == replace(STSB, main_metric="spearman")
    assert (len(training), len(examples)) == (5749, 1500)
    features = task.encode(TOKENIZER, examples, 64)
    labels = features.labels["logits"]
    assert (labels.min(), labels.max(), labels.dtype) == (0, 1, np.float32)
    # Texts of equal ids, the unknown ones of this small vocabulary among them, share a row and so a vector.
    _, rows = np.unique([str(ids.tolist()) for ids in features.token_ids], return_inverse=True)
    vectors = RNG.normal(size=(rows.max() + 1, 8)).astype("float32")[rows].reshape(1500, 2, 8)
    predictions = task.decode({"logits": vectors}, features, examples)
    found = task.score(examples, predictions)
    expected = np.array([prediction["cosine"] for prediction in predictions])
    np.testing.assert_allclose(expected, cosines(vectors), atol=1e-12)  # pairs of equal texts tie, but for rounding
    assert found == pytest.approx(
        {"spearman": spearmanr(labels, expected).statistic, "pearson": pearsonr(labels, expected).statistic}
    )
    assert task.score(examples, task.guess(training, examples)) == {"spearman": 0.0, "pearson": 0.0}
    assert DATA


def test_scores_are_scaled_to_cosines(tmp_path):
    path = write(tmp_path, "t.tsv", "sentence1\tscore\tsentence2\na\t1\tb\nc\t5\td\ne\t 2.5 \tg\n")
    examples = STSB.read(path)
    assert [(e.text, e.text_pair, e.label) for e in examples] == [("a", "b", 0.2), ("c", "d", 1.0), ("e", "g", 0.5)]
    assert [e.label for e in replace(STSB, lowest=-5.0).read(path)] == [0.6, 1.0, 0.75]
    assert [e.label for e in STSB.read(path, has_labels=False)] == [None] * 3
    message = message_of(ValueError, replace(STSB, highest=4.0).read, path)
    assert f"{path}, row 3" in message and "from 0.0 to 4.0" in message and "Received: 5" in message


def test_pairs_need_no_score(tmp_path):
    path = write(tmp_path, "t.csv", "text,text_pair\na,b\nc,d\n")
    task = SentenceEmbedding()
    assert task.read(path) == [
        TextExample("a", "b", True, f"{path}, row 2"),
        TextExample("c", "d", True, f"{path}, row 3"),
    ]
    assert len(task.read(path, max_examples=1)) == 1
    assert [e.label for e in task.read(path, has_labels=False)] == [None, None]


def test_a_labelled_pair_is_a_row():
    features = SentenceEmbedding().encode(TOKENIZER, PAIRS, 4)
    assert [ids.tolist() for ids in features.token_ids[:3]] == [[CLS, A, B, SEP], [CLS, C, SEP], [CLS, B, SEP]]
    assert features.labels["logits"].tolist() == [[0, 1], [2, 3], [0, 4]]
    assert features.labels["logits"].dtype == np.int32
    assert (features.sequences_per_row, features.has_axis, len(features)) == (2, True, 3)
    assert features.first_lengths.tolist() == [len(ids) for ids in features.token_ids]
    scored = STSB.encode(TOKENIZER, SCORED, 8)
    assert scored.labels["logits"].tolist() == [0.0, 0.25, 1.0] and scored.sequences_per_row == 2


# Texts that are equal to the model: beyond three tokens; in their case; each one [UNK].
@pytest.mark.parametrize(
    ("texts", "counts"),
    [
        ([("a b", "a b c"), ("a b d", "a b e"), ("a b a", "a b b"), ("b", "A b g")], {"total": 8, "cut": 7}),
        ([("a", "B"), ("A", "b"), ("\u0101", "b "), ("c", "d")], {"total": 8, "folded": 6}),
        ([("x", "y"), ("z", "u"), ("v", "w"), ("q", "r")], {"total": 8, "folded": 8}),
    ],
)
def test_texts_that_the_model_cannot_tell_apart_are_found_by_chance(texts, counts):
    examples = [TextExample(*pair, True) for pair in texts]
    task = SentenceEmbedding().learn(examples)
    features = task.encode(TOKENIZER, examples, 4)
    numbers = features.labels["logits"]
    assert numbers.ravel().tolist() == list(range(8))
    found = task.count_unreachable(TOKENIZER, examples, features)
    assert found == {"texts": counts}
    assert describe_unreachable("dev", found).startswith(
        f"dev: {counts.get('cut', counts.get('folded'))} of 8 texts are the same to the model as another text"
    )
    # A model is a function of the token ids, up to rounding that depends on the batch.
    ids = {sequence.tobytes(): RNG.normal(size=6) for sequence in features.token_ids}
    exact = np.stack([ids[sequence.tobytes()] for sequence in features.token_ids]).reshape(4, 2, 6)
    vectors = (exact + RNG.normal(scale=1e-9, size=exact.shape)).astype(np.float64)
    predictions = task.decode({"logits": vectors}, features, examples)
    # With all candidates: their ranks by the cosines of the exact vectors, where ties have the ranks that they span.
    units = exact / np.linalg.norm(exact, axis=-1, keepdims=True)
    cosines_of = np.round(units[:, 0] @ units[:, 1].T, 9)
    above = (cosines_of > np.diag(cosines_of)[:, None]).sum(axis=1)
    tied = np.array([(row[: place + 1] == row[place]).sum() for place, row in enumerate(cosines_of)])
    assert [prediction["rank"] for prediction in predictions] == (above + tied).tolist()


def test_equal_vectors_score_as_chance_does():
    head = "a b c d e g " * 4
    examples = [TextExample(f"a {n}", f"{head} {n}", True) for n in range(20)]
    task = SentenceEmbedding().learn(examples)
    features = task.encode(TOKENIZER, examples, 16)
    vectors = RNG.normal(size=(1, 2, 48)) + RNG.normal(scale=1e-7, size=(20, 2, 48))
    scores = task.score(examples, task.decode({"logits": vectors}, features, examples))
    # `InformationRetrievalEvaluator` of sentence-transformers on such vectors: MRR@10 0.146, accuracy@1 0.05.
    assert scores == pytest.approx({"mrr": sum(1 / rank for rank in range(1, 11)) / 20, "accuracy": 1 / 20})
    assert scores["mrr"] == pytest.approx(0.146, abs=5e-4)
    assert task.measure_loss({"logits": vectors}, features) == pytest.approx(np.log(20))
    assert task.score(examples, task.guess(examples, examples)) == pytest.approx(scores)


def test_texts_without_labels_are_rows_each():
    task = SentenceEmbedding()
    examples = [task.make_example(item) for item in ("a b", ["c", "d"], {"text": "e"})]
    features = task.encode(TOKENIZER, examples, 8)
    assert (len(features), features.sequences_per_row, features.has_axis, features.labels) == (4, 1, True, {})
    assert features.examples.tolist() == [0, 1, 1, 2]
    vectors = RNG.normal(size=(4, 1, 6)).astype("float32")
    for moved, outputs in ((features, vectors), shuffled(features, vectors)):
        answers = task.decode({"logits": outputs}, replace(moved, keeps_axis=True), examples)
        assert answers[0] == {"embedding": vectors[0, 0].tolist()} and answers[2] == {
            "embedding": vectors[3, 0].tolist()
        }
        assert answers[1] == {"cosine": pytest.approx(cosines(vectors[1:3].reshape(1, 2, 6))[0])}
        assert json.loads(json.dumps(answers)) == answers


def test_partners_are_ranked_in_the_order_of_the_table():
    task = SentenceEmbedding().learn(PAIRS)
    features = task.encode(TOKENIZER, PAIRS, 8)
    vectors = np.array([[[1, 0], [0.8, 0.6]], [[0, 1], [1, 0]], [[1, 0], [0.6, 0.8]]])
    expected = [
        # Pair 2 has the same first text, so its second one is no mistake.
        {"cosine": 0.8, "rank": 2, "nearest": "d e", "nearest_cosine": 1.0},
        {"cosine": 0.0, "rank": 3, "nearest": "g", "nearest_cosine": 0.8},
        {"cosine": 0.6, "rank": 2, "nearest": "d e", "nearest_cosine": 1.0},
    ]
    for moved, outputs in ((features, vectors), shuffled(features, vectors)):
        predictions = task.decode({"logits": outputs}, moved, PAIRS)
        assert [{k: v if isinstance(v, str) else round(v, 9) for k, v in p.items()} for p in predictions] == expected
    assert task.score(PAIRS, predictions) == {"mrr": pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3), "accuracy": 0.0}


def test_ranks_beyond_ten_count_nothing():
    predictions = [{"rank": rank} for rank in (1, 10, 11)]
    assert SentenceEmbedding().score(PAIRS, predictions) == pytest.approx({"mrr": 1.1 / 3, "accuracy": 1 / 3})


def test_baseline_finds_partners_by_chance():
    pairs = [TextExample(f"a{n}", f"b{n}", True) for n in range(50)]
    scores = SentenceEmbedding().score(pairs, SentenceEmbedding().guess(pairs, pairs))
    assert scores["accuracy"] == 1 / 50
    assert scores["mrr"] == pytest.approx(sum(1 / rank for rank in range(1, 11)) / 50)


def test_loss_is_that_of_the_model():
    vectors = RNG.normal(size=(3, 2, 4))
    features = STSB.encode(TOKENIZER, SCORED, 8)
    assert STSB.measure_loss({"logits": vectors}, features) == pytest.approx(cosine_loss(vectors, [0, 0.25, 1]))
    task = SentenceEmbedding(scale=3.0)
    features = task.encode(TOKENIZER, PAIRS, 8)
    numbers = features.labels["logits"]
    vectors[2, 0] = vectors[0, 0]  # the same text
    assert task.measure_loss({"logits": vectors}, features) == pytest.approx(
        contrastive_loss(vectors, numbers, scale=3.0)
    )


def test_model_is_told_what_was_chosen():
    assert SentenceEmbedding().model_options == {"objective": "contrastive", "scale": 20.0}
    chosen = SentenceEmbedding("cosine", pooling="cls", normalize=False).model_options
    assert chosen == {"objective": "cosine", "scale": 20.0, "pooling": "cls", "normalize": False}
    assert make_task("regression").model_options == {}


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: SentenceEmbedding("triplet"), ["contrastive, cosine", "'triplet'"]),
        (lambda: SentenceEmbedding(main_metric="spearman"), ["'spearman'", "mrr, accuracy"]),
        (lambda: SentenceEmbedding("cosine", main_metric="mrr"), ["'mrr'", "pearson, spearman"]),
        (lambda: SentenceEmbedding(lowest=1.0), ["`lowest`", "1.0 and 1.0"]),
        (lambda: SentenceEmbedding(labels=("a",)), ["no labels"]),
        (lambda: SentenceEmbedding().learn(PAIRS[:1] * 3), ["two different second texts", "3 examples from t.tsv"]),
        (lambda: STSB.learn(SCORED[:1] * 3), ["two different scores", "all are 0.0"]),
        (lambda: STSB.learn([]), ["no examples"]),
        (lambda: STSB.score([TextExample("a", "b")], [{"cosine": 1.0}]), ["an example without a label"]),
    ],
)
def test_sentence_embedding_refuses(call, parts):
    message = message_of(ValueError, call)
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize("shape", [(3, 2), (3, 1, 4), (2, 2, 4), (3, 4)])
def test_decode_refuses_other_shapes(shape):
    features = STSB.encode(TOKENIZER, SCORED, 8)
    assert str(shape) in message_of(ValueError, STSB.decode, {"logits": np.zeros(shape)}, features, SCORED)


def test_decode_refuses_what_is_not_finite():
    features = STSB.encode(TOKENIZER, SCORED, 8)
    vectors = np.ones((3, 2, 4))
    vectors[1, 1, 2] = np.nan
    assert "diverged" in message_of(ValueError, STSB.decode, {"logits": vectors}, features, SCORED)
