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


def choose_exchange(options: Sequence[str], folder: Path) -> Exchange:
    """Return the exchange of a job.

    Args:
        options: Beam's, and `--exchange`.
        folder: of the job.
    """
    parsed = PipelineOptions(list(options))
    runner = parsed.view_as(StandardOptions).runner
    default = FILES if runner is None or runner.rsplit(".", 1)[-1] in _IN_MEMORY else ENGINE
    chosen = parsed.view_as(ExchangeOptions).exchange or default
    return FileExchange(folder) if chosen == FILES else EngineExchange()
