"""Check the inputs of single stages: text, tables, vocabulary, packages, devices."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from keras_bert_flow.checks.estimates import EnoughError, LimitedCounts
from keras_bert_flow.checks.importing import check_import
from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.conversion.adapters import check_whole
from keras_bert_flow.conversion.directory import (
    ModelDirectory,
    check_masked_lm,
    check_model_directory,
    check_words_head,
)
from keras_bert_flow.data.pretraining_records import RecordsFolder
from keras_bert_flow.distribution.cluster import check_devices
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.files.outputs import check_apart, check_output, shorten_path
from keras_bert_flow.installed import check_backend, check_installed
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.saved_as import BAG_OF_WORDS
from keras_bert_flow.models.sizes import resolve_shape
from keras_bert_flow.records.tfrecord import check_positions
from keras_bert_flow.results.manifest import check_folder
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.minimal_pairs import encode_pairs, read_minimal_pairs
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.corpus.documents import Document, ReadingRule, read_documents
from keras_bert_flow.text.corpus.inputs import (
    PACKED_SUFFIXES,
    PARQUET,
    check_inputs,
    is_remote,
    open_input,
    packages_for,
)
from keras_bert_flow.text.corpus.lines import advise, check_rejected, describe_rejected, explain_lack, rejected_bytes
from keras_bert_flow.text.corpus.parquet import open_table
from keras_bert_flow.text.masking import count_masks
from keras_bert_flow.text.objectives import DEFAULT
from keras_bert_flow.text.objectives.mlm import check_cutting
from keras_bert_flow.text.objectives.objective import check_joining, find_objective
from keras_bert_flow.text.rows import held_out_choice
from keras_bert_flow.text.stop_words import read_stop_words
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file, list_tokenizer_files, read_tokenizer_file
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from keras_bert_flow.training.finetuning.task_data import (
    TaskData,
    TaskFiles,
    check_task_files,
    find_label_words,
    read_task_data,
    read_training,
)
from keras_bert_flow.training.fit import (
    check_objective,
    check_padding,
    check_precisions,
    check_scanned,
    check_shape,
    check_task_length,
    check_task_teacher,
    check_trained_part,
)

# Check the beginning of a corpus, to refuse an unusable one without reading all of it.

MOST_BYTES = 16_000_000  # of text to read, in a fraction of a second


def check_text(config: PipelineConfig, files: Sequence[str], makes_records: bool) -> None:
    """Check that a corpus has text, and enough documents to make records.

    A corpus larger than `MOST_BYTES` is judged by its beginning, and passes if that is inconclusive.

    Args:
        files: all files of the corpus, on this machine.
    Raises:
        ValueError: too much is rejected, there are too few documents, or a file is damaged.
    """
    counts = LimitedCounts(MOST_BYTES)
    rejecting: list[tuple[str, str, int]] = []
    objective = find_objective(config.records.objective)
    needed, reason = (objective.needed_documents, objective.needed) if makes_records else (1, "text")
    is_held_out = held_out_choice(config.records.held_out_fraction, config.seed)
    found: set[str] = set()
    try:
        for document in _read(config.corpus, files, counts, rejecting):
            is_long = len(document.sentences) >= objective.least_sentences
            if not makes_records or (is_long and not is_held_out(document.id)):
                found.add(document.id)
            if len(found) >= needed:
                return
    except EnoughError:
        _check_beginning(config.corpus, files, counts)
        return
    check_rejected(counts, config.corpus.max_rejected_share, rejecting)
    facts, remedy = explain_lack(counts)
    raise ValueError(
        f"A corpus must hold {reason}. Received: {', '.join(config.corpus.input)}, with {len(found)} of "
        f"{counts['documents']} documents to use{facts and f'; {facts}'}. {remedy}"
    )


def _read(
    corpus: CorpusConfig, files: Sequence[str], counts: Counter, rejecting: list[tuple[str, str, int]]
) -> Iterator[Document]:
    """Yield documents, and append (reason, path, rejected bytes) to `rejecting` for each file read to its end."""
    rule = ReadingRule(corpus.text_field, corpus.lines == "paragraphs", corpus.max_line_bytes, corpus.strict)
    for path in files:
        before = rejected_bytes(counts)
        yield from read_documents(path, rule, counts)
        rejecting += [
            (reason, path, size - before.get(reason, 0))
            for reason, size in rejected_bytes(counts).items()
            if size > before.get(reason, 0)
        ]


def _check_beginning(corpus: CorpusConfig, files: Sequence[str], counts: Counter) -> None:
    """Raise ValueError if more bytes of the beginning are rejected than are allowed for all files together."""
    if any(path.endswith((*PACKED_SUFFIXES, PARQUET)) for path in files):  # their uncompressed size is not known
        return
    allowed = corpus.max_rejected_share * sum(Path(path).stat().st_size for path in files)
    if sum(rejected_bytes(counts).values()) > allowed:
        raise ValueError(
            f"At most {100 * corpus.max_rejected_share:.4g} % of the bytes of a corpus may be rejected, here "
            f"{allowed:,.0f}. Received: {describe_rejected(counts)}, in its beginning alone. {advise(counts)} Or allow "
            "it by --max-rejected-share=1 (corpus.max_rejected_share)."
        )


BEAM = "apache_beam"


def check_corpus(config: PipelineConfig, makes_records: bool = False) -> list[str]:
    """Check that a local corpus exists and is usable, and return its files.

    Remote text is not checked, nor is the built-in corpus, which is not written yet.

    Args:
        makes_records: also check that there are enough documents to make records.
    Raises:
        FileNotFoundError, ValueError: the corpus is missing or unusable, or a package that reads it is missing.
    """
    corpus = config.corpus
    patterns = [pattern for pattern in corpus.input if pattern != BUILTIN and not is_remote(pattern)]
    if not patterns:
        return []
    files = check_inputs(patterns, skip_bad_inputs=corpus.skip_bad_inputs)
    check_names(*files)
    check_installed(packages_for(files))
    verify(*files)
    if not corpus.skip_bad_inputs:
        for path in files:
            if path.endswith(PARQUET):
                with open_input(path) as file:
                    open_table(file, path, corpus.text_field)  # raises unless it has the column of texts
        if len(patterns) == len(corpus.input):
            check_text(config, files, makes_records)
    return files


def check_names(*paths: str | Path) -> None:
    """Raise ValueError unless Apache Beam, whose strings are UTF-8, can encode the paths."""
    for path in paths:
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"Paths that Apache Beam is given must be UTF-8. Received: {shorten_path(str(path))}. Rename it."
            ) from None


def check_pattern(output: str | Path) -> None:
    """Raise ValueError for a path that Apache Beam, which finds its output files by pattern, would not match."""
    if re.search(r"\[.+\]", os.path.abspath(output)):
        raise ValueError(
            "The output of Apache Beam must not have [...] in its path, which it takes for a pattern. "
            f"Received: {shorten_path(os.path.abspath(output))}. Choose another path."
        )


def check_vocabulary_stage(config: PipelineConfig, output: str | Path) -> None:
    """Check the inputs of `kbf vocab`."""
    check_installed([BEAM])
    _check_output_of_beam(output)
    if config.vocabulary.file is None:
        check_corpus(config)
    else:
        check_tokenizer(config, config.vocabulary.file)


def check_records_stage(config: PipelineConfig, vocabulary: Path, output: str | Path) -> None:
    """Check the inputs of `kbf records`."""
    check_installed([BEAM])
    _check_output_of_beam(output)
    check_names(vocabulary)
    check_predictions(config)
    check_tokenizer(config, vocabulary, makes_records=True)
    check_corpus(config, makes_records=True)


def _check_output_of_beam(output: str | Path) -> None:
    """Check a local output; Beam itself checks one in an object store."""
    if not is_remote(str(output)):
        check_output(output)
        check_names(output)
        check_pattern(output)


def check_importing(
    config: PipelineConfig,
    files: Sequence[str],
    held_out: Sequence[str],
    vocabulary: Path,
    output: str | Path,
    others: Sequence[str],
) -> None:
    """Check the inputs of `kbf records --import`.

    Args:
        others: options that apply only to text: `--input`, and options of Apache Beam.
    """
    if not files:
        raise ValueError("`--held-out` must go with records. Received: no --import. Name the files to train on.")
    if others:
        raise ValueError(f"`--import` must go without text and Apache Beam. Received: {others[0]}. Leave it out.")
    check_output(output)
    check_tokenizer(config, vocabulary)
    check_import(files, config.records, vocabulary, config.vocabulary.cased, held_out)


def check_tokenizer(config: PipelineConfig, file: str | Path, makes_records: bool = False) -> Tokenizer:
    """Check a tokenizer file, and if `makes_records`, that it suits the records of every phase; return it."""
    verify(*list_tokenizer_files(file))
    tokenizer = read_tokenizer_file(file, config.vocabulary.cased)
    if makes_records:
        check_padding(config.model, tokenizer)
        for phase in config.phases:
            check_joining(phase.records.objective, tokenizer)
    return tokenizer


def check_initial_model(folder: Path) -> ModelDirectory:
    """Check the initial or teacher model of a training, as `check_model_directory` does; adapters are refused.

    The base model of an adapter is stored elsewhere and may change, and no content key covers it.
    """
    check_whole(folder)
    return check_model_directory(folder)


def check_pretraining_stage(
    config: PipelineConfig, records: Path, initial_model: Path | None, output: Path
) -> RecordsFolder:
    """Check the inputs of `kbf pretrain`, and return its records."""
    check_output(output)
    check_installed(config.loggers)
    check_model(config)
    folder = RecordsFolder(records)
    made = folder.check().config
    objective = made.get("objective", DEFAULT)
    is_packed = made.get("packing", False)
    check_objective(objective, config.model.family, config.pretraining.bag_of_words, is_packed)
    if isinstance(record_length := made.get("sequence_length"), int):
        length = config.pretraining.sequence_length or record_length
        check_cutting(objective, record_length, length, is_packed)
        check_positions(length, config.model.max_positions)
    vocabulary = initial_model and find_tokenizer_file(initial_model)
    if initial_model is not None:
        check_apart(output, [initial_model])
        check_shape(check_initial_model(initial_model).settings, config.model, initial_model)
    if isinstance(made.get("vocabulary_size"), int):
        folder.check_vocabulary(made["vocabulary_size"], vocabulary)
        check_padding(config.model, folder.tokenizer)
    return folder


def check_augmentation(config: PipelineConfig, makes_model: bool = True) -> None:
    """Check that the training rows of a run can be augmented, if its configuration says so.

    Args:
        makes_model: whether the run makes the model that proposes words, if no other is named.
    """
    settings, distillation = config.augmentation, config.distillation
    if settings is None:
        return
    read_stop_words(settings.stop_words)
    model, last = settings.model or (distillation.teacher if distillation else None), config.phases[-1].records
    if model is not None:
        check_masked_lm(check_initial_model(Path(model)))
    elif makes_model and find_objective(last.objective).has_generator:
        raise ValueError(
            "A model that proposes words must have a masked-LM head. Received: records.objective="
            f"{last.objective}, of which a detector comes. Use mlm, or set augmentation.model."
        )


def check_augmentation_stage(config: PipelineConfig, model: Path, output: Path) -> Sequence[TextExample] | None:
    """Check the inputs of `kbf augment`, and return the training rows; None for the built-in task."""
    check_output(output)
    config.check_augmented()
    read_stop_words(config.needed_augmentation.stop_words)
    check_masked_lm(check_initial_model(model))
    if config.task.train == BUILTIN:
        return None
    verify(config.task.train)
    return read_training(config, make_task(**config.task.arguments))[0]


def check_finetuning_stage(config: PipelineConfig, model: Path, output: Path) -> TaskData | None:
    """Check the inputs of `kbf finetune`, and return the task's data for the model; None for the built-in task."""
    check_output(output)
    if config.augmentation is not None:
        raise ValueError(
            "`kbf finetune` must be given the table that it trains on. Received: the section `augmentation`. Run `kbf "
            "augment`, and set task.train to its train.jsonl and augmentation=null."
        )
    check_installed(config.loggers)
    inputs = hold(model)
    directory = check_initial_model(model)
    settings = dict(directory.settings)
    check_task_length(config.finetuning.sequence_length, settings["max_positions"])
    shape = find_family(settings.pop("family")).shape(**settings)
    check_trained_part(config, shape)
    check_task_teacher(config, shape, directory.tokenizer)
    if config.finetuning.pooling == BAG_OF_WORDS:
        check_words_head(directory)
    if config.task.train == BUILTIN:
        return None
    data = read_task_data(config, directory.tokenizer)
    return replace(data, inputs=inputs | data.inputs)


