"""Choose how the data of a job moves, by the runner or by the option `--exchange`."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from beam_jobs.exchange.engine import EngineExchange
from beam_jobs.exchange.exchange import Exchange
from beam_jobs.exchange.files import FileExchange

FILES, ENGINE = "files", "engine"
# Runners that keep what moves between two steps in the memory of one process
_IN_MEMORY = ("FnApiRunner", "DirectRunner", "SwitchingDirectRunner", "BundleBasedDirectRunner")


class ExchangeOptions(PipelineOptions):
    """An option of ours among those of Beam, so that it is given where they are."""

    @classmethod
    def _add_argparse_args(cls, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--exchange",
            choices=(FILES, ENGINE),
            help="How data moves between steps: through files beside the output, which every worker must reach, or by "
            "the shuffle of the engine. Default: files with Beam's local runners, the engine with others.",
        )


def choose_exchange(options: Sequence[str], folder: Path, is_shared: bool = True) -> Exchange:
    """Return the exchange of a job.

    Args:
        options: Beam's, and `--exchange`.
        folder: of the job.
        is_shared: whether workers on other machines may reach the folder.
    Raises:
        ValueError: files are asked for, in a folder that workers do not reach.
    """
    parsed = PipelineOptions(list(options))
    runner = parsed.view_as(StandardOptions).runner
    is_local = runner is None or runner.rsplit(".", 1)[-1] in _IN_MEMORY
    chosen = parsed.view_as(ExchangeOptions).exchange or (FILES if is_local else ENGINE)
    if chosen == ENGINE:
        return EngineExchange()
    if not (is_local or is_shared):
        raise ValueError(
            "`--exchange=files` must have an output on a disk that all workers share. Received: an object store, "
            f"--runner={runner}. Leave --exchange out."
        )
    return FileExchange(folder)
