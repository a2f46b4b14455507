"""Removal: only what nothing kept needs, never what is locked, and never half."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from keras_bert_flow.results.choosing import choose, find_related, read_age, remove_results
from keras_bert_flow.results.lineage import find_results
from tests.other_users import ANNE, common, needs_root, start_as
from tests.patience import PATIENCE_SECONDS
from tests.results.conftest import DAY, make_old
from tests.results.test_results import start_maker

__all__ = ["common"]


def going(store: Path, older_than: float | None = None, keep_last: int | None = None) -> dict[str, str]:
    choices = choose(find_results(store), time.time(), older_than, keep_last)
    return {choice.result.folder.name: choice.reason for choice in choices if not choice.is_kept}


def age_all(store: Path, days: float = 40) -> None:
    for result in find_results(store):
        make_old(result.folder, days)


def test_what_a_kept_result_was_made_from_is_kept(store):
    age_all(store)
    assert set(going(store, older_than=30 * DAY)) == {"v1", "v2", "r1", "p1", "p2", "f1"}
    make_old(store / "finetuning" / "f1", -20)
    assert set(going(store, older_than=30 * DAY)) == {"v2", "p1"}
    assert set(going(store, older_than=50 * DAY)) == set()


def test_newest_of_each_stage_are_kept(store):
    make_old(store / "pretraining" / "p2", 1)
    make_old(store / "vocabulary" / "v1", 1)
    # p1 is the newest, but f1, the newest of its stage, was made from p2; v2 is the newest, r1 was made with v1
    assert set(going(store, keep_last=1)) == set()
    assert set(going(store, keep_last=0)) == {"v1", "v2", "r1", "p1", "p2", "f1"}
    make_old(store / "pretraining" / "p1", 2)
    assert set(going(store, keep_last=1)) == {"p1"}


def test_work_of_the_living_and_what_it_may_need_stays(store):
    age_all(store)
    maker = start_maker(store / "pretraining" / "p3")
    try:
        make_old(store / "pretraining" / ".p3.work", 40)
        assert set(going(store, older_than=30 * DAY)) == {"f1"}  # of a later stage
        results = find_results(store)
        work = [result for result in results if result.state == "unfinished"]
        # Even chosen by somebody, it is not touched.
        removed, kept = remove_results(store, work, lambda found: choose(found, time.time(), 30 * DAY, None))
        assert removed == [] and "held by process" in kept[0].reason
        assert (store / "pretraining" / ".p3.work" / "checkpoint").exists()
    finally:
        os.kill(maker.pid, signal.SIGKILL)
        maker.wait(PATIENCE_SECONDS)
    assert ".p3.work" in going(store, older_than=30 * DAY) and "v2" in going(store, older_than=30 * DAY)


def test_what_a_kill_left_today_is_kept_unless_an_age_is_given(store):
    maker = start_maker(store / "pretraining" / "p3")
    os.kill(maker.pid, signal.SIGKILL)
    maker.wait(PATIENCE_SECONDS)
    assert ".p3.work" not in going(store, keep_last=1)
    assert ".p3.work" in going(store, older_than=0.0)
    make_old(store / "pretraining" / ".p3.work", 2)
    assert ".p3.work" in going(store, keep_last=1)


def test_damaged_result_and_what_it_may_be_made_from_are_left_to_its_owner(store):
    (store / "records" / "r1" / "manifest.json").write_text("{")
    age_all(store)
    assert set(going(store, older_than=30 * DAY)) == {"p1", "p2", "f1"}
    (store / "finetuning" / "f1" / "manifest.json").write_text("{")
    assert set(going(store, older_than=30 * DAY)) == set()


def test_result_with_a_missing_file_keeps_what_its_manifest_names(store):
    (store / "finetuning" / "f1" / "pretrained" / "seed-1" / "run.json").unlink()
    age_all(store)
    assert set(going(store, older_than=30 * DAY)) == {"v2", "p1"}


def test_results_behind_links_are_found_and_kept_with_what_they_were_made_from(store, tmp_path):
    (store / "finetuning").rename(tmp_path / "finetuning")
    (store / "finetuning").symlink_to(tmp_path / "finetuning")
    age_all(store)
    assert set(going(store, older_than=30 * DAY)) == {"v1", "v2", "r1", "p1", "p2", "f1"}
    make_old(store / "finetuning" / "f1", -20)
    assert set(going(store, older_than=30 * DAY)) == {"v2", "p1"}
    (store / "pretraining" / "p1").rename(tmp_path / "p1")
    (store / "pretraining" / "p1").symlink_to(tmp_path / "p1")
    assert set(going(store, older_than=30 * DAY)) == {"v2"}  # who made the link may need it
    (store / "latest").symlink_to(store / "vocabulary" / "v2")
    assert set(going(store, older_than=30 * DAY)) == set()
    assert len(find_results(store)) == 6


@pytest.mark.parametrize("link", ["finetuning", "finetuning/f2", "elsewhere"])
def test_link_that_leads_nowhere_keeps_what_may_be_behind_it(store, link):
    age_all(store)
    place = store / link
    if link == "finetuning":
        place.rename(store.parent / "not mounted")
    place.symlink_to(store.parent / "gone")
    assert set(going(store, older_than=30 * DAY)) == set()
    reasons = {choice.reason for choice in choose(find_results(store), time.time(), 30 * DAY, None)}
    assert "damaged: a link that leads nowhere; remove it by hand" in reasons


@pytest.mark.parametrize("name", ["vocabulary", "link"])
def test_folder_of_a_stage_keeps_what_results_elsewhere_were_made_from(store, tmp_path, name):
    age_all(store)
    (tmp_path / "link").symlink_to(store / "vocabulary")
    folder = store / name if name == "vocabulary" else tmp_path / name

    def choose_now(found):
        return choose(found, time.time(), 30 * DAY, None, (), folder)

    chosen = [choice.result for choice in choose_now(find_related(folder)) if not choice.is_kept]
    assert [result.folder.name for result in chosen] == ["v2"]  # records were made from the other one, and stay
    removed, kept = remove_results(folder, chosen, choose_now)
    assert removed == chosen and kept == [] and len(find_results(store)) == 5


@needs_root
@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o755])
def test_what_others_may_not_remove_is_kept_with_what_it_was_made_from(made_once, common, mode):
    store = shutil.copytree(made_once, common / "runs")
    age_all(store)
    for folder in (store, *store.iterdir()):
        folder.chmod(mode)
    shutil.rmtree(store / "pretraining" / "p1")
    for path in (store / "vocabulary" / "v2", *(store / "vocabulary" / "v2").iterdir()):
        os.chown(path, ANNE, ANNE)
    look = """