def check_report_stage(
    config: PipelineConfig, finetuned: Path, pretrained: Path, records: Path, earlier: Sequence[Path], output: Path
) -> TaskFiles | None:
    """Check the inputs of `kbf report`, and return the task's files; None for the built-in task."""
    check_output(output)
    check_minimal_pairs(config)
    made = [(finetuned, "finetuning"), (records, "records"), *((folder, "pretraining") for folder in earlier)]
    for folder, stage in made:
        check_folder(folder, stage)
    check_folder(pretrained, "pretraining" if config.distillation is None else "distillation")
    return check_task(config)


def check_minimal_pairs(config: PipelineConfig) -> None:
    """Check the file of minimal pairs, if the configuration names one.

    Without a vocabulary each word counts as one token, so a sentence is refused only if it cannot fit with any.
    """
    path, limit = config.evaluation.minimal_pairs, config.evaluation.minimal_pairs_limit
    if path is None:
        return
    check_installed(packages_for([path]))
    verify(path)
    pairs, file = read_minimal_pairs(path, limit), config.vocabulary.file
    cased = config.vocabulary.cased
    tokenizer = read_tokenizer_file(file, cased) if file else WordPieceTokenizer(SPECIAL_PIECES, cased)
    encode_pairs(tokenizer, pairs, config.model.max_positions)


