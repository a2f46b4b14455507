"""Base of the tables of Hugging Face's names for a family, and their registry."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from keras_bert_flow.by_name import Registry
from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import BLOCK, EMBEDDING_PROJECTION

POOLER = "pooler/dense"
# Prefixes of PyTorch's data parallelism, of a model as a field of another, of `torch.compile`, and of
# sentence-transformers' module
WRAPPERS = ("module.", "model.", "_orig_mod.", "auto_model.")


@dataclass(frozen=True)
class Tensors:
    """The tensors of one of our layers, or the one tensor of a variable.

    Attributes:
        name: without `.weight` and `.bias`; braces hold the names of query, key and value, which are one layer here.
        weight: shape of the weight there, as fields of `EncoderShape`.
        bias: shape of the bias; empty if there is none.
        has_bias: field of the shape that says whether there is one; empty: always, if `bias` is not.
        parts: number of parts that are one layer here, such as query, key and value: one after another there, in one
            tensor or in as many as the braces name, and here ordered (groups, parts, width). Default: a part per name.
        groups: field of the shape with the number of these groups.
        exists_if: field of the shape that says whether there is such a layer; empty: always. Not within a block.
    """

    name: str
    weight: tuple[str, ...]
    bias: tuple[str, ...] = ()
    has_bias: str = ""
    parts: int = 0
    groups: str = "num_heads"
    exists_if: str = ""


def dense(name: str, outputs: str, inputs: str, has_bias: str = "", **fused: Any) -> Tensors:
    return Tensors(name, (outputs, inputs), (outputs,), has_bias, **fused)


def norm(name: str, size: str, has_bias: str = "", exists_if: str = "") -> Tensors:
    return Tensors(name, (size,), (size,), has_bias, exists_if=exists_if)


def rows(name: str, count: str, size: str, exists_if: str = "") -> Tensors:
    """Return the tensor of an embedding table."""
    return Tensors(name, (count, size), exists_if=exists_if)


@dataclass(frozen=True)
class Setting:
    """A field of `EncoderShape` and the field of `config.json` that holds it.

    Attributes:
        default: Hugging Face's default; None if a checkpoint must give the value. A string if the field holds one.
        least: minimum of an integer field.
    """

    ours: str
    theirs: str
    default: Any = None
    least: int = 1


@dataclass(frozen=True)
class FamilyTable:
    """Hugging Face's names for the settings and tensors of a family.

    Attributes:
        family: our name, which is `model_type` there.
        class_prefix: prefix of the classes of `transformers`, such as `Bert` in `BertForMaskedLM`.
        prefix: prefix of the encoder's tensors in a model with a head.
        settings: fields of `config.json`, in its order.
        fixed: fields with a fixed set of allowed values, of which the first is the default.
        written: further fields of `config.json`, the same for every model unless a setting has another value.
        embeddings: our layers and variables outside the blocks → tensors.
        pooler: the same of the pooler.
        block: the same within a block, or a function of the shape that returns it.
        not_in_lowest: those of a block that the lowest one lacks.
        block_name: name prefix of a block, with braces for its number.
        heads: architecture → names of layers that differ from BERT's: BERT's → this family's. Those under the
            architecture `""` hold for all.
        activation, classifier_dropout: names of these fields in `config.json`.
        default_activation: value of the first of these in a `config.json` without it.
        head_activation: field of the activation of the masked-LM head; empty if it is that of the encoder.
        poolings: those of `ForSequenceClassification` in `transformers`.
        normalise_config: from a `config.json` and its path, one that has all fields of `settings` which other spellings
            of it imply.
        complete_config: returns a `config.json` with the other spellings of its fields.
        untransposed: layers of heads whose weight is (inputs, outputs) there too, by their names there.
        renamed: beginnings of the names of tensors in checkpoints → those of `transformers`.
        unread: tensors of an encoder that `transformers` leaves unread where the shape has no such layer.
        count_extra_positions: number of position embeddings beyond `max_positions`, from the arguments of a backbone.
    """

    family: str
    class_prefix: str
    prefix: str
    settings: tuple[Setting, ...]
    embeddings: Mapping[str, Tensors]
    block: Mapping[str, Tensors] | Callable[[Any], Mapping[str, Tensors]]
    pooler: Mapping[str, Tensors]
    block_name: str = "encoder.layer.{}."
    fixed: Mapping[str, tuple] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    heads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    activation: str = "hidden_act"
    classifier_dropout: str = "classifier_dropout"
    default_activation: str = "gelu"
    head_activation: str = ""
    poolings: tuple[str, ...] = ("cls",)
    not_in_lowest: tuple[str, ...] = ()
    normalise_config: Callable[[Mapping[str, Any], str], Mapping[str, Any]] = lambda config, source: config
    complete_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda config: config
    untransposed: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    count_extra_positions: Callable[[Mapping[str, Any]], int] = lambda settings: 0

    def list_block(self, shape: EncoderShape) -> Mapping[str, Tensors]:
        """Map our layers and variables within a block to tensors."""
        return self.block if isinstance(self.block, Mapping) else self.block(shape)

    def name_encoder(self, shape: EncoderShape) -> dict[str, str]:
        """Map our layers and variables of an encoder to Hugging Face's, without the prefix."""
        blocks = {
            f"{BLOCK}{index}/{ours}": self.block_name.format(index) + tensors.name
            for index in range(shape.num_blocks)
            for ours, tensors in self.list_block(shape).items()
        }
        others = {ours: tensors.name for ours, tensors in (*self.embeddings.items(), *self.pooler.items())}
        return others | blocks

    def list_sizes(self, shape: EncoderShape) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the tensors of an encoder without its pooler, and their sizes.

        This is a generator because a damaged `config.json` may claim a billion layers.
        """
        absent = () if shape.projects_embeddings else (EMBEDDING_PROJECTION,)
        block = self.list_block(shape)
        blocks = (
            (self.block_name.format(index), block, () if index else self.not_in_lowest)
            for index in range(shape.num_blocks)
        )
        for prefix, parts, left_out in chain([("", self.embeddings, absent)], blocks):
            for ours, tensors in parts.items():
                exists = ours not in left_out and (not tensors.exists_if or getattr(shape, tensors.exists_if))
                for name in split_fused(prefix + tensors.name) if exists else ():
                    yield f"{name}.weight", tensors.weight
                    if tensors.bias and (not tensors.has_bias or getattr(shape, tensors.has_bias)):
                        yield f"{name}.bias", tensors.bias

    def find_parts(self, path: str, shape: EncoderShape) -> tuple[int, int]:
        """Return the number of groups and of parts that a layer of ours orders its outputs by; 1 and 1 for most.

        Args:
            path: of the layer.
        """
        block, _, ours = path.partition("/")
        tensors = self.list_block(shape).get(ours) if block.startswith(BLOCK) else None
        parts = 1 if tensors is None else tensors.parts or len(split_fused(tensors.name))
        return (1 if tensors is None or parts == 1 else getattr(shape, tensors.groups)), parts

    def list_copies(self, shape: EncoderShape) -> Iterator[tuple[str, str]]:
        """Yield name pairs for layers that all blocks share here: in the lowest block, and in another block.

        In `transformers`, each block has a copy.
        """
        for ours, tensors in self.list_block(shape).items():
            if ours.partition("/")[0] in shape.shared_parts:
                for name in split_fused(tensors.name):
                    for index in range(1, shape.num_blocks):
                        yield self.block_name.format(0) + name, self.block_name.format(index) + name

    def name_heads(self, heads: Mapping[str, str], architecture: str) -> dict[str, str]:
        """Translate the names of head layers from BERT's to this family's.

        Args:
            architecture: as in `SavedAs`.
        """
        others = {**self.heads.get("", {}), **self.heads.get(architecture, {})}
        pooler = {POOLER: others[POOLER]} if POOLER in others else {}
        return pooler | {ours: others.get(theirs, theirs) for ours, theirs in heads.items()}

    def name_pooler(self, architecture: str) -> str:
        """Return the name of the pooler in an architecture, which may count it as part of its head; "" without one."""
        own = self.pooler[POOLER].name if POOLER in self.pooler else ""
        return self.heads.get(architecture, {}).get(POOLER, own)

    def list_roots(self, architecture: str = "") -> set[str]:
        """Return the first name components of an encoder's tensors, which tell them apart from a head's."""
        # A dense layer that an architecture counts as part of its head has no prefix: `pre_classifier` of DistilBERT.
        pooler = {} if POOLER in self.heads.get(architecture, {}) else self.pooler
        names = [tensors.name for tensors in (*self.embeddings.values(), *pooler.values())]
        return {find_root(name) for name in (*names, self.block_name)}

    def unwrap_name(self, name: str) -> str:
        """Return the name of a tensor without the prefixes of the encoder and of what wrapped the model in training."""
        prefixes = (self.prefix, *WRAPPERS)
        while found := next((prefix for prefix in prefixes if name.startswith(prefix)), None):
            name = name.removeprefix(found)
        return name

    def normalise_name(self, name: str) -> str:
        """Normalise tensor names of old and prefixed checkpoints: no prefix, and current names of heads and norms."""
        name = self.unwrap_name(name)
        for theirs, current in self.renamed.items():
            if name.startswith(theirs):
                name = current + name.removeprefix(theirs)
        return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def find_root(name: str) -> str:
    """Return the first component of a tensor's name."""
    return name.partition(".")[0]


