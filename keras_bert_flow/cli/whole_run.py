"""Check all that the stages of a configuration are given, before the first of them begins."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.cli.options import choose_backend, load
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.progress import working


def check_whole_run(
    config: Path,
    overrides: Sequence[str] | None,
    backend: str | None,
    stages: Sequence[str] | None = None,
    packages: Sequence[str] = (),
) -> tuple[PipelineConfig, Any]:
    """Return the configuration as the stages read it, and what `check_run` returns.

    Args:
        stages: those that are to run; all by default.
        packages: needed besides those of the stages.
    Raises:
        FileNotFoundError, OSError, ValueError: something would end a stage.
    """
    with working("Checking the configuration and its files"):
        from keras_bert_flow.preflight.inputs_elsewhere import fetch_inputs
        from keras_bert_flow.preflight.run import STAGES, check_run

        settings = fetch_inputs(choose_backend(load(config, [*(overrides or ())]), backend))
        task = check_run(settings, stages or STAGES, packages)
        is_elsewhere = find_address(settings.runs) is not None
        if settings.beam or is_elsewhere:
            from beam_jobs.running import check_options
            from beam_jobs.storage import BeamStorage, check_reachable

            check_options(settings.beam)
            if is_elsewhere:
                BeamStorage(settings.beam)  # its filesystems take their options
                check_reachable(settings.runs)
    return settings, task