import time
from keras_bert_flow.results.choosing import choose
from keras_bert_flow.results.lineage import find_results
become()
for choice in choose(find_results(sys.argv[1]), time.time(), 0.0, None):
    print(choice.is_kept, choice.result.folder.name, choice.reason)
"""
    printed, _ = start_as(ANNE, look, store).communicate(timeout=PATIENCE_SECONDS)
    kept = "True v2 of user 12345, and you" if mode == 0o755 else "False v2 "
    assert kept in printed and "True f1 of user root, and you may not remove it" in printed
    assert printed.count("True") == 4 + (mode == 0o755)


@needs_root
def test_folder_that_may_not_be_read_keeps_what_may_be_in_it(made_once, common):
    store = shutil.copytree(made_once, common / "runs")
    age_all(store)
    (store / "finetuning").chmod(0o700)
    look = """
import time
from keras_bert_flow.results.choosing import choose
from keras_bert_flow.results.lineage import find_results
become()
for choice in choose(find_results(sys.argv[1]), time.time(), 0.0, None):
    print(choice.is_kept, choice.reason)
"""
    printed, _ = start_as(ANNE, look, store).communicate(timeout=PATIENCE_SECONDS)
    assert "True damaged: you may not read it; remove it by hand\n" in printed and "False" not in printed


def test_removal_leaves_nothing_and_interrupted_removal_is_completed(store):
    age_all(store)

    def choose_now(found):
        return choose(found, time.time(), 30 * DAY, None)

    (store / "records" / ".gone.removed").mkdir()
    chosen = [choice.result for choice in choose_now(find_results(store)) if not choice.is_kept]
    removed, kept = remove_results(store, chosen, choose_now)
    assert len(removed) == 7 and kept == []
    assert [path for path in store.rglob("*") if path.is_file()] == []
    assert find_results(store) == []


def test_result_that_was_used_meanwhile_is_kept(store):
    age_all(store)

    def choose_now(found):
        return choose(found, time.time(), 30 * DAY, None)

    chosen = [choice.result for choice in choose_now(find_results(store)) if not choice.is_kept]
    make_old(store / "finetuning" / "f1", -40)  # made, or made again, after the first look
    removed, kept = remove_results(store, chosen, choose_now)
    assert sorted(result.folder.name for result in removed) == ["p1", "v2"]
    assert {choice.result.folder.name for choice in kept} == {"v1", "r1", "p2", "f1"}


def test_ages_have_units():
    assert [read_age(text) for text in ("30d", "12h", "5m", "2w", "0s")] == [30 * DAY, DAY / 2, 300, 14 * DAY, 0]
    for text in ("30", "d", "-1d", "1.5d", "30 days", ""):
        with pytest.raises(ValueError, match="Try 30d"):
            read_age(text)
