"""Tables of sorted keys, their compression and the order of their keys."""

import random

import pyarrow
import pytest

from keras_bert_flow.conversion.codecs import tensor_bundle
from keras_bert_flow.conversion.codecs.tensor_bundle import (
    decompress,
    read_table,
    write_number,
    write_signed,
    write_table,
    write_text,
)

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000])
def test_tables_are_read_as_written(tmp_path, count):
    rng = random.Random(count)
    entries = {rng.randbytes(rng.randrange(40)): rng.randbytes(rng.randrange(300)) for _ in range(count)}
    entries |= {b"prefix/" + bytes([n % 3, n // 3]): b"x" * n for n in range(count % 200)}
    write_table(tmp_path / "table", entries)
    assert list(read_table(tmp_path / "table").items()) == sorted(entries.items())


def test_long_keys_and_files_are_refused(tmp_path, monkeypatch):
    write_table(tmp_path / "table", {b"a" * 70_000: b""})
    with pytest.raises(ValueError, match="a key has 70,000 bytes, over 65,536"):
        read_table(tmp_path / "table")
    monkeypatch.setattr(tensor_bundle, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="over 100"):
        read_table(tmp_path / "table")


@pytest.mark.parametrize("size", [0, 1, 59, 60, 61, 300, 70_000])
@pytest.mark.parametrize("letters", [b"a", b"ab", bytes(range(256))])
def test_snappy_is_decompressed(size, letters):
    rng = random.Random(size)
    data = bytes(rng.choices(letters, k=size))
    compressed = pyarrow.compress(data, "snappy", asbytes=True)
    assert decompress(compressed, size) == data
    with pytest.raises(ValueError, match="over"):
        decompress(compressed, size - 1)
    for place in range(min(len(compressed), 50)):
        damaged = compressed[:place] + bytes([compressed[place] ^ 0x55]) + compressed[place + 1 :]
        for given in (compressed[:place], damaged):
            try:
                assert len(decompress(given, 2 * size + 100)) <= 2 * size + 100  # snappy has no checksum: a block has
            except ValueError as error:
                assert str(error).startswith(("a compressed block", "a block has", "a number is cut off"))


def test_codes_are_in_the_order_of_what_they_stand_for():
    rng = random.Random(1)
    numbers = sorted({0, 1, 63, 64, 8191, 8192, 2**62, *(rng.randrange(2 ** rng.randrange(1, 63)) for _ in range(500))})
    assert sorted(map(write_number, numbers)) == [*map(write_number, numbers)]
    signed = sorted({*numbers, *(-number for number in numbers), -(2**63), 2**63 - 1})
    assert sorted(map(write_signed, signed)) == [*map(write_signed, signed)]
    texts = sorted({bytes(rng.choices(b"\0\1\xfea\xff", k=rng.randrange(5))) for _ in range(500)})
    assert sorted(map(write_text, texts)) == [*map(write_text, texts)]
