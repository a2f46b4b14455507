"""A converted model has the `tokenizer.json` that fast readers want, also where the source has a `vocab.txt` alone."""

import json

import pytest

from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from tests.oracles.tiny_model import write_tiny_model

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize("cased", [True, False])
def test_vocabulary_alone_gets_a_tokenizer_for_fast_readers(tmp_path, cased):
    transformers = pytest.importorskip("transformers")
    old = write_tiny_model(tmp_path / "old")
    (old / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": not cased}))
    (old / "tokenizer.json").unlink(missing_ok=True)
    done = convert(old, tmp_path / "new", dtype="float16")
    assert done.remarks[-1] == "tokenizer.json new, of vocab.txt"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "new" / "tokenizer.json"))
    ours = WordPieceTokenizer.from_file(old / "vocab.txt", cased=cased)
    for text in ("a b", "A B"):
        assert tokenizer.encode(text, add_special_tokens=False) == list(ours.encode(text))
    assert convert(tmp_path / "new", tmp_path / "again", dtype="bfloat16").remarks == ("numbers rounded to bfloat16",)
