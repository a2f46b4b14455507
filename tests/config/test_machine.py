"""Runs at the same time share the cores of the machine, unless the user has shared them out."""

import os

import pytest

from keras_bert_flow.config.machine import THREADS, share_cores


@pytest.mark.parametrize(("runs", "threads"), [(2, "4"), (3, "2"), (8, "1"), (20, "1")])
def test_runs_share_the_cores(monkeypatch, runs, threads):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    assert share_cores(1) == {}
    assert share_cores(runs) == dict.fromkeys(THREADS, threads)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert share_cores(runs) == {name: threads for name in THREADS if name != "OMP_NUM_THREADS"}
