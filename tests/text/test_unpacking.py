import bz2
import gzip
import io
import lzma
import random
import zlib

import pytest
import zstandard

from keras_bert_flow.text.corpus.inputs import PACKED_SUFFIXES, unpack

PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
CONTENT = b"".join(b"line %d of some text\n" % number for number in range(5000))
every_packing = pytest.mark.parametrize("suffix", PACKED_SUFFIXES)


def read(content: bytes, suffix: str) -> bytes:
    with unpack(io.BytesIO(content), suffix) as file:
        return file.read()


@every_packing
def test_unpacking_gives_what_was_packed(suffix):
    for content in (b"", b"a", CONTENT, bytes(3_000_000), random.Random(0).randbytes(70_000)):
        assert read(PACK[suffix](content), suffix) == content
    with unpack(io.BytesIO(PACK[suffix](CONTENT)), suffix) as file:
        assert file.readlines() == CONTENT.splitlines(keepends=True)


@every_packing
def test_unpacking_joins_streams(suffix):
    # Wikipedia's multistream dumps are such, and what `cat a.gz b.gz` makes.
    streams = [PACK[suffix](part) for part in (b"", b"a\n", CONTENT, b"b\n")]
    assert read(b"".join(streams), suffix) == b"a\n" + CONTENT + b"b\n"


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_unpacking_passes_over_zeros_behind_streams(suffix):
    padded = PACK[suffix](b"a") + bytes(4000)
    assert read(padded + PACK[suffix](b"b"), suffix) == b"ab"
    assert read(padded, suffix) == b"a"


@every_packing
def test_unpacking_refuses_a_stream_cut_anywhere(suffix):
    packed = PACK[suffix](b"some text\n" * 20)
    for length in range(len(packed)):
        with pytest.raises((EOFError, ValueError)):
            read(packed[:length], suffix)


@every_packing
def test_unpacking_refuses_what_is_no_stream_and_what_follows_one(suffix):
    packed = PACK[suffix](CONTENT)
    for content in (b"no stream at all", packed + b"rest", packed + packed[:-1]):
        with pytest.raises((EOFError, ValueError)):
            read(content, suffix)


@every_packing
def test_unpacking_closes_its_file(suffix):
    packed = io.BytesIO(PACK[suffix](b"a"))
    unpack(packed, suffix).close()
    assert packed.closed


def test_xz_that_asks_for_much_memory_is_refused():
    """The header of the block asks for a dictionary of 4 GB; its size is a byte, and a checksum follows."""
    packed = bytearray(lzma.compress(b"text\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 16}]))
    end = 12 + (packed[12] + 1) * 4
    packed[12 + 4] = 40
    packed[end - 4 : end] = zlib.crc32(packed[12 : end - 4]).to_bytes(4, "little")
    with pytest.raises(ValueError, match="[Mm]emory usage limit"):
        read(bytes(packed), ".xz")


def test_xz_of_its_highest_level_is_read():
    assert read(lzma.compress(CONTENT, preset=9 | lzma.PRESET_EXTREME), ".xz") == CONTENT
