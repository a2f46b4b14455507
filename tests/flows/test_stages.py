import shutil
import sys
from pathlib import Path

import pytest

from flows import stages
from flows.parameters import resolve_config, write_config
from flows.stages import (
    StageError,
    StageRun,
    find_records,
    pretraining_stage,
    records_stage,
    run_stage,
    vocabulary_stage,
)
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.results.publishing import Contents, publish
from tests.beam_jobs.test_storage import FILES

FAKE = (sys.executable, str(Path(__file__).with_name("fake_command.py")))
COUNT = "import sys; open(sys.argv[1], 'a').write('x'); "


@pytest.fixture
def publishing_stage(tmp_path: Path) -> StageRun:
    folder = tmp_path / "runs" / "vocabulary" / "0123456789abcdef"
    return StageRun(
        "vocabulary", folder.name, folder, (*FAKE, "vocab", "--output", str(folder)), {"KERAS_BACKEND": "jax"}
    )


def make_stage(tmp_path: Path, code: str) -> StageRun:
    command = (sys.executable, "-c", COUNT + code, str(tmp_path / "starts"))
    return StageRun("records", "key", tmp_path / "runs" / "key", command)


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "starts").read_text())


def test_run_stage_runs_once(publishing_stage: StageRun):
    lines = []
    (publishing_stage.folder.parents[1]).mkdir()
    assert run_stage(publishing_stage, lines.append) is False
    assert run_stage(publishing_stage, lines.append) is True
    assert lines == ["vocab says hello"]


def test_run_stage_makes_a_deleted_folder_again(publishing_stage: StageRun):
    (publishing_stage.folder.parents[1]).mkdir()
    run_stage(publishing_stage)
    publishing_stage.folder.rename(publishing_stage.folder.with_name("elsewhere"))
    assert run_stage(publishing_stage) is False


def test_run_stage_keeps_a_damaged_folder_aside(publishing_stage: StageRun):
    publishing_stage.folder.parents[1].mkdir()
    run_stage(publishing_stage)
    (publishing_stage.folder / "vocab.txt").unlink()
    assert run_stage(publishing_stage) is False
    assert publishing_stage.is_finished()
    assert publishing_stage.folder.with_name("0123456789abcdef.damaged-1").is_dir()


def test_user_error_is_the_line_of_the_command(tmp_path: Path):
    stage = make_stage(tmp_path, "print('working'); print('Say which. Try 8.', file=sys.stderr); sys.exit(2)")
    with pytest.raises(ValueError, match=r"^Say which\. Try 8\.$"):
        run_stage(stage)
    assert starts(tmp_path) == 1


def test_prefix_of_a_command_is_not_repeated(tmp_path: Path):
    (tmp_path / "refused").mkdir()
    stage = make_stage(tmp_path / "refused", "print('kbf: Say which.', file=sys.stderr); sys.exit(2)")
    with pytest.raises(ValueError, match=r"^Say which\.$"):
        run_stage(stage)
    (tmp_path / "failed").mkdir()
    stage = make_stage(tmp_path / "failed", "print('kbf: No luck.', file=sys.stderr); sys.exit(1)")
    with pytest.raises(StageError, match=r"Last line: No luck\."):
        run_stage(stage)


def test_failure_names_stage_status_and_last_line(tmp_path: Path):
    with pytest.raises(StageError, match="`records` must end with status 0. It ended with 1. Last line: ZeroDivision"):
        run_stage(make_stage(tmp_path, "1 / 0"))


def test_killed_command_names_the_signal(tmp_path: Path):
    with pytest.raises(StageError, match="killed by signal 9. It printed nothing."):
        run_stage(make_stage(tmp_path, "import os; os.kill(os.getpid(), 9)"))


def test_status_75_goes_on_a_bounded_number_of_times(tmp_path: Path):
    with pytest.raises(StageError, match="checkpoint 5 times; run again"):
        run_stage(make_stage(tmp_path, "sys.exit(75)"))
    assert starts(tmp_path) == stages.MAX_STARTS


def test_command_that_publishes_nothing_is_an_error(tmp_path: Path):
    with pytest.raises(StageError, match="ended without"):
        run_stage(make_stage(tmp_path, "pass"))


def test_config_paths_keep_their_meaning(tiny_config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny_config.parent)
    stage = vocabulary_stage(resolve_config("tiny.yaml", ["task.extra_dev.other=more.tsv"]))
    written = load_config(stage.command[stage.command.index("--config") + 1])
    assert written.corpus.input == (str(tiny_config.parent / "corpus.txt"),)
    assert written.task.dev == str(tiny_config.parent / "dev.tsv")
    assert written.task.extra_dev == {"other": str(tiny_config.parent / "more.tsv")}
    assert stage.folder == tiny_config.parent / "runs" / "vocabulary" / stage.key


