import hashlib
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from keras_bert_flow.text.rows import (
    as_fraction,
    keyed_generator,
    keyed_number,
    keyed_numbers,
)


def test_keyed_number_is_pinned():
    # Records are made of these draws: should one of them change, every record changes silently.
    assert keyed_number() == 0xB4B2797457A0A6E4
    assert keyed_number(1, "pool", "d") == 0x3F3BDA61A10F64C
    assert as_fraction(keyed_number(1, "held out", "d")) == 0.4184114327045063


def test_keyed_generator_is_pinned():
    rng = keyed_generator(1, "pairs", "d", 0)
    assert rng.integers(0, 30522, 4).tolist() == [29467, 20742, 27779, 8069]
    assert rng.random(2).tolist() == [0.4872132084401145, 0.8897671588939207]
    assert rng.permutation(6).tolist() == [1, 2, 5, 4, 0, 3]


def test_keyed_generator_is_philox_of_the_key():
    for key in ((), (1, "masks", "é"), ("order", 2**70)):
        parts = [str(part).encode() for part in key]
        named = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        digest = hashlib.blake2b(named, digest_size=16).digest()
        expected = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        rng = keyed_generator(*key)
        assert rng.integers(0, 2**63, 9).tolist() == expected.integers(0, 2**63, 9).tolist()
        assert rng.random(9).tolist() == expected.random(9).tolist()


@pytest.mark.parametrize("beginning", [(), (1, "pool"), (2, "order", b"\0")])
def test_keyed_numbers_are_those_of_whole_keys(beginning):
    find_number = keyed_numbers(*beginning)
    for last in (b"", b"d", "é".encode() * 300, b"d"):
        assert find_number(last) == keyed_number(*beginning, last)


def test_keyed_generator_is_the_same_in_another_process():
    code = (
        "from keras_bert_flow.text.rows import keyed_generator as k; "
        "print(k(7, 'pairs', 'é', 3).integers(0, 2**60, 5).tolist())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{keyed_generator(7, 'pairs', 'é', 3).integers(0, 2**60, 5).tolist()}\n"}


@pytest.mark.parametrize(
    ("key", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("ab",), ("a", "b")),
        (("a",), ("a", "")),
        (("a", "b"), ("b", "a")),
        ((1, "a"), (2, "a")),
        (("a", 1, 2), ("a", 12)),
        ((b"a" * 8,), ("a" * 7,)),
    ],
)
def test_keyed_numbers_of_different_keys_differ(key, other):
    assert keyed_number(*key) != keyed_number(*other)
    assert keyed_generator(*key).random() != keyed_generator(*other).random()


def test_keyed_generators_share_no_state():
    first, second = keyed_generator("a"), keyed_generator("a")
    first.random(100)
    np.random.seed(0)
    assert second.random() == keyed_generator("a").random()


def test_fraction_stays_below_one():
    assert as_fraction(0) == 0 < as_fraction(2**64 - 1) < 1


def test_keyed_choices_are_even():
    fractions = [as_fraction(keyed_number(1, "held out", number)) for number in range(4000)]
    assert stats.kstest(fractions, "uniform").pvalue > 0.001  # keys are fixed, so this holds always or never
    pools = np.bincount([keyed_number(1, "pool", number) % 7 for number in range(4000)], minlength=7)
    assert stats.chisquare(pools).pvalue > 0.001
