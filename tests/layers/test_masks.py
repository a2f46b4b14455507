"""The contract of the padding mask: which keys a query may attend to, and where positions start again."""

from dataclasses import replace
from itertools import product

import keras
import numpy as np
import pytest

from keras_bert_flow.backends.values import assume_packed_rows
from keras_bert_flow.layers.masks import AttentionBias, attention_bias, text_positions
from keras_bert_flow.layers.patterns import (
    FULL,
    LEARNED,
    PATTERNS,
    POSITIONS,
    Alibi,
    Blocks,
    Causal,
    Permutation,
    Rotary,
    Window,
    describe_kind,
    make_kind,
)

MASKED = np.float32(-1e9)
# Two texts and padding; one text; three of one token; nothing but padding; padding before and between two texts.
PACKED = np.array([[1, 1, 1, 2, 2, 0], [1] * 6, [1, 2, 3, 0, 0, 0], [0] * 6, [0, 4, 4, 0, 5, 5]], "int32")
PLAIN = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]], "int32")
PLACES = np.array([[0, 1, 2, 0, 1, 5], [0, 1, 2, 3, 4, 5], [0, 0, 0, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 1]])


def choose_blocks(query, pattern):
    """Return the random blocks of a block, from a list of those that may be one."""
    others = [
        block for block in range(pattern.num_global, pattern.num_blocks) if abs(block - query) > pattern.num_neighbours
    ]
    chosen, count = [], pattern.num_random
    for part in range(count):
        some = others[len(others) * part // count : len(others) * (part + 1) // count]
        number, seed = int(query), pattern.seed * count + part
        for multiplier in (17_389, 30_011, 44_497):
            seed = (seed * 48_271 + multiplier) % (2**31 - 1)
            number = ((number * multiplier + seed) % 46_337) ** 2 % 46_337
        chosen += [some[number % len(some)]] if some else []
    return chosen


RANDOM = Blocks(1, num_neighbours=0, num_random=2, num_blocks=6, seed=3)
# pattern → whether a query may attend to a key, by their positions in a text
RULES = {
    FULL: lambda query, key: True,
    Window(1): lambda query, key: abs(query - key) <= 1,
    Window(0, num_global=1): lambda query, key: query == key or 0 in (query, key),
    Blocks(2, num_neighbours=0): lambda query, key: query // 2 == key // 2,
    Blocks(1, num_global=1): lambda query, key: abs(query - key) <= 1 or 0 in (query, key),
    RANDOM: lambda query, key: query == key or key in choose_blocks(query, RANDOM),
    Causal(): lambda query, key: key <= query,
}


def read(tensor):
    return keras.ops.convert_to_numpy(tensor)


def test_positions_start_again_with_each_text():
    np.testing.assert_array_equal(read(text_positions(PACKED)), PLACES)
    for mask in (PLAIN, PLAIN.astype(bool)):
        np.testing.assert_array_equal(read(text_positions(mask)), np.tile(np.arange(4), (4, 1)))


def place_pairwise(mask):
    """Return the positions of tokens in their texts, by comparing each token with all others of its row."""
    places = np.zeros_like(mask)
    for row, numbers in enumerate(mask):
        first = next(iter(numbers[numbers > 0]), 0)
        for place, number in enumerate(numbers):
            starts_later = number not in (0, first)
            places[row, place] = place - list(numbers).index(number) if starts_later else place
    return places


@pytest.mark.first_form_compiled
@pytest.mark.parametrize("largest", [3, 40, 2**31 - 1])  # of some numbers twice the length would be beyond int32
def test_positions_are_those_of_a_comparison_of_all_pairs(largest):
    rng = np.random.default_rng(largest)
    mask = np.where(rng.random((50, 17)) < 0.8, rng.integers(1, largest, (50, 17), endpoint=True), 0).astype("int32")
    mask[::2] = np.sort(mask[::2], axis=1)  # texts of several tokens, and others that come back after another text
    found = read(text_positions(mask))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, place_pairwise(mask))


