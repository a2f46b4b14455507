"""Pre-training opens the manifest and the vocabulary of its records once, between its check and its last step."""

import pytest

from keras_bert_flow.checks.stages import check_pretraining_stage
from keras_bert_flow.data.pretraining_records import RecordsFolder
from keras_bert_flow.results.publishing import holding_inputs
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.opened import counting_opens
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records


@pytest.mark.any_backend
@pytest.mark.any_backend
def test_pretraining_opens_manifest_and_vocabulary_once(tmp_path):
    folder, output = write_tiny_records(tmp_path / "records"), tmp_path / "out"
    config = make_tiny_config(total_steps=2, warmup_steps=1)
    with counting_opens(folder) as opened, holding_inputs():
        records = check_pretraining_stage(config, folder, None, output)
        pretrain(config, records, output, report=lambda line: None)
    assert opened["manifest.json"] == 2  # once for its lock, which keeps `kbf runs gc` from removing the folder
    assert opened["vocab.txt"] == 1
    assert (output / "model" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()


def test_a_changed_tokenizer_is_parsed_again(tmp_path):
    records = RecordsFolder(write_tiny_records(tmp_path / "records"))
    assert records.tokenizer is records.tokenizer
    path = records.folder / "vocab.txt"
    pieces = path.read_text().replace("word49", "other")
    path.unlink()
    path.write_text(pieces)
    assert records.tokenizer.pieces[49] == "other"
