"""The `kbf` command: every step of the walk alone, and all of them at once.

Each command imports what it needs when it runs: `kbf vocab` never loads Keras, and a backend is chosen before Keras is
imported. A user's mistake is one line and status 2; status 75 says that training stopped at a checkpoint.
"""

import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow import exit_status
from keras_bert_flow.config import Backend, CorpusConfig, PipelineConfig
from keras_bert_flow.config_file import load_config
from keras_bert_flow.settings import BUILTIN

EXTRAS = {
    "apache_beam": "beam",
    "prefect": "flows",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "torch": "torch",
    "matplotlib": "plots",
    "pyarrow": "beam",
    "zstandard": "beam",
}

app = typer.Typer(
    name="kbf",
    help="From raw text to an evaluated BERT, on whichever Keras backend you run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
PASS_TO_BEAM = {"allow_extra_args": True, "ignore_unknown_options": True}

ConfigFile = Annotated[Path | None, typer.Option("--config", help="Configuration file; see configs/.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Replace a setting: key.sub=value. May be repeated.")
]
Output = Annotated[Path, typer.Option(help="New folder for the result.")]
Inputs = Annotated[list[str] | None, typer.Option("--input", help="File, folder or glob of text. May be repeated.")]
ChosenBackend = Annotated[
    str | None, typer.Option(help="jax, tensorflow or torch; default $KERAS_BACKEND, then the file.")
]
SkipBadInputs = Annotated[
    bool | None, typer.Option("--skip-bad-inputs", help="Leave out and name files that cannot be read to their end.")
]


@app.callback()
def set_up(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """From raw text to an evaluated BERT, on whichever Keras backend you run."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow's remarks on the machine
    logging.basicConfig(level=logging.ERROR, format="%(message)s")  # Beam's remarks go to the root logger
    logging.getLogger("keras_bert_flow").setLevel(logging.WARNING)
    if debug:
        os.environ["KBF_DEBUG"] = "1"


@app.command(context_settings=PASS_TO_BEAM)
def vocab(
    context: typer.Context,
    output: Output,
    input: Inputs = None,
    size: Annotated[int | None, typer.Option(help="Pieces in the vocabulary.")] = None,
    cased: Annotated[bool | None, typer.Option("--cased/--uncased", help="Keep case and accents.")] = None,
    strict: Annotated[bool | None, typer.Option("--strict", help="Refuse lines that cannot be used.")] = None,
    skip_bad_inputs: SkipBadInputs = None,
    config: ConfigFile = None,
    set: Overrides = None,
) -> None:
    """Learn a WordPiece vocabulary. Further options, such as --runner, go to Apache Beam."""
    flags = {
        "vocabulary.size": size,
        "vocabulary.cased": cased,
        "corpus.strict": strict,
        "corpus.skip_bad_inputs": skip_bad_inputs,
    }
    settings = _fill_builtin(_load(config, set, flags, input), output)
    from beam_jobs.build_vocabulary import build_vocabulary

    print(build_vocabulary(settings.corpus, settings.vocabulary, output, (*settings.beam, *context.args)) / "vocab.txt")


@app.command(context_settings=PASS_TO_BEAM)
def records(
    context: typer.Context,
    vocab: Annotated[Path, typer.Option(help="The vocab.txt to encode with.")],
    output: Output,
    input: Inputs = None,
    sequence_length: Annotated[int | None, typer.Option(help="Tokens of an instance.")] = None,
    max_predictions: Annotated[int | None, typer.Option(help="Most masked tokens of an instance.")] = None,
    duplication: Annotated[int | None, typer.Option(help="Times each document is used.")] = None,
    objective: Annotated[str | None, typer.Option(help="mlm_nsp (BERT), mlm (RoBERTa) or mlm_sop (ALBERT).")] = None,
    mask_unit: Annotated[str | None, typer.Option(help="token, word or span.")] = None,
    shards: Annotated[int | None, typer.Option(help="Files of training records; by the text if left out.")] = None,
    cased: Annotated[bool | None, typer.Option("--cased/--uncased", help="The vocabulary keeps case.")] = None,
    strict: Annotated[bool | None, typer.Option("--strict", help="Refuse lines that cannot be used.")] = None,
    skip_bad_inputs: SkipBadInputs = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    config: ConfigFile = None,
    set: Overrides = None,
) -> None:
    """Make masked pre-training records. Further options, such as --runner, go to Apache Beam."""
    flags = {
        "records.sequence_length": sequence_length,
        "records.max_predictions": max_predictions,
        "records.duplication": duplication,
        "records.objective": objective,
        "records.mask_unit": mask_unit,
        "records.shards": shards,
        "vocabulary.cased": cased,
        "corpus.strict": strict,
        "corpus.skip_bad_inputs": skip_bad_inputs,
        "seed": seed,
    }
    settings = _fill_builtin(_load(config, set, flags, input), output)
    from beam_jobs.build_records import build_records

    options = (*settings.beam, *context.args)
    print(
        build_records(
            settings.corpus, settings.records, vocab, settings.vocabulary.cased, output, settings.seed, options
        )
    )


@app.command()
def corpus(output: Output) -> None:
    """Write out the built-in corpus and task: the docstrings of the packages installed here."""
    from keras_bert_flow.builtin import publish_builtin

    print(publish_builtin(output))


@app.command()
def pretrain(
    records: Annotated[Path, typer.Option(help="What `kbf records` made.")],
    output: Output,
    initial_model: Annotated[
        Path | None, typer.Option(help="Model directory to go on from, ours or Hugging Face's.")
    ] = None,
    config: ConfigFile = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Pre-train a model; a run that was killed goes on from its newest checkpoint."""
    with _stopping_for_later():
        settings = _choose_backend(_load(config, set), backend)
        from keras_bert_flow.progress import training_progress
        from keras_bert_flow.training.memory import keep_freed_memory
        from keras_bert_flow.training.pretrain import pretrain as run

        keep_freed_memory()
        with training_progress(settings.pretraining.total_steps) as report:
            print(run(settings, records, output, report, initial_model=initial_model))


@app.command()
def finetune(
    model: Annotated[Path, typer.Option(help="Model directory, ours or Hugging Face's.")],
    task: Annotated[Path, typer.Option(help="Configuration file with the sections `task` and `finetuning`.")],
    output: Output,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Fine-tune a model on a task, once a seed, and the same shape from random weights beside it."""
    with _stopping_for_later():
        settings = _choose_backend(_load(task, set), backend)
        from keras_bert_flow.progress import training_progress
        from keras_bert_flow.training.finetune import finetune as run
        from keras_bert_flow.training.memory import keep_freed_memory

        keep_freed_memory()

        with training_progress() as report:
            print(run(settings, model, output, report))


@app.command()
def evaluate(
    model: Annotated[Path, typer.Option(help="A fine-tuned model directory.")],
    task: Annotated[Path, typer.Option(help="Configuration file with the section `task`.")],
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Score one fine-tuned model on the task's dev table."""
    settings = _choose_backend(_load(task, set), backend)
    from keras_bert_flow.evaluation.evaluate import evaluate_model

    for name, value in evaluate_model(settings, model).items():
        print(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value}")


@app.command()
def predict(
    model: Annotated[Path, typer.Option(help="A fine-tuned model directory.")],
    texts: Annotated[list[str] | None, typer.Argument(help="What to ask; left out, lines of standard input.")] = None,
    input: Annotated[Path | None, typer.Option(help="A file in the task's format, with or without labels.")] = None,
    output: Annotated[Path | None, typer.Option(help="File for the predictions; left out, standard output.")] = None,
    backend: ChosenBackend = None,
) -> None:
    """Ask a fine-tuned model, and print a line of JSON for each answer.

    A pair of texts is given with a tab between them, and what has more parts as a JSON object.
    """
    _choose_backend(PipelineConfig(), backend)
    from keras_bert_flow.prediction.lines import read_items, write_lines
    from keras_bert_flow.prediction.predictor import Predictor

    predictor = Predictor(model)
    if input is not None:
        write_lines(predictor.predict_examples(predictor.task.read(input, has_labels=False)), output)
    elif texts:
        write_lines(predictor.predict(list(read_items(texts))), output)
    else:
        write_lines(predictor.predict_stream(read_items(sys.stdin), at_once=1), output)


@app.command()
def report(
    finetuned: Annotated[Path, typer.Option(help="What `kbf finetune` made.")],
    pretrained: Annotated[Path, typer.Option(help="What `kbf pretrain` made.")],
    records: Annotated[Path, typer.Option(help="What `kbf records` made.")],
    output: Output,
    first_phase: Annotated[
        Path | None, typer.Option(help="What `kbf pretrain` made before, with shorter sequences.")
    ] = None,
    config: ConfigFile = None,
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Measure every fine-tuned model and write metrics.json and report.html."""
    settings = _choose_backend(_load(config, set), backend)
    from keras_bert_flow.evaluation.evaluate import write_evaluation

    print(write_evaluation(settings, finetuned, pretrained, records, output, first_phase) / "report.html")


@app.command()
def doctor(
    path: Annotated[str, typer.Argument(help="A corpus (file, folder or glob), a vocab.txt or a folder of records.")],
    vocab: Annotated[Path | None, typer.Option(help="Count the tokens of a corpus with this vocab.txt.")] = None,
    cased: Annotated[bool | None, typer.Option("--cased/--uncased", help="The vocabulary keeps case.")] = None,
    sample: Annotated[int, typer.Option(min=1, help="Read at most so many records.")] = 100_000,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    config: ConfigFile = None,
    set: Overrides = None,
) -> None:
    """Examine a corpus, a vocabulary or records: a verdict a line, with the remedy. Status 1 says: errors found."""
    settings = _load(config, set)
    from keras_bert_flow.doctor.diagnose import diagnose
    from keras_bert_flow.doctor.findings import as_json, as_text

    diagnosis = diagnose(path, settings.corpus, vocab, cased, sample)
    print(as_json(diagnosis) if json else as_text(diagnosis))
    if diagnosis.verdict == "error":
        sys.exit(exit_status.ERRORS_FOUND)


@app.command()
def inspect(
    records: Annotated[Path, typer.Argument(help="What `kbf records` made.")],
    number: Annotated[int, typer.Option("-n", min=1, help="Examples to print.")] = 3,
    part: Annotated[str, typer.Option(help="train or held_out.")] = "train",
) -> None:
    """Print pre-training records as text, with their masks shown."""
    from keras_bert_flow.doctor.examples import show_examples

    print(show_examples(records, number, part))


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="Configuration file; see configs/.")],
    set: Overrides = None,
    backend: ChosenBackend = None,
) -> None:
    """Run the whole pipeline, from text to report, as the Prefect flow; finished stages are not run again."""
    chosen = _choose_backend(_load(config, set), backend).backend
    from flows.local import run_locally

    path = run_locally(config, set or (), chosen, lambda line: print(line, flush=True))
    print((path.parent / "report.md").read_text(encoding="utf-8"))
    print(f"Report: {path}")


def main() -> None:
    """Run `kbf`, turning a user's mistake into one line."""
    try:
        status = app(standalone_mode=False)  # typer turns Ctrl-C into a status, and other versions into Abort
    except typer.Abort:
        status = exit_status.INTERRUPTED
    except Exception as error:
        if os.environ.get("KBF_DEBUG"):
            raise
        status = explain(error)
    if status:
        sys.exit(status)


def explain(error: Exception) -> int:
    """Print what went wrong on one line and return the exit status; what no user can cause is raised."""
    message = " ".join(str(error).split())
    if type(error).__name__ == "Interrupted":  # its module would import Keras
        status = exit_status.CHECKPOINTED
    elif isinstance(error, ModuleNotFoundError):
        status, package = exit_status.USER_ERROR, (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise error
        message = f"This needs {package}, which is not installed. pip install 'keras-bert-flow[{EXTRAS[package]}]'"
    elif hasattr(error, "format_message"):  # typer's own, of a wrong option
        status, message = exit_status.USER_ERROR, error.format_message()
    elif isinstance(error, ValueError | OSError):
        status = exit_status.USER_ERROR
    elif type(error).__name__ == "StageError":
        status = 1
    else:
        raise error
    print(f"kbf: {message}", file=sys.stderr, flush=True)
    return status


@contextmanager
def _stopping_for_later() -> Iterator[None]:
    """Let SIGTERM end a command that can go on with the status that says so, also before and after training."""

    def leave(number, frame):
        os.write(2, b"kbf: Stopped between two steps of its work; run the same command again to go on.\n")
        sys.exit(exit_status.CHECKPOINTED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _load(
    config: Path | None, overrides: list[str] | None, flags: dict | None = None, inputs: list[str] | None = None
) -> PipelineConfig:
    """Load a configuration; `--set` and an option's own flag replace what the file says."""
    given = [f"{name}={value}" for name, value in (flags or {}).items() if value is not None]
    settings = load_config(config, (*(overrides or ()), *given))
    if inputs:
        corpus = CorpusConfig(**settings.corpus.model_dump() | {"input": inputs})
        settings = settings.model_copy(update={"corpus": corpus})
    return settings


def _fill_builtin(settings: PipelineConfig, output: Path) -> PipelineConfig:
    """Write out the built-in corpus beside the output, where it is asked for."""
    if BUILTIN not in settings.corpus.input:
        return settings
    from keras_bert_flow.builtin import publish_builtin
    from keras_bert_flow.keys import corpus_key, resolve_builtin

    return resolve_builtin(settings, publish_builtin(output.absolute().parent / "corpus" / corpus_key()))


def _choose_backend(settings: PipelineConfig, backend: str | None) -> PipelineConfig:
    """Fix the backend before Keras is imported: --backend, else $KERAS_BACKEND, else the configuration."""
    chosen = backend or os.environ.get("KERAS_BACKEND") or settings.backend
    known = Backend.__args__
    if chosen not in known:
        raise ValueError(f"The backend must be one of {', '.join(known)}. Received: {chosen}.")
    if importlib.util.find_spec(chosen) is None:
        raise ModuleNotFoundError(f"No module named '{chosen}'", name=chosen)
    os.environ["KERAS_BACKEND"] = chosen
    return settings.model_copy(update={"backend": chosen})
