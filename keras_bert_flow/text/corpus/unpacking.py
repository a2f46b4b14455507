"""Decompress gzip, bzip2, xz and Zstandard streams while reading, and detect truncated files.

The readers of the standard library end silently after a bzip2 or xz stream that is followed by damage, that of
`zstandard` after a truncated one; a corpus that lost its second half this way would go unnoticed.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_PIECE_BYTES = 512  # expands to at most about 20 MB, even in a decompression bomb
_BUFFER_BYTES = 1 << 16
_XZ_BYTES = 256 << 20  # most memory of the decoder; `xz -9` takes 65 MB
_PADDED = (".gz", ".xz")  # zeros may be between or after streams


def unpack(packed: BinaryIO, suffix: str) -> BinaryIO:
    """Return a reader of the decompressed bytes of one or more concatenated streams; closing it closes `packed`.

    Args:
        packed: the file as stored.
        suffix: one of PACKED_SUFFIXES.
    Raises:
        EOFError, OSError, ValueError: on reading, if the file is truncated or damaged.
    """
    return io.BufferedReader(_Unpacking(packed, suffix), _BUFFER_BYTES)


class _Unpacking(io.RawIOBase):
    def __init__(self, packed: BinaryIO, suffix: str):
        super().__init__()
        self._packed, self._padded = packed, suffix in _PADDED
        self._start = _find_decoder(suffix)
        self._decoder = self._start()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._packed.close()
        super().close()

    def readinto(self, buffer) -> int:
        while not self._ready and (piece := self._next_piece()):
            try:
                self._ready = memoryview(self._decoder.decompress(piece))
            except Exception as error:  # each library has its own class
                raise ValueError(str(error)) from error
        taken = min(len(buffer), len(self._ready))
        buffer[:taken] = self._ready[:taken]
        self._ready = self._ready[taken:]
        return taken

    def _next_piece(self) -> bytes:
        """Return compressed bytes for the decoder, which is new after the end of a stream; none after the last one."""
        if not self._decoder.eof:
            piece = self._packed.read(_PIECE_BYTES)
            if not piece:
                raise EOFError("it ends too early")
            return piece
        piece = self._decoder.unused_data or self._packed.read(_PIECE_BYTES)
        while piece and self._padded and not (piece := piece.lstrip(b"\0")):
            piece = self._packed.read(_PIECE_BYTES)
        if piece:
            self._decoder = self._start()
        return piece


def _find_decoder(suffix: str) -> Callable[[], Any]:
    if suffix == ".gz":
        return lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    if suffix == ".bz2":
        return bz2.BZ2Decompressor
    if suffix == ".xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_BYTES)
    import zstandard  # comes with Apache Beam

    return lambda: zstandard.ZstdDecompressor().decompressobj()
