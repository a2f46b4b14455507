"""Share what several commands are told, and what each of them makes of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow import exit_status
from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.optimization import AUTO
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.extras import check_backend
from keras_bert_flow.interrupts import UNATTENDED, ending_with
from keras_bert_flow.precision_choice import SECTIONS, resolve_precision

ConfigFile = Annotated[Path | None, typer.Option("--config", help="Configuration file; see `kbf configs list`.")]
ConfigOrTask = Annotated[
    Path | None,
    typer.Option("--config", help="Configuration file with the section `task`; see `kbf configs list`. Required."),
]
OldTask = Annotated[Path | None, typer.Option("--task", hidden=True, help="Old name of --config.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help="Override a setting: key.sub=value. Repeatable.")]
Output = Annotated[Path, typer.Option(help="New folder for the result.")]
OUTPUT_ANYWHERE = "New folder for the result, on a disk or at gs://, s3:// and the like."
OutputAnywhere = Annotated[str, typer.Option("--output", help=OUTPUT_ANYWHERE)]
Inputs = Annotated[list[str] | None, typer.Option("--input", help="File, folder or glob of text. Repeatable.")]
ChosenBackend = Annotated[
    str | None, typer.Option(help="jax, tensorflow or torch. Default: $KERAS_BACKEND, then the configuration.")
]
SkipBadInputs = Annotated[
    bool | None, typer.Option("--skip-bad-inputs", help="Skip and name files that cannot be read to their end.")
]

MaxRejectedShare = Annotated[
    float | None, typer.Option(help="Maximum fraction of the corpus' bytes that may be rejected. Default: 0.01.")
]


def load(
    config: Path | None, overrides: list[str] | None, flags: dict | None = None, inputs: list[str] | None = None
) -> PipelineConfig:
    """Load a configuration and fetch its initial model; `--set` and an option's own flag replace what the file says."""
    given = [f"{name}={value}" for name, value in (flags or {}).items() if value is not None]
    settings = load_config(config, (*(overrides or ()), *given))
    if inputs:
        corpus = CorpusConfig(**settings.corpus.model_dump() | {"input": inputs})
        settings = settings.model_copy(update={"corpus": corpus})
    if settings.initial_model is not None:
        from keras_bert_flow.preflight.initial_model import settle_initial_model

        return settle_initial_model(settings)
    return settings if settings.vocabulary.file is None else settle_case(settings, settings.vocabulary.file)


def settle_case(settings: PipelineConfig, file: Path | str) -> PipelineConfig:
    """Return the configuration with `vocabulary.cased` as the files of a vocabulary say, unless it was given.

    Raises:
        FileNotFoundError, ValueError: the vocabulary cannot be read, or nothing says whether it is cased.
    """
    from keras_bert_flow.records.verification import verify
    from keras_bert_flow.text.tokenizers.files import find_case

    vocabulary = settings.vocabulary
    if Path(file).is_file():
        verify(file)  # damage is told as such, before what the pieces seem to be
    cased = find_case(file, vocabulary.cased if "cased" in vocabulary.model_fields_set else None)
    if cased == vocabulary.cased:
        return settings
    return settings.model_copy(update={"vocabulary": vocabulary.model_copy(update={"cased": cased})})


def choose_file(config: Path | None, old: Path | None, old_name: str = "--task") -> Path | None:
    """Return the configuration file that was given under one of two names.

    Raises:
        ValueError: it was given under both.
    """
    if config is not None and old is not None:
        raise ValueError(
            f"The configuration file must be given once. Received: --config {config} and {old_name} {old}. "
            f"Leave out {old_name}."
        )
    return config if old is None else old


def require_file(config: Path | None, old: Path | None) -> Path:
    """Return the configuration file as `choose_file` does.

    Raises:
        ValueError: there is none, or two.
    """
    chosen = choose_file(config, old)
    if chosen is None:
        raise ValueError(
            "There must be a configuration file with the section `task`. Received: no --config. `kbf configs list` "
            "shows some."
        )
    return chosen


def choose_backend(settings: PipelineConfig, backend: str | None) -> PipelineConfig:
    """Fix the backend before Keras is imported: --backend, else $KERAS_BACKEND, else the configuration.

    Then `precision: auto` can be resolved, which depends on it; what it became is said on standard error.
    """
    chosen = backend or os.environ.get("KERAS_BACKEND") or settings.backend
    check_backend(chosen)
    os.environ["KERAS_BACKEND"] = chosen
    # Threads of PyTorch that wait for one another spin by default: with another busy process on the machine, each step
    # then waits for the scheduler, and takes five times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    settings = settings.model_copy(update={"backend": chosen})
    resolved = resolve_precision(settings)
    for name in SECTIONS:
        if getattr(settings, name).precision == AUTO:
            precision = getattr(resolved, name).precision
            typer.echo(f"kbf: {name}.precision is {precision}, for {chosen} on this machine.", err=True)
    return resolved


@contextmanager
def stopping_for_later() -> Iterator[None]:
    """Let SIGTERM or SIGHUP end a resumable command with the status that says so, also before and after training."""
    line = "kbf: Stopped between two steps of its work; run the same command again to go on.\n"
    with ending_with(UNATTENDED, exit_status.CHECKPOINTED, line):
        yield
