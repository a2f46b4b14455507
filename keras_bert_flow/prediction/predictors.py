"""Prediction with a fine-tuned model, embeddings of texts, and features of tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.directory import ModelDirectory
from keras_bert_flow.conversion.model_directory import load_backbone, load_task_model
from keras_bert_flow.conversion.sentence_files import read_sentence_input
from keras_bert_flow.data.tasks import BATCH_POSITIONS, ONLY_OUTPUT, ChooseWidths, predict_features
from keras_bert_flow.models.heads.embedders import WHOLE, make_features_model
from keras_bert_flow.prediction.base_predictor import BasePredictor
from keras_bert_flow.prediction.lines import list_items
from keras_bert_flow.prediction.load import ExportedModel, find_task, is_exported
from keras_bert_flow.tasks.core.task import TASK_FILE, Features, Prediction
from keras_bert_flow.tasks.core.texts import TextExample, encode_examples, make_text_example
from keras_bert_flow.tasks.registry import read_task
from keras_bert_flow.tasks.sentence_embedding import SentenceEmbedding


@final
class Predictor(BasePredictor):
    """A fine-tuned model with its tokenizer and its task.

    Args:
        folder: a model directory with `task.json`, or with a config.json that names the head's task; see `find_task`.
            Without `task.json` a model of texts also accepts pairs of texts. Or what `kbf export` wrote as ONNX.
        batch_positions: rows times width of a batch.
        threads: of ONNX Runtime; None: its own choice.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, or the model has no head for the task.
    """

    def __init__(
        self,
        folder: str | Path | ModelDirectory,
        batch_positions: int = BATCH_POSITIONS,
        threads: int | None = None,
    ):
        directory = ModelDirectory.of(folder)
        folder = directory.folder
        self.task, sequence_length = find_task(directory)
        self._may_be_pairs = hasattr(self.task, "text_pair") and not (folder / TASK_FILE).is_file()
        super().__init__(sequence_length, batch_positions)
        self.tokenizer = directory.tokenizer
        self.model: Any
        if is_exported(folder):
            self.model = ExportedModel(folder, self.task.kind, threads)
        else:
            self.model = load_task_model(self.task.kind, directory, labels=self.task.labels, needs_head=True)

    def take_weights(self, folder: str | Path) -> None:
        """Load the weights of another run of the same fine-tuning into this model, which is already compiled."""
        other = load_task_model(self.task.kind, folder, labels=self.task.labels, needs_head=True)
        for ours, theirs in zip(self.model.variables, other.variables, strict=True):
            ours.assign(theirs)

    def make_example(self, item: Any) -> Any:
        if self._may_be_pairs and isinstance(item, list | tuple | Mapping) and len(item) == 2:
            return make_text_example(item, is_pair=True)
        return self.task.make_example(item)

    def read(self, path: str | Path) -> Sequence[Any]:
        """Read all examples of a file in the task's format; labels, if there are any, are ignored."""
        return self.task.read(path, has_labels=False)

    def answer(
        self, examples: Sequence[Any], choose: ChooseWidths | None = None, follow: Callable = iter
    ) -> list[Prediction]:
        return self.answer_encoded(self.encode(examples), examples, choose, follow) if examples else []

    def encode(self, examples: Sequence[Any]) -> Features:
        """Return the features of examples, which are the same for every run of a fine-tuning."""
        features = self.task.encode(self.tokenizer, examples, self.sequence_length)
        self.cut_texts.add(features)
        return features

    def answer_encoded(
        self, features: Features, examples: Sequence[Any], choose: ChooseWidths | None = None, follow: Callable = iter
    ) -> list[Prediction]:
        """Return a prediction for each of the examples that the features were made from; arguments as for `answer`."""
        outputs = predict_features(
            self.model, features, batch_positions=self.batch_positions, follow=follow, choose=choose
        )
        return self.task.decode(outputs, features, examples)


