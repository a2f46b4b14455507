"""Stop real pre-training under a real flow: it goes on by itself, and where the flow is stopped, in the next run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from flows.parameters import resolve_config
from flows.pipeline import pretrain
from flows.stages import StageRun, pretraining_stage, run_stage
from keras_bert_flow.console.interrupts import CHECKPOINTED
from tests.flows.conftest import ROOT
from tests.flows.test_pipeline import logs_of
from tests.oracles.tiny_records import write_tiny_records
from tests.patience import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow
SETTINGS = [
    "pretraining.total_steps=160",
    "pretraining.log_every_steps=10",
    "pretraining.evaluate_every_steps=1000",
    "pretraining.checkpoint_every_steps=1000",
]


@pytest.fixture
def records(tiny_config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tiny_config.parent)
    return write_tiny_records(tiny_config.parent / "records")


def stage_of(runs: str, records: Path) -> StageRun:
    return pretraining_stage(resolve_config("tiny.yaml", [*SETTINGS, f"runs={runs}", "backend=torch"]), records)


def steps_of(folder: Path) -> list[int]:
    path = folder / "log.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]


def work_of(stage: StageRun) -> Path:
    return stage.folder.with_name(f".{stage.folder.name}.work")


def commands_of(stage: StageRun) -> list[psutil.Process]:
    """Find the processes that make a stage."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(stage.folder) in (process.info["cmdline"] or ()) and "keras_bert_flow" in process.info["cmdline"]:
            found.append(process)
    return found


def stop_at(stage: StageRun, steps: tuple[int, ...]) -> None:
    """Send SIGTERM to the command each time its log has come to a step.

    Its end is not waited for here: who waits takes the exit status away from the flow, which is of the same process.
    """
    for step in steps:
        wait_until(lambda step=step: max(steps_of(work_of(stage)), default=0) >= step)
        (command,) = commands_of(stage)
        command.terminate()


def weights_of(stage: StageRun) -> bytes:
    return (stage.folder / "model" / "model.safetensors").read_bytes()


def test_flow_goes_on_where_its_training_was_stopped(prefect_server, records: Path):
    whole, stage = stage_of("whole", records), stage_of("runs", records)
    run_stage(whole, lambda line: None)
    stopping = threading.Thread(target=stop_at, args=(stage, (20, 90)), daemon=True)
    stopping.start()
    state = pretrain(
        "tiny.yaml", overrides=[*SETTINGS, "runs=runs"], backend="torch", records=str(records), return_state=True
    )
    stopping.join(PATIENCE_SECONDS)
    assert state.result() == str(stage.folder)
    assert steps_of(stage.folder) == steps_of(whole.folder) == list(range(10, 161, 10))
    assert weights_of(stage) == weights_of(whole)
    again = f"{stage.name}: stopped at a checkpoint, going on from it."
    wait_until(lambda: logs_of(state.state_details.flow_run_id).count(again) == 2)  # Prefect sends logs every 2 s


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_that_is_stopped_saves_and_the_flow_goes_on(records: Path, number: int):
    """As by a scheduler, or by Ctrl-C in a terminal."""
    stage = stage_of("runs", records)
    stage.folder.parent.mkdir(parents=True)
    command = subprocess.Popen(
        stage.command, cwd=ROOT, env=os.environ | dict(stage.environment), stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: steps_of(work_of(stage)) != [])
    os.kill(command.pid, number)
    _, complained = command.communicate(timeout=PATIENCE_SECONDS)
    assert command.returncode == CHECKPOINTED
    assert "run the same command again to go on" in complained and "Traceback" not in complained
    (checkpoint,) = (work_of(stage) / "checkpoints").glob("step-*")
    done = steps_of(work_of(stage))
    assert done[-1] <= int(checkpoint.name.removeprefix("step-")) < 160
    lines = []
    run_stage(stage, lines.append)
    assert steps_of(stage.folder) == list(range(10, 161, 10))


def test_second_interrupt_ends_the_command_at_once(records: Path):
    """It is sent while the first waits for the end of a step, which here never comes."""
    stage = stage_of("runs", records)
    stage.folder.parent.mkdir(parents=True)
    code = (
        "import os, signal, sys, time\n"
        "from keras_bert_flow.training.loop.steps import StepFollower\n"
        "def wait(*_):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('waiting', flush=True)\n"
        "    time.sleep(1000)\n"
        "StepFollower.on_train_batch_begin = wait\n"
        "from keras_bert_flow.cli import main\n"
        "main()\n"
    )
    command = subprocess.Popen(
        (sys.executable, "-c", code, *stage.command[3:]),
        cwd=ROOT,
        env=os.environ | dict(stage.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "waiting" in command.stdout.readline()
    time.sleep(0.2)
    os.kill(command.pid, signal.SIGINT)
    _, complained = command.communicate(timeout=PATIENCE_SECONDS)
    assert command.returncode == 130
    assert "Ctrl-C again stops at once" in complained and "Traceback" not in complained
