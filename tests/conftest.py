"""Settings of every test process.

They compute on the processor, whose roundings their tolerances are of; on a GPU where CUDA_VISIBLE_DEVICES names one.
Two backends are spared what is the same on each: PyTorch, which compiles nothing, is the quickest to run it. Where
KBF_TEST_ALONE is set, a backend is tested by itself and is not spared it.
"""

import gc
import os
import signal

import pytest

from tests.forks import start_forking

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("KBF_PROGRESS", "off")  # which tests of progress and of next steps turn on

# A script starts what it puts in the background with SIGINT ignored, and nohup with SIGHUP ignored. Children inherit
# it, and tests of Ctrl-C and of closed terminals need both.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # before the markers are asked for
def pytest_collection_modifyitems(items):
    backend = os.environ.get("KERAS_BACKEND")
    alone = ("torch", backend) if os.environ.get("KBF_TEST_ALONE") else ("torch",)
    compiled = {"tensorflow": ("slow_on_tensorflow", "slow_compiled"), "jax": ("slow_compiled",)}.get(backend, ())
    first = {}  # the form that `make test` runs of each test that is marked so
    for item in items:
        elsewhere = backend not in alone and item.get_closest_marker("any_backend")
        forms = ("first_form", "first_form_compiled") if compiled else ("first_form",)
        form = any(item.get_closest_marker(name) for name in forms) and not item.get_closest_marker("slow")
        another = form and first.setdefault((item.path, item.originalname), item) is not item
        if elsewhere or another or any(item.get_closest_marker(name) for name in compiled):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Have the garbage collector pass over the hundreds of thousands of objects of what is imported by then.

    It passes over others after more allocations than the 700 of Python's own setting: a model is made of many objects.
    Commands are forked from here, where no test has started a thread.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    start_forking()
