"""Commands that draft a configuration, build vocabularies and records, and check or show them."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_bert_flow.checks.estimates import worker_options
from keras_bert_flow.checks.stages import check_importing, check_records_stage, check_vocabulary_stage
from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.options import (
    ConfigFile,
    Inputs,
    MaxRejectedShare,
    Output,
    OutputAnywhere,
    Overrides,
    SkipBadInputs,
    beside,
    carry,
    carry_to_training,
    expect_text,
    fill_builtin_corpus,
    following,
    inside,
    load,
    resolve_case,
    say_next,
)
from keras_bert_flow.console import interrupts
from keras_bert_flow.console.progress import counting_progress, working
from keras_bert_flow.console.terminal import show, show_json
from keras_bert_flow.files.outputs import check_output, check_place
from keras_bert_flow.files.paths import find_address
from keras_bert_flow.installed import BACKENDS
from keras_bert_flow.text.corpus.inputs import is_remote

PASS_TO_BEAM = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(context_settings=PASS_TO_BEAM)
def vocab(
    context: typer.Context,
    output: OutputAnywhere,
    input: Inputs = None,
    kind: Annotated[str | None, typer.Option(help="wordpiece, or bpe: byte-level, in a tokenizer.json.")] = None,
    size: Annotated[int | None, typer.Option(help="Vocabulary size.")] = None,
    cased: Annotated[bool | None, typer.Option("--cased/--uncased", help="Keep case and accents.")] = None,
    strict: Annotated[bool | None, typer.Option("--strict", help="Refuse lines that cannot be used.")] = None,
    skip_bad_inputs: SkipBadInputs = None,
    max_rejected_share: MaxRejectedShare = None,
    config: ConfigFile = None,
    set: Overrides = None,
) -> None:
    """Learn a vocabulary. Further options, such as --runner, go to Apache Beam."""
    flags = {
        "vocabulary.kind": kind,
        "vocabulary.size": size,
        "vocabulary.cased": cased,
        "corpus.strict": strict,
        "corpus.skip_bad_inputs": skip_bad_inputs,
        "corpus.max_rejected_share": max_rejected_share,
    }
    with working("Vocabulary: checking the text and loading Apache Beam"):
        settings = load(config, set, flags, input)
        check_vocabulary_stage(settings, output)
        options = (*settings.beam, *context.args)
        from beam_jobs.build_vocabulary import build_vocabulary
        from keras_bert_flow.text.tokenizers.files import find_tokenizer_file
        from keras_bert_flow.text.tokenizers.learning import CUT
        from keras_bert_flow.text.vocabulary import BPE

        _check_job(output, options)
        settings = fill_builtin_corpus(settings, output)
        if settings.vocabulary.file is None:
            options = worker_options(settings.corpus, None, options)
    given = settings.vocabulary.file
    with following(f"Vocabulary of {given or f'{settings.vocabulary.size:,} pieces'}", output):
        if settings.vocabulary.file is None:
            expect_text(settings.corpus)
        folder = build_vocabulary(settings.corpus, settings.vocabulary, output, options)
    file = find_tokenizer_file(folder) if not is_remote(output) else None
    show(file or folder)
    kept = flags | {"vocabulary.size": None, "vocabulary.kind": None}
    text = [option for pattern in input or () for option in ("--input", pattern)] + carry(config, set, kept)
    is_loaded = settings.vocabulary.long_words == CUT or settings.vocabulary.kind == BPE
    vocabulary = str(file or inside(output, "tokenizer.json" if is_loaded else "vocab.txt"))
    say_next("records", *text, "--vocab", vocabulary, "--output", beside(output, "records"), *context.args)


@app.command(context_settings=PASS_TO_BEAM)
def records(
    context: typer.Context,
    vocab: Annotated[Path, typer.Option(help="vocab.txt or tokenizer.json to encode with.")],
    output: OutputAnywhere,
    input: Inputs = None,
    sequence_length: Annotated[int | None, typer.Option(help="Tokens per instance.")] = None,
    max_predictions: Annotated[int | None, typer.Option(help="Maximum number of masked tokens per instance.")] = None,
    duplication: Annotated[int | None, typer.Option(help="Number of times each document is used.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="mlm_nsp (BERT), mlm (RoBERTa), mlm_sop (ALBERT), mlm_sbo (SpanBERT) or rtd (ELECTRA)."),
    ] = None,
    mask_unit: Annotated[str | None, typer.Option(help="token, word or span.")] = None,
    packing: Annotated[bool | None, typer.Option("--packing", help="Fill instances with whole documents.")] = None,
    shards: Annotated[
        int | None, typer.Option(help="Number of files of training records. Default: by the size of the text.")
    ] = None,
    cased: Annotated[bool | None, typer.Option("--cased/--uncased", help="Whether the vocabulary is cased.")] = None,
    strict: Annotated[bool | None, typer.Option("--strict", help="Refuse lines that cannot be used.")] = None,
    skip_bad_inputs: SkipBadInputs = None,
    max_rejected_share: MaxRejectedShare = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    imported: Annotated[
        list[str] | None,
        typer.Option("--import", help="TFRecord file or glob written by another tool, instead of text. Repeatable."),
    ] = None,
    held_out: Annotated[
        list[str] | None, typer.Option(help="With --import: file or glob of held-out records. Repeatable.")
    ] = None,
    config: ConfigFile = None,
    set: Overrides = None,
) -> None:
    """Build masked pre-training records, or import them. Further options, such as --runner, go to Apache Beam."""
    flags = {
        "records.sequence_length": sequence_length,
        "records.max_predictions": max_predictions,
        "records.duplication": duplication,
        "records.objective": objective,
        "records.mask_unit": mask_unit,
        "records.packing": packing,
        "records.shards": shards,
        "vocabulary.cased": cased,
        "corpus.strict": strict,
        "corpus.skip_bad_inputs": skip_bad_inputs,
        "corpus.max_rejected_share": max_rejected_share,
        "seed": seed,
    }
    settings = resolve_case(load(config, set, flags, input), vocab)
    if imported or held_out:
        check_importing(settings, imported or [], held_out or [], vocab, output, [*(input or []), *context.args])
        from keras_bert_flow.checks.importing import import_records

        cased = settings.vocabulary.cased
        with following("Records: examining and copying what others made", output):
            imported_to = import_records(imported or [], settings.records, vocab, cased, output, held_out or [])
        show(imported_to)
        _say_training(output, config, set, flags)
        return
    with working("Records: checking the text and loading Apache Beam"):
        check_records_stage(settings, vocab, output)
        options = (*settings.beam, *context.args)
        from beam_jobs.build_records import build_records

        _check_job(output, options)
        settings = fill_builtin_corpus(settings, output)
        options = worker_options(settings.corpus, settings.records, options)
    cased, seed = settings.vocabulary.cased, settings.seed
    with following(f"Records of {settings.records.sequence_length} tokens an instance", output):
        expect_text(settings.corpus)
        made = build_records(settings.corpus, settings.records, vocab, cased, output, seed, options)
    show(made)
    _say_training(output, config, set, flags)


def _check_job(output: str, options: Sequence[str]) -> None:
    """Check the options of an Apache Beam job and that its output can be written."""
    from beam_jobs.publishing import check_remote_output
    from beam_jobs.running import check_options, check_reach

    check_options(options)
    check_reach(output, options)
    if is_remote(output):
        check_remote_output(output, options)


def _say_training(records: str, config: Path | None, overrides: list[str] | None, flags: dict) -> None:
    given = carry_to_training(config, overrides, flags)
    place = find_address(records) or records
    say_next("pretrain", "--records", place, "--output", beside(records, "pretrained"), *given)


@app.command()
def corpus(output: Output) -> None:
    """Write the built-in corpus and task: the docstrings of the installed packages."""
    check_output(output)
    with following("Corpus: reading the docstrings of the packages installed here", output):
        from keras_bert_flow.results.stages.data import publish_builtin

        made = publish_builtin(output)
    show(made)
    place = beside(output, "vocabulary")
    say_next("vocab", "--input", inside(output, "corpus.txt"), "--size", "4000", "--output", place)


@app.command()
def doctor(
    path: Annotated[str, typer.Argument(help="A corpus (file, folder or glob), a vocab.txt or a folder of records.")],
    vocab: Annotated[Path | None, typer.Option(help="Also count the tokens of a corpus with this vocab.txt.")] = None,
    cased: Annotated[bool | None, typer.Option("--cased/--uncased", help="Whether the vocabulary is cased.")] = None,
    sample: Annotated[int, typer.Option(min=1, help="Maximum number of records to read.")] = 100_000,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    config: ConfigFile = None,
    set: Overrides = None,
) -> None:
    """Check a corpus, a vocabulary or records: one verdict per line, with its remedy. Exit status 1 on errors."""
    settings = load(config, set)
    from keras_bert_flow.checks.diagnose import diagnose, find_kind
    from keras_bert_flow.checks.estimates import measure_bytes
    from keras_bert_flow.checks.findings import as_json, as_text
    from keras_bert_flow.stores.fetching import fetch
    from keras_bert_flow.text.corpus.inputs import find_inputs

    place = str(fetch(path)) if is_remote(path) else path
    total = measure_bytes(settings.corpus, find_inputs([place])) if find_kind(place)[0] == "corpus" else None
    with counting_progress(total, f"Examining {path}", are_bytes=True) as advance:
        diagnosis = diagnose(place, settings.corpus, vocab, cased, sample, advance)
    if json:
        show_json(as_json(diagnosis))
    else:
        show(as_text(diagnosis), keep="\n")
    if diagnosis.verdict == "error":
        sys.exit(interrupts.ERRORS_FOUND)


@app.command()
def inspect(
    records: Annotated[Path, typer.Argument(help="Output of `kbf records`.")],
    number: Annotated[int, typer.Option("-n", min=1, help="Number of examples to print.")] = 3,
    part: Annotated[str, typer.Option(help="train or held_out.")] = "train",
) -> None:
    """Print pre-training records as text, with their masks."""
    from keras_bert_flow.data.pretraining_records import show_examples

    show(show_examples(records, number, part), keep="\n")


# The command that drafts a configuration for a user's own text and task.

EAGER_BACKEND, SHORT_MINUTES = "torch", 30


@app.command()
def init(
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Files, folders or globs of text.")],
    task: Annotated[
        Path, typer.Option(help="Table of texts and labels: .tsv, .csv, .jsonl, .parquet; or words with tags.")
    ],
    output: Annotated[Path, typer.Option(help="New file for the configuration.")],
    dev: Annotated[
        Path | None,
        typer.Option(
            help="Table to evaluate on. Default: the file next to --task with dev for train in its name, else a "
            "tenth of it."
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Table that nothing is chosen on, shown in the report. Default: the file next to --task with test for "
            "train in its name, or a tenth of a table that is divided."
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=1, max=100_000, help="Time budget of the whole run on this machine.")
    ] = 30.0,
    name: Annotated[
        str | None, typer.Option(help="Name of the run, shown in its report. Default: that of the file.")
    ] = None,
    small: Annotated[
        str | None,
        typer.Option(
            metavar="MOST",
            help="Also draft the distillation of the largest student that fits: 20MB of model.safetensors, or 10ms for "
            "a text of median length on one thread, measured here; 5MB-int8, 1ms-onnx, 1ms-int8: as ONNX.",
        ),
    ] = None,
) -> None:
    """Inspect a corpus and a task table, and write a commented configuration for `kbf run`. Nothing is overwritten.

    It reports the role that it assigned to each column, which can be changed in the file.
    """
    check_place(output)
    if output.exists():
        raise _existing(output)
    with working("Looking at the text and the table, and measuring this processor"):
        from keras_bert_flow.checks.draft_budget import choose_budget, look_at_corpus
        from keras_bert_flow.checks.draft_student import choose_student, read_wish
        from keras_bert_flow.checks.draft_table import draft_task, find_beside
        from keras_bert_flow.checks.draft_writing import (
            Draft,
            count_rows,
            describe_draft,
            divide_rows,
            name_parts,
            write_draft,
            write_parts,
        )
        from keras_bert_flow.checks.estimates import measure_rate
        from keras_bert_flow.tasks.registry import make_task
        from keras_bert_flow.text.corpus.inputs import check_inputs
        from keras_bert_flow.training.finetuning.task_data import compare_classes, list_remarks

        wish = None if small is None else read_wish(small)
        look = look_at_corpus(check_inputs(text))
        drafted = draft_task(task)
        header = bool(drafted.settings.get("header", False))
        as_drafted = make_task(drafted.kind, **drafted.settings)
        rows = as_drafted.read(task)
        learnt = as_drafted.learn(rows)
        dev = dev or find_beside(task)
        parts = None if dev else name_parts(task, output, rows, with_test=test is None)
        test_files, unread = read_test(test, task, dev, as_drafted)
        dev_files = {} if dev is None else {"dev": (dev, as_drafted.read(dev))}
        dev_files |= test_files
        if parts:
            chosen = divide_rows(task, parts, as_drafted, rows)
            examples, dev_examples = map(len, chosen[:2])
        else:
            examples, dev_examples = count_rows(task, header), len(dev_files["dev"][1])
        rate, backend = measure_rate(), _choose_backend(minutes)
        budget = choose_budget(minutes, look, drafted, examples, rate, dev_examples, has_student=wish is not None)
        student = None if wish is None else choose_student(wish, budget, look, drafted, backend, rate)
        if student is not None and student.is_teacher:  # all of the time is for it
            budget = choose_budget(minutes, look, drafted, examples, rate, dev_examples)
        train, *measured = [*map(str, parts or (task, dev)), *(str(file) for file, _ in test_files.values())]
        draft = Draft(
            name or output.stem, text, train, measured[0], minutes, backend, look, drafted, examples,
            budget, tuple(measured[1:]), "" if parts else compare_classes(learnt, "dev", rows, dev_files["dev"][1]),
            student, small or "",
        )  # fmt: skip
        content = write_draft(draft, str(output))
        remarks = [*list_remarks(learnt, drafted.settings, task, rows, dev_files), *unread]
        output.parent.mkdir(parents=True, exist_ok=True)
        if parts:
            write_parts(task, parts, header, chosen)
    try:
        with open(output, "x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError:
        raise _existing(output) from None
    for line in describe_draft(draft):
        show(line, sys.stderr)
    for remark in remarks:
        show(f"  {remark}", sys.stderr)
    if parts:
        counts = ", ".join(f"{len(rows):,} rows in {part}" for part, rows in zip(parts, chosen, strict=True))
        show(f"The table is divided: {counts}, where a text is with all of its rows.", sys.stderr)
    show(output)
    say_next("run", output, "--plan")


def read_test(test: Path | None, train: Path, dev: Path | None, task: Any) -> tuple[dict[str, tuple], list[str]]:
    """Return `test` → the file of that table and its rows, and remarks; skip one without labels unless it was named."""
    from keras_bert_flow.checks.draft_table import TEST_NAMES, find_beside

    found = test or (find_beside(train, TEST_NAMES) if dev else None)
    if found is None:
        return {}, []
    if dev is not None and found.samefile(dev):
        if test is not None:
            raise ValueError(
                f"--test must be another table than the one that is chosen on. Received: {test}, which is the dev "
                f"table {dev}. Give another --dev or --test, or leave --test out."
            )
        return {}, []
    try:
        return {"test": (found, task.read(found))}, []
    except ValueError as error:
        if test is not None:
            raise
        return {}, [f"{found} is not used as a test table: {error}"]


def _existing(output: Path) -> FileExistsError:
    return FileExistsError(f"The configuration must be a new file. Received: {output}, which exists. Choose another.")


def _choose_backend(minutes: float) -> str:
    """Return $KERAS_BACKEND, else the first backend that is installed; for a short run the one that compiles nothing.

    On JAX each of the starts of a fine-tuning is compiled, for half a minute on two cores, whatever it trains then.
    """
    chosen = os.environ.get("KERAS_BACKEND")
    if chosen in BACKENDS:
        return chosen
    order = sorted(BACKENDS, key=lambda name: name != EAGER_BACKEND) if minutes <= SHORT_MINUTES else BACKENDS
    return next((name for name in order if importlib.util.find_spec(name)), order[0])
