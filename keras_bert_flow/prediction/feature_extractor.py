"""Feature extraction: hidden states of an encoder for each token, for other programs, without fine-tuning."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from keras_bert_flow.conversion.model_directory import load_backbone
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.tasks import BATCH_POSITIONS, ONLY_OUTPUT, ChooseWidths, predict_features
from keras_bert_flow.models.hidden_features import WHOLE, make_features_model
from keras_bert_flow.prediction.asked_model import AskedModel
from keras_bert_flow.tasks.core.task import Prediction
from keras_bert_flow.tasks.core.texts import TextExample, encode_examples, pose_texts


@final
class FeatureExtractor(AskedModel):
    """Feature extractor: an encoder with its tokenizer.

    Items are texts, or pairs of texts. A prediction is {"tokens", "features"}: the pieces, [CLS] and [SEP] included,
    and float32 arrays, (tokens, layers * hidden), or if pooled (layers * hidden,). Longer inputs are truncated.

    Args:
        folder: any BERT model directory.
        layers, pooling: as for `models.hidden_features.make_features_model`; the last four layers, [-4, -3, -2, -1],
            were the best features of Devlin et al. 2019, section 5.3.
        batch_positions: rows times width of a batch.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, or there is no such layer or pooling.
    """

    def __init__(
        self,
        folder: str | Path,
        layers: Sequence[int] = (-1,),
        pooling: str = WHOLE,
        batch_positions: int = BATCH_POSITIONS,
    ):
        folder = Path(folder)
        backbone = load_backbone(folder)
        super().__init__(backbone.max_positions, batch_positions)
        self.tokenizer = read_tokenizer(folder)
        self.model = make_features_model(backbone, layers, pooling)

    def pose(self, item: Any) -> TextExample:
        has_parts = isinstance(item, list | tuple | Mapping)
        return pose_texts(item, is_pair=has_parts and len(item) == 2)

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
