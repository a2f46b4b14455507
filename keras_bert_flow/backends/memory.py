"""Keep freed memory in the process, so that the next training step reuses it."""

import ctypes
import sys

# Options of glibc's malloc.h, with the values to set.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_OPTIONS = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 1 << 26}


def keep_freed_memory() -> bool:
    """Stop malloc from returning freed memory to the operating system; return whether that succeeded.

    A step allocates and frees arrays of many MB. By default each is new memory from the operating system, which zeroes
    it page by page: a tenth of the step time on a CPU, or more. Call this before the backend starts its threads. The
    process then holds its peak memory until it ends, and the peak may be slightly higher.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return all(mallopt(option, value) == 1 for option, value in _OPTIONS.items())
