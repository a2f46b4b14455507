"""Choose the exchange of a job, by its runner or by the option `--exchange`."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from beam_jobs.exchange.engine import EngineExchange
from beam_jobs.exchange.exchange import Exchange
from beam_jobs.exchange.files import FileExchange

FILES, ENGINE = "files", "engine"
# Runners that keep the data between two steps in the memory of one process
_IN_MEMORY = ("FnApiRunner", "DirectRunner", "SwitchingDirectRunner", "BundleBasedDirectRunner")


class ExchangeOptions(PipelineOptions):
    """Our option `--exchange` as one of Beam's options, so that it is given with them."""

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
        options: Beam's options, and `--exchange`.
        folder: folder of the job.
        is_shared: whether workers on other machines may reach the folder.
    Raises:
        ValueError: files are requested, but workers cannot reach the folder.
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
