"""A file that is put under its name on a disk: linked, or copied where the disk has no links, once or again."""

import os

import pytest

from beam_jobs.storage import new_place, put
from tests.beam_jobs.conftest import names_in


def refuse(source, target):
    raise PermissionError


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_is_put_under_its_name_once_or_again(has_links, tmp_path, monkeypatch):
    if not has_links:
        monkeypatch.setattr(os, "link", refuse)  # as on disks of FAT and some network disks
    with new_place(str(tmp_path)) as (local, place):
        (local / "shard").write_bytes(b"whole")
    for _ in range(2):
        put({f"{place}/shard": f"{tmp_path}/shard"})
        assert (tmp_path / "shard").read_bytes() == b"whole"
        assert names_in(tmp_path) == ["attempts", "shard"]
    assert ((tmp_path / "shard").stat().st_nlink == 2) == has_links
