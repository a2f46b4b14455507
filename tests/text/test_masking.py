import numpy as np
import pytest
from scipy import stats

from keras_bert_flow.text.masking import MaskingRule, mask_rows

SIZE = 30522
PAD, CLS, SEP, MASK = 0, 101, 102, 103
# ids sparse in the vocabulary, so that a draw from the ids of the text, or up to the largest one, shows
WORDS = np.array([7, 1003, 1999, 12345, 20000, 25001])
PIECES = np.array([5000, 5001, 17000])


def make_rule(masked_fraction=0.15, max_predictions=1000, unit="token", size=SIZE):
    starts_word = np.ones(size, bool)
    starts_word[np.setdiff1d(PIECES, np.arange(size, SIZE))] = False
    return MaskingRule(masked_fraction, max_predictions, MASK, (CLS, SEP), starts_word, unit)


def make_tokens(length, rng=None, pieces=False):
    """Return [CLS] A [SEP] B [SEP] of `length` tokens."""
    rng = rng or np.random.default_rng(0)
    tokens = rng.choice(np.concatenate([WORDS, PIECES]) if pieces else WORDS, length)
    tokens[0], tokens[length // 2], tokens[-1] = CLS, SEP, SEP
    return tokens.astype(np.int32)


def mask_tokens(tokens, rule, rng):
    """Mask one row, and return its tokens, and positions and original tokens without filler."""
    masked = mask_rows(tokens[None], np.array([len(tokens)]), rule, rng)
    (count,) = masked.counts
    assert not masked.positions[0, count:].any() and not masked.mask_ids[0, count:].any()
    return masked.token_ids[0], masked.positions[0, :count], masked.mask_ids[0, :count]


def choose_positions(tokens, rule, rng):
    return mask_tokens(tokens, rule, rng)[1]


@pytest.mark.parametrize(
    ("length", "masked_fraction", "max_predictions", "expected"),
    [
        (100, 0.15, 20, 15),
        (128, 0.15, 20, 19),  # 19.2
        (512, 0.15, 77, 77),  # 76.8
        (512, 0.15, 20, 20),  # the limit
        (30, 0.15, 20, 4),  # 4.5: half goes to the even number
        (50, 0.15, 20, 8),  # 7.5
        (90, 0.15, 20, 14),  # 13.5
        (5, 0.15, 20, 1),
        (4, 0.01, 20, 1),  # at least one
        (12, 0.99, 20, 9),  # all that may be masked
    ],
)
def test_masking_counts_special_tokens_in_the_length(length, masked_fraction, max_predictions, expected):
    rule = make_rule(masked_fraction, max_predictions)
    assert len(choose_positions(make_tokens(length), rule, np.random.default_rng(1))) == expected


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_masking_leaves_special_tokens_and_what_was_not_chosen(unit):
    rng = np.random.default_rng(2)
    for length in range(5, 60):
        tokens = make_tokens(length, rng, pieces=True)
        before = tokens.copy()
        masked, positions, mask_ids = mask_tokens(tokens, make_rule(0.9, unit=unit), rng)
        assert np.array_equal(tokens, before)  # the input stays as it was
        assert masked.dtype == tokens.dtype and masked.shape == tokens.shape
        assert np.all(np.diff(positions) > 0)
        assert not np.isin(tokens[positions], (CLS, SEP)).any()
        assert np.array_equal(mask_ids, tokens[positions])
        others = np.setdiff1d(np.arange(length), positions)
        assert np.array_equal(masked[others], tokens[others])


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_masking_of_many_rows_keeps_each_within_its_length(unit):
    rng = np.random.default_rng(3)
    lengths = np.array([3, 60, *rng.integers(5, 60, 300)])  # the first has special tokens alone
    tokens = np.full((len(lengths), 64), 9)  # padding that shows
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = make_tokens(length, rng, pieces=True)
    rule = make_rule(0.3, 12, unit)
    masked = mask_rows(tokens, lengths, rule, rng)
    assert masked.positions.shape == masked.mask_ids.shape == (len(lengths), 12)
    budgets = [min(12, max(1, round(0.3 * length))) for length in lengths.tolist()]
    assert masked.counts[0] == 0 and np.all(masked.counts[1:] >= 1) and np.all(masked.counts <= budgets)
    assert unit != "token" or masked.counts.tolist() == [0, *budgets[1:]]
    is_chosen = np.zeros(tokens.shape, bool)
    for row, (count, length) in enumerate(zip(masked.counts, lengths, strict=True)):
        positions = masked.positions[row, :count]
        assert np.all(np.diff(positions) > 0) and np.all(positions < length)
        assert np.array_equal(masked.mask_ids[row, :count], tokens[row, positions])
        is_chosen[row, positions] = True
    assert not np.isin(tokens[is_chosen], (CLS, SEP)).any()
    assert np.array_equal(masked.token_ids[~is_chosen], tokens[~is_chosen])


def test_masking_takes_half_of_a_tie_to_the_even_number_in_every_row():
    lengths = np.arange(5, 513)
    masked = mask_rows(np.full((len(lengths), 512), 7), lengths, make_rule(0.15, 76), np.random.default_rng(0))
    assert masked.counts.tolist() == [min(76, max(1, round(length * 0.15))) for length in lengths.tolist()]


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_masking_of_special_tokens_alone_chooses_nothing(unit):
    masked, positions, mask_ids = mask_tokens(np.array([CLS, SEP, SEP]), make_rule(unit=unit), np.random.default_rng(0))
    assert (masked.tolist(), len(positions), len(mask_ids)) == ([CLS, SEP, SEP], 0, 0)


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_masking_follows_the_generator_alone(unit):
    tokens, rule = make_tokens(128, pieces=True), make_rule(unit=unit)
    first, again, other = (mask_tokens(tokens, rule, np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], other[1])


def test_masking_hides_80_changes_10_keeps_10():
    # In a vocabulary of 30522 a random replacement is the original or [MASK] in 2 of 30522 cases: no more than a
    # shift of 1e-5 in the shares, far below what 60,000 draws can tell.
    masked, positions, mask_ids = draw_many(60_000, make_rule(0.9))
    replaced = masked[positions]
    counts = [np.sum(replaced == MASK), np.sum(replaced == mask_ids)]
    counts.append(len(positions) - sum(counts))
    assert stats.chisquare(counts, len(positions) * np.array([0.8, 0.1, 0.1])).pvalue > 0.001


@pytest.mark.slow
def test_masking_chooses_every_place_alike():
    counts = np.zeros(20)
    rng = np.random.default_rng(5)
    for _ in range(4000):
        counts[choose_positions(make_tokens(20), make_rule(), rng)] += 1
    eligible = np.setdiff1d(np.arange(20), [0, 10, 19])
    assert counts.sum() == counts[eligible].sum() == 3 * 4000
    assert stats.chisquare(counts[eligible]).pvalue > 0.001


def test_masking_draws_random_tokens_from_the_whole_vocabulary():
    size = 200  # small, so that each id is expected many times; the text holds three ids
    masked, positions, mask_ids = draw_many(200_000, make_rule(0.9, size=size), ids=np.array([7, 150, 151]))
    replaced = masked[positions]
    changed = replaced[(replaced != MASK) & (replaced != mask_ids)]
    counts = np.bincount(changed, minlength=size)
    assert len(counts) == size
    others = np.setdiff1d(np.arange(size), [MASK, 7, 150, 151])  # of those the draws cannot be told from the rest
    assert counts[PAD] and counts[CLS] and counts[SEP] and counts[size - 1]  # special ones included, as in the original
    assert stats.chisquare(counts[others]).pvalue > 0.001


def draw_many(length, rule, ids=WORDS):
    rng = np.random.default_rng(6)
    return mask_tokens(
        rng.choice(ids, length).astype(np.int32), MaskingRule(**vars(rule) | {"max_predictions": length}), rng
    )


def words_of(tokens):
    """Group positions into words, the plain way."""
    words = []
    for position, token in enumerate(tokens):
        if token in (CLS, SEP):
            words.append([])
        elif token in PIECES and words[-1]:
            words[-1].append(position)
        else:
            words.append([position])
    return [word for word in words if word]


def test_whole_word_masking_takes_all_pieces_or_none():
    rng = np.random.default_rng(7)
    partial = 0
    for _ in range(2000):
        tokens = make_tokens(int(rng.integers(5, 60)), rng, pieces=True)
        rule = make_rule(0.15, int(rng.integers(1, 9)), unit="word")
        budget = min(rule.max_predictions, max(1, round(len(tokens) * 0.15)))
        words = words_of(tokens)
        chosen = set(choose_positions(tokens, rule, rng).tolist())
        assert 1 <= len(chosen) <= budget
        if min(map(len, words)) > budget:  # no word fits, and something must be predicted
            partial += 1
            assert len(chosen) == budget and any(chosen == set(word[:budget]) for word in words)
            continue
        # The original's rule: words that do not fit are skipped, so none that is left out would still fit.
        assert all(chosen.isdisjoint(word) or chosen.issuperset(word) for word in words)
        left = [word for word in words if chosen.isdisjoint(word)]
        assert not left or min(map(len, left)) > budget - len(chosen)
    assert partial  # both rules were met


def test_whole_word_masking_joins_no_pieces_across_a_special_token():
    tokens = np.array([CLS, 7, SEP, 5000, 5001, SEP])  # a piece behind [SEP] begins a word of its own
    found = {tuple(choose_positions(tokens, make_rule(0.35, unit="word"), np.random.default_rng(s))) for s in range(50)}
    assert found == {(1,), (3, 4)}


def test_whole_word_masking_is_plain_masking_where_words_are_one_piece():
    tokens, rng = make_tokens(100), np.random.default_rng(8)
    assert {len(choose_positions(tokens, make_rule(unit="word"), rng)) for _ in range(50)} == {15}


def runs_of(positions):
    """Cut ascending positions into runs of neighbours."""
    return np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)


