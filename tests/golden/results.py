"""Compute the golden results: what each stage makes of a small fixed input, which no other stage has made.

As a command, print those of some stages as JSON: `python -m tests.golden.results STAGE ...`, those of training on the
backend of the process.
"""

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any
from unittest import mock

import numpy as np

from keras_bert_flow.results.describing import flatten
from keras_bert_flow.results.manifest import COSTS, MANIFEST, is_measurement

DATA = ("corpus", "vocabulary", "records", "imported records")  # bytes, the same on every machine
TRAINING = ("pretraining", "distillation", "augmentation", "finetuning", "evaluation")  # numbers, of each backend
Results = dict[str, Any]  # case → what was found
DIGITS = 9  # significant ones of a float32
# The bias of the keys adds the same to all scores of a query: its gradient is rounding, which Adam makes steps of.
NOISE = re.compile(r"\b(key|k_lin)\.bias$")

DOCUMENTS = 40
SENTENCES = ("the {} ran to the {}.", "a {} saw it, and the {} hid!", "who knows 3 {}s? 学生 of a {}.", "Öre {} — {}")
WORDS = ("cat", "dog", "house", "garden", "running", "runner", "windows", "river", "unbelievable", "naïve")
OBJECTIVES = {  # records of each objective → other settings
    "mlm_nsp": {"duplication": 2, "shards": 2},
    "mlm": {"mask_unit": "word"},
    "mlm_sop": {},
    "rtd": {},
}
# Further runs where nothing is compiled: of pre-training (objective, model, settings), and kinds of task.
VARIANTS = {
    "albert": ("mlm_sop", {"family": "albert"}, {"optimizer": "lamb"}),
    "electra": ("rtd", {"family": "electra"}, {"masking": "dynamic", "clip_norm": 0.1}),
    "roberta": ("mlm", {"family": "roberta"}, {"optimizer": "muon", "decay": "cosine", "bag_of_words": 0.5}),
    "from co-occurrence": ("mlm", {}, {"token_embeddings": "co_occurrence", "output_bias": "unigram"}),
}
KINDS = (
    "regression",
    "multi_label",
    "multiple_choice",
    "sentence_embedding",
    "scored_pairs",
    "token_classification",
    "question_answering",
)


def compute(stages: Iterable[str], folder: Path, every_variant: bool = False) -> dict[str, Results]:
    """Return stage → its results.

    Args:
        stages: names of `DATA` and `TRAINING`.
        folder: an empty one for all that is made.
        every_variant: also compute the results of `VARIANTS` and `KINDS`.
    """
    found = {}
    for stage in stages:
        place = folder / stage.replace(" ", "-")
        place.mkdir()
        found[stage] = _FIND[stage](place)
        if every_variant and stage in _VARY:
            found[stage] |= dict(_VARY[stage](place))
    return found


def find_corpus(folder: Path) -> Results:
    from keras_bert_flow.results.stages import data
    from keras_bert_flow.text.corpus import builtin

    text = "Walk along the {} and visit every node that is on it, number {}.\n\n- An item that is long, as of a list."
    for project in builtin.PROJECTS:
        (folder / "projects" / project).mkdir(parents=True)
        for number in range(20):
            docstring = text.format(project[::-1], number)
            own = f"Return what is at the place {number} of {project[1:]}, or else nothing at all."
            source = f'"""{docstring}"""\n\n\ndef f():\n    """{own}"""\n'
            (folder / "projects" / project / f"module_{number:02}.py").write_text(source, encoding="utf-8")
    with mock.patch.object(builtin, "_find_root", lambda project: folder / "projects" / project):
        builtin._read_modules.cache_clear()
        made = data.publish_builtin(folder / "corpus")
        builtin._read_modules.cache_clear()
    return {"files": digest_files(made)}


def find_vocabulary(folder: Path) -> Results:
    from beam_jobs.build_vocabulary import build_vocabulary
    from keras_bert_flow.config.text import VocabularyConfig

    corpus = write_text(folder)
    ways = {"uncased": {"size": 120}, "cased": {"size": 150, "cased": True, "min_character_count": 2}}
    ways["cut"] = {"size": 120, "long_words": "characters"}
    made = {
        name: build_vocabulary(corpus, VocabularyConfig(**settings), folder / f"vocabulary-{name}")
        for name, settings in ways.items()
    }
    return {name: digest_files(Path(place)) for name, place in made.items()}


