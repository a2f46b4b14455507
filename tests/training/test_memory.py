"""Freed memory stays with the process, so that a large array after another meets no new pages."""

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_SECONDS

CODE = """
import resource, sys
import numpy as np
from keras_bert_flow.backends.memory import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(8_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_new_pages(mode):
    child = [sys.executable, "-c", CODE, mode]
    return int(subprocess.run(child, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
@pytest.mark.slow_on_tensorflow
def test_second_array_meets_no_new_pages():
    # 64 MB are 15,625 pages of 4 KiB, or 31 of 2 MiB.
    assert count_new_pages("give_back") > 20
    assert count_new_pages("keep") < 5