def kind_of(replaced, original):
    """Say what became of masked tokens: hidden, kept or changed."""
    return np.where(replaced == MASK, "hidden", np.where(replaced == original, "kept", "changed"))


@pytest.mark.slow
def test_span_masking_has_one_draw_for_a_span():
    # Spans of 15 % of 200 tokens touch now and then: runs are then two spans, and need not be of one kind. Text of
    # one-piece words cut by [SEP] after every tenth word keeps most of them apart.
    rng, rule = np.random.default_rng(9), make_rule(0.02, unit="span")
    kinds, mixed, together = [], 0, 0
    for _ in range(6000):
        tokens = make_tokens(200, rng)
        masked, positions, mask_ids = mask_tokens(tokens, rule, rng)
        runs = runs_of(positions)
        found = kind_of(masked, tokens)
        mixed += sum(len(set(found[run])) > 1 for run in runs)
        together += sum(len(run) for run in runs) - len(runs)
        kinds += [found[run[0]] for run in runs]
    assert together > 6000  # tokens beyond the first of their run: per-token draws would mix a third of the runs
    assert mixed < 0.03 * len(kinds)  # two spans side by side
    counts = [kinds.count(kind) for kind in ("hidden", "changed", "kept")]
    assert stats.chisquare(counts, len(kinds) * np.array([0.8, 0.1, 0.1])).pvalue > 0.001