def find_records(folder: Path) -> Results:
    from beam_jobs.build_records import build_records
    from keras_bert_flow.config.text import RecordsConfig

    corpus, vocabulary = write_text(folder), _write_vocabulary(folder)
    small = {"sequence_length": 32, "max_predictions": 5, "held_out_fraction": 0.2}
    return {
        name: digest_files(
            Path(
                build_records(
                    corpus,
                    RecordsConfig(**small | {"objective": name} | settings),
                    vocabulary,
                    False,
                    folder / f"records-{name}",
                    seed=1,
                )
            )
        )
        for name, settings in OBJECTIVES.items()
    }


def find_imported(folder: Path) -> Results:
    from keras_bert_flow.checks.importing import import_records
    from keras_bert_flow.config.text import RecordsConfig
    from tests.oracles.objective_records import MASKED_FRACTION, write_objective_records

    source, config = write_objective_records(folder / "others"), RecordsConfig(masked_fraction=MASKED_FRACTION)
    files, vocabulary = [str(source / "train-*.tfrecord")], source / "vocab.txt"
    made = import_records(files, config, vocabulary, False, folder / "imported")
    return {"files": digest_files(made)}


def write_text(folder: Path):
    """Write documents of a few words, with what a reader must handle; return the configuration of the corpus."""
    from keras_bert_flow.config.text import CorpusConfig

    rng = np.random.default_rng(1)
    documents = []
    for _ in range(DOCUMENTS):
        sentences = [SENTENCES[rng.integers(4)].format(*rng.choice(WORDS, 2)) for _ in range(rng.integers(1, 7))]
        documents.append("\n".join([" ".join(sentences[:3]), *sentences[3:]]))
    (folder / "text.txt").write_text("\n\n".join([*documents, documents[0]]) + "\n", encoding="utf-8")
    lines = [json.dumps({"text": f"Number {number}. {document}"}) for number, document in enumerate(documents)]
    (folder / "lines.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return CorpusConfig(input=(str(folder / "text.txt"), str(folder / "lines.jsonl")))


def _write_vocabulary(folder: Path) -> Path:
    from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary

    path = folder / "words.txt"
    words = ("the", "cat", "run", "##ning", "house", "3", ".", ",", "!", "学")
    letters = [*ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]
    write_vocabulary(path, [*SPECIAL_PIECES, *words, *letters])
    return path


def find_pretraining(folder: Path) -> Results:
    return {"bert": _pretrain(folder, "mlm_nsp", {}, {})}


def _pretrain(folder: Path, objective: str, model: Mapping[str, Any], settings: Mapping[str, Any]) -> Results:
    from keras_bert_flow.training.pretraining.pretrain import pretrain

    records = _write_inputs(folder / "records", objective)
    return describe_run(pretrain(make_config(model, settings), records, folder / "pretrained", _ignore))


def _pretrain_variants(folder: Path) -> Iterator[tuple[str, Results]]:
    for name, (objective, model, settings) in VARIANTS.items():
        yield name, _pretrain(folder / name.replace(" ", "-"), objective, model, settings)


def find_distillation(folder: Path) -> Results:
    from keras_bert_flow.config.pretraining import DistillationConfig, ModelConfig
    from keras_bert_flow.training.distillation import distill
    from tests.oracles.tiny_model import TINY_SHAPE, write_tiny_model

    records = _write_inputs(folder / "records")
    pieces = (records / "vocab.txt").read_text(encoding="utf-8").split()
    teacher = write_tiny_model(folder / "teacher", pieces=pieces, has_masked_lm=True, seed=1)
    student = ModelConfig(family="distilbert", num_layers=1, **TINY_SHAPE)
    settings = DistillationConfig(student=student, batch_size=8, total_steps=5, warmup_steps=2, learning_rate=0.01)
    config = make_config(TINY_SHAPE, {}).model_copy(update={"distillation": settings})
    return {"distilbert": describe_run(distill(config, records, teacher, folder / "distilled", _ignore))}


def find_augmentation(folder: Path) -> Results:
    from keras_bert_flow.config.pipeline import PipelineConfig
    from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
    from keras_bert_flow.training.augmentation import augment
    from tests.oracles.tiny_model import write_tiny_model

    pieces = [*SPECIAL_PIECES, "the", *WORDS[:6], *WORDS[7:8], "un", "##believ", "##able"]
    model = write_tiny_model(folder / "model", pieces=pieces, has_masked_lm=True, seed=1)
    rows = [
        f"the {one} saw unbelievable {other}s.\tThe {other}!\t{len(one) / 4}" for one in WORDS for other in WORDS[:3]
    ]
    (folder / "table.tsv").write_text("\n".join(["a\tb\tscore", *rows]) + "\n", encoding="utf-8")
    task = {"kind": "regression", "text": "a", "text_pair": "b", "label": "score"}
    task |= dict.fromkeys(("train", "dev"), str(folder / "table.tsv"))
    config = PipelineConfig(task=task, augmentation={"copies": 3, "candidates": 5})
    lines = (augment(config, model, folder / "augmented") / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return {"pairs": {"rows": [list(json.loads(line).values()) for line in lines[-20:]], "number": len(lines)}}


def find_finetuning(folder: Path) -> Results:
    from keras_bert_flow.training.finetuning.finetune import finetune

    made = finetune(make_task_config(folder), _write_model(folder / "model"), folder / "finetuned", _ignore)
    return {run.relative_to(made).as_posix(): describe_run(run) for run in sorted(made.glob("*/seed-*"))}


def _finetune_kinds(folder: Path) -> Iterator[tuple[str, Results]]:
    from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
    from tests.oracles.tiny_model import write_tiny_model
    from tests.tasks.kinds import LETTERS
    from tests.training.finetune_cases import OF_ANY_LENGTH, finetune_case

    model = write_tiny_model(folder / "of-letters", pieces=[*SPECIAL_PIECES, *LETTERS], has_masked_lm=True, seed=1)
    for name in KINDS:
        changes = OF_ANY_LENGTH | {"epochs": 1, "clip_norm": 1.0, "new_head": True}
        finetune_case(model, folder / name, name, **changes)
        yield name, describe_run(folder / name / "pretrained" / "seed-1")


def find_evaluation(folder: Path) -> Results:
    from keras_bert_flow.evaluation.evaluate import write_evaluation
    from keras_bert_flow.results.manifest import write_manifest

    run = folder / "finetuned" / "pretrained" / "seed-1"
    _write_model(run / "model")
    values = {"start": "pretrained", "seed": 1, "seconds": 1, "score": 0.5}
    (run / "run.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "pretrained").mkdir()
    (folder / "pretrained" / "metrics.json").write_text('{"seconds": 1}', encoding="utf-8")
    for name, stage in (("finetuned", "finetuning"), ("pretrained", "pretraining")):
        write_manifest(folder / name, stage, "key", {}, {}, {})
    _write_inputs(folder / "records")
    made = [folder / name for name in ("finetuned", "pretrained", "records")]
    output = write_evaluation(make_task_config(folder), *made, folder / "report")
    scores = read_scores(output / "metrics.json")
    found: Results = {"scores": {name: value for name, value in scores.items() if _is_mean(name)}}
    for file in sorted((output / "predictions").glob("*.jsonl")):
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        found[file.stem] = [_shorten(list(flatten(line).values())) for line in lines]
    return {"report": found}


def _is_mean(name: str) -> bool:
    return name.startswith("models.") and name.endswith(".mean")


def _write_inputs(folder: Path, objective: str = "mlm_nsp") -> Path:
    """Write records whose tokens and masks are drawn here, so that no change of masking changes what is trained on."""
    from keras_bert_flow.results.manifest import read_manifest, store_manifest
    from tests.oracles.tiny_records import write_tiny_records

    manifest = read_manifest(write_tiny_records(folder, train=(37, 30), held_out=20))
    store_manifest(folder, replace(manifest, config={**manifest.config, "objective": objective, "mask_unit": "token"}))
    return folder


def _write_model(folder: Path) -> Path:
    """Write a classifier with random weights that knows the words of the task."""
    from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
    from tests.oracles.tiny_model import write_tiny_model
    from tests.training.separable_task import WORDS

    return write_tiny_model(folder, pieces=[*SPECIAL_PIECES, *WORDS], seed=1)


def make_config(model: Mapping[str, Any], settings: Mapping[str, Any]):
    """Return the configuration of a pre-training of a few steps, with dropout."""
    from tests.oracles.tiny_records import make_tiny_config

    few = {"batch_size": 8, "total_steps": 5, "warmup_steps": 2, "log_every_steps": 1, "evaluate_every_steps": 3}
    few |= {"checkpoint_every_steps": 100, "evaluate_instances": 16, "tensorboard": False}
    few |= {"learning_rate": 0.2}  # takes activations so far from 0 that two forms of GELU are told apart
    return make_tiny_config(model, **few | dict(settings))


def make_task_config(folder: Path):
    """Write the tables of a task, and return the configuration of a fine-tuning of a few steps on it."""
    import keras

    from tests.training.separable_task import make_task_config as make
    from tests.training.separable_task import write_table

    for name, rows, seed in (("train", 24, 0), ("dev", 10, 1)):
        write_table(folder / f"{name}.tsv", rows, seed)
    compares = keras.backend.backend() == "torch"  # elsewhere another model is to be compiled
    config = make(
        folder, batch_size=8, epochs=3, seeds=(1,), max_widths=1, compare_initial=False, compare_random=compares
    )
    return config.model_copy(update={"name": "golden"})


def describe_run(folder: Path) -> Results:
    """Return the losses, the scores and the weights of a run."""
    from safetensors.numpy import load_file

    lines = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    found: Results = {"losses": _shorten([line["loss"] for line in lines if "loss" in line])}
    if (
        folder / "metrics.json"
    ).is_file():  # those of a run of fine-tuning are of ranks, which tremble where values are near
        found["scores"] = read_scores(folder / "metrics.json")
    weights = load_file(folder / "model" / "model.safetensors")
    # Each tensor by its distance from the origin and from another point, so that a change of direction is seen as well.
    rng = np.random.default_rng(1)
    norms, distances = [], []
    for _, weight in sorted(item for item in weights.items() if not NOISE.search(item[0])):
        values = weight.astype(np.float64)
        norms.append(np.linalg.norm(values))
        distances.append(np.linalg.norm(values - rng.standard_normal(values.shape)))
    found["norms"], found["distances"] = _shorten(norms), _shorten(distances)
    return found


def read_scores(path: Path) -> Results:
    """Return the scores in a file, without what was measured."""
    scores = flatten(json.loads(path.read_text(encoding="utf-8")))
    return {name: _shorten(score) for name, score in scores.items() if not _is_measured(name)}


def digest_files(folder: Path) -> Results:
    """Return name → digest of each file that counts."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (MANIFEST, COSTS))
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in paths}


def _is_measured(name: str) -> bool:
    return any(map(is_measurement, name.split(".")))


def _shorten(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _shorten(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_shorten(inner) for inner in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _ignore(line: Mapping[str, Any]) -> None:
    pass


_FIND: dict[str, Callable[[Path], Results]] = {
    "corpus": find_corpus,
    "vocabulary": find_vocabulary,
    "records": find_records,
    "imported records": find_imported,
    "pretraining": find_pretraining,
    "distillation": find_distillation,
    "augmentation": find_augmentation,
    "finetuning": find_finetuning,
    "evaluation": find_evaluation,
}

_VARY: dict[str, Callable[[Path], Iterator[tuple[str, Results]]]] = {
    "pretraining": _pretrain_variants,
    "finetuning": _finetune_kinds,
}

if __name__ == "__main__":
    import keras

    if {*DATA} & {*sys.argv[1:]}:
        from tests.beam_jobs.quick_beam import remember_arguments, remember_options, remember_states

        remember_options()
        remember_states()
        remember_arguments()
    with tempfile.TemporaryDirectory() as place:
        results = compute(sys.argv[1:], Path(place), every_variant=keras.backend.backend() == "torch")
    print("\n" + json.dumps(results))