def test_positions_take_memory_in_proportion_to_the_length():
    length, backend = 300, keras.backend.backend()
    mask = np.sort(np.random.default_rng(1).integers(1, 9, (2, length)), axis=1).astype("int32")
    if backend == "torch":  # recorded: nothing in it depends on a value
        from torch.fx.experimental.proxy_tensor import make_fx

        recorded = make_fx(text_positions)(keras.ops.convert_to_tensor(mask))
        again = mask[:, ::-1].copy()
        np.testing.assert_array_equal(read(recorded(keras.ops.convert_to_tensor(again))), place_pairwise(again))
        shapes = [node.meta["tensor_meta"].shape for node in recorded.graph.nodes if "tensor_meta" in node.meta]
    elif backend == "jax":
        import jax

        shapes = [each.aval.shape for line in jax.make_jaxpr(text_positions)(mask).eqns for each in line.outvars]
    else:  # of a shape that is not known when it is traced
        import tensorflow

        function = tensorflow.function(
            text_positions, input_signature=[tensorflow.TensorSpec((None, None), "int32")], autograph=False
        )
        np.testing.assert_array_equal(read(function(mask)), place_pairwise(mask))
        return
    assert len(shapes) > 10 and max(map(np.prod, shapes)) <= 2 * length + 1


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="exported by PyTorch")
def test_positions_are_exported(tmp_path):
    torch, runtime = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")

    class Positions(torch.nn.Module):
        def forward(self, mask):
            return text_positions(mask)

    path = tmp_path / "positions.onnx"
    torch.onnx.export(Positions().eval(), (torch.tensor(PACKED),), path, dynamo=True, verbose=False)
    session = runtime.InferenceSession(path)
    np.testing.assert_array_equal(session.run(None, {session.get_inputs()[0].name: PACKED})[0], PLACES)


@pytest.mark.first_form_compiled
@pytest.mark.parametrize("pattern", RULES, ids=repr)
@pytest.mark.parametrize("mask", [PACKED, PLAIN], ids=["packed", "plain"])
def test_bias_is_zero_where_a_query_may_attend(mask, pattern):
    bias = read(attention_bias(mask, pattern))
    bias = np.broadcast_to(bias, (len(mask), 1, mask.shape[1], mask.shape[1]))[:, 0]
    positions = read(text_positions(mask))
    for row, query, key in product(range(len(mask)), *[range(mask.shape[1])] * 2):
        texts = mask[row, query], mask[row, key]
        if texts[0] == 0:  # padding: whatever it attends to, it is finite
            assert bias[row, query, key] in (0, MASKED)
            continue
        allowed = texts[0] == texts[1] and RULES[pattern](positions[row, query], positions[row, key])
        assert bias[row, query, key] == (0 if allowed else MASKED), (row, query, key)


def test_padding_attends_to_all_keys_of_its_row():
    np.testing.assert_array_equal(read(attention_bias(PACKED))[0, 0, 5], np.where(PACKED[0], 0, MASKED))


def test_order_of_a_permutation_is_given_with_the_batch():
    order, mask = np.array([[2, 0, 1, 3]], "int32"), np.array([[1, 1, 1, 0]], "int32")
    content, query = (read(attention_bias(mask, Permutation(itself), order))[0, 0, :3] == 0 for itself in (True, False))
    np.testing.assert_array_equal(content, [[1, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 0]])
    np.testing.assert_array_equal(query, [[0, 1, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]])


def test_what_is_assumed_of_rows_is_not_looked_up():
    with assume_packed_rows(False):
        assert tuple(attention_bias(PACKED).shape) == (5, 1, 1, 6)
        of_single_texts = read(attention_bias(PLAIN))
    with assume_packed_rows(True):
        for_either = read(attention_bias(PLAIN))
    assert for_either.shape == (4, 1, 4, 4)
    np.testing.assert_array_equal(for_either, np.broadcast_to(of_single_texts, for_either.shape))


