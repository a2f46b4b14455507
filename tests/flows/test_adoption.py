"""Results of earlier versions are read, named by plans and runs, and adopted under the keys of this version."""

import json
import os
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from flows.parameters import resolve_config
from flows.plan import describe_finished, describe_plan, plan_stages
from flows.stages import StageRun, make_all, run_stage
from keras_bert_flow.checks.importing import import_records
from keras_bert_flow.cli import app
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.results.adoption import Adoption, adopt, find_earlier, list_adoptions
from keras_bert_flow.results.choosing import find_model
from keras_bert_flow.results.lineage import find_results
from keras_bert_flow.results.manifest import MANIFEST, check_folder, is_published, read_manifest, store_manifest
from keras_bert_flow.results.stages import STAGES
from keras_bert_flow.training.finetuning.grid import reuse_baseline, with_random_training
from tests.flows.conftest import TINY, write_tiny_config
from tests.oracles.objective_records import MASKED_FRACTION, write_objective_records

NAMES = ["vocabulary", "records", "pretraining", "distillation", "finetuning", "evaluation"]
STUDENT = {"family": "distilbert"} | {name: TINY["model"][name] for name in TINY["model"] if name != "size"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a configuration, and a run of it by this version."""
    place = tmp_path_factory.mktemp("adoption")
    path = write_tiny_config(place)
    values = yaml.safe_load(path.read_text())
    steps = {"batch_size": 4, "total_steps": 2, "warmup_steps": 1}
    values |= {"backend": "torch", "runs": str(place / "runs"), "distillation": {"student": STUDENT} | steps}
    path.write_text(yaml.safe_dump(values))

    def make(stage: StageRun) -> Path:
        app(list(stage.command[3:]), standalone_mode=False)
        return stage.folder

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        make_all(resolve_config(path.name), make)
    return place


@pytest.fixture
def earlier(made, tmp_path, monkeypatch):
    """A copy whose results are as an earlier version published them; returns stage → the key of this version."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, copy_function=shutil.copy2)
    config = tmp_path / "tiny.yaml"
    config.write_text(config.read_text().replace(str(made), str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    keys = {}
    for number, stage in enumerate(NAMES):
        (folder,) = (tmp_path / "runs" / stage).glob("[!.]*")
        keys[stage] = folder.name
        make_earlier(folder, f"{number:016x}")
    return keys


def make_earlier(folder, key):
    """Give a result the manifest and the name that an earlier version gave it."""
    manifest = read_manifest(folder)
    assert manifest.revision == STAGES[manifest.stage].revision
    store_manifest(folder, replace(manifest, revision=None, key=key))
    values = json.loads((folder / MANIFEST).read_text())
    del values["revision"], values["digest"]
    (folder / MANIFEST).write_text(json.dumps(values))
    return folder.rename(folder.with_name(key))


def list_all(**settings) -> list[Adoption]:
    return list_adoptions(find_results("runs"), **settings)


@pytest.mark.slow
def test_every_stage_is_adopted_under_the_key_that_a_run_looks_for(earlier):
    config = resolve_config("tiny.yaml")
    found = list_all()
    assert {one.result.stage: one.key for one in found} == earlier and not any(one.reason or one.added for one in found)
    assert [planned.earlier.name for planned in plan_stages(config)] == [f"{number:016x}" for number in range(6)]
    assert f"made {', '.join(NAMES)} of the same settings and inputs; `kbf runs adopt" in describe_plan(config)
    for one in found:
        place = adopt(one)
        assert place == one.result.folder.with_name(one.key) and is_published(place, one.key)
        assert check_folder(one.result.folder).key == one.result.key  # as it was
        name = read_manifest(place).files[0].name
        assert (place / name).samefile(one.result.folder / name)  # no copy
        assert place.joinpath(MANIFEST).stat().st_mtime_ns == one.result.folder.joinpath(MANIFEST).stat().st_mtime_ns
    assert all(planned.folder and not planned.earlier for planned in plan_stages(config))
    assert "adopt" not in describe_finished(config)
    assert [one.reason for one in list_all()] == [f"adopted as {earlier[stage]}" for stage in NAMES]
    assert find_model("tiny.yaml").is_dir()


@pytest.mark.slow
def test_run_says_what_an_earlier_version_has_made(earlier, tmp_path):
    folder = tmp_path / "runs" / "pretraining" / earlier["pretraining"]
    command = ("python3", "-c", "raise SystemExit(2)")
    lines = []
    with pytest.raises(ValueError):
        run_stage(StageRun("pretraining", folder.name, folder, command), lines.append)
    earlier = folder.with_name(f"{2:016x}")
    made = f"an earlier version made it, {earlier}; `kbf runs adopt {tmp_path / 'runs'}` has it used"
    assert lines == [f"pretraining {folder.name}: {made}"]
    assert find_earlier(folder.with_name("f" * 16)) is None


@pytest.mark.slow
def test_text_is_adopted_by_its_report_or_a_configuration(earlier):
    shutil.rmtree(Path("runs", "evaluation"))
    config = resolve_config("tiny.yaml")
    assert [one.result.stage for one in list_all() if "give the configuration" in one.reason] == NAMES[:2]
    assert {one.result.stage: one.key for one in list_all(config=config)} == {
        stage: key for stage, key in earlier.items() if stage != "evaluation"
    }
    other = config.model_copy(update={"vocabulary": config.vocabulary.model_copy(update={"size": 119})})
    assert [one.key for one in list_all(config=other)][:2] == ["", earlier["records"]]
    other = config.model_copy(update={"seed": 7})
    assert [one.key for one in list_all(config=other)][:2] == [earlier["vocabulary"], ""]


def test_tables_that_the_report_may_not_be_of_are_not_guessed(earlier):
    report, finetuned = (next(Path("runs", stage).glob("[!.]*")) for stage in ("evaluation", "finetuning"))
    manifest = read_manifest(report)
    task = manifest.config["task"] | {"dev": "/elsewhere"}
    store_manifest(report, replace(manifest, config=manifest.config | {"task": task}))
    assert "not those of its models" in list_all()[-1].reason
    for run in finetuned.glob("*/*/run.json"):
        run.write_text(run.read_text().replace('"tables"', '"others"'))  # of the same size, as the manifest says
    assert [one.reason for one in list_all()][-2] == "its runs lack the digests of the tables"


def test_settings_of_other_versions_are_told(earlier):
    (folder,) = Path("runs", "pretraining").glob("[!.]*")
    manifest = read_manifest(folder)
    settings = dict(manifest.config["pretraining"])

    def examine(pretraining):
        store_manifest(folder, replace(manifest, config=manifest.config | {"pretraining": pretraining}))
        return next(one for one in list_all() if one.result.folder.name == folder.name)

    lacking = examine({name: value for name, value in settings.items() if name != "rematerialise"})
    assert (lacking.key, lacking.added) == (earlier["pretraining"], ("pretraining.rematerialise",))
    unknown = examine(settings | {"gone": 1})
    assert not unknown.key and unknown.reason.startswith("its settings are not valid now: gone")


def test_what_is_damaged_is_not_adopted_and_a_kill_leaves_all_as_it_was(earlier, monkeypatch):
    one = next(one for one in list_all() if one.result.stage == "finetuning")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            adopt(one)
    assert check_folder(one.result.folder) and [path.name for path in one.place.parent.glob("[!.]*")] == [f"{4:016x}"]
    assert not list(one.place.parent.glob(".*.work"))
    file = one.result.folder / "pretrained" / "seed-1" / "model" / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="changed or damaged"):
        adopt(one)
    assert not one.place.exists()
    file.write_bytes(content)
    assert adopt(one) == one.place


def test_a_folder_named_otherwise_keeps_its_name(earlier):
    (folder,) = Path("runs", "pretraining").glob("[!.]*")
    named = folder.rename(Path("runs", "pretraining", "mine"))
    one = next(one for one in list_all() if one.result.stage == "pretraining")
    assert adopt(one).samefile(named) and is_published(named, earlier["pretraining"])
    assert read_manifest(named).revision == STAGES["pretraining"].revision


def test_imported_records_are_adopted(tmp_path, monkeypatch):
    source = write_objective_records(tmp_path / "others")
    config = RecordsConfig(masked_fraction=MASKED_FRACTION)
    files = [str(source / "train-00000-of-00001.tfrecord")]
    made = import_records(files, config, source / "vocab.txt", False, tmp_path / "runs" / "records" / "r")
    key = read_manifest(made).key
    make_earlier(made, "0" * 16)
    (one,) = list_adoptions(find_results(tmp_path / "runs"))
    assert one.key == key and is_published(adopt(one), key)


def test_random_runs_of_an_adopted_result_are_those_of_its_revision(earlier, tmp_path):
    (folder,) = (tmp_path / "runs" / "finetuning").glob("[!.]*")
    name = "random/seed-1/run.json"
    run = json.loads((folder / name).read_text())
    identity, config = run["identity"], with_random_training(resolve_config("tiny.yaml"))
    before = {field: value for field, value in identity.items() if field != "revision"} | {"package": "0", "code": {}}
    content = json.dumps(run | {"identity": before}).encode()
    (folder / name).write_bytes(content)
    manifest, digest = read_manifest(folder), sha256(content).hexdigest()
    files = [
        replace(file, sha256=digest, file_bytes=len(content)) if file.name == name else file for file in manifest.files
    ]
    for revision in (None, STAGES["finetuning"].revision):
        store_manifest(folder, replace(manifest, revision=revision, files=files))
        reuse_baseline(config, folder.parent, tmp_path / "work", identity)
        assert (tmp_path / "work" / name).is_file() == (revision is not None)


def test_command_lists_and_adopts(earlier, capsys):
    app(["runs", "adopt", "runs"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert f"adopt  records {1:016x} as {earlier['records']}\n" in printed
    assert printed.endswith("6 of 6 results of earlier versions to adopt. Nothing was changed: add --yes.\n")
    assert not Path("runs", "records", earlier["records"]).exists()
    app(["runs", "adopt", "runs", "--yes", "--json"], standalone_mode=False)
    rows = json.loads(capsys.readouterr().out)
    assert all(row["adopted"] for row in rows) and Path(rows[1]["new_folder"]).name == earlier["records"]
    app(["runs", "compare", f"{2:016x}", earlier["pretraining"], "--runs", "runs"], standalone_mode=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines[:3] == [["revision:"], ["revision", "-", "1"], ["inputs:", "the", "same"]]
    app(["runs", "show", f"{2:016x}", "--runs", "runs"], standalone_mode=False)
    assert "made_by: kbf pretrain 0.1.0\n" in capsys.readouterr().out
    app(["runs", "gc", "runs", "--older-than", "0s", "--yes"], standalone_mode=False)
    assert "12 removed" in capsys.readouterr().out