@pytest.mark.slow
def test_whole_word_masking_draws_for_each_token():
    rng, rule = np.random.default_rng(10), make_rule(0.15, unit="word")
    kinds, words = [], []
    for _ in range(1500):
        tokens = np.resize([7, 5000, 5001], 90).astype(np.int32)  # words of three pieces
        masked, positions, _ = mask_tokens(tokens, rule, rng)
        found = kind_of(masked, tokens)[positions]
        kinds += found.tolist()
        words += [tuple(word) for word in found.reshape(-1, 3) == "hidden"]
    counts = [kinds.count(kind) for kind in ("hidden", "changed", "kept")]
    assert stats.chisquare(counts, len(kinds) * np.array([0.8, 0.1, 0.1])).pvalue > 0.001
    hidden = np.bincount([sum(word) for word in words], minlength=4)  # of the three pieces: binomial, 0.8 each
    assert stats.chisquare(hidden, len(words) * stats.binom(3, 0.8).pmf(range(4))).pvalue > 0.001


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_masking_spends_its_budget(unit):
    rng, chosen, budget = np.random.default_rng(11), 0, 0
    for _ in range(500):
        tokens = make_tokens(128, rng, pieces=True)
        chosen += len(choose_positions(tokens, make_rule(0.15, 20, unit=unit), rng))
        budget += 19
    # Whole words stop short where none that is left fits: seldom, as most words are one piece.
    assert chosen == budget if unit == "token" else 0.98 * budget < chosen <= budget


def test_span_masking_joins_no_words_across_a_special_token():
    rng = np.random.default_rng(12)
    for _ in range(300):
        tokens = make_tokens(40, rng, pieces=True)
        positions = choose_positions(tokens, make_rule(0.9, unit="span"), rng)
        assert not np.isin(tokens[positions], (CLS, SEP)).any()


def test_span_masking_takes_the_first_pieces_where_no_word_fits():
    tokens = np.array([CLS, 7, 5000, 5001, SEP])
    masked, positions, mask_ids = mask_tokens(tokens, make_rule(0.2, 1, unit="span"), np.random.default_rng(0))
    assert (positions.tolist(), mask_ids.tolist()) == ([1], [7])
