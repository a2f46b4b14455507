"""The commands on results, as a terminal of 100 columns shows them, and whole where the output is a file."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keras_bert_flow.cli import app
from keras_bert_flow.console.terminal import fit, name_files
from keras_bert_flow.results.describing import list_commands
from keras_bert_flow.results.lineage import find_results
from tests.results.conftest import publish_folder

KEYS = ("0123456789abcdef", "fedcba9876543210")
LONG = "/a/long/path" * 12


@pytest.fixture
def wide(store: Path) -> Path:
    """The store with two results of full keys, long settings, an input of the store and one from outside."""
    vocabulary = next(result for result in find_results(store) if result.stage == "vocabulary")
    digest = next(file.sha256 for file in vocabulary.manifest.files if file.name == "vocab.txt")
    for number, key in enumerate(KEYS, 1):
        task = {"name": "films", "train": f"{LONG}/{number}/train.tsv", "dev": f"{LONG}/dev{number}.tsv"}
        settings = {"task": task, "finetuning": {"seeds": [*range(100 * number)]}}
        inputs = {"model": f'[["a", "{number * 64}"]]'[:80], "vocabulary": digest if number == 1 else "0" * 64}
        files = {"pretrained/seed-1/model/model.safetensors": key, "pretrained/seed-1/model/config.json": "{}"}
        publish_folder(store / "finetuning" / key, "finetuning", key, settings, inputs, files)
    return store


def shown(capsys, monkeypatch, *arguments, on_terminal=True) -> list[str]:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal, raising=False)
    app([*map(str, arguments)], standalone_mode=False)
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("age_seconds")]


@pytest.mark.parametrize("command", [("list",), ("compare", *KEYS), ("lineage",)], ids=lambda command: command[0])
def test_terminal_has_100_columns(command, wide, capsys, monkeypatch):
    monkeypatch.chdir(wide.parent)
    arguments = ("lineage", wide / "finetuning" / KEYS[0]) if command == ("lineage",) else ("runs", *command)
    lines = shown(capsys, monkeypatch, *arguments)
    body = lines[: lines.index("Commands:")] if "Commands:" in lines else lines
    assert max(map(len, body)) <= 100 and str(wide) not in "".join(body)
    assert not any(key in "".join(body) and f"finetuning/{key}" not in "".join(body) for key in KEYS)
    assert KEYS[0][:8] in "".join(body)


def test_shown_result_fits_the_terminal_and_is_cut_nowhere(wide, capsys, monkeypatch):
    arguments = ("runs", "show", KEYS[1], "--runs", wide)
    lines = shown(capsys, monkeypatch, *arguments)
    plain = shown(capsys, monkeypatch, *arguments, on_terminal=False)
    assert max(map(len, lines)) <= 100 < max(map(len, plain))
    assert f"  task.train: {LONG}/2/train.tsv" in plain and "files:" in lines
    assert "stage: finetuning" in plain and ["stage:", "finetuning"] in [line.split() for line in lines]
    assert sorted("".join("".join(lines).split())) == sorted("".join("".join(plain).split()))


def test_folder_without_a_manifest_is_shown_as_it_is_listed(wide, capsys, monkeypatch):
    folder = wide / "finetuning" / KEYS[0]
    (folder / "manifest.json").unlink()
    (row,) = [line for line in shown(capsys, monkeypatch, "runs", "list", wide, on_terminal=False) if KEYS[0] in line]
    assert row.endswith("without manifest.json")
    lines = shown(capsys, monkeypatch, "runs", "show", folder, on_terminal=False)
    assert f"key: {KEYS[0]}" in lines and "state: damaged" in lines
    assert lines == shown(capsys, monkeypatch, "runs", "show", KEYS[0], "--runs", wide, on_terminal=False)


def test_comparison_shows_files_and_short_keys_and_cuts_nothing_elsewhere(wide, capsys, monkeypatch):
    monkeypatch.chdir(wide.parent)
    cells = [line.split() for line in shown(capsys, monkeypatch, "runs", "compare", *KEYS)]
    assert ["task.train", "…/1/train.tsv", "…/2/train.tsv"] in cells and ["task.dev", "dev1.tsv", "dev2.tsv"] in cells
    assert ["finetuning", "01234567", "finetuning", "fedcba98"] in cells
    (source,) = [row for row in cells if row[:2] == ["vocabulary", "vocabulary"]]
    words = {word for row in cells for word in row}
    assert "vocab.txt" in source and "0" * 12 in words and "0" * 64 not in words  # of the store, and from outside it
    piped = "\n".join(shown(capsys, monkeypatch, "runs", "compare", *KEYS, on_terminal=False))
    assert all(f"finetuning {key}" in piped for key in KEYS) and f"{LONG}/2/train.tsv" in piped
    assert "0" * 64 in piped and ", 198, 199]" in piped and "characters)" not in piped


def test_broken_commands_are_the_commands(store):
    results = find_results(store)
    result = next(result for result in results if result.key == "f1")
    plain = list_commands(result, results)
    broken = list_commands(result, results, columns=60)
    assert any("\n" in command for command in broken)
    for command, lines in zip(plain, broken, strict=True):
        assert all(len(line) <= 60 or " " not in line.strip(" \\") or str(store) in line for line in lines.splitlines())
        script = 'kbf() { printf "%s\\n" "$@"; }; '
        scripts = (["bash", "-c", script + text] for text in (command, lines))
        said = [subprocess.run(command, capture_output=True, check=True) for command in scripts]
        assert said[0].stdout == said[1].stdout != b""
    near = list_commands(result, results, store.parent)
    assert str(store) not in " ".join(near) and "--output runs/finetuning/f1" in near[-1]


def test_lineage_takes_models_in_results_and_copies_of_them(wide, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = wide / "finetuning" / KEYS[1] / "pretrained" / "seed-1" / "model"
    shutil.copytree(model, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("edited")
    (tmp_path / "link").symlink_to(model)
    expected = f"pretrained/seed-1/model of finetuning {KEYS[1]}  "
    for folder in (model, tmp_path / "link", tmp_path / "copy"):
        assert shown(capsys, monkeypatch, "lineage", folder, on_terminal=False)[0].startswith(expected), folder
    (tmp_path / "copy" / "model.safetensors").write_text("other weights")
    with pytest.raises(FileNotFoundError, match="whose weights none in .*runs"):
        app(["lineage", str(tmp_path / "copy"), "--runs", str(wide)], standalone_mode=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="must hold manifest.json"):
        app(["lineage", str(tmp_path / "empty")], standalone_mode=False)


def test_cells_are_wrapped_and_not_cut():
    text = fit([["name", "x" * 150, "words " * 30], ["\x1b[31m", "字" * 70, ""]], 80)
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    assert (text.count("x"), text.count("words"), text.count("字")) == (150 + 1, 30, 70)  # and that of \x1b


def test_paths_are_told_apart():
    assert name_files(["/a/b/c.tsv", "/a/d/e.tsv"]) == ["c.tsv", "e.tsv"]
    assert name_files([["/a/b/c.tsv"], ["/a/d/c.tsv", "x"]]) == [["c.tsv"], ["c.tsv", "x"]]
    assert name_files(["/a/c", "/c"]) == ["c", "/c"]
    assert name_files(["relative/path", None]) == ["relative/path", None]
