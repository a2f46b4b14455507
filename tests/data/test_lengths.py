"""Batches of like length: the fewest padded positions that so many widths allow, each row once."""

import itertools

import numpy as np
import pytest

from keras_bert_flow.data.tasks import (
    BATCH_COST,
    MAX_WIDTHS,
    SHAPE_COST,
    WIDTH_STEP,
    bucket_by_length,
    choose_few_widths,
    choose_widths,
    fill_up,
    fit_widths,
    halve_widths,
    list_sizes,
    plan_in_order,
    plan_tightly,
    shuffle_into_batches,
)

pytestmark = pytest.mark.any_backend

CASES = range(300)


def make_lengths(case):
    rng = np.random.default_rng(case)
    return rng.integers(1, rng.integers(2, 70), rng.integers(1, 30)), int(rng.integers(1, 6)), rng


def count_positions(lengths, widths):
    return sum(min(width for width in widths if width >= length) for length in lengths)


def test_widths_leave_the_least_padding():
    for case in CASES:
        lengths, most, _ = make_lengths(case)
        widths = choose_widths(lengths, most)
        rounded = sorted({-(-length // WIDTH_STEP) * WIDTH_STEP for length in lengths.tolist()})
        below, largest = rounded[:-1], rounded[-1]
        choices = (part for size in range(most) for part in itertools.combinations(below, size))
        least = min(count_positions(lengths, (*part, largest)) for part in choices)
        assert count_positions(lengths, widths) == least, case
        assert list(widths) == sorted(set(widths)) and len(widths) <= most and set(widths) <= set(rounded), case


def test_every_row_is_in_one_batch_that_holds_it():
    for case in CASES:
        lengths, most, rng = make_lengths(case)
        widths, batch_size = choose_widths(lengths, most), int(rng.integers(1, 9))
        batches = bucket_by_length(lengths, widths, batch_size, rng)
        assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
        sizes = sorted(len(rows) for rows in batches)
        assert len(sizes) == -(-len(lengths) // batch_size) and set(sizes[1:]) <= {batch_size}
        held = [set(np.searchsorted(widths, lengths[rows])) for rows in batches]
        # What is left over of one width is in one batch with the next: so many more pairs at most than batches.
        assert sum(len(found) for found in held) <= len(batches) + len(widths) - 1


def test_rows_dealt_out_at_random_are_each_in_one_batch():
    for case in CASES:
        lengths, size, rng = make_lengths(case)
        batches = shuffle_into_batches(len(lengths), size, rng)
        assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
        assert {len(rows) for rows in batches[:-1]} <= {size} and 1 <= len(batches[-1]) <= size


def test_batches_and_their_order_change_with_the_generator():
    lengths = np.random.default_rng(1).integers(3, 60, 500)
    widths = choose_widths(lengths, 4)
    first, again, other = (bucket_by_length(lengths, widths, 16, np.random.default_rng(seed)) for seed in (2, 2, 3))
    assert [rows.tolist() for rows in first] == [rows.tolist() for rows in again]
    assert {tuple(sorted(rows)) for rows in first}.isdisjoint(tuple(sorted(rows)) for rows in other)
    longest = np.take(widths, np.searchsorted(widths, [lengths[rows].max() for rows in first]))
    places = {width: np.flatnonzero(longest == width).tolist() for width in widths}
    assert all(min(found) < 8 and max(found) >= len(first) - 8 for found in places.values() if len(found) > 5)


@pytest.mark.parametrize("positions", [1, 64, 4096])
def test_batches_in_order_hold_about_so_many_positions(positions):
    for case in CASES:
        lengths, most, _ = make_lengths(case)
        batches = plan_in_order(lengths, choose_widths(lengths, most), positions)
        assert sorted(np.concatenate([rows for rows, _ in batches])) == list(range(len(lengths)))
        assert all((lengths[rows] <= width).all() for rows, width in batches)
        assert all(len(rows) * width <= positions or len(rows) == 1 for rows, width in batches)
        assert [width for _, width in batches] == sorted(width for _, width in batches)


@pytest.mark.parametrize("positions", [1, 64, 200, 4096])
def test_batches_in_order_have_the_fewest_positions_of_all(positions):
    for case in CASES[:40]:
        lengths = np.sort(make_lengths(case)[0][:7])
        widths = choose_widths(lengths, 3)
        found = places_of(plan_in_order(lengths, widths, positions))
        wanted = min(cost_in_order(lengths, way, widths, positions) for way in list_ways(len(lengths)))
        assert cost_in_order(lengths, found, widths, positions) == wanted
    assert plan_in_order(lengths[:0], widths, positions) == []


def cost_in_order(lengths, places, widths, positions):
    """What a way to cut rows, sorted, into batches of fixed shapes costs; infinity where a batch has too many rows."""
    cost = 0.0
    for start, stop in itertools.pairwise(places):
        width = min(width for width in widths if width >= lengths[stop - 1])
        most = max(1, positions // width)
        if stop - start > most:
            return np.inf
        cost += len(fill_up(np.arange(stop - start), most)) * width + SHAPE_COST * positions
    return cost


def list_ways(rows):
    """Yield the places at which rows can be cut into batches, in all ways."""
    for size in range(rows):
        yield from ([0, *inner, rows] for inner in itertools.combinations(range(1, rows), size))


@pytest.mark.parametrize("positions", [1, 64, 200, 4096])
def test_tight_batches_have_the_fewest_positions_of_all(positions):
    for case in CASES[:50]:
        lengths = make_lengths(case)[0][:9]
        batches = plan_tightly(lengths, positions)
        assert sorted(np.concatenate([rows for rows, _ in batches])) == list(range(len(lengths)))
        assert all(width == lengths[rows].max() for rows, width in batches)
        cut = [np.sort(lengths)[start:stop] for start, stop in itertools.pairwise(places_of(batches))]
        assert [sorted(lengths[rows]) for rows, _ in batches] == [sorted(part) for part in cut]
        wanted = min(cost_of(lengths, way, positions) for way in list_ways(len(lengths)))
        assert cost_of(lengths, places_of(batches), positions) == wanted
    assert plan_tightly(lengths[:0], positions) == []


def places_of(batches):
    return [0, *itertools.accumulate(len(rows) for rows, _ in batches)]


def cost_of(lengths, places, positions):
    """What a way to cut sorted rows costs; infinity where a batch of several rows holds too many positions."""
    parts = [np.sort(lengths)[start:stop] for start, stop in itertools.pairwise(places)]
    sizes = [len(part) * part.max() for part in parts]
    fits = all(size <= positions or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    return sum(sizes) + len(parts) * BATCH_COST * positions if fits else np.inf


def test_there_is_a_width_more_each_time_that_the_work_doubles():
    lengths = np.tile(np.arange(1, 65), 64)
    for batches, expected in ((1, 2), (2, 3), (3, 3), (4, 4), (31, 6), (32, 7)):
        widths = choose_few_widths(lengths[: 64 * batches], batch_positions=4096)
        assert widths == choose_widths(lengths, expected), batches
    assert len(choose_few_widths(lengths, 64)) == MAX_WIDTHS
    assert choose_few_widths(lengths[:63], 4096) == (64,)
    assert choose_few_widths(lengths, 64, max_widths=3) == choose_widths(lengths, 3)


def test_halves_are_widths_for_any_row():
    assert halve_widths(128) == (16, 32, 64, 128)
    assert halve_widths(384) == (48, 96, 192, 384)
    assert halve_widths(100) == (16, 32, 56, 100)  # no wider than the model reads
    assert halve_widths(16) == (8, 16) and halve_widths(5) == (5,)


def test_fixed_widths_are_used_where_one_is_not_enough():
    widths = (16, 32, 64, 128)
    assert fit_widths(np.array([3, 40, 64]), widths, batch_positions=192) == (64,)
    assert fit_widths(np.array([3, 40, 64]), widths, batch_positions=191) == widths
    assert fit_widths(np.array([128]), widths, batch_positions=1) == widths


def test_sizes_of_batches_are_few():
    assert list_sizes(256) == (1, 8, 64, 128, 256)
    assert list_sizes(8) == (1, 2, 4, 8)
    assert list_sizes(3) == (1, 3) and list_sizes(1) == (1,)
    assert all(list_sizes(most)[-1] == most for most in range(1, 300))


def test_batches_are_filled_up_with_their_own_rows():
    assert fill_up(np.array([5, 3, 9]), 64).tolist() == [5, 3, 9, 5, 3, 9, 5, 3]
    assert fill_up(np.array([5, 3, 9]), 3).tolist() == [5, 3, 9]
    assert fill_up(np.array([5]), 0).tolist() == [5]  # a row that is longer than a batch
