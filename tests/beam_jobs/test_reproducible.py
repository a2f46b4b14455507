"""The same records from any runner, number of workers, split of the text, and after any kill."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.results.manifest import check_folder
from tests.beam_jobs.conftest import as_text, build, make_corpus, make_documents, names_in, read_folder
from tests.beam_jobs.portable import portable_job_service, run_job, worker_pool
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "options",
    [
        ["--direct_runner_bundle_repeat=1"],
        pytest.param(["--runner=BundleBasedDirectRunner"], marks=pytest.mark.slow),
    ],
)
def test_records_have_the_same_bytes_under_replay_and_another_runner_and_from_a_file_of_another_name(
    options, built, vocabulary_file, tmp_path
):
    corpus = make_corpus(tmp_path / "other folder" / "é.txt")
    assert read_folder(build(corpus, vocabulary_file, tmp_path / "r", options=options)) == read_folder(built)


@pytest.mark.parametrize("exchange", ["files", pytest.param("engine", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_records_have_the_same_bytes_with_two_workers(exchange, built, corpus, vocabulary_file, tmp_path):
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing", f"--exchange={exchange}"]
    command = [sys.executable, "-m", "tests.beam_jobs.job", *corpus.input, vocabulary_file, tmp_path / "r", *options]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE_SECONDS, capture_output=True)
    assert read_folder(tmp_path / "r") == read_folder(built)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["files", "engine"])
def test_records_have_the_same_bytes_from_a_worker_pool(exchange, built, corpus, vocabulary_file, tmp_path):
    with portable_job_service(tmp_path) as service, worker_pool(tmp_path) as pool:
        options = [option for option in service if not option.startswith("--environment_type")]
        run_job(corpus, vocabulary_file, tmp_path / "r", *options, *pool, f"--exchange={exchange}")
    assert read_folder(tmp_path / "r") == read_folder(built)


@pytest.mark.slow
def test_records_have_the_same_bytes_however_the_text_is_split(built, vocabulary_file, tmp_path):
    contents = []
    for order in (1, -1):
        folder = tmp_path / f"parts{order}"
        for number in range(5):
            name = f"{number if order == 1 else 9 - number}.txt"
            make_corpus(folder / name, as_text(make_documents()[number::5]))
        corpus = CorpusConfig(input=(str(folder),), lines="sentences")
        contents.append(read_folder(build(corpus, vocabulary_file, tmp_path / f"r{order}")))
    assert contents[0] == contents[1]  # the whole folder: only the order in which files are listed differs
    whole = read_folder(built)
    for content in (whole, contents[0]):
        content.pop("manifest.json")  # names other inputs
    assert contents[0] == whole


@pytest.mark.slow
def test_records_of_another_seed_differ(built, corpus, vocabulary_file, tmp_path):
    other = read_folder(build(corpus, vocabulary_file, tmp_path / "r", seed=2))
    assert all(other[name] != content for name, content in read_folder(built).items() if name.endswith(".tfrecord"))


def test_records_are_built_once_and_never_replaced_by_those_of_other_settings(
    corpus, vocabulary_file, tmp_path, monkeypatch
):
    folder = build(corpus, vocabulary_file, tmp_path / "r")
    before = [(path, path.stat().st_mtime_ns) for path in sorted(folder.iterdir())]
    monkeypatch.delattr("beam_jobs.build_records.run_pipeline")
    assert build(corpus, vocabulary_file, tmp_path / "r") == folder
    with pytest.raises(FileExistsError, match="must be new"):
        build(corpus, vocabulary_file, tmp_path / "r", seed=2)
    assert [(path, path.stat().st_mtime_ns) for path in sorted(folder.iterdir())] == before


@pytest.mark.parametrize(
    "after_seconds", [0.3, *(pytest.param(wait, marks=pytest.mark.slow) for wait in (0.0, 0.1, 0.2, 0.5, 0.8))]
)
def test_killed_job_leaves_nothing_that_looks_finished(after_seconds, built, corpus, vocabulary_file, tmp_path):
    output = tmp_path / "out" / "r"
    command = [sys.executable, "-m", "tests.beam_jobs.job", *corpus.input, vocabulary_file, output]
    job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (output.parent / ".r.work").exists() and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(after_seconds)
    job.send_signal(signal.SIGKILL)
    job.wait()
    if output.exists():  # it was quicker
        assert read_folder(check_folder(output) and output) == read_folder(built)
        shutil.rmtree(output)
        os.makedirs(output.parent / ".r.work")  # as if it had been killed just before the rename
        (output.parent / ".r.work" / "manifest.json").write_text("{}")
    with pytest.raises(FileNotFoundError):
        check_folder(output)
    assert read_folder(build(corpus, vocabulary_file, output)) == read_folder(built)
    assert names_in(output.parent) == ["r"]


@pytest.mark.slow
def test_documents_of_one_file_are_spread_over_two_workers(tmp_path):
    long = [[sentence * 1000 for sentence in sentences] for sentences in make_documents()]  # several chunks
    corpus = make_corpus(tmp_path / "a.txt", as_text(long))
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    command = [sys.executable, "-m", "tests.beam_jobs.spreading_job", *corpus.input, tmp_path, *options]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE_SECONDS, capture_output=True)
    processes = Counter(json.loads((tmp_path / "processes.json").read_text()).values())
    assert processes.total() == len(make_documents())
    assert len(processes) == 2 and min(processes.values()) > 20  # of 170