@final
class Embedder(BasePredictor):
    """Sentence embedder: an encoder with its tokenizer and its pooling.

    Args:
        folder: any BERT model directory: one made by `kbf finetune`, one of `sentence_transformers`, or a plain
            encoder. Texts are truncated at the length in the directory, or at the encoder's last position. The default
            prompt of `sentence_transformers` is put before every text, and its `truncate_dim` cuts the vectors. Or what
            `kbf export --as sentence_embedding` wrote as ONNX, whose pooling is part of it.
        pooling: mean, cls or max. None: as in the directory, or else mean.
        normalize: scale every vector to length 1. None: as in the directory, or else True.
        batch_positions: rows times width of a batch.
        threads: of ONNX Runtime; None: its own choice.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, or the pooling is unknown.
    Example:
        >>> embedder = kbf.Embedder("model")
        >>> vectors = embedder.embed(["the film was fine", "a dull story"])
        >>> vectors.shape == (2, embedder.hidden_dim)
        True
    """

    def __init__(
        self,
        folder: str | Path | ModelDirectory,
        pooling: Any = None,
        normalize: bool | None = None,
        batch_positions: int = BATCH_POSITIONS,
        threads: int | None = None,
    ):
        directory = ModelDirectory.of(folder)
        folder, read = directory.folder, directory.files.read
        self.task = SentenceEmbedding(pooling=pooling, normalize=normalize)
        self.tokenizer = directory.tokenizer
        self._is_exported = is_exported(folder)
        self.model: Any
        if self._is_exported:
            self.model = ExportedModel(folder, self.task.kind, threads)
        else:
            self.model = load_task_model(self.task.kind, directory, **self.task.model_options)
        given = read_sentence_input(folder, read)
        if (folder / TASK_FILE).is_file():
            given = replace(given, max_tokens=read_task(folder, read)[1])
        if given.prompt and not given.has_prompt_in_pooling:
            raise ValueError(
                f"{folder}: a prompt that is not pooled is not implemented. Received: include_prompt=false, and the "
                f"prompt {abridge(ascii(given.prompt))}. Use `sentence_transformers` for this model."
            )
        self._given = given
        longest = getattr(self.model, "backbone", self.model).max_positions
        super().__init__(longest if given.max_tokens is None else min(given.max_tokens, longest), batch_positions)

    @property
    def hidden_dim(self) -> int:
        whole = self.model.output["logits"].shape[-1] if self._is_exported else self.model.backbone.hidden_dim
        return whole if self._given.dimension is None else min(self._given.dimension, whole)

    @property
    def similarity(self) -> str:
        """How the model's vectors are to be compared, such as `cosine`."""
        return self._given.similarity

    def answer(
        self, examples: Sequence[Any], choose: ChooseWidths | None = None, follow: Callable = iter
    ) -> list[Prediction]:
        """Return {"embedding"} for each text."""
        return [{"embedding": vector} for vector in self._embed(examples, choose, follow).tolist()]

    def embed(self, texts: Sequence[str], follow: Callable = iter, tell: bool = True) -> np.ndarray:
        """Return the vectors of texts, float32, (texts, hidden).

        Args:
            follow: takes the batches and yields them again, to show progress.
            tell: log how many texts so far were cut, if any were; see `tell_cut_texts`.
        Raises:
            ValueError: an item is not a text.
        """
        vectors = self._embed([self.make_example(text) for text in list_items(texts)], None, follow)
        if tell:
            self.tell_cut_texts()
        return vectors

    def _embed(self, examples: Sequence[Any], choose: ChooseWidths | None, follow: Callable) -> np.ndarray:
        if not examples:
            return np.zeros((0, self.hidden_dim), np.float32)
        given = [replace(example, text=self._given.prompt + example.text) for example in examples]
        if self._given.lowers:
            given = [replace(example, text=example.text.lower()) for example in given]
        features = self.task.encode(self.tokenizer, given, self.sequence_length)
        self.cut_texts.add(features)
        outputs = predict_features(
            self.model, features, batch_positions=self.batch_positions, follow=follow, choose=choose
        )
        return outputs["logits"][:, 0, : self.hidden_dim]


@final
class FeatureExtractor(BasePredictor):
    """Feature extractor: an encoder with its tokenizer, whose hidden states other programs use without fine-tuning.

    Items are texts, or pairs of texts. A prediction is {"tokens", "features"}: the pieces, [CLS] and [SEP] included,
    and float32 arrays, (tokens, layers * hidden), or if pooled (layers * hidden,). Longer inputs are truncated.

    Args:
        folder: any BERT model directory.
        layers, pooling: as for `models.heads.embedders.make_features_model`; the last four layers, [-4, -3, -2, -1],
            were the best features of Devlin et al. 2019, section 5.3.
        batch_positions: rows times width of a batch.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, or there is no such layer or pooling.
    """

    def __init__(
        self,
        folder: str | Path | ModelDirectory,
        layers: Sequence[int] = (-1,),
        pooling: str = WHOLE,
        batch_positions: int = BATCH_POSITIONS,
    ):
        directory = ModelDirectory.of(folder)
        backbone = load_backbone(directory)
        super().__init__(backbone.max_positions, batch_positions)
        self.tokenizer = directory.tokenizer
        self.model = make_features_model(backbone, layers, pooling)

    def make_example(self, item: Any) -> TextExample:
        has_parts = isinstance(item, list | tuple | Mapping)
        return make_text_example(item, is_pair=has_parts and len(item) == 2)

    def answer(
        self, examples: Sequence[TextExample], choose: ChooseWidths | None = None, follow: Callable = iter
    ) -> list[Prediction]:
        if not examples:
            return []
        features = encode_examples(self.tokenizer, examples, self.sequence_length, labels={})
        self.cut_texts.add(features)
        outputs = predict_features(
            self.model, features, batch_positions=self.batch_positions, follow=follow, choose=choose
        )
        return [
            {"tokens": [self.tokenizer.pieces[token] for token in token_ids], "features": found}
            for token_ids, found in zip(features.token_ids, outputs[ONLY_OUTPUT], strict=True)
        ]
