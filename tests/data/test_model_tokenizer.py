"""A model directory with `tokenizer.json` alone has the tokenizer that the `tokenizers` library reads from it."""

import json
import os
from pathlib import Path

import pytest
import tokenizers

from keras_bert_flow.data.model_tokenizer import read_tokenizer
from tests.oracles.tiny_model import check_directory
from tests.tasks.kinds import LETTERS
from tests.training.finetune_cases import finetune_case, write_tiny_model

pytestmark = pytest.mark.any_backend
DATA = os.environ.get("KBF_TEST_DATA")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]


def write_fast(folder, pieces, lowercase=True):
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    fast = tokenizers.implementations.BertWordPieceTokenizer(vocabulary, lowercase=lowercase)
    fast.save(str(folder / "tokenizer.json"))
    return fast


@pytest.mark.parametrize("cased", [False, True])
@pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
def test_fast_tokenizer_gives_the_ids_of_its_library(tmp_path, cased):
    name = f"vocab/{'cased' if cased else 'uncased'}_L-12_H-768_A-12.vocab.txt"
    fast = write_fast(tmp_path, Path(DATA, name).read_text(encoding="utf-8").removesuffix("\n").split("\n"), not cased)
    tokenizer = read_tokenizer(tmp_path)
    lines = Path(DATA, "corpus/wiki_en_dev.txt").read_text(encoding="utf-8").split("\n")[:200]
    for line in [*lines, "Ünïcödé 北京 x\u0301 A-b!"]:
        assert tokenizer.encode(line).tolist() == fast.encode(line, add_special_tokens=False).ids


def spoil(path, *names, value):
    content = json.loads(path.read_text())
    place = content
    for name in names[:-1]:
        place = place[name]
    place[names[-1]] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("names", "value", "message"),
    [
        (("model", "type"), "BPE", "no tokenizer \\("),
        (("model",), None, "no tokenizer \\("),
        (("model", "vocab"), {"[PAD]": 0, "a": 2}, "must number its pieces from 0"),
        (("model", "vocab"), ["a"], "must number its pieces from 0"),
        (("model", "vocab"), {"a": 0, "b": 1}, r"without \[PAD\]"),
        (("normalizer",), [], "no tokenizer \\("),
        (("normalizer", "lowercase"), 1, "no tokenizer \\("),
        (("pre_tokenizer", "type"), "ByteLevel", "no tokenizer \\("),
    ],
)
def test_other_tokenizers_are_refused_in_a_line(tmp_path, names, value, message):
    write_fast(tmp_path, PIECES)
    spoil(tmp_path / "tokenizer.json", *names, value=value)
    with pytest.raises(ValueError, match=message) as caught:
        read_tokenizer(tmp_path)
    assert "\n" not in str(caught.value) and "tokenizer.json" in str(caught.value)


def test_model_with_a_fast_tokenizer_is_fine_tuned(tmp_path):
    model = write_tiny_model(tmp_path)
    pieces = (model / "vocab.txt").read_text()
    (model / "vocab.txt").unlink()
    write_fast(model, pieces.split())
    finetune_case(model, tmp_path / "out", "classification", epochs=1)
    published = tmp_path / "out/pretrained/seed-1/model"
    assert (published / "vocab.txt").read_text() == pieces
    assert read_tokenizer(published).pieces == read_tokenizer(model).pieces
    spoil(model / "tokenizer.json", "model", "vocab", value={"[PAD]": 0})  # four more are added tokens
    with pytest.raises(ValueError, match="as many pieces as the model. Received: 5 pieces"):
        check_directory(model)