def check_scored_model(config: PipelineConfig) -> None:
    """Check that the pre-trained model can score minimal pairs, if the configuration names some."""
    objective, distillation = config.phases[-1].records.objective, config.distillation
    if config.evaluation.minimal_pairs is not None and distillation is not None and not distillation.has_head:
        raise ValueError(
            "`evaluation.minimal_pairs` must be scored by a masked LM. Received: a distillation of layers alone, of "
            "which none comes. Leave the pairs out, or set distillation.masked_lm_weight above 0."
        )
    if config.evaluation.minimal_pairs is not None and find_objective(objective).main_score != "masked_lm":
        raise ValueError(
            "`evaluation.minimal_pairs` must be scored by a masked LM. Received: records.objective="
            f"{objective}, of which none comes. Leave the pairs out, or use mlm."
        )


def check_predictions(config: PipelineConfig) -> None:
    """Check that the records have no more predictions than tokens."""
    for phase in config.phases:
        length, most = phase.records.sequence_length, phase.records.max_predictions
        if most >= length:
            raise ValueError(
                "`max_predictions` must be less than `sequence_length`: each is a token of its own. Received: "
                f"max_predictions={most}, sequence_length={length}. Try "
                f"max_predictions={count_masks(length, phase.records.masked_fraction)}."
            )


