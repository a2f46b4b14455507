"""Distil small students from one teacher for the same time, and print and draw what they score, weigh and take.

    python -m benchmarks.small_students --keep out/small --figure docs/images/small.svg
    python -m benchmarks.small_students --keep out/small --minutes 15 --teacher-minutes 40 --seeds 1 2 3 \\
        --alone DistilBERT --sizes teacher=6x384 DistilBERT=3x384 TinyBERT=3x192 MobileBERT=6x384

The teacher is a BERT that is pre-trained on the corpus and fine-tuned on SST-2. Each student is distilled from it on
the same records: DistilBERT, from half of its layers, by soft targets, masked tokens and the last hidden states;
TinyBERT, narrow and from random weights, by attention scores and hidden states; MobileBERT, of narrow blocks between
bottlenecks, as DistilBERT but from random weights. `--minutes` is processor time of the whole process that distils,
with the forward passes of the teacher; its steps are chosen by two short runs, as in `benchmarks/speedrun.py`, so the
learning rate falls to 0 at the last one. `--alone`: the shapes of these students are also pre-trained by themselves for
that time.

Then each is fine-tuned on SST-2 with each seed. TinyBERT learns first the layers and then the predictions of the
fine-tuned teacher; the others learn the labels. The epoch with the best dev score is published, so dev chooses, and
nothing is chosen on test. Every published model is exported to ONNX, with weights of 32 and of 8 bits. A text by
itself, with its encoding, is timed for the first seed: the models take turns, and the time is that of the processor,
with one thread. The last row of the table is TF-IDF with a linear model, on the same rows.

The data are in a folder, by default that of KBF_TEST_DATA: corpus/imdb_reviews.txt.zst and sst2/{train,dev,test}.tsv.
`--keep` has everything that is made, and results.json, from which `benchmarks/small_results.py` prints and draws
again. The command may be killed and repeated: stages that have ended are found again and
the one that was killed goes on from its checkpoint. Only texts are timed anew.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.exported_models import INT8, POSITIONS
from benchmarks.small_results import EIGHT, FORMATS, WORDS, add_outputs, show
from benchmarks.speedrun import ALL, choose_steps_for, run_child, run_kbf
from keras_bert_flow.results.manifest import read_costs

ROOT = Path(__file__).parents[1]
TEACHER, TINY = "teacher", "TinyBERT"
ALONE = " without teacher"
RECIPE = {
    **ALL,
    "masking": "dynamic",
    "masked_fraction": 0.3,
    "token_embedding_learning_rate": 1e-4,
    "bag_of_words": 4.0,
    "precision": "auto",
    "tensorboard": False,
}
LAYERS = {"attention_score_weight": 1.0, "layer_state_weight": 1.0}
OTHERS = ("soft_target_weight", "masked_lm_weight", "hidden_state_weight")


class Shape(NamedTuple):
    """An encoder: its family, number of layers and width."""

    family: str
    layers: int
    width: int

    def as_settings(self, heads: int, length: int) -> dict[str, Any]:
        """Return the fields of the sections `model` and `distillation.student`."""
        is_mobile = self.family == "mobilebert"
        return {
            "family": self.family,
            "size": "mini",
            "num_layers": self.layers,
            "hidden_dim": self.width,
            "num_heads": heads,
            "intermediate_dim": self.width if is_mobile else 4 * self.width,
            "max_positions": max(128, length),
            "hidden_act": "relu" if is_mobile else "gelu",
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
        }


SHAPES = {
    TEACHER: Shape("bert", 6, 256),
    "DistilBERT": Shape("distilbert", 3, 256),
    TINY: Shape("bert", 3, 128),
    "MobileBERT": Shape("mobilebert", 6, 256),
}
STUDENTS = tuple(SHAPES)[1:]
TEXTS, ROUNDS = 50, 7


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, required=True, help="folder for what is made")
    data = os.environ.get("KBF_TEST_DATA")
    parser.add_argument("--data", type=Path, default=data, help="folder of corpus/ and sst2/")
    parser.add_argument("--corpus", type=Path, help="text, in place of the film reviews")
    parser.add_argument("--students", nargs="*", default=list(STUDENTS), choices=STUDENTS)
    parser.add_argument("--alone", nargs="*", default=[], choices=STUDENTS, help="also pre-trained without a teacher")
    parser.add_argument("--sizes", nargs="+", default=[], metavar="NAME=LAYERSxWIDTH", help="other shapes")
    embeddings = "initial token embeddings of students that start from random weights; counts take minutes of theirs"
    parser.add_argument("--embeddings", default="co_occurrence", choices=("co_occurrence", "random"), help=embeddings)
    parser.add_argument("--heads", type=int, default=4, help="of every model")
    parser.add_argument("--teacher-minutes", type=float, default=40.0, help="processor time of its pre-training")
    parser.add_argument("--minutes", type=float, default=15.0, help="processor time of a distillation")
    parser.add_argument("--workers", type=int, default=1, help="models made at a time, once there is a teacher")
    parser.add_argument("--long", type=int, default=80, help="steps of the longer run by which steps are chosen")
    parser.add_argument("--sequence-length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of fine-tuning")
    parser.add_argument("--examples", type=int, help="training rows of fine-tuning; default: all")
    parser.add_argument("--epochs", type=int, default=5, help="most epochs of fine-tuning")
    parser.add_argument("--layer-epochs", type=int, default=5, help=f"before them, of {TINY}")
    parser.add_argument("--tuning-rate", type=float, default=2e-4, help="learning rate of fine-tuning")
    add_outputs(parser)
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)  # a process of its own
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("the data must be somewhere: give --data, or set KBF_TEST_DATA")
    arguments.keep, arguments.data = arguments.keep.resolve(), arguments.data.resolve()
    arguments.backend = "torch"
    arguments.shapes = dict(SHAPES)
    for change in arguments.sizes:
        name, _, size = change.partition("=")
        layers, _, width = size.partition("x")
        if name not in SHAPES or not (layers.isdecimal() and width.isdecimal()):
            parser.error(f"--sizes must be like {TINY}=2x128, of {', '.join(SHAPES)}; received {change}")
        arguments.shapes[name] = Shape(SHAPES[name].family, int(layers), int(width))
    return arguments


def main() -> None:
    arguments = parse_arguments()
    if arguments.child:
        CHILDREN[arguments.child](arguments)
        return
    arguments.keep.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(arguments.workers) as pool:  # of threads that wait for processes
        made: dict[str, Future[None]] = {}
        for name in list_models(arguments):
            made[name] = pool.submit(make, arguments, name, made.get(TEACHER) if name == TINY else None)
            if name == TEACHER:
                wait_for_encoder(arguments, made[name])
    for name, future in made.items():
        future.result()
        place = arguments.keep / name / "scores.json"
        if not place.exists():
            run_again(arguments, "score")
        found[name] = json.loads(place.read_text()) | describe(arguments, name)
        print(f"{name}: dev {100 * statistics.fmean(found[name]['dev']):.1f} %", file=sys.stderr, flush=True)
    words = arguments.keep / f"{WORDS}.json"
    if not words.exists():
        run_again(arguments, "words")
    times = json.loads(run_again(arguments, "time").splitlines()[-1])
    found = {name: values | {"times": times[name]} for name, values in found.items()}
    results = {"seeds": arguments.seeds, "models": found | {WORDS: json.loads(words.read_text())}}
    (arguments.keep / "results.json").write_text(json.dumps(results, indent=1))
    show(results, arguments.figure, arguments.page)


def make(arguments: argparse.Namespace, name: str, teacher: Future[None] | None) -> None:
    """Make what is kept of a model; what learns a task from the teacher waits for that to be fine-tuned."""
    train(arguments, name)
    if teacher is not None:
        teacher.result()
    finetune(arguments, name)
    export(arguments, name)


def wait_for_encoder(arguments: argparse.Namespace, teacher: Future[None]) -> None:
    """Return when the teacher is pre-trained; what ends that early is raised."""
    while not (arguments.keep / TEACHER / "run").exists():
        if teacher.done():
            teacher.result()
        time.sleep(1)


def list_models(arguments: argparse.Namespace) -> list[str]:
    return [TEACHER, *arguments.students, *(name + ALONE for name in arguments.alone)]


# Pre-training and distillation for the same processor time.


def build_records(arguments: argparse.Namespace) -> Path:
    """Build the vocabulary and the records, once."""
    vocabulary, records = arguments.keep / "vocabulary", arguments.keep / "records"
    corpus = arguments.corpus or arguments.data / "corpus" / "imdb_reviews.txt.zst"
    common = {"corpus.input": [str(corpus.resolve())], **as_settings("task", task_settings(arguments))}
    config = ("--config", ROOT / "configs" / "imdb_sst2.yaml")
    if not vocabulary.exists():
        run_kbf(arguments, "vocab", *config, "--output", vocabulary, **common)
    if not records.exists():
        run_kbf(arguments, "records", *config, "--vocab", vocabulary / "vocab.txt", "--output", records, **common)
    return records


def train(arguments: argparse.Namespace, name: str) -> None:
    """Pre-train or distil a model for as many steps as take its processor time."""
    folder, records = arguments.keep / name, build_records(arguments)

    def run(steps: int, output: Path) -> float:
        """Train, unless it is done, and return the processor seconds of all processes that did."""
        every = max(1, steps // 5)
        settings = RECIPE | {
            "sequence_length": arguments.sequence_length,
            "log_every_steps": every,
            "evaluate_every_steps": steps,
            "evaluate_instances": 1000,
            "checkpoint_every_steps": max(1, min(every, 500)),
        }
        schedule = {
            "batch_size": arguments.batch_size,
            "learning_rate": arguments.learning_rate,
            "total_steps": steps,
            "warmup_steps": steps // 50,
        }
        shape = arguments.shapes[name.removesuffix(ALONE)]
        model = shape.as_settings(arguments.heads, arguments.sequence_length)
        options = ["--config", ROOT / "configs" / "imdb_sst2.yaml", "--records", records, "--output", output]
        if name == TEACHER or name.endswith(ALONE):
            values = as_settings("model", model) | as_settings("pretraining", settings | schedule)
            run_kbf(arguments, "pretrain", *options, **values)
            return 60 * count_minutes(output)
        settings |= {
            "bag_of_words": 0.0,
            "token_embeddings": arguments.embeddings,
            **({"output_bias": "zeros"} if name == TINY else {}),
        }
        distillation = {"student": model, "start": "teacher" if name == "DistilBERT" else "random", **schedule}
        if name == TINY:
            distillation |= LAYERS | dict.fromkeys(OTHERS, 0.0)
        elif shape.width != arguments.shapes[TEACHER].width:
            distillation |= {"hidden_state_weight": 0.0}
        values = as_settings("pretraining", settings) | {"distillation": distillation}
        teacher = arguments.keep / TEACHER / "run" / "model"
        run_kbf(arguments, "distill", "--teacher", teacher, *options, **values)
        return 60 * count_minutes(output)

    train_once(arguments.teacher_minutes if name == TEACHER else arguments.minutes, run, folder, arguments.long)


def train_once(minutes: float, run: Callable[[int, Path], float], folder: Path, most: int) -> None:
    """Choose the steps of a model for so many minutes, and train it, unless it is done; see `choose_steps_for`.

    Args:
        folder: gets `steps.json`, the short runs, and `run`, the one that counts. What is there is not made again.
    """
    place = folder / "steps.json"
    if not place.exists():
        folder.mkdir(exist_ok=True)
        steps, _ = choose_steps_for(minutes, run, folder, most)
        place.write_text(json.dumps(steps))
    if not (folder / "run").exists():
        run(json.loads(place.read_text()), folder / "run")


def as_settings(section: str, values: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{name}": value for name, value in values.items()}


# Fine-tuning, exporting and scoring.


def task_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    tables = arguments.data / "sst2"
    return {"train": str(tables / "train.tsv"), "dev": str(tables / "dev.tsv")}


def tuning_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what is set of `finetuning` for every model."""
    return {
        "seeds": arguments.seeds,
        "max_train_examples": arguments.examples,
        "train_examples": "random",
        "epochs": arguments.epochs,
        "patience_epochs": 2,
        "publish": "best",
        "learning_rate": arguments.tuning_rate,
        "sequence_length": arguments.sequence_length,
        "pooling": "mean",
        "head_start": "probe",
        "compare_random": False,
        "compare_initial": False,
        "label_counts": None,
        "label_words": None,
        "precision": "auto",
    }


