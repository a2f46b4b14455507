"""Features as batches: each a function of its number, every row once a pass, filler without weight."""

import json
from dataclasses import replace
from itertools import islice

import keras
import numpy as np
import pytest

from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.tasks import TaskBatches, task_dataset
from keras_bert_flow.tasks.core.task import IGNORED
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from tests.data.numbered_rows import LENGTHS, make_features

pytestmark = pytest.mark.any_backend

PIECES = (*SPECIAL_PIECES, "a", "b")


def assert_batches_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        for part, other_part in zip(one, other, strict=True):
            keras.tree.map_structure(np.testing.assert_array_equal, part, other_part)


@pytest.mark.parametrize("group_by_length", [True, False])
@pytest.mark.parametrize("batch_size", [1, 4, 9, 64])
def test_passes_are_permutations_and_slices(batch_size, group_by_length):
    batches = TaskBatches(make_features(), batch_size, 2, 3, group_by_length)
    steps = batches.steps_per_epoch
    assert steps == -(-45 // batch_size)
    whole = list(islice(task_dataset(make_features(), batch_size, 2, 0, 3, group_by_length), 2 * steps + 1))
    for step in {1, steps, steps + 1, 2 * steps}:
        rest = task_dataset(make_features(), batch_size, 2, step, 3, group_by_length)
        assert_batches_equal(list(islice(rest, 2 * steps + 1 - step)), whole[step:])
    orders = []
    for epoch in (whole[:steps], whole[steps : 2 * steps]):
        rows = np.concatenate([x["token_ids"][weights > 0, 0] for x, _, weights in epoch])
        np.testing.assert_array_equal(np.concatenate([y[weights > 0] for _, y, weights in epoch]), rows * 10)
        assert sorted(rows) == list(range(45))
        orders.append(rows.tolist())
    assert orders[0] != orders[1]
    assert len({x["token_ids"].shape for x, _, _ in whole}) <= 3
    assert all(len(x["token_ids"]) == len(y) == len(weights) == batch_size for x, y, weights in whole)


def test_batches_may_hold_rows_of_any_length():
    rng = np.random.default_rng(5)
    lengths = rng.integers(3, 100, 400)
    batches = TaskBatches(make_features(lengths), 8, max_widths=4, group_by_length=False)
    widths = []
    for step in range(2 * batches.steps_per_epoch):
        mask = batches[step][0]["padding_mask"]
        widths.append(mask.shape[1])
        longest = mask.sum(axis=1).max()
        assert min(width for width in batches.widths if width >= longest) == widths[-1]
    assert len(set(widths)) == 4 and min(widths) < max(widths) == batches.widths[-1]
    # Groups of like length have means that differ by more than those of any eight rows: 28 / sqrt(8) = 10.
    deviations = {}
    for kind in (True, False):
        found = TaskBatches(make_features(lengths), 8, max_widths=4, group_by_length=kind)
        means = [found[step][0]["padding_mask"].sum(axis=1).mean() for step in range(found.steps_per_epoch)]
        deviations[kind] = np.std(means)
    assert deviations[False] == pytest.approx(10, abs=2.5) and deviations[True] > 20
    assert batches.mean_positions == 8 * round(np.mean(widths[: batches.steps_per_epoch]) * 8) / 8


def test_inputs_are_filled_up_to_the_width():
    x, _, _ = TaskBatches(make_features([3, 9]), 2)[0]
    rows = {int(row[0]): place for place, row in enumerate(x["token_ids"])}
    assert {name: values.shape for name, values in x.items()} == dict.fromkeys(x, (2, 16))
    for number, length in ((0, 3), (1, 9)):
        filler = [0] * (16 - length)
        assert x["token_ids"][rows[number]].tolist() == [number] + [7] * (length - 1) + filler
        assert x["segment_ids"][rows[number]].tolist() == [0] * (length - 1) + [1] + filler
        assert x["padding_mask"][rows[number]].tolist() == [1] * length + filler
    assert {values.dtype for values in x.values()} == {np.dtype("int32")}


def test_labels_of_tokens_weigh_where_there_are_any():
    labels = [np.full(length, IGNORED, np.int32) for length in (3, 5, 4)]
    labels[0][1], labels[1][1:4] = 6, (1, 0, 2)
    x, y, weights = TaskBatches(make_features([3, 5, 4], labels={"logits": labels}), 4, max_widths=1)[0]
    assert x["token_ids"].shape == y.shape == weights.shape == (4, 8)
    for number, row_labels in enumerate(labels):
        places = np.flatnonzero(x["token_ids"][:, 0] == number)
        assert weights[places[0]].tolist() == [float(label != IGNORED) / 4 for label in row_labels] + [0] * (
            8 - len(row_labels)
        )
        assert y[places[0]][weights[places[0]] > 0].tolist() == [label for label in row_labels if label != IGNORED]
    assert (weights.sum(axis=1) > 0).sum() == 2 and y.min() == 0  # the row without labels, and the filler


@pytest.mark.parametrize("group_by_length", [True, False])
def test_parts_of_a_batch_are_its_rows_by_length(group_by_length):
    labels = [np.full(length, 1, np.int32) for length in LENGTHS]
    for features in (make_features(), make_features(labels={"logits": labels})):
        whole = TaskBatches(features, 12, 2, 3, group_by_length)
        parts = TaskBatches(features, 12, 2, 3, group_by_length, accumulate_batches=4)
        assert parts.steps_per_epoch == whole.steps_per_epoch == 4
        positions = []
        for step in range(8):
            x, _, weights = whole[step]
            rows = sorted(zip(x["token_ids"][:, 0], weights.reshape(12, -1).max(axis=1) > 0, strict=True))
            found, lengths, sums = [], [], []
            for part in range(4):
                x, y, weights = parts[4 * step + part]
                assert len(x["token_ids"]) == len(y) == len(weights) == 3
                found += zip(x["token_ids"][:, 0], weights.reshape(3, -1).max(axis=1) > 0, strict=True)
                lengths += x["padding_mask"].sum(axis=1).tolist()
                width = x["token_ids"].shape[1]
                assert width == min(width for width in parts.widths if width >= max(lengths[-3:]))
                sums.append(weights.sum(dtype="float64"))
                positions.append(3 * width)
            assert lengths == sorted(lengths)
            if group_by_length or step % 4 < 3:  # filler may be other rows
                assert sorted(found) == rows
            # The mean of the parts' sums is the sum of the whole, where that of rows is a mean.
            expected = whole[step][2].sum(dtype="float64") if features.labelled_tokens.any() else 1
            assert np.mean(sums) == pytest.approx(expected, rel=1e-6)  # float32
        assert parts.mean_positions == round(sum(positions[:16]) / 4)
        rest = list(islice(task_dataset(features, 12, 2, 3, 3, group_by_length, accumulate_batches=4), 6))
        assert_batches_equal(rest, [parts[number] for number in range(12, 18)])


def test_batches_of_any_rows_in_parts_are_hardly_padding():
    lengths = np.random.default_rng(5).integers(3, 100, 400)
    grouped, whole, parts = (
        TaskBatches(make_features(lengths), 32, 1, 8, *options) for options in ((True,), (False,), (False, 8))
    )
    assert whole.mean_positions > 1.5 * grouped.mean_positions
    assert parts.mean_positions < 1.2 * grouped.mean_positions
    for batches in (whole, parts):
        assert len({batches[number][0]["token_ids"].shape for number in range(100)}) <= 8


@pytest.mark.parametrize("parts", [1, 3])
def test_batches_for_what_compiles_no_shapes_are_as_wide_as_their_longest_row(parts):
    features = make_features(LENGTHS[:40])
    batches = TaskBatches(features, 12, 2, 3, accumulate_batches=parts, compiles_shapes=False)
    compiled = TaskBatches(features, 12, 2, 3, accumulate_batches=parts)
    positions = 0
    for step in range(8):
        found, lengths = [], []
        for part in range(parts):
            x, _, weights = batches[step * parts + part]
            assert x["token_ids"].shape[1] == x["padding_mask"].sum(axis=1).max()
            lengths += x["padding_mask"].sum(axis=1).tolist()
            found += x["token_ids"][weights > 0, 0].tolist()
            positions += x["token_ids"].size * (step < 4)
        assert lengths == sorted(lengths)
        assert len(lengths) == ({1: 4, 3: 6}[parts] if step % 4 == 3 else 12)  # four rows are left, no multiple of 3
        whole = [compiled[step * parts + part] for part in range(parts)]
        assert sorted(found) == sorted(row for x, _, weights in whole for row in x["token_ids"][weights > 0, 0])
    assert batches.mean_positions == round(positions / 4)


def test_batch_without_equal_parts_is_refused():
    with pytest.raises(ValueError, match="must split into equal parts. Received: 6 sequences for 4 parts. Try 4"):
        task_dataset(make_features(), 6, accumulate_batches=4)


@pytest.mark.parametrize("share", [0.75, 0.02])  # with the latter, and batches of 1, fewer than one a batch
@pytest.mark.parametrize("batch_size", [1, 4, 9, 64])
def test_every_labelled_token_of_a_pass_weighs_alike(batch_size, share):
    rng = np.random.default_rng(7)
    labels = [np.where(rng.random(length) < share, 1, IGNORED).astype(np.int32) for length in LENGTHS]
    batches = TaskBatches(make_features(labels={"logits": labels}), batch_size, max_widths=4, group_by_length=True)
    weights = [batches[step][2] for step in range(batches.steps_per_epoch)]
    labelled = sum((row != IGNORED).sum() for row in labels)
    assert sum((weight > 0).sum() for weight in weights) == labelled
    assert {value for weight in weights for value in np.unique(weight)} <= {0, np.float32(len(weights) / labelled)}
    assert np.mean([weight.sum() for weight in weights]) == pytest.approx(1)


def test_labelled_tokens_of_a_batch_of_any_rows_make_a_mean():
    rng = np.random.default_rng(7)
    labels = [rng.integers(IGNORED, 3, length, dtype=np.int32) for length in LENGTHS]
    labels[5][:] = IGNORED
    features = make_features(labels={"logits": labels})
    assert features.labelled_tokens.tolist() == [(row != IGNORED).sum() for row in labels]
    batches = TaskBatches(features, 9, group_by_length=False)
    for step in range(2 * batches.steps_per_epoch):
        x, _, weights = batches[step]
        tokens = sum(features.labelled_tokens[x["token_ids"][weights.any(axis=1), 0]])
        assert set(np.unique(weights)) <= {0, np.float32(1 / tokens)}
        assert weights.sum(dtype="float64") == pytest.approx(1, rel=1e-6)  # float32
    alone = TaskBatches(features, 1, group_by_length=False)  # one batch is the row without labels
    assert sorted(alone[step][2].sum() > 0 for step in range(45)) == [False] + [True] * 44


def test_outputs_by_name_keep_their_names():
    labels = {"start": np.arange(3, dtype=np.int32), "end": np.arange(3, dtype=np.int32) + 1}
    _, y, weights = TaskBatches(make_features([3, 5, 4], labels=labels), 2)[0]
    assert set(y) == set(weights) == {"start", "end"}
    np.testing.assert_array_equal(y["end"], y["start"] + 1)


def test_rows_of_several_sequences_stay_together():
    batches = TaskBatches(make_features(LENGTHS[:12], sequences_per_row=3), 4, max_widths=2)
    x, y, _ = batches[0]
    assert x["token_ids"].shape[:2] == (4, 3)
    np.testing.assert_array_equal(x["token_ids"][:, :, 0], y[:, None] // 10 * 3 + np.arange(3))
    assert batches.mean_positions == x["token_ids"].size


def test_rows_of_one_sequence_may_keep_their_axis():
    features = replace(make_features([3, 9]), keeps_axis=True)
    x, _, _ = TaskBatches(features, 2)[0]
    assert {values.shape for values in x.values()} == {(2, 1, 16)}
    assert sorted(x["token_ids"][:, 0, 0]) == [0, 1]


@pytest.mark.parametrize("features", [make_features([]), make_features([4], labels={})])
def test_nothing_to_learn_from_is_refused(features):
    with pytest.raises(ValueError, match="Received: none"):
        task_dataset(features, 4)


@pytest.mark.parametrize(("settings", "cased"), [(None, False), ({"do_lower_case": False}, True), ({}, False)])
def test_tokenizer_of_a_model_directory_knows_its_case(tmp_path, settings, cased):
    write_vocabulary(tmp_path / "vocab.txt", PIECES)
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_tokenizer(tmp_path).cased is cased


@pytest.mark.parametrize("compiles_shapes", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_packed_batches_hold_the_same_tokens_with_little_padding(compiles_shapes, parts):
    labels = {"logits": [np.arange(length, dtype=np.int32) + 100 * row for row, length in enumerate(LENGTHS)]}
    features = replace(make_features(labels=labels), sequence_length=64)
    options = {"accumulate_batches": parts, "compiles_shapes": compiles_shapes}
    plain, packed = (TaskBatches(features, 12, 2, packs=packs, **options) for packs in (False, True))

    def list_tokens(batch):
        """Return the tokens of each text, with their labels and weights."""
        inputs, labels, weights = batch
        found = []
        for row in range(len(labels)):
            numbers = inputs["padding_mask"][row]
            for number in range(1, numbers.max(initial=0) + 1):
                place = numbers == number
                if weights[row][place].any():
                    found.append([part[row][place].tolist() for part in (inputs["token_ids"], labels, weights)])
        return sorted(found)

    positions = []
    for step in range(2 * parts * plain.steps_per_epoch):
        assert list_tokens(packed[step]) == list_tokens(plain[step])
        inputs, _, weights = packed[step]
        assert weights.shape[1] == 64 and not weights[inputs["padding_mask"] == 0].any()
        positions.append(weights.size)
    first = positions[: len(positions) // 2]
    assert packed.mean_positions == pytest.approx(sum(first) / plain.steps_per_epoch, abs=0.5)
    if compiles_shapes:
        assert {size // 64 for size in positions} <= {1, 3, 6, 8, 12}


def test_rows_with_a_label_each_are_not_packed():
    with pytest.raises(ValueError, match="a label for each token. Received: one for each row"):
        TaskBatches(make_features(), 4, packs=True)