def test_key_of_a_remote_corpus_is_that_of_its_files_here(tiny_config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny_config.parent)
    monkeypatch.setitem(FILES, "memory://bucket/a.txt", (tiny_config.parent / "corpus.txt").read_bytes())
    remote = resolve_config("tiny.yaml", ['corpus.input=["memory://bucket/*.txt"]'])
    assert vocabulary_stage(remote).key == vocabulary_stage(resolve_config("tiny.yaml")).key


def test_overrides_apply_to_the_file(tiny_config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny_config.parent)
    resolved = resolve_config("tiny.yaml", ["pretraining.total_steps=7", "backend=torch"])
    assert (resolved.pretraining.total_steps, resolved.backend, resolved.name) == (7, "torch", "tiny")


def test_settings_change_the_keys_they_should(tiny_config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny_config.parent)
    monkeypatch.setattr(stages, "COMMAND", FAKE)

    def keys_of(*overrides: str) -> list[str]:
        config = resolve_config("tiny.yaml", overrides)
        vocabulary = vocabulary_stage(config)
        run_stage(vocabulary)
        records = records_stage(config, vocabulary.folder)
        run_stage(records)
        return [vocabulary.key, records.key, pretraining_stage(config, records.folder).key]

    first = keys_of()
    assert keys_of("runs=other") == first
    assert keys_of("pretraining.learning_rate=1e-3")[:2] == first[:2]
    assert keys_of("pretraining.learning_rate=1e-3")[2] != first[2]
    assert keys_of("records.duplication=3")[1] != first[1]


@pytest.mark.slow
def test_rejected_text_ends_a_run_or_is_in_its_log(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"some words\n\nother words\n\ncaf\xe9\n")
    given = [f"runs={tmp_path}/runs", f"corpus.input=[{tmp_path}/a.txt]", "vocabulary.size=60"]
    refused = vocabulary_stage(load_config(None, given))
    with pytest.raises(ValueError, match=r"At most 1 % .*5 bytes in 1 line not UTF-8 \(.*a\.txt\)"):
        run_stage(refused)
    allowed = vocabulary_stage(load_config(None, [*given, "corpus.max_rejected_share=1"]))
    lines: list[str] = []
    assert run_stage(allowed, lines.append) is False
    assert any("5 bytes in 1 line not UTF-8" in line for line in lines)
    assert allowed.key == refused.key
    with pytest.raises(ValueError, match="At most 1 %"):  # though the result is there
        vocabulary_stage(load_config(None, given))


def test_flipped_bit_in_a_finished_stage_is_set_aside_and_made_again(publishing_stage: StageRun):
    publishing_stage.folder.parents[1].mkdir()
    run_stage(publishing_stage)
    path = publishing_stage.folder / "vocab.txt"
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    lines: list[str] = []
    assert run_stage(publishing_stage, lines.append) is False
    assert path.read_bytes() == whole and publishing_stage.is_finished()
    aside = publishing_stage.folder.with_name(f"{publishing_stage.key}.damaged-1")
    assert (aside / "vocab.txt").read_bytes() != whole
    (line,) = [line for line in lines if "damaged" in line]
    assert f"{path}, changed or damaged: sha256" in line and aside.name in line


def test_flow_of_one_stage_names_the_damaged_file_of_an_earlier_one(tiny_config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny_config.parent)
    monkeypatch.setattr(stages, "COMMAND", FAKE)
    config = resolve_config("tiny.yaml")
    vocabulary = vocabulary_stage(config)
    run_stage(vocabulary)
    path = vocabulary.folder / "vocab.txt"
    path.write_bytes(path.read_bytes().swapcase())
    with pytest.raises(ValueError, match=r"vocab\.txt, changed or damaged"):
        find_records(config)


def test_damaged_configuration_of_a_run_is_written_again(tiny_config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny_config.parent)
    path = write_config(resolve_config("tiny.yaml"))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"1", b"3"))
    assert write_config(resolve_config("tiny.yaml")) == path and path.read_bytes() == whole


def test_results_in_the_folder_of_text_change_no_key(tiny_config):
    """`runs` lies in the folder of the text, and so does what a killed run left."""
    place = tiny_config.parent
    config = resolve_config(str(tiny_config), [f"corpus.input=[{place}]", f"runs={place / 'runs'}"])
    stage = vocabulary_stage(config)
    for name in (stage.key, f".{stage.key}.work"):
        (stage.folder.parent / name).mkdir(parents=True, exist_ok=True)
        (stage.folder.parent / name / "vocab.txt").write_text("[PAD]")
    publish(stage.folder.parent / ("0" * 16), "vocabulary", "0" * 16, lambda work: Contents())
    shutil.copy(stage.folder.parent / ("0" * 16) / "manifest.json", stage.folder)
    assert vocabulary_stage(config).key == stage.key
