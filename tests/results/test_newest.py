"""Links to the newest run of a name: made whole, kept from the collection, and never a result or an input."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from keras_bert_flow.cli import app
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.results import choosing
from keras_bert_flow.results.choosing import choose, find_folder, link_newest, read_made, remove_dangling
from keras_bert_flow.results.lineage import find_results
from keras_bert_flow.results.stages.keys import folder_digest
from keras_bert_flow.text.corpus.inputs import find_inputs
from tests.results.conftest import publish_folder


@pytest.fixture
def two(store: Path) -> list[Path]:
    """Two runs of one name, each of two seeds: the folders of their reports."""
    found = []
    for number, scores in enumerate(((0.5, 0.75), (0.75, 0.5)), 1):
        files = {}
        for seed, score in enumerate(scores, 1):
            run = f"pretrained/seed-{seed}"
            files |= {f"{run}/run.json": json.dumps({"score": score, "seed": seed}), f"{run}/model/config.json": "{}"}
            files |= {f"{run}/model/model.safetensors": f"{number} {seed}", f"{run}/model/vocab.txt": "[PAD]"}
        folder = publish_folder(store / "finetuning" / f"n{number}", "finetuning", f"n{number}", {}, {}, files)
        settings = PipelineConfig(name="My run").model_dump(mode="json")
        pages = {"report.html": f"<p>{number}", "report.md": str(number)}
        inputs = {"finetuned": folder_digest(folder)}
        found.append(
            publish_folder(store / "evaluation" / f"e{number}", "evaluation", f"e{number}", settings, inputs, pages)
        )
    return found


def read_links(folder: Path) -> dict[str, str]:
    return {path.name: os.readlink(path) for path in folder.iterdir()}


def kept(store: Path) -> dict[str, str]:
    choices = choose(find_results(store), time.time(), 0.0, None)
    return {choice.result.folder.name: choice.reason for choice in choices if choice.is_kept}


def test_links_lead_to_the_newest_report_and_its_best_model(store, two):
    assert link_newest(two[0], "My run") == store / "My run"
    assert read_links(store / "My run") == {
        "report.html": "../evaluation/e1/report.html",
        "report.md": "../evaluation/e1/report.md",
        "model": "../finetuning/n1/pretrained/seed-2/model",
    }
    link_newest(two[1], "My run")
    assert (store / "My run" / "report.html").read_text() == "<p>2"
    assert (store / "My run" / "model" / "model.safetensors").read_text() == "2 1"
    moved = store.rename(store.with_name("moved"))  # relative, so they move with the store
    assert (moved / "My run" / "report.md").read_text() == "2"
    assert read_made(moved / "My run" / "model", None)[:2][1] == "pretrained/seed-1/model"


def test_a_replacement_that_fails_leaves_the_links(store, two, monkeypatch):
    link_newest(two[0], "My run")
    before = read_links(store / "My run")
    monkeypatch.setattr(choosing.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("killed")))
    assert link_newest(two[1], "My run") is None
    assert read_links(store / "My run") == before


def test_no_run_fails_for_want_of_links(store, two, monkeypatch):
    (store / "My run").mkdir()
    (store / "My run" / "report.html").write_text("of the user")
    link_newest(two[0], "My run")
    assert (store / "My run" / "report.html").read_text() == "of the user"

    def refuse(*paths, **options):
        raise PermissionError("no links on this file system")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert link_newest(two[0], "other") is None and not (store / "other").exists()
    assert link_newest(Path("s3://bucket/runs/evaluation/e1"), "My run") is None


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("a/b", "a-b"),
        ("../x\x1b", "-x-"),
        ("Über, 14 MB", "Über, 14 MB"),
        *((name, None) for name in ("", "..", "finetuning", "configs", "ü" * 101, "file", "result")),
    ],
)
def test_every_name_has_a_safe_folder_or_none(name, folder, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "manifest.json").write_text("{}")
    assert find_folder(tmp_path, name) == (None if folder is None else tmp_path / folder)


def test_collection_keeps_what_a_link_leads_to_and_removes_links_that_lead_nowhere(store, two, capsys, monkeypatch):
    whole = {result.folder for result in find_results(store)}
    link_newest(two[0], "My run")
    link_newest(two[1], "My run")
    assert {result.folder for result in find_results(store)} == whole  # links are no results, and damage none
    assert kept(store) == {
        "e2": f"the link {store / 'My run' / 'report.md'} leads to it; remove that first",
        "n2": f"the link {store / 'My run' / 'model'} leads to it; remove that first",
    }
    collect = ["runs", "gc", str(store), "--older-than", "0s", "--yes"]
    app([*collect, "--dry-run"], standalone_mode=False)
    app(collect, standalone_mode=False)
    assert {result.folder.name for result in find_results(store)} == {"e2", "n2"}
    assert len(read_links(store / "My run")) == 3 and "led nowhere" not in capsys.readouterr().err
    for stage in ("evaluation", "finetuning"):
        shutil.rmtree(store / stage)  # by hand
    app([*collect, "--dry-run"], standalone_mode=False)
    assert len(read_links(store / "My run")) == 3
    app([*collect, "--json"], standalone_mode=False)
    assert capsys.readouterr().err.count("which led nowhere") == 3 and not (store / "My run").exists()
    assert remove_dangling(store) == []


def test_links_are_no_inputs(store, two):
    (store.parent / "text.txt").write_text("read")
    before = find_inputs((str(store.parent),)), find_inputs((f"{store.parent}/**/*.txt",))
    digest = folder_digest(store / "finetuning" / "n2")
    link_newest(two[1], "My run")
    assert (find_inputs((str(store.parent),)), find_inputs((f"{store.parent}/**/*.txt",))) == before
    assert folder_digest(store / "finetuning" / "n2") == digest
