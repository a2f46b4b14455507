"""Sentence embedding: turn texts into vectors with any encoder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from keras_bert_flow.conversion.model_directory import load_task_model
from keras_bert_flow.conversion.sentence_files import read_max_tokens
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.tasks import BATCH_POSITIONS, ChooseWidths, predict_features
from keras_bert_flow.prediction.asked_model import AskedModel
from keras_bert_flow.prediction.lines import list_items
from keras_bert_flow.tasks.core.stored import read_task
from keras_bert_flow.tasks.core.task import TASK_FILE, Prediction
from keras_bert_flow.tasks.embedding.sentence_embedding import SentenceEmbedding


@final
class Embedder(AskedModel):
    """Sentence embedder: an encoder with its tokenizer and its pooling.

    Args:
        folder: any BERT model directory: one made by `kbf finetune`, one of `sentence_transformers`, or a plain
            encoder. Texts are truncated at the length in the directory, or at the encoder's last position.
        pooling: mean, cls or max. None: as in the directory, or else mean.
        normalize: scale every vector to length 1. None: as in the directory, or else True.
        batch_positions: rows times width of a batch.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, or the pooling is unknown.
    """

    def __init__(
        self,
        folder: str | Path,
        pooling: Any = None,
        normalize: bool | None = None,
        batch_positions: int = BATCH_POSITIONS,
    ):
        folder = Path(folder)
        self.task = SentenceEmbedding(pooling=pooling, normalize=normalize)
        self.tokenizer = read_tokenizer(folder)
        self.model = load_task_model(self.task.kind, folder, **self.task.model_options)
        super().__init__(_read_length(folder, self.model.backbone.max_positions), batch_positions)

    @property
    def hidden_dim(self) -> int:
        return self.model.backbone.hidden_dim

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
        vectors = self._embed([self.pose(text) for text in list_items(texts)], None, follow)
        if tell:
            self.tell_cut_texts()
        return vectors

    def _embed(self, examples: Sequence[Any], choose: ChooseWidths | None, follow: Callable) -> np.ndarray:
        if not examples:
            return np.zeros((0, self.hidden_dim), np.float32)
        features = self.task.encode(self.tokenizer, examples, self.sequence_length)
        self.cut_texts.add(features)
        outputs = predict_features(
            self.model, features, batch_positions=self.batch_positions, follow=follow, choose=choose
        )
        return outputs["logits"][:, 0]


def _read_length(folder: Path, max_positions: int) -> int:
    said = read_task(folder)[1] if (folder / TASK_FILE).is_file() else read_max_tokens(folder)
    return max_positions if said is None else min(said, max_positions)