def finetune(arguments: argparse.Namespace, name: str) -> None:
    output = arguments.keep / name / "finetuned"
    if output.exists():
        return
    settings = tuning_settings(arguments)
    if name == TINY:
        settings |= {"teacher": str(list_tuned(arguments, TEACHER)[0]), "layer_epochs": arguments.layer_epochs}
    values = as_settings("task", task_settings(arguments)) | as_settings("finetuning", settings)
    model = arguments.keep / name / "run" / "model"
    options = ["--config", ROOT / "configs" / "imdb_sst2.yaml", "--model", model, "--output", output]
    run_kbf(arguments, "finetune", *options, **values)


def list_tuned(arguments: argparse.Namespace, name: str) -> list[Path]:
    """Return the fine-tuned model of each seed."""
    runs = arguments.keep / name / "finetuned" / "pretrained"
    return [runs / f"seed-{seed}" / "model" for seed in arguments.seeds]


def exported(arguments: argparse.Namespace, name: str, seed: int, form: str) -> Path:
    return arguments.keep / name / f"exported-{form}-seed-{seed}"


def export(arguments: argparse.Namespace, name: str) -> None:
    """Export each seed; the folder of an int8 model that is refused, as its outputs differ too much, stays empty."""
    for seed, model in zip(arguments.seeds, list_tuned(arguments, name), strict=True):
        for form in ("onnx", EIGHT):
            output = exported(arguments, name, seed, form)
            if output.exists():
                continue
            command = ["export", model, output, "--format", "onnx"]
            if form != EIGHT:
                run_kbf(arguments, *command)
                continue
            try:
                run_kbf(arguments, *command, "--int8", "--max-changed", "1")  # what changes is in the table
            except SystemExit as error:
                if "int8" not in str(error):
                    raise
                print(f"{name}, seed {seed}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
                output.mkdir()


def run_again(arguments: argparse.Namespace, job: str) -> str:
    """Run a job of `CHILDREN` in a process of its own, where Keras may be imported, and return what it prints."""
    folders = ("--keep", arguments.keep, "--data", arguments.data)  # absolute: the process is at `ROOT`
    return run_child(arguments, "benchmarks.small_students", *sys.argv[1:], *folders, "--child", job)[0]


def read_tables(arguments: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    """Return the configuration, the files of the task, and the rows to score by the name of their table."""
    from keras_bert_flow.config.loading import load_config
    from keras_bert_flow.training.finetuning.task_data import read_task_files

    values = as_settings("task", task_settings(arguments)) | as_settings("finetuning", tuning_settings(arguments))
    changes = [f"{name}={json.dumps(value)}" for name, value in values.items()]
    config = load_config(str(ROOT / "configs" / "imdb_sst2.yaml"), changes)
    files = read_task_files(config)
    return config, files, {"dev": files.dev, "test": list(files.task.read(arguments.data / "sst2" / "test.tsv"))}


def score(arguments: argparse.Namespace) -> None:
    """Write `scores.json` for each model that has none: the accuracy of each seed by table, and that of ONNX int8."""
    from benchmarks.peers.predict_exported import Exported

    _, files, tables = read_tables(arguments)
    for name in list_models(arguments):
        place = arguments.keep / name / "scores.json"
        if place.exists() or not exported(arguments, name, arguments.seeds[-1], EIGHT).exists():
            continue
        scores: dict[str, list[float]] = {}
        for seed in arguments.seeds:
            for form, suffix in (("onnx", ""), (EIGHT, INT8)):
                folder = exported(arguments, name, seed, form)
                if not any(folder.iterdir()):
                    continue
                model = Exported(folder)
                for table, rows in tables.items():
                    value = model.task.score(rows, model.answer_examples(rows, POSITIONS))[files.task.main_metric]
                    scores.setdefault(table + suffix, []).append(value)
        place.write_text(json.dumps(scores))


def score_words(arguments: argparse.Namespace) -> None:
    """Write what TF-IDF with a linear model scores on the same rows."""
    from keras_bert_flow.tasks.baselines.word_baseline import answer_from_words

    config, files, tables = read_tables(arguments)
    answers = answer_from_words(files.task, files.training, tables, config.seed)
    if answers is None:
        raise SystemExit("TF-IDF needs texts to label.")
    metric = files.task.main_metric
    scores = {name: [files.task.score(rows, answers.predictions[name])[metric]] for name, rows in tables.items()}
    (arguments.keep / f"{WORDS}.json").write_text(json.dumps(scores))


def time_texts(arguments: argparse.Namespace) -> None:
    """Print the median processor seconds of a text by model and format, as JSON."""
    from benchmarks.peers.predict_exported import Exported

    _, files, _ = read_tables(arguments)
    texts = [example.text for example in files.dev[:TEXTS]]
    models: dict[tuple[str, str], Callable[[str], Any]] = {}
    for name in list_models(arguments):
        tuned = list_tuned(arguments, name)[0]
        models[name, "torch"] = load_ours(tuned)
        models[name, "transformers"] = load_theirs(tuned, arguments.sequence_length)
        for form in FORMATS[2:]:
            folder = exported(arguments, name, arguments.seeds[0], form)
            if any(folder.iterdir()):
                models[name, form] = load_exported(Exported(folder))
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in range(-1, ROUNDS):  # the first warms up
        for key, answer in models.items():
            started = time.process_time()
            for text in texts:
                answer(text)
            if turn >= 0:
                seconds.setdefault(key, []).append((time.process_time() - started) / len(texts))
    medians: dict[str, dict[str, float]] = {}
    for (name, form), values in seconds.items():
        medians.setdefault(name, {})[form] = statistics.median(values)
    print(json.dumps(medians))


def load_ours(folder: Path) -> Callable[[str], Any]:
    import keras_bert_flow as kbf

    model = kbf.load(folder)
    return lambda text: model.answer([model.task.make_example(text)])


def load_theirs(folder: Path, length: int) -> Callable[[str], Any]:
    """Return the encoder in transformers, whose classifiers have no mean of tokens, with its tokenizer."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def answer(text: str) -> Any:
        with torch.inference_mode():
            return model(**tokenizer(text, truncation=True, max_length=length, return_tensors="pt"))

    return answer


def load_exported(model: Any) -> Callable[[str], Any]:
    return lambda text: model.answer([text], 1)


CHILDREN = {"score": score, "words": score_words, "time": time_texts}


# What is in the table besides.


def describe(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return sizes, steps and times of a model."""
    folder = arguments.keep / name
    tuned = list_tuned(arguments, name)[0]
    shape = arguments.shapes[name.removesuffix(ALONE)]
    return {
        "shape": f"{shape.layers} × {shape.width}",
        "steps": json.loads((folder / "steps.json").read_text()),
        "minutes": count_minutes(folder / "run"),
        "tuning_minutes": count_minutes(folder / "finetuned") / len(arguments.seeds),
        "parameters": count_parameters(tuned / "model.safetensors"),
        "bytes": {
            "torch": (tuned / "model.safetensors").stat().st_size,
            **{form: count_bytes(exported(arguments, name, arguments.seeds[0], form)) for form in FORMATS[2:]},
        },
    }


def count_minutes(folder: Path) -> float:
    """Return the processor time of a published folder, of all processes that made it."""
    return sum(cost.processor_seconds for cost in read_costs(folder)) / 60


def count_parameters(path: Path) -> int:
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


def count_bytes(folder: Path) -> int:
    """Return the size of the model in an exported folder, without its tokenizer."""
    return sum(path.stat().st_size for path in folder.glob("*.onnx*"))


if __name__ == "__main__":
    main()
