"""The card of a saved model has valid front matter of the Hub, says what the model is, and how it is loaded."""

import re
from contextlib import nullcontext

import pytest

import keras_bert_flow as kbf
from keras_bert_flow.conversion.model_card import Card
from keras_bert_flow.conversion.model_directory import load_task_model, save_model_directory
from tests.oracles.adapters import save_base
from tests.oracles.small_bert import SMALL
from tests.oracles.task_models import CASES, make_task_model

pytestmark = pytest.mark.any_backend

TASKS = {
    "classification": "text-classification",
    "regression": "text-classification",
    "multi_label": "text-classification",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
    "multiple_choice": "multiple-choice",
    "embedding": "sentence-similarity",
    "sentence_embedding": "sentence-similarity",
    "cosine_pairs": "sentence-similarity",
}


def read_card(folder):
    hub = pytest.importorskip("huggingface_hub", reason="it reads cards")
    return hub.ModelCard((folder / "README.md").read_text())


@pytest.mark.parametrize("name", CASES)
def test_card_of_a_task_names_it(tmp_path, name):
    save_model_directory(make_task_model(name), tmp_path)
    card = read_card(tmp_path)
    assert card.data.pipeline_tag == TASKS[name]
    assert card.data.license == "unknown"
    assert card.data.tags == ["keras", "keras-bert-flow"]
    is_embedder = TASKS[name] == "sentence-similarity"
    assert card.data.library_name == ("sentence-transformers" if is_embedder else "transformers")


@pytest.mark.parametrize(
    ("make", "task"),
    [
        (lambda: kbf.BertBackbone(**SMALL), "feature-extraction"),
        (lambda: kbf.BertPretrainer(kbf.BertBackbone(**SMALL)), "fill-mask"),
        (lambda: kbf.MaskedLM(kbf.Backbone("distilbert", **SMALL, use_pooler=False)), "fill-mask"),
        (lambda: kbf.ReplacedTokenDetector(kbf.Backbone("electra", **SMALL)), "feature-extraction"),
    ],
)
def test_card_without_a_task_tells_what_it_can(tmp_path, make, task):
    save_model_directory(make(), tmp_path)
    assert read_card(tmp_path).data.pipeline_tag == task


@pytest.mark.parametrize(
    ("pooling", "theirs", "library"),
    [("cls", "BertForSequenceClassification", "transformers"), ("mean", "BertModel", "keras-bert-flow")],
)
def test_what_it_says_of_loading_is_true(tmp_path, pooling, theirs, library):
    """Each line is run as it stands, but for the name of the folder and the tokenizer, which has no vocabulary here."""
    transformers = pytest.importorskip("transformers")
    backbone = kbf.BertBackbone(**SMALL, use_pooler=pooling == "cls")
    save_model_directory(kbf.TextClassifier(backbone, num_classes=3, pooling=pooling), tmp_path)
    card = (tmp_path / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    loaded = [line for line in block.splitlines() if "from_pre" in line and "Tokenizer" not in line]
    models = [
        eval(line.replace("this folder", str(tmp_path)), {"keras_bert_flow": kbf, "transformers": transformers})
        for line in loaded
    ]
    assert [type(model).__name__ for model in models] == ["TextClassifier", theirs]
    assert ("answer at random" in card) == (pooling != "cls")
    assert read_card(tmp_path).data.library_name == library
    assert (read_card(tmp_path).data.pipeline_tag is None) == (pooling != "cls")
    with nullcontext() if pooling == "cls" else pytest.raises(RuntimeError, match="mismatched_sizes"):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path)


@pytest.mark.parametrize(("pooling", "library"), [("cls", "peft"), ("mean", "keras-bert-flow")])
def test_card_of_an_adapter_names_what_loads_it(tmp_path, pooling, library):
    model = load_task_model("classification", save_base(tmp_path / "base"), labels=["a", "b"], pooling=pooling)
    model.backbone.enable_lora(2)
    model.save_to_preset(tmp_path / "adapter", adapter_of=tmp_path / "base")
    card = read_card(tmp_path / "adapter")
    assert card.data.library_name == library
    assert ("PeftModel" in card.text) == (library == "peft") != ("answer at random" in card.text)


def test_a_run_adds_what_it_knows_and_text_stays_text(tmp_path):
    card = Card("a *model* | <b>", (("Data", [["rows", "7 | 8"]]), ("Nothing", [])))
    save_model_directory(kbf.BertBackbone(**SMALL), tmp_path, card=card)
    text = (tmp_path / "README.md").read_text()
    assert "\n# a \\*model\\* \\| &lt;b&gt;\n" in text
    assert "## Data\n\n|  |  |\n| --- | --- |\n| rows | 7 \\| 8 |\n" in text
    assert "Nothing" not in text
    assert read_card(tmp_path).data.license == "unknown"
