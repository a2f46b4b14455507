"""A probe that begins from words for the classes: by scikit-learn on transformers' vectors, and refusals."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.model_directory import load_task_model, save_model_directory
from keras_bert_flow.data.tasks import predict_features
from keras_bert_flow.models.pretraining.bag_of_words import BagOfWordsPretrainer
from keras_bert_flow.tasks.baselines import linear_head
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.tokenizers.loaded import LoadedTokenizer
from keras_bert_flow.text.vocabulary import write_vocabulary
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.finetuning.starts import LinearProbe
from keras_bert_flow.training.finetuning.task_data import describe_left_out, find_label_words, read_task_data
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.numpy_bert import randomise_weights
from tests.oracles.other_tokenizers import make_byte_level
from tests.oracles.tiny_records import make_tiny_config
from tests.tasks.kinds import LETTERS, TOKENIZER
from tests.training.finetune_cases import LENGTH
from tests.training.test_linear_probe import SEED, STRENGTHS, TOLERANCE, draw_examples

WORDS = {"no": ("a", "b"), "yes": ("p",)}
IDS = [[5, 6], [20]]


@pytest.fixture
def pretrained(tmp_path):
    """Write a model that was pre-trained with a bag of words, with random weights; return its directory."""
    write_vocabulary(tmp_path / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
    shape = make_tiny_config({"max_positions": LENGTH}).model
    model = BagOfWordsPretrainer(make_pretrainer(shape, 5 + len(LETTERS)))
    randomise_weights(model, 7)
    save_model_directory(model, tmp_path / "model", tmp_path / "vocab.txt")
    return tmp_path / "model"


def pool_with_transformers(folder, features):
    """Return the vectors of texts, and the embeddings of tokens, float64, (rows, hidden), one text at a time."""
    torch = pytest.importorskip("torch", reason="the reference needs torch")
    transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
    encoder = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tensors = transformers.modeling_utils.load_state_dict(folder / "model.safetensors")
    head, prefix = (
        transformers.models.bert.modeling_bert.BertPredictionHeadTransform(encoder.config),
        "cls.words.transform.",
    )
    head.load_state_dict({name.removeprefix(prefix): tensors[name] for name in tensors if prefix in name})
    with torch.no_grad():
        found = [head(encoder(torch.tensor(ids[None]).long())[0].mean(1))[0] for ids in features.token_ids]
    table = encoder.get_input_embeddings().weight.detach().numpy()
    return np.stack(found).astype(np.float64), table.astype(np.float64)


def spread(vectors):
    return np.sqrt(np.square(vectors - vectors.mean(axis=0)).sum(axis=1).mean())


@pytest.mark.slow
@pytest.mark.any_backend
def test_probe_is_fitted_to_vectors_and_their_products_with_the_words(pretrained, tmp_path):
    examples = draw_examples("two")
    task = make_task("classification").learn(examples)
    features = task.encode(TOKENIZER, examples, LENGTH)
    model = load_task_model("classification", pretrained, labels=task.labels, pooling="bag_of_words")
    LinearProbe(model, "classification", IDS).start_head(features, 4, SEED)
    vectors, table = pool_with_transformers(pretrained, features)
    products = vectors @ np.stack([table[ids].mean(axis=0) for ids in IDS], axis=1)
    products -= products.mean(axis=1, keepdims=True)
    both = np.concatenate([vectors / spread(vectors), products / spread(products)], axis=1)
    found = softmax(predict_features(model, features)["logits"], axis=1)

    def fit(strength):
        model = LogisticRegression(C=strength / spread(both) ** 2, solver="newton-cholesky", tol=1e-9)
        return model.fit(both, features.labels["logits"]).predict_proba(both)

    distances = [np.abs(fit(strength) - found).max() for strength in STRENGTHS]
    assert min(distances) < TOLERANCE, distances
    assert np.ptp(found[:, 0]) > 0.3  # it has learnt something
    LinearProbe(model, "classification").start_head(features, 4, SEED)
    without = softmax(predict_features(model, features)["logits"], axis=1)
    assert np.abs(without - found).max() > 0.01


@pytest.mark.any_backend
def test_few_labels_draw_the_head_to_the_words(pretrained, monkeypatch):
    """Of two rows, most directions tell them apart; with words the head takes theirs, whose sign the labels give."""
    monkeypatch.setattr(linear_head, "MOVED", 0.0)  # the vectors of so small an encoder are nearly equal
    examples = draw_examples("two")
    pair = [next(example for example in examples if example.label == label) for label in ("no", "yes")]
    task = make_task("classification").learn(pair)
    model = load_task_model("classification", pretrained, labels=task.labels, pooling="bag_of_words")
    table = read_variable(model.backbone.token_embedding.embeddings)
    direction = table[20] - table[[5, 6]].mean(axis=0)
    cosines = []
    for words in (IDS, []):
        LinearProbe(model, "classification", words).start_head(task.encode(TOKENIZER, pair, LENGTH), 4, SEED)
        difference = read_variable(model.get_layer("classifier").kernel) @ [-1.0, 1.0]
        cosines.append(abs(direction @ difference) / np.linalg.norm(direction) / np.linalg.norm(difference))
    assert cosines[0] > 0.9 and cosines[1] < 0.5, cosines


@pytest.mark.any_backend
def test_words_are_found_in_the_order_of_the_classes():
    assert find_label_words(WORDS, ("no", "yes"), TOKENIZER) == IDS
    assert find_label_words(WORDS, ("yes", "no"), TOKENIZER) == IDS[::-1]
    assert find_label_words({"no": ("ab", "a"), "yes": ("p",)}, ("no", "yes"), TOKENIZER) == [[5], [20]]
    assert find_label_words(None, ("no", "yes"), TOKENIZER) == []


@pytest.mark.any_backend
def test_words_are_found_as_they_stand_in_a_text():
    tokenizer = LoadedTokenizer(make_byte_level().to_str())
    (found,), (other,) = find_label_words({"no": ("early",), "yes": ("owner",)}, ("no", "yes"), tokenizer)
    assert [tokenizer.pieces[found], tokenizer.pieces[other]] == ["Ġearly", "Ġowner"]


@pytest.mark.any_backend
def test_words_left_out_are_named(tmp_path, caplog):
    (tmp_path / "table.tsv").write_text("text\tlabel\na b\tno\np o\tyes\n")
    task = {"train": str(tmp_path / "table.tsv"), "dev": str(tmp_path / "table.tsv")}
    words = {"no": ("ab", "a"), "yes": ("p", "ré")}
    settings = {"pooling": "bag_of_words", "head_start": "probe", "sequence_length": LENGTH, "label_words": words}
    read_task_data(PipelineConfig(task=task, finetuning=settings), TOKENIZER)
    assert caplog.messages[1:] == ["`finetuning.label_words`: ab, ré: not whole in the vocabulary, so not used."]
    assert describe_left_out(WORDS, TOKENIZER) is None and describe_left_out(None, TOKENIZER) is None


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"no": ("a",), "maybe": ("b",)}, "must name the classes of the task. Received: no, maybe, of no, yes"),
        ({"no": ("a",)}, "must name the classes of the task"),
        ({"no": ("ab",), "yes": ("p",)}, "must have a word .* that the vocabulary has whole. Received: ab for 'no'"),
    ],
)
def test_words_that_do_not_fit_are_refused_before_training(pretrained, tmp_path, words, message):
    table = tmp_path / "table.tsv"
    table.write_text("text\tlabel\na b\tno\np o\tyes\n")
    task = {"train": str(table), "dev": str(table)}
    settings = {"pooling": "bag_of_words", "head_start": "probe", "sequence_length": LENGTH}
    if len(words) < 2:
        words = words | {"other": ("b",)}
    config = PipelineConfig(task=task, finetuning=settings | {"label_words": words})
    with pytest.raises(ValueError, match=message) as caught:
        finetune(config, pretrained, tmp_path / "out")
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()
