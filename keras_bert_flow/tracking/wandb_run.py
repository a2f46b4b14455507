"""A run on Weights & Biases; its own environment variables set the mode, project, server and folder."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import wandb

from keras_bert_flow.results.artifacts import write_atomically
from keras_bert_flow.tracking.logger import FINAL, FINISHED, RunFacts, find_numbers

START_SECONDS = 30.0
LAST_STEP = "wandb-step"  # file with the last logged step, which is known nowhere else in offline mode


class WandbRun:
    """The Weights & Biases run with the id; in offline mode each process has its own folder with the same id."""

    def open(self, facts: RunFacts) -> int:
        settings = wandb.Settings(
            init_timeout=START_SECONDS,
            console="off",
            silent=True,
            save_code=False,
            disable_git=True,
            x_disable_stats=True,
        )
        self._run = wandb.init(
            id=facts.id,
            resume="allow",
            name=facts.name,
            job_type=facts.stage,
            group=facts.key or None,
            config=dict(facts.parameters),
            allow_val_change=True,
            settings=settings,
        )
        self._state = facts.state / LAST_STEP
        last_step = -1
        with suppress(FileNotFoundError, ValueError):
            last_step = int(self._state.read_text())
        return max(last_step, self._run.step - 1)

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for line in lines:
            self._run.log(find_numbers(line), step=line["step"])
        write_atomically(self._state, str(lines[-1]["step"]).encode())

    def close(self, status: str, metrics: Mapping[str, Any]) -> None:
        self._run.summary.update({FINAL + name: value for name, value in find_numbers(metrics).items()})
        self._run.finish(exit_code=int(status != FINISHED))