@pytest.mark.first_form_compiled
@pytest.mark.parametrize("options", [{"num_global": 2, "seed": 5}, {"num_neighbours": 0}, {"seed": 2**32 - 1}], ids=str)
@pytest.mark.parametrize("count", [3, 1, 20, 70])
def test_blocks_attend_to_random_ones(options, count):
    size, num_blocks = 2, 64
    pattern = Blocks(size, num_random=count, num_blocks=num_blocks, **options)
    places = keras.ops.arange(size * (num_blocks + 9), dtype="int32")  # a text longer than was said
    allowed = read(pattern.allows(keras.ops.expand_dims(places, 1), places))
    blocks = allowed[::size, ::size]
    np.testing.assert_array_equal(allowed, blocks.repeat(size, 0).repeat(size, 1))
    order = np.arange(len(blocks))
    is_plain = replace(pattern, num_random=0).allows(size * order[:, None], size * order)
    assert (blocks | ~is_plain).all()  # the neighbours and the global blocks
    is_random = blocks & ~is_plain
    for query in range(pattern.num_global, len(blocks)):
        assert list(np.flatnonzero(is_random[query])) == choose_blocks(query, pattern)
        assert is_random[query].sum() == min(count, (~is_plain[query, :num_blocks]).sum())


@pytest.mark.any_backend
def test_random_blocks_are_each_as_likely():
    queries, num_blocks, seeds = np.arange(64)[:, None], 64, 400
    counts = np.zeros((64, num_blocks))
    for seed in range(seeds):
        pattern = Blocks(1, num_global=2, num_random=3, num_blocks=num_blocks, seed=seed)
        counts += pattern.allows(queries, queries.T) & ~replace(pattern, num_random=0).allows(queries, queries.T)
    rate = 3 / 59  # of three among those that are neither near nor global; 60 of the blocks at the end
    inner = counts[3:63, 2:][np.abs(queries[3:63] - queries.T[:, 2:]) > 1]
    assert abs(inner.mean() / seeds - rate) < 1e-3
    # Parts of 19 or 20 blocks have rates of 1/19 and 1/20; four standard errors of 400 draws, and those of all counts
    error = np.sqrt(rate * (1 - rate) / seeds)
    assert np.abs(inner / seeds - rate).max() < 6 * error and inner.std() / seeds < 1.2 * error


@pytest.mark.any_backend
@pytest.mark.parametrize("pattern", RULES, ids=repr)
def test_pattern_is_data(pattern):
    assert (
        make_kind(describe_kind(pattern), PATTERNS) == pattern
        and {pattern: 1}[make_kind(describe_kind(pattern), PATTERNS)]
    )


@pytest.mark.any_backend
@pytest.mark.parametrize("positions", [LEARNED, Rotary(160000.0), Alibi()], ids=repr)
def test_positions_are_data(positions):
    assert make_kind(describe_kind(positions), POSITIONS) == positions


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Window(-1), "`radius` must be at least 0. Received: radius=-1"),
        (lambda: Window(1, num_global=-1), "`num_global` must be at least 0"),
        (lambda: Blocks(0), "`size` must be at least 1. Received: size=0. Try size=1"),
        (lambda: Blocks(1, num_random=2), "`num_blocks` must be at least 1. Received: num_blocks=0"),
        (lambda: Rotary(0.0), "`theta` must be above 0. Received: theta=0.0"),
        (lambda: make_kind({"kind": "Wide"}, PATTERNS), "`kind` must be one of Full, Window, .*Received: 'Wide'"),
    ],
)
def test_data_that_says_nothing_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_layer_says_its_shape_and_is_built_from_its_config():
    layer = AttentionBias(Window(1), name="bias")
    assert tuple(layer(keras.KerasTensor((None, 6), dtype="int32")).shape) == (None, 1, 6, 6)
    twin = AttentionBias.from_config(layer.get_config())
    np.testing.assert_array_equal(read(twin(PACKED)), read(attention_bias(PACKED, Window(1))))
