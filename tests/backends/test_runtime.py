"""Freed memory stays with the process, so that a large array after another meets no new pages."""

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_SECONDS

CODE = """
import resource
import numpy as np
from keras_bert_flow.backends.runtime import keep_freed_memory

def count_new_pages():
    np.ones(8_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(8_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = count_new_pages()
assert keep_freed_memory()
print(before, count_new_pages())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
@pytest.mark.any_backend
@pytest.mark.slow
def test_second_array_meets_no_new_pages():
    child = [sys.executable, "-c", CODE]
    printed = subprocess.run(child, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True).stdout
    given_back, kept = map(int, printed.split())
    # 64 MB are 15,625 pages of 4 KiB, or 31 of 2 MiB.
    assert given_back > 20
    assert kept < 5
