"""Write the model card, the `README.md` of a model directory: front matter for the Hub, facts, a loading example.

Cards of adapters are read without Keras.

Source of the front matter: the Hub's documentation, "Model Cards", and huggingface_hub, `ModelCardData`.
"""

import json
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from keras_bert_flow.config.machine import describe_processor
from keras_bert_flow.console.terminal import as_markdown, escape_markdown
from keras_bert_flow.conversion.tables.table import find_table
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.saved_as import CLS, MASKED_LM_HEAD, POOLING, TEXT_POOLING, SavedAs
from keras_bert_flow.results.artifacts import package_version

# Class of `transformers` without the family → the Hub's name for its task
PIPELINES = {
    "ForPreTraining": "fill-mask",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
}
ENCODING = "feature-extraction"  # the task of all other classes
SENTENCES = "sentence-similarity"  # the Hub's name for the task of an embedder
PEFT = "peft"
OURS = "keras-bert-flow"
LIBRARIES = {SENTENCES: "sentence-transformers"}  # of whole models, by the Hub's task; of all others `transformers`
_EXAMPLE = re.compile(
    r"```python\n.*?keras_bert_flow\.(\w+)\.from_preset.*?PeftModel\.from_pretrained\(transformers\.(\w+)\..*?\n```",
    re.DOTALL,
)
_LIBRARY = f"\nlibrary_name: {PEFT}\n"

Section = tuple[str, Sequence[Sequence[str]]]  # heading, rows of a name and a value


@dataclass(frozen=True)
class Card:
    """What a run reports about its model.

    Attributes:
        title: by default the class of `transformers`.
        sections: the inputs, settings and results of the run.
    """

    title: str | None = None
    sections: Sequence[Section] = ()


def write_card(card: Card, model, backbone, saved: SavedAs, architecture: str, base: str | None = None) -> str:
    """Return the text of a model card.

    Args:
        card: what the run reports.
        model: the saved model.
        backbone: its encoder.
        saved: how it is saved.
        architecture: class of `transformers`.
        base: for an adapter, the name of its base model.
    """
    shape = [
        ["layers", str(backbone.num_layers)],
        ["width", str(backbone.hidden_dim)],
        ["heads", str(backbone.num_heads)],
        ["pieces", f"{backbone.vocabulary_size:,}"],
        ["longest text, tokens", f"{backbone.max_positions:,}"],
        ["parameters", f"{model.count_params():,}, of which {backbone.count_params():,} in the encoder"],
    ]
    ours, options = type(model).__name__, {*saved.options}
    # A pooling that no class of `transformers` has.
    has_own_head = options >= {*TEXT_POOLING} and not options >= {*POOLING} and model.pooling != CLS
    if has_own_head:
        encoder, architecture = find_table(backbone.family).class_prefix + "Model", ours
        loading = _show_own_head(ours, encoder, model.pooling, is_adapter=base is not None)
    else:
        loading = _show_loading(ours, architecture, base, getattr(model, "num_classes", None))
    parts = [
        _front_matter(saved, base, has_own_head),
        f"# {escape_markdown(card.title or architecture)}",
        f"A {find_family(backbone.family).title}, `{architecture}`, made with keras-bert-flow {package_version()}.",
        *(
            f"## {heading}\n\n{as_markdown([['', ''], *rows], ['---', '---'])}"
            for heading, rows in (("Model", shape), *card.sections)
            if rows
        ),
        "## Loading",
        loading,
        "The license is for the author to name, in the first lines of this file.",
    ]
    return "\n\n".join(parts) + "\n"


def describe_machine(seconds: float, devices: int = 1) -> Section:
    """Return the section on the machine and software that trained a model.

    Args:
        seconds: training time.
        devices: number of devices.
    """
    import keras

    backend = keras.backend.backend()
    # The version of the module that Keras has imported: its package may have another name, such as tensorflow-cpu.
    packages = f"Keras {keras.__version__}, {backend} {sys.modules[backend].__version__}"
    rows = [["processor", describe_processor()], ["devices", str(devices)], ["time", f"{seconds:,.0f} s"]]
    return "Training environment", [*rows, ["software", f"Python {platform.python_version()}, {packages}"]]


def describe_merged(card: str) -> str | None:
    """Turn the card of an adapter into that of the merged model; None if this package did not write the card."""
    example = _EXAMPLE.search(card)
    if example is None or _LIBRARY not in card:
        return None
    pipeline = SENTENCES if f"\npipeline_tag: {SENTENCES}\n" in card else ""
    card = card.replace(example[0], _show_loading(example[1], example[2]))
    return card.replace(_LIBRARY, f"\nlibrary_name: {LIBRARIES.get(pipeline, 'transformers')}\n", 1)


def _front_matter(saved: SavedAs, base: str | None, has_own_head: bool) -> str:
    pipeline = PIPELINES.get(saved.architecture, ENCODING)
    if set(POOLING) <= set(saved.options):
        pipeline = SENTENCES
    elif not {*saved.head} >= {*MASKED_LM_HEAD} and pipeline == "fill-mask":  # ELECTRA's discriminator fills no masks
        pipeline = ENCODING
    of_adapter = [] if base is None else [f"base_model: {json.dumps(base)}"]
    library = OURS if has_own_head else PEFT if base is not None else LIBRARIES.get(pipeline, "transformers")
    task = [] if has_own_head else [f"pipeline_tag: {pipeline}"]  # the Hub offers pipelines of transformers for it
    lines = ["license: unknown", f"library_name: {library}", *task, *of_adapter]
    return "\n".join(["---", *lines, "tags:", "- keras", "- keras-bert-flow", "---"])


def _show_loading(ours: str, theirs: str, base: str | None = None, num_classes: int | None = None) -> str:
    """Return the loading example of a model card.

    Args:
        ours: class of this package.
        theirs: class of `transformers`.
        base: for an adapter, the name of its base model.
        num_classes: the number of classes of the head, if it has any.
    """
    if base is None:
        return _write_example("transformers", ours, f'transformers.{theirs}.from_pretrained("this folder")')
    classes = f", num_labels={num_classes}" if num_classes else ""
    reference = f"transformers.{theirs}.from_pretrained({json.dumps(base)}{classes})"
    return _write_example("peft, transformers", ours, f'peft.PeftModel.from_pretrained({reference}, "this folder")')


def _show_own_head(ours: str, encoder: str, pooling: str, is_adapter: bool) -> str:
    """Return the loading example for a model whose head `transformers` lacks, with a warning about it.

    Args:
        ours: class of this package.
        encoder: class of `transformers`.
        pooling: the pooling of the head.
    """
    alone = f'transformers.{encoder}.from_pretrained("this folder")  # the encoder alone'
    warning = (
        f"Its head has the pooling `{pooling}`, which no class of `transformers` has. Its classes with a head, and so "
        "its pipelines, refuse this folder: the kernel of the head has one more axis than theirs, as they would make "
        "up a pooler and answer at random. `kbf export` writes the whole model for other runtimes."
    )
    return "\n\n".join([_write_example("transformers", ours, *([] if is_adapter else [alone])), warning])


def _write_example(modules: str, ours: str, *references: str) -> str:
    lines = [
        f"import keras_bert_flow, {modules}",
        "",
        f'keras_bert_flow.{ours}.from_preset("this folder")  # on TensorFlow, JAX or PyTorch',
        *references,
        'transformers.AutoTokenizer.from_pretrained("this folder")',
    ]
    return "\n".join(["```python", *lines, "```"])