def check_model(config: PipelineConfig) -> None:
    """Check that the backend is installed, that the model can be built, and that batches divide over the devices."""
    check_backend(config.backend)
    resolve_shape(config.model, config.vocabulary.size)  # raises if the sizes contradict each other
    check_precisions(config)
    check_scanned(config)
    check_devices(config, config.backend)


def check_finetuning(config: PipelineConfig, tokenizer: Tokenizer | None = None) -> None:
    """Check that the pre-trained model has the positions that fine-tuning needs, and the parts that it uses.

    Args:
        tokenizer: that of `vocabulary.file`; None if the vocabulary is still to be built.
    """
    config.check_finetuned_length()
    model = config.model if config.distillation is None else config.student.model
    shape = resolve_shape(model, config.vocabulary.size)
    check_trained_part(config, shape)
    check_task_teacher(config, shape, tokenizer)
    if config.finetuning.pooling == BAG_OF_WORDS and not config.pretraining.bag_of_words:
        raise ValueError(
            "`finetuning.pooling: bag_of_words` must go on from pre-training with a bag of words. Received: "
            "pretraining.bag_of_words=0. Set it to 1, or choose another pooling."
        )


def check_label_words(config: PipelineConfig, vocabulary: Path) -> None:
    """Check that the label word of each class is a single piece of the vocabulary, if fine-tuning uses label words.

    This can be checked as soon as there is a vocabulary, and so before pre-training rather than after it.
    """
    words = config.finetuning.label_words
    if words is not None:
        find_label_words(words, list(words), read_tokenizer_file(vocabulary, config.vocabulary.cased))


def check_task(config: PipelineConfig) -> TaskFiles | None:
    """Check every file of the task, and return their content; None for the built-in task."""
    return None if config.task.train == BUILTIN else check_task_files(config)


def packages_of(config: PipelineConfig, stages: Sequence[str]) -> list[str]:
    """Return the optional packages that stages need."""
    needs_text = "vocabulary" in stages or "records" in stages
    packages = [BEAM] if needs_text else []
    packages += [config.backend] if {"pretraining", "finetuning", "evaluation"} & {*stages} else []
    return packages + ([*config.loggers] if {"pretraining", "finetuning"} & {*stages} else [])
