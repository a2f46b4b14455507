"""Keep the memory of one training step for the next."""

import ctypes
import sys

# Of glibc's malloc.h, with the values that are set.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_OPTIONS = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 1 << 26}


def keep_freed_memory() -> bool:
    """Tell the C library not to give freed memory back to the system; return whether it could be told.

    A step allocates and frees arrays of many MB. By default each is new memory from the system, which fills it with
    zeros, page after page: a tenth of the time of a step on a processor, or more. Call it before the backend starts
    its threads. The process holds its peak until it ends, and that may be somewhat higher.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return all(mallopt(option, value) == 1 for option, value in _OPTIONS.items())
