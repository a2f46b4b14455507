"""A format whose file is refused, or gives other numbers than the model, is an error and leaves nothing."""

import json

import numpy as np
import pytest

from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.export import comparison, format
from keras_bert_flow.export.comparison import SENTENCES, make_batches
from keras_bert_flow.export.export_model import export_model
from keras_bert_flow.export.format import ExportFormat
from keras_bert_flow.export.request import check_max_changed
from keras_bert_flow.export.served_model import load_served
from tests.oracles.exported_models import save_kind

MODELS = []  # that the format below has written


class Changed(ExportFormat):
    """A format that computes with the model itself and changes what comes out."""

    title = "Changed"
    file = "changed.bin"
    runtime = "numpy"
    packages = {"torch": ("numpy",), "tensorflow": ("numpy",), "jax": ("numpy",)}
    refusals = {}
    change = staticmethod(lambda found, inputs: found)

    def write(self, model, path, int8):
        path.write_bytes(b"changed")
        MODELS.append(model)

    def load(self, path, threads=None):
        assert path.read_bytes() == b"changed"

        def run(inputs):
            assert all(ids.dtype == np.int64 for ids in inputs.values())
            given = {name: ids.astype(np.int32) for name, ids in inputs.items()}
            found = MODELS[-1].model.predict_on_batch(given)
            return self.change({name: np.array(values) for name, values in found.items()}, inputs)

        return run


@pytest.fixture
def changed(monkeypatch, tmp_path):
    """Return a function that exports a classifier whose outputs are changed so."""
    monkeypatch.setitem(format.FORMATS, "changed", f"{__name__}:Changed")
    model = save_kind("classification", tmp_path)

    def export(change, int8=False, **options):
        monkeypatch.setattr(Changed, "change", staticmethod(change))
        return export_model(model, tmp_path / "out", "changed", int8, **options)

    return export


def add(amount, rows_above=0):
    """Return a change that adds an amount to one number, in batches of more than so many rows."""

    def change(found, inputs):
        if len(inputs["input_ids"]) > rows_above:
            found["logits"][-1, 1] += amount
        return found

    return change


def refuse(found, inputs):
    raise RuntimeError("no such\nkernel")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add(1e-4), r"logits off by 1\.0e-04, at most .*, in 1 texts of 4 tokens"),
        (add(1e-4, rows_above=39), r"logits off by 1\.0e-04, at most .*, in 40 texts of"),
        (add(np.nan), "logits off by nan"),
        (lambda found, inputs: {}, "logits of the shape none"),
        (lambda found, inputs: {"logits": found["logits"][:, :2]}, r"logits of the shape \(1, 2\), not \(1, 3\)"),
        (refuse, "must run in its runtime. Received: Changed, refused: no such kernel. Try another"),
    ],
)
def test_other_outputs_are_refused_and_nothing_is_published(change, message, changed, tmp_path):
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=message) as caught:
        changed(change)
    assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} - before <= {".out.lock"}


def test_differences_are_measured(changed, tmp_path):
    done = changed(add(4e-6))
    assert done.largest_difference == pytest.approx(4e-6, rel=0.1)  # of numbers near 1, whose steps are 1e-7
    assert (done.texts, done.batches, done.agreement) == (63, 5, 1.0)
    written = json.loads((tmp_path / "out" / "export.json").read_text())
    assert written["comparison"]["largest_difference"] == done.largest_difference
    assert written["labels"] == ["O", "B-X", "I-X"]


def test_int8_may_differ_but_not_say_something_else(changed, tmp_path):
    """Outputs that are the same for every text, or those of another text, are no quantisation."""
    for change in (
        lambda found, inputs: {"logits": np.full_like(found["logits"], 0.5)},
        lambda found, inputs: {"logits": found["logits"][::-1]},
    ):
        with pytest.raises(ValueError, match="errors of .* of the outputs' standard deviation, at most 0.5"):
            changed(change, int8=True)
    done = changed(lambda found, inputs: {"logits": found["logits"] + 0.03}, int8=True)
    assert done.agreement == 1 and 0.01 < done.error < 0.5
    assert "tolerance" not in json.loads((tmp_path / "out" / "export.json").read_text())["comparison"]


def test_int8_that_changes_many_predictions_is_refused(changed, tmp_path, monkeypatch):
    """Of 63 texts, the two of a batch of 40 about which the model is most undecided change: 3.2 %."""
    monkeypatch.setattr(comparison, "MOST_INT8_ERROR", 10.0)  # random weights hardly distinguish texts

    def change(found, inputs):
        if len(logits := found["logits"]) == len(SENTENCES):
            order = logits.argsort(axis=1)
            first, second = order[:, -1:], order[:, -2:-1]
            margins = np.take_along_axis(logits, first, 1) - np.take_along_axis(logits, second, 1)
            for row in margins[:, 0].argsort()[:2]:
                logits[row, order[row, -2]] += margins[row, 0] + 1e-4
        return found

    with pytest.raises(ValueError, match=r"Changed with 2 of 63 changed \(3\.2%\), at most 3\.0%\. .* --max-changed"):
        changed(change, int8=True, max_changed=0.03)
    assert not (tmp_path / "out").exists()
    done = changed(change, int8=True)
    assert (done.changed, done.predictions) == (2, 63)
    assert json.loads((tmp_path / "out" / "export.json").read_text())["comparison"]["changed"] == 2
    for share, message in ((-0.1, "from 0 to 1"), (1.1, "from 0 to 1"), (float("nan"), "from 0 to 1")):
        with pytest.raises(ValueError, match=message):
            changed(change, int8=True, max_changed=share)
    with pytest.raises(ValueError, match="must be of int8"):
        check_max_changed(0.5, int8=False)


def test_batches_have_every_shape_that_is_served(tmp_path):
    folder = save_kind("classification", tmp_path)
    model = load_served(folder, "classification")
    batches = list(make_batches(model, read_tokenizer(folder)))
    rows = [len(batch["input_ids"]) for batch in batches]
    widths = [batch["input_ids"].shape[1] for batch in batches]
    assert rows == [1, 1, len(SENTENCES), len(SENTENCES) // 2, 1] and len(SENTENCES) >= 32
    assert len({*widths}) > 3 and max(widths) == model.axes["length"]
    many = batches[2]["attention_mask"].sum(axis=1)
    assert len({*many}) > 15 and many.max() < widths[2]
    assert not batches[2]["token_type_ids"].any() and batches[3]["token_type_ids"].any(axis=1).all()


def test_rows_of_several_texts_are_compared(tmp_path):
    folder = save_kind("multiple_choice", tmp_path)
    batches = list(make_batches(load_served(folder, "multiple_choice"), read_tokenizer(folder)))
    assert [batch["input_ids"].shape[:2] for batch in batches] == [(1, 2), (1, 2), (20, 2), (10, 2), (1, 2)]
    assert all((batch["input_ids"][:, 0] != batch["input_ids"][:, 1]).any(axis=1).all() for batch in batches)
