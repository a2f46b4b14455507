"""What a user meets: commands that work, and mistakes that get one line and status 2 and leave nothing behind."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_bert_flow.results.manifest import read_manifest
from tests.commands import assert_refused, kbf
from tests.oracles.tiny_records import write_tiny_records
from tests.patience import PATIENCE_SECONDS

TEXT = "\n\n".join(
    "\n".join(f"The {noun} number {number} goes home at night. It sleeps well there." for number in range(6))
    for noun in ("cat", "dog", "bird", "horse", "mouse", "snake", "wolf", "goat")
)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.mark.slow
def test_vocab_and_records_by_hand(tmp_path, corpus):
    status, printed, error = kbf("vocab", "--input", corpus, "--output", tmp_path / "v", "--size", "150")
    assert (status, error) == (0, "")
    assert printed.strip() == str(tmp_path / "v" / "vocab.txt")
    assert len((tmp_path / "v" / "vocab.txt").read_text().splitlines()) == 150
    arguments = ("--vocab", tmp_path / "v" / "vocab.txt", "--output", tmp_path / "r", "--sequence-length", "32")
    status, _, error = kbf("records", "--input", corpus, *arguments, "--max-predictions", "5")
    assert status == 0
    assert error.count("\n") == 1 and "Remove near copies from the corpus" in error  # its documents resemble each other
    counters = read_manifest(tmp_path / "r").counters
    assert counters["documents"] == 8
    assert counters["instances_train"] > 0


def test_missing_input(tmp_path):
    done = kbf("vocab", "--input", tmp_path / "nothing.txt", "--output", tmp_path / "v")
    assert_refused(done, "nothing.txt")
    assert not (tmp_path / "v").exists()


def test_empty_corpus(tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    done = kbf("vocab", "--input", tmp_path / "empty.txt", "--output", tmp_path / "v")
    assert_refused(done, "must hold text", "empty.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


@pytest.mark.slow
def test_bad_lines_are_counted_and_skipped(tmp_path, corpus):
    with corpus.open("ab") as file:
        file.write(b"\n\nnot \xff UTF-8\n" + b"long " * 2_000_000 + b"\n\nOne sentence alone.\n")
    arguments = ("vocab", "--input", corpus, "--output", tmp_path / "v", "--size", "150")
    assert_refused(kbf(*arguments), "At most 1 %", "10,000,001 bytes in 1 line longer than", "--max-rejected-share")
    assert not (tmp_path / "v").exists()
    status, _, error = kbf(*arguments, "--max-rejected-share", "1")
    assert status == 0
    assert error.count("\n") == 1 and "(99.97 %) rejected: 12 bytes in 1 line not UTF-8" in error
    assert_refused(kbf(*arguments), "At most 1 %")  # what a looser limit allowed
    counters = read_manifest(tmp_path / "v").counters
    assert counters["lines_rejected_not_utf8"] == 1
    assert counters["lines_rejected_too_long"] == 1
    assert counters["documents"] == 9  # the document of one sentence counts


@pytest.mark.slow
def test_bad_lines_are_refused_when_strict(tmp_path, corpus):
    with corpus.open("ab") as file:
        file.write(b"\n\nnot \xff UTF-8\n")
    done = kbf("vocab", "--input", corpus, "--output", tmp_path / "v", "--size", "150", "--strict")
    assert_refused(done, "UTF-8", "corpus.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt"]


@pytest.mark.slow
def test_bad_files_are_named_or_skipped(tmp_path, corpus):
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(TEXT.encode())[:-3])
    arguments = ("vocab", "--input", corpus, "--input", tmp_path / "cut.txt.gz", "--size", "150")
    done = kbf(*arguments, "--output", tmp_path / "v")
    assert_refused(done, "must be whole", "cut.txt.gz", "--skip-bad-inputs")
    assert not (tmp_path / "v").exists()
    skipping = (*arguments, "--output", tmp_path / "v", "--skip-bad-inputs")
    assert_refused(kbf(*skipping), "At most 1 %", "in 1 file that cannot be read to the end", "cut.txt.gz")
    status, _, error = kbf(*skipping, "--max-rejected-share=1")
    assert status == 0
    assert error.startswith("1 of 2 corpus files were left out") and error.count("\n") == 2
    counters = read_manifest(tmp_path / "v").counters
    assert (counters["files_read"], counters["files_used"], counters["files_rejected_damaged"]) == (2, 1, 1)


@pytest.mark.slow
def test_vocabulary_smaller_than_the_characters(tmp_path, corpus):
    done = kbf("vocab", "--input", corpus, "--output", tmp_path / "v", "--size", "20")
    assert_refused(done, "20", "characters")
    assert not (tmp_path / "v").exists()


def test_option_that_nobody_knows(tmp_path, corpus):
    done = kbf("vocab", "--input", corpus, "--output", tmp_path / "v", "--sice", "150")
    assert_refused(done, "--sice")


def test_unknown_setting(tmp_path):
    (tmp_path / "c.yaml").write_text("records: {sequence_lenght: 64}\n")
    done = kbf("vocab", "--config", tmp_path / "c.yaml", "--output", tmp_path / "v")
    assert_refused(done, "records.sequence_lenght", "sequence_length")


def test_output_that_cannot_be_written(tmp_path, corpus):
    done = kbf("vocab", "--input", corpus, "--size", "150", "--output", corpus / "v")  # below a file
    assert_refused(done, "corpus.txt")


def test_missing_extra_names_the_install_line(tmp_path, corpus):
    blocker = tmp_path / "apache_beam"  # an import of it fails as if it were not installed
    blocker.mkdir()
    (blocker / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'apache_beam'\", name='apache_beam')"
    )
    source = str(Path(__file__).parents[1])
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"}
    done = kbf("vocab", "--input", corpus, "--output", tmp_path / "v", environment=environment)
    assert_refused(done, "pip install 'keras-bert-flow[beam]'")


def test_debug_shows_the_traceback(tmp_path):
    status, _, error = kbf("--debug", "vocab", "--input", tmp_path / "nothing.txt", "--output", tmp_path / "v")
    assert status != 0
    assert "Traceback" in error


def test_public_names_load_without_a_backend():
    script = (
        "import json, sys, keras_bert_flow as kbf; kbf.load_config(None); kbf.WordPieceTokenizer; "
        "print(json.dumps([m for m in ('keras', 'tensorflow', 'jax', 'torch') if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert json.loads(done.stdout) == []


@pytest.mark.slow
def test_doctor_says_by_its_status_what_it_found(tmp_path, corpus):
    status, printed, error = kbf("doctor", corpus)
    assert (status, error) == (0, "")
    assert "ok       documents" in printed and printed.splitlines()[-1] == "10 ok, 0 warning, 0 error"
    (tmp_path / "one.txt").write_text("Only one. Document.")
    status, printed, error = kbf("doctor", tmp_path / "one.txt")
    assert (status, error) == (1, "")
    assert "error    documents" in printed and "-> Put blank lines between documents" in printed
    assert_refused(kbf("doctor", tmp_path / "nothing"), "nothing")
    assert_refused(kbf("doctor", corpus, "--vocab", tmp_path / "no.txt"), "no.txt")


def test_doctor_prints_one_json_object(tmp_path):
    records = write_tiny_records(tmp_path / "records", train=(200, 200))
    (tmp_path / "config.yaml").write_text("corpus: {lines: sentences}\n")
    status, printed, error = kbf("doctor", records, "--json", "--sample", "50", "--config", tmp_path / "config.yaml")
    values = json.loads(printed)
    assert (values["kind"], values["numbers"]["records_read"], error) == ("records", 50, "")
    verdicts = [finding["verdict"] for finding in values["findings"]]
    assert values["verdict"] == max(verdicts, key=("ok", "warning", "error").index)
    assert status == (1 if "error" in verdicts else 0)


def test_doctor_loads_no_backend_and_no_beam(tmp_path):
    script = (
        "import json, sys; from keras_bert_flow.cli import app\n"
        f"app(['doctor', {str(write_tiny_records(tmp_path / 'records'))!r}, '--json'], standalone_mode=False)\n"
    )
    script = (
        f"import atexit, sys\natexit.register(lambda: print([m for m in ('keras', 'apache_beam', 'tensorflow', 'jax',"
        f" 'torch', 'grain') if m in sys.modules], file=sys.stderr))\n{script}"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.stderr.splitlines()[-1] == "[]"
    assert json.loads(done.stdout)["kind"] == "records"


def test_inspect_prints_examples(tmp_path):
    records = write_tiny_records(tmp_path / "records")
    status, printed, error = kbf("inspect", records, "-n", "2", "--part", "held_out")
    assert (status, error) == (0, "")
    assert printed.count("record ") == 2 and "  A  [CLS] " in printed and "[MASK: word" in printed
    assert_refused(kbf("inspect", tmp_path), "manifest.json")
    assert_refused(kbf("inspect", records, "--part", "dev"), "dev")


def test_bare_command_prints_its_help():
    for command in ((), ("configs",)):
        status, printed, error = kbf(*command)
        assert (status, error) == (2, "")
        assert "Commands" in printed


def test_unknown_command():
    assert_refused(kbf("trian"), "No such command 'trian'. Did you mean 'pretrain'? See --help.")


def test_waiting_threads_sleep_unless_the_user_says_otherwise(monkeypatch):
    from keras_bert_flow.cli.options import choose_backend
    from keras_bert_flow.config.pipeline import PipelineConfig

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    choose_backend(PipelineConfig(), None)
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    choose_backend(PipelineConfig(), None)
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_the_backend_is_one_that_is_installed_unless_one_is_asked_for(monkeypatch):
    from keras_bert_flow import installed
    from keras_bert_flow.cli.options import choose_backend, fix_backend
    from keras_bert_flow.config.pipeline import PipelineConfig

    here = {"torch", "tensorflow"}
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: name if name in here else None)
    for asked, configured, wanted in [(None, None, "tensorflow"), (None, "torch", "torch"), ("torch", None, "torch")]:
        monkeypatch.setenv("KERAS_BACKEND", "")
        assert fix_backend(asked, configured) == wanted
    monkeypatch.setenv("KERAS_BACKEND", "")
    here.remove("tensorflow")
    assert choose_backend(PipelineConfig(), None).backend == "torch"
    for settings, variable in [(PipelineConfig(backend="jax"), ""), (PipelineConfig(), "jax")]:
        monkeypatch.setenv("KERAS_BACKEND", variable)
        with pytest.raises(ValueError, match="Received: jax, which is not"):
            choose_backend(settings, None)
