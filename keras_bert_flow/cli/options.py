"""Options that several commands have: configuration, overrides, backend; their progress and next steps."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import SECTIONS, PipelineConfig, resolve_precision
from keras_bert_flow.config.pretraining import AUTO
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.console import interrupts
from keras_bert_flow.console.interrupts import UNATTENDED, ending_with
from keras_bert_flow.console.job_progress import MB, expect, following_job
from keras_bert_flow.console.progress import working
from keras_bert_flow.console.terminal import is_told, show
from keras_bert_flow.files.outputs import work_folder
from keras_bert_flow.files.paths import check_local, find_address, name_argument
from keras_bert_flow.installed import BACKENDS, KERAS_BACKEND, check_backend, find_backend
from keras_bert_flow.stores.fetching import cache_root

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
    str | None,
    typer.Option(
        help="jax, tensorflow or torch. Default: $KERAS_BACKEND, then the configuration, then what is installed."
    ),
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
    """Load a configuration and fetch its initial model. `--set` and own flags take precedence over the file."""
    given = [f"{name}={value}" for name, value in (flags or {}).items() if value is not None]
    settings = load_config(config, (*(overrides or ()), *given))
    if inputs:
        corpus = CorpusConfig(**settings.corpus.model_dump() | {"input": inputs})
        settings = settings.model_copy(update={"corpus": corpus})
    if settings.initial_model is not None:
        from keras_bert_flow.checks.run import resolve_initial_model

        return resolve_initial_model(settings)
    return settings if settings.vocabulary.file is None else resolve_case(settings, settings.vocabulary.file)


def resolve_case(settings: PipelineConfig, file: Path | str) -> PipelineConfig:
    """Return the configuration with `vocabulary.cased` from the files of the vocabulary, unless it was given.

    Raises:
        FileNotFoundError, ValueError: the vocabulary cannot be read, or nothing says whether it is cased.
    """
    from keras_bert_flow.results.publishing import verify
    from keras_bert_flow.text.tokenizers.files import find_case

    vocabulary = settings.vocabulary
    if Path(file).is_file():
        verify(file)  # damage is told as such, before what the pieces seem to be
    cased = find_case(file, vocabulary.cased if "cased" in vocabulary.model_fields_set else None)
    if cased == vocabulary.cased:
        return settings
    return settings.model_copy(update={"vocabulary": vocabulary.model_copy(update={"cased": cased})})


def choose_file(config: Path | None, old: Path | None, old_name: str = "--task") -> Path | None:
    """Return the configuration file, given as an argument or as an option.

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
    """Return the configuration file; see `choose_file`.

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
    """Fix the backend before Keras is imported: see `fix_backend`.

    Then `precision: auto` can be resolved, which depends on it; what it became is said on standard error.
    """
    chosen = fix_backend(backend, settings.backend if "backend" in settings.model_fields_set else None)
    settings = settings.model_copy(update={"backend": chosen})
    resolved = resolve_precision(settings)
    for name in SECTIONS:
        if getattr(settings, name).precision == AUTO:
            precision = getattr(resolved, name).precision
            typer.echo(f"kbf: {name}.precision is {precision}, for {chosen} on this machine.", err=True)
    return resolved


def fix_backend(backend: str | None, configured: str | None = None) -> str:
    """Fix the backend before Keras is imported, and return it.

    It is that of --backend, else of $KERAS_BACKEND, else of the configuration, else the first that is installed.
    """
    chosen = backend or os.environ.get(KERAS_BACKEND) or configured or find_backend() or BACKENDS[0]
    check_backend(chosen)
    os.environ[KERAS_BACKEND] = chosen
    # Threads of PyTorch that wait for one another spin by default: with another busy process on the machine, each step
    # then waits for the scheduler, and takes five times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return chosen


@contextmanager
def stopping_for_later() -> Iterator[None]:
    """End a resumable command with the status of a checkpoint on SIGTERM or SIGHUP, also before and after training."""
    line = "kbf: Stopped between two steps of its work; run the same command again to go on.\n"
    with ending_with(UNATTENDED, interrupts.CHECKPOINTED, line):
        yield


# Write the built-in corpus and task for a command whose configuration says `builtin`.


def fill_builtin_corpus(settings: PipelineConfig, output: str) -> PipelineConfig:
    """Replace `builtin` in the input of a corpus by files, which are written beside the output.

    Raises:
        ValueError: the output is in an object store.
    """
    if BUILTIN not in settings.corpus.input:
        return settings
    check_local(output, "The output of a job with the built-in corpus")
    return _fill(settings, Path(output).absolute().parent)


def fill_builtin_task(settings: PipelineConfig) -> PipelineConfig:
    """Replace `builtin` in a task by its tables, written to the folder that `kbf run` uses."""
    if settings.task.train != BUILTIN:
        return settings
    folder = cache_root() / "runs" if find_address(settings.runs) else Path(settings.runs).absolute()
    return _fill(settings, folder)


def _fill(settings: PipelineConfig, folder: Path) -> PipelineConfig:
    from keras_bert_flow.results.stages.data import corpus_key, publish_builtin, resolve_builtin

    return resolve_builtin(settings, publish_builtin(folder / "corpus" / corpus_key()))


# Say how far a command is whose work is done elsewhere, and what it has written of its result so far.

LEAST_BYTES = 50_000  # less is shown as 0.0 MB


@contextmanager
def following(name: str, output: str | Path | None = None) -> Iterator[None]:
    """Show what is being done, as `working` does, with the current part or the bytes written so far.

    Args:
        output: a result, whose work folder is measured if it is local.
    """
    work = None if output is None or find_address(output) else work_folder(output)

    def measure() -> str:
        size = 0
        for path in work.rglob("*") if work else ():
            with suppress(OSError):  # renamed or removed meanwhile
                status = os.lstat(path)
                size += status.st_size if path.is_file() else 0
        return f"{size / 1e6:,.1f} MB written" if size >= LEAST_BYTES else ""

    with following_job() as job, working(name, lambda: job.describe() or measure()):
        yield


def expect_text(corpus: CorpusConfig) -> None:
    """Report the size of a local corpus as the total of a job."""
    from keras_bert_flow.checks.estimates import measure_bytes
    from keras_bert_flow.text.corpus.inputs import find_inputs

    if not any(map(find_address, corpus.input)):
        expect(MB, measure_bytes(corpus, find_inputs(corpus.input)) / 1e6)


# Print the command that comes next, as it can be copied: a line on standard error when a command has ended.

HIDDEN = "KBF_NEXT_STEPS"  # set to `off`, as `kbf run` does for its stages
# Minutes on a laptop, where nothing says what to train; the defaults are those of the paper.
FIRST_TRY = (
    "model.size=tiny",
    "pretraining.total_steps=1000",
    "pretraining.warmup_steps=100",
    "pretraining.batch_size=32",
)


def say_next(*command: str | Path) -> None:
    """Print a command of `kbf`; a `Path` that begins with a dash is named so that it is no option."""
    if is_told() and os.environ.get(HIDDEN) != "off":
        words = [name_argument(word) if isinstance(word, Path) else word for word in command]
        program = ["kbf"] if shutil.which("kbf") else [sys.executable, "-m", "keras_bert_flow"]
        show(f"Next: {shlex.join([*program, *words])}", sys.stderr)


def beside(output: str | Path, name: str) -> str:
    """Return a new path for the next result, next to the present one."""
    if address := find_address(output):
        return f"{address.rstrip('/').rpartition('/')[0]}/{name}"
    place, number = Path(output).parent / name, 1
    while place.exists():
        number += 1
        place = Path(output).parent / f"{Path(name).stem}-{number}{Path(name).suffix}"
    return name_argument(place)


def inside(output: str | Path, name: str) -> str:
    """Return a path inside a result."""
    return f"{find_address(output) or name_argument(output)}/{name}"


def carry(
    config: Path | None = None,
    overrides: Sequence[str] | None = None,
    flags: Mapping[str, Any] | None = None,
    backend: str | None = None,
) -> list[str]:
    """Return the options that make the next command read the same settings as this one.

    Args:
        flags: setting → the value that an option of this command gave it; None where it was not given.
    """
    given = [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in (flags or {}).items()
        if value is not None
    ]
    options = ["--config", name_argument(config)] if config else []
    for override in (*(overrides or ()), *given):
        options += ["--set", override]
    return [*options, *(["--backend", backend] if backend else [])]


def carry_to_training(config: Path | None, overrides: Sequence[str] | None, flags: Mapping[str, Any]) -> list[str]:
    """Return options as `carry` does, with defaults for size and backend."""
    kept = {name: value for name, value in flags.items() if not name.startswith("corpus.")}
    settings = [*(overrides or ())]
    if config is None and not any(text.startswith(("model.", "pretraining.")) for text in settings):
        length = kept.get("records.sequence_length")
        settings += [*FIRST_TRY, *([f"model.max_positions={length}"] if length and length > 512 else [])]
    backend = None
    if config is None and "KERAS_BACKEND" not in os.environ:
        from importlib.util import find_spec

        installed = [name for name in BACKENDS if find_spec(name)]
        backend = None if installed[:1] == [BACKENDS[0]] else next(iter(installed), None)
    return carry(config, settings, kept, backend)


def ask_pretrained(model: Path, shown: str) -> list[str]:
    """Return a command that predicts with a model that is not fine-tuned.

    Args:
        model: its folder on this disk.
        shown: the same as the command is to name it.
    """
    from keras_bert_flow.files.documents import read_json_object

    architectures = read_json_object(model / "config.json").get("architectures") or [""]
    if not architectures[0].endswith(("ForMaskedLM", "ForPreTraining")) or "Electra" in architectures[0]:
        return ["predict", "--as", "features", "--model", shown, "a film"]
    settings = model / "tokenizer_config.json"
    mask = read_json_object(settings).get("mask_token") if settings.is_file() else None
    return ["predict", "--as", "fill_mask", "--model", shown, f"a {mask if isinstance(mask, str) else '[MASK]'} film"]


def ask_finetuned(model: str, dev: str) -> list[str]:
    """Return a command that predicts the dev table with a fine-tuned model."""
    return ["predict", "--model", model, "--input", dev, "--output", beside("x", "predictions.jsonl")]


def find_finetuned(output: Path) -> str | None:
    """Return the path of the first model in a folder of fine-tuning, relative to it."""
    pattern = "pretrained/seed-*/model/config.json"
    models = {path.parents[1].name.removeprefix("seed-"): path.parent for path in output.glob(pattern)}
    first = min(models, key=lambda seed: int(seed) if seed.isdigit() else 0, default=None)
    return None if first is None else str(models[first].relative_to(output))
