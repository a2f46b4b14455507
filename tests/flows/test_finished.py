"""A run whose stages are all finished: found without a flow, but for who watches on a server."""

import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import local, plan, stages
from flows.local import run_locally
from flows.parameters import resolve_config
from flows.plan import holding_plan
from flows.stages import StageError, find_all, make_all, run_stage
from keras_bert_flow.cli.run_commands import run
from keras_bert_flow.results.choosing import choose
from keras_bert_flow.results.lineage import find_results
from keras_bert_flow.results.publishing import find_needs
from tests.other_users import needs_root
from tests.results.conftest import DAY

STAGES = ["vocabulary", "records", "pretraining", "finetuning", "evaluation"]
BACKEND = "backend=torch"


def set_server(monkeypatch, address: str | None) -> None:
    """Have Prefect's settings say so; it reads them once in a process."""
    monkeypatch.setattr(local, "find_chosen_server", lambda: (address, Path("prefect")))


@pytest.fixture
def report(tiny_config: Path, monkeypatch) -> Path:
    """Make every stage by a stand-in, and return the page of the report."""
    monkeypatch.chdir(tiny_config.parent)
    monkeypatch.setattr(stages, "COMMAND", (sys.executable, str(Path(__file__).with_name("fake_command.py"))))
    set_server(monkeypatch, None)

    def make(stage):
        run_stage(stage, lambda line: None)
        return stage.folder

    resolved = resolve_config("tiny.yaml", [BACKEND])
    assert find_all(resolved) is None
    return make_all(resolved, make) / "report.html"


@pytest.fixture
def flow_runs(monkeypatch) -> list[str]:
    """Note the servers at which a flow is run, and run none."""
    addresses = []

    def note(parameters, environment, on_line, flow, watch=None):
        addresses.append(environment["PREFECT_API_URL"])
        return Path("of the flow")

    monkeypatch.setattr(local, "run_flow", note)
    ours = SimpleNamespace(address="http://127.0.0.1/ours", watch=None)
    monkeypatch.setattr(local, "check_chosen_server", lambda address: None)
    monkeypatch.setattr(local, "running_server", lambda log, environment: nullcontext(ours))
    return addresses


def test_finished_run_needs_no_flow(report, flow_runs):
    lines = []
    assert run_locally("tiny.yaml", backend="torch", on_line=lines.append) == report
    assert [line.split()[0] for line in lines if ": is there, in " in line] == STAGES
    assert flow_runs == []
    named = report.parents[2] / resolve_config("tiny.yaml", [BACKEND]).name
    assert (named / "report.html").resolve() == report.resolve()


@pytest.mark.slow
def test_finished_run_is_shown_on_a_server_that_is_set(report, flow_runs, monkeypatch):
    set_server(monkeypatch, "http://127.0.0.1:1/api")
    assert run_locally("tiny.yaml", backend="torch", on_line=print) == Path("of the flow")
    assert flow_runs == ["http://127.0.0.1:1/api"]


@pytest.mark.parametrize("stage", ["vocabulary", "evaluation"])
@pytest.mark.first_form
def test_damaged_result_is_for_the_flow(report, flow_runs, stage):
    (folder,) = report.parents[2].joinpath(stage).iterdir()
    next(path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.json").write_bytes(b"")
    assert find_all(resolve_config("tiny.yaml", [BACKEND])) is None
    assert run_locally("tiny.yaml", backend="torch", on_line=print) == Path("of the flow")
    assert flow_runs == ["http://127.0.0.1/ours"]


@pytest.mark.slow
def test_much_text_is_not_digested_twice(report, flow_runs, monkeypatch):
    monkeypatch.setattr(plan, "DIGESTED_BYTES", 10)
    assert run_locally("tiny.yaml", backend="torch", on_line=print) == Path("of the flow")
    assert len(flow_runs) == 1


@pytest.mark.slow
def test_settings_that_ask_for_another_result_are_for_the_flow(report, flow_runs):
    assert run_locally("tiny.yaml", ["seed=5"], "torch", print) == Path("of the flow")
    assert len(flow_runs) == 1


def list_going(runs: Path) -> list[str]:
    """Return the stages of the results that `kbf runs gc` would remove if all were old."""
    choices = choose(find_results(runs), time.time() + DAY, DAY, None, find_needs(runs))
    return [choice.result.stage for choice in choices if not choice.is_kept]


def test_run_keeps_what_it_needs_from_its_plan_on(report, monkeypatch):
    runs = report.parents[2]
    assert list_going(runs) == STAGES
    resolved = resolve_config("tiny.yaml", [BACKEND, "finetuning.epochs=3"])
    with holding_plan(resolved):
        assert list_going(runs) == []  # whatever else the run may find
        monkeypatch.setattr(stages, "_run_command", lambda stage, on_line, follow: (1, ""))

        def make(stage):
            run_stage(stage, print)
            return stage.folder

        with pytest.raises(StageError, match="`finetuning` must end with status 0"):
            make_all(resolved, make)
        assert list_going(runs) == STAGES[3:]  # of the other number of epochs
    assert list_going(runs) == STAGES and not list(runs.glob(".*"))


@pytest.mark.slow
def test_runs_of_a_matrix_are_held_together(report):
    runs = report.parents[2]
    first, second = (resolve_config("tiny.yaml", [BACKEND, change]) for change in ("name=a", "finetuning.epochs=3"))
    with holding_plan(first, second):
        assert list_going(runs) == STAGES[4:]  # of another name
    with holding_plan(second, second):
        assert list_going(runs) == STAGES[3:]


@needs_root
@pytest.mark.slow
def test_finished_run_of_a_folder_that_may_only_be_read_is_shown(report, capsys):
    runs = report.parents[2]
    if subprocess.run(["mount", "--bind", runs, runs], check=False, capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", runs], check=True)
        run(config=Path("tiny.yaml"), backend="torch")
        shown = capsys.readouterr().out
        assert "| ours | 0.9 |" in shown and shown.endswith(f"Report: {report}\n")
        with pytest.raises(OSError, match="Read-only"):
            run(config=Path("tiny.yaml"), set=["seed=5"], backend="torch")
    finally:
        subprocess.run(["umount", runs], check=True)