def split_fused(name: str) -> list[str]:
    """Expand the braces of a name: `a.{b,c}` gives `a.b` and `a.c`."""
    before, brace, rest = name.partition("{")
    parts, _, after = rest.partition("}")
    return [before + part + after for part in parts.split(",")] if brace else [name]


# Registry of the tables of encoder families.

# family, Hugging Face's `model_type` → table
TABLES: Registry[FamilyTable] = Registry(
    "A family",
    {
        "albert": "keras_bert_flow.conversion.tables.bert:ALBERT",
        "bert": "keras_bert_flow.conversion.tables.bert:BERT",
        "deberta-v2": "keras_bert_flow.conversion.tables.deberta:DEBERTA_V2",
        "distilbert": "keras_bert_flow.conversion.tables.bert:DISTILBERT",
        "electra": "keras_bert_flow.conversion.tables.bert:ELECTRA",
        "mobilebert": "keras_bert_flow.conversion.tables.mobilebert:MOBILEBERT",
        "modernbert": "keras_bert_flow.conversion.tables.modernbert:MODERNBERT",
        "roberta": "keras_bert_flow.conversion.tables.bert:ROBERTA",
    },
)
find_table = TABLES.find


def find_table_of(config: Mapping[str, Any], source: str) -> FamilyTable:
    """Return the table of the family that the content of a `config.json` names.

    Args:
        source: the file's name, for messages.
    Raises:
        ValueError: there is no such family.
    """
    if "registered_name" in config:  # an object serialised by Keras
        raise ValueError(
            f"{source}: a model directory must be as Hugging Face has it. Received: a preset of KerasHub. Make one of "
            f"it: kbf convert {Path(source).parent} NEW."
        )
    found = config.get("model_type")
    if not isinstance(found, str) or found not in TABLES:
        raise ValueError(
            f"{source}: `model_type` must be {' or '.join(map(repr, TABLES))}. Received: "
            f"model_type={abridge(repr(found))}. Convert the checkpoint first."
        )
    return find_table(found)
