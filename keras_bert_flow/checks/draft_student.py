"""Choose the student of a drafted model that fits a size or a latency, for `kbf init --small`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from keras_bert_flow.checks.draft_budget import (
    BATCH,
    BYTES_PER_TOKEN,
    EFFICIENCY,
    MOST_PASSES,
    PIECES_PER_WORD,
    Budget,
    CorpusLook,
)
from keras_bert_flow.checks.draft_table import DraftedTask
from keras_bert_flow.config.pretraining import ModelConfig
from keras_bert_flow.installed import child_environment
from keras_bert_flow.models.sizes import count_flops, resolve_shape

# Read what is asked for.

UNITS = {"MB": "of the published model", "ms": "of a text"}
# Suffix → what is measured
FORMS = {"": "model.safetensors", "-onnx": "ONNX", "-int8": "ONNX int8"}
WISH = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)(-[a-z0-9]+)?")


@dataclass(frozen=True)
class Wish:
    """The most megabytes of a published model, or the most milliseconds of a text.

    Attributes:
        amount: above 0.
        unit: `MB` or `ms`.
        form: a key of `FORMS`.
    """

    amount: float
    unit: str
    form: str = ""

    def __str__(self) -> str:
        return f"{self.amount:g}{self.unit}{self.form}"


def read_wish(text: str) -> Wish:
    """Return what `--small` asks for.

    Raises:
        ValueError: it is no number above 0 with a known unit.
    """
    found = WISH.fullmatch(text.strip())
    units = {unit.lower(): unit for unit in UNITS}
    if found is None or found[2].lower() not in units or (found[3] or "") not in FORMS or not float(found[1]):
        raise ValueError(
            "`--small` must be a number above 0 of MB or ms, such as 20MB, 10ms, 5MB-int8 or 1ms-onnx. "
            f"Received: {text!r}. Try 20MB."
        )
    return Wish(float(found[1]), units[found[2].lower()], found[3] or "")


# The students of a teacher, and what each is expected to weigh.

WIDTHS = (1.0, 0.75, 0.5, 0.375, 0.25)  # of the teacher's, in whole heads
LEAST_HEAD_WIDTH = 8
NUM_CLASSES = 2  # more classes add next to nothing
GRAPH_BYTES, BLOCK_BYTES = 40_000, 50_000  # of an ONNX file besides its weights


@dataclass(frozen=True)
class Student:
    """A student with the settings of its section, and its costs.

    Attributes:
        model: fields of `distillation.student`.
        parameters: of the published classifier.
        megabytes: of what `--small` asks for.
        flops: of the forward pass of a text.
        milliseconds: of a text of `text_tokens` as measured; None if it was not.
        steps: of the distillation.
    """

    model: dict[str, Any]
    parameters: int
    megabytes: float
    flops: int
    milliseconds: float | None = None
    text_tokens: int = 0
    steps: int = 0

    @property
    def is_teacher(self) -> bool:
        """Whether it is the drafted model, which needs no distillation."""
        return "size" in self.model

    @property
    def is_narrow(self) -> bool:
        """Whether it is narrower than its teacher, and so starts from random weights."""
        return self.model.get("family") == "bert"

    def arguments(self, vocabulary_size: int) -> dict[str, Any]:
        """Return the arguments of its backbone."""
        shape = resolve_shape(ModelConfig(**self.model), vocabulary_size)
        names = ("vocabulary_size", "num_layers", "hidden_dim", "num_heads", "intermediate_dim", "max_positions")
        return {"family": self.model.get("family", "bert"), **{name: getattr(shape, name) for name in names}}

    def __str__(self) -> str:
        sizes = self.arguments(1)
        layers, width, heads = sizes["num_layers"], sizes["hidden_dim"], sizes["num_heads"]
        return f"{layers} layer{'s' * (layers > 1)} × {width} in {heads} heads"


def list_students(teacher: Any, form: str, length: int) -> list[Student]:
    """Return the students of a BERT, those with the most parameters first.

    Those of its width are DistilBERT's and start from its layers. Those that are narrower have as many heads as it and
    are BERTs, as in TinyBERT. The number of layers of all divides that of the teacher.

    Args:
        teacher: shape of the teacher.
        form: as of `Wish`.
        length: tokens of a text.
    """
    heads, found = teacher.num_heads, []
    for layers in (count for count in range(1, teacher.num_layers + 1) if teacher.num_layers % count == 0):
        for share in WIDTHS:
            width = int(teacher.hidden_dim * share / heads) * heads
            is_narrow = width < teacher.hidden_dim
            if layers == teacher.num_layers and not is_narrow or width < LEAST_HEAD_WIDTH * heads:
                continue
            sizes = {"hidden_dim": width, "num_heads": heads, "intermediate_dim": 4 * width}
            model = {"family": "bert" if is_narrow else "distilbert", "num_layers": layers, **sizes}
            model |= {"max_positions": teacher.max_positions, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
            found.append(_measure(model, teacher.vocabulary_size, form, length))
    return sorted(found, key=lambda student: -student.parameters)


def _measure(model: dict[str, Any], vocabulary_size: int, form: str, length: int) -> Student:
    """Return a student with its costs."""
    shape = resolve_shape(ModelConfig(**model), vocabulary_size)
    parameters, products = count_parameters(shape)
    size = 4 * parameters
    if form:
        size += GRAPH_BYTES + BLOCK_BYTES * shape.num_layers
    if form == "-int8":
        size -= 3 * products
    return Student(model, parameters, size / 1e6, count_flops(shape, length, 0).forward)


def count_parameters(shape: Any, num_classes: int = NUM_CLASSES) -> tuple[int, int]:
    """Count the parameters of a BERT or DistilBERT with a head for texts: all, and those of matrix products."""
    width, inner = shape.hidden_dim, shape.intermediate_dim
    products = shape.num_layers * (4 * width * width + 2 * width * inner) + width * width + width * num_classes
    biases = shape.num_layers * (4 * width + inner + width + 4 * width) + width + num_classes
    segments = shape.num_segments if shape.num_segments > 1 else 0
    embeddings = (shape.vocabulary_size + shape.max_positions + segments + 2) * width  # with their layer norm
    return products + biases + embeddings, products


# Choose the largest one that fits.


def choose_student(
    wish: Wish, budget: Budget, look: CorpusLook, task: DraftedTask, backend: str, operations_per_second: float
) -> Student:
    """Return the largest student of a drafted model that fits, or the model if it fits itself.

    Of those that fit a size it has the most parameters, of those that fit a latency it computes most. A latency is
    measured with random weights on this machine, for as few students as decide.

    Args:
        budget: of a run with a student.
        operations_per_second: as for `choose_budget`.
    Raises:
        ValueError: not even the smallest student fits, or no latency can be measured.
    """
    length, pieces = count_text_tokens(task, budget.text_length), budget.vocabulary_size
    own = {"size": budget.size, "max_positions": budget.max_positions}
    teacher = resolve_shape(ModelConfig(**own), pieces)
    known = [_measure(own, pieces, wish.form, length), *list_students(teacher, wish.form, length)]
    if wish.unit == "MB":
        place = next((number for number, one in enumerate(known) if one.megabytes <= wish.amount), None)
        milliseconds, least, remedy = None, f"{known[-1].megabytes:.1f} MB", ""
    else:
        known.sort(key=lambda student: -student.flops)
        place, seconds = time_students([student.arguments(pieces) for student in known], wish, length, backend)
        milliseconds, least = 1000 * seconds, f"{1000 * seconds:.2g} ms here"
        remedy = "" if wish.form else f", or for {wish}-onnx"
    if place is None:
        raise ValueError(
            f"`--small` must have room for the smallest student of the drafted {budget.size} model. Received: {wish}; "
            f"that one, {known[-1]}, takes {least}. Ask for more{remedy}."
        )
    chosen = replace(known[place], milliseconds=milliseconds, text_tokens=length)
    if chosen.is_teacher:
        return chosen
    length, masks = budget.sequence_length, round(0.15 * budget.sequence_length)
    shape = resolve_shape(ModelConfig(**chosen.model), pieces)
    operations = count_flops(shape, length, masks, use_pooler=False).training
    operations += count_flops(teacher, length, masks, use_pooler=False).forward
    rows = operations_per_second * EFFICIENCY * 60 * budget.pretraining_minutes / operations
    rows = min(rows, MOST_PASSES * look.total_bytes / BYTES_PER_TOKEN / length)
    return replace(chosen, steps=max(20, int(rows / BATCH)))


def count_text_tokens(task: DraftedTask, longest: int) -> int:
    """Return the tokens of the table's median text; `longest` if its words are not known."""
    if not task.lengths:
        return longest
    median = sorted(task.lengths)[len(task.lengths) // 2]
    return min(longest, round(PIECES_PER_WORD * median) + 3)


# Time students, in a process of its own, which may import Keras.

CHILD = "keras_bert_flow.export.timing"
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "CUDA_VISIBLE_DEVICES": "",  # of the processor
    "JAX_PLATFORMS": "cpu",
}


def time_students(
    students: Sequence[dict[str, Any]], wish: Wish, length: int, backend: str
) -> tuple[int | None, float]:
    """Return the index of the first student that is fast enough, and its seconds; or None, and those of the last.

    Args:
        students: arguments of a backbone, of the slowest student first.
        wish: in milliseconds.
        length: tokens of the text.
        backend: of Keras, if it is not ONNX that is timed.
    Raises:
        ValueError: the backend, or what writes and runs ONNX, is not installed.
    """
    asked = {
        "models": list(students),
        "length": length,
        "most_seconds": wish.amount / 1000,
        "form": wish.form,
        "backend": backend,
    }
    child = subprocess.run(
        [sys.executable, "-m", CHILD],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | child_environment() | ONE_THREAD,
    )
    if child.returncode:
        reason = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        raise ValueError(f"`--small` in ms must be measured here. Received: {wish}. {reason} Or give it in MB.")
    answer = json.loads(child.stdout.splitlines()[-1])
    return answer["index"], answer["seconds"]
