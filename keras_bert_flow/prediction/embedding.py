"""Embeddings of texts and features of tokens with any encoder."""

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
from keras_bert_flow.prediction.exported_model import is_exported, load_exported
from keras_bert_flow.prediction.lines import list_items
from keras_bert_flow.tasks.core.task import TASK_FILE, Prediction
from keras_bert_flow.tasks.core.texts import TextExample, encode_examples, make_text_example
from keras_bert_flow.tasks.embedding.sentence_embedding import SentenceEmbedding
from keras_bert_flow.tasks.registry import read_task


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
            self.model = load_exported(folder, self.task.kind, threads)
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
        features = self.task.encode(self.tokenizer, list(map(self._prepare, examples)), self.sequence_length)
        self.cut_texts.add(features)
        outputs = predict_features(
            self.model, features, batch_positions=self.batch_positions, follow=follow, choose=choose
        )
        return outputs["logits"][:, 0, : self.hidden_dim]

    def _prepare(self, example: Any) -> Any:
        text = self._given.prompt + example.text
        return replace(example, text=text.lower() if self._given.lowers else text)


# Feature extraction: hidden states of an encoder for each token, for other programs, without fine-tuning.


@final
class FeatureExtractor(BasePredictor):
    """Feature extractor: an encoder with its tokenizer.

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
