"""What cannot end well is refused before any work: one line, no new file, no backend, no Beam, no server."""

import pytest

from flows.pipeline import bert_pipeline, evaluate, finetune, preprocess, pretrain
from tests.checks.preflight.refused import assert_refused

PROBED = "{pooling: bag_of_words, head_start: probe"
# overrides of a configuration that is right → words of the message
WRONG_SETTINGS = {
    "task.train=nope.tsv": "A table must be a file. Received: .*nope.tsv",
    "task.dev=nope.tsv": "A table must be a file. Received: .*nope.tsv",
    "task.extra_dev.more=nope.tsv": "A table must be a file. Received: .*nope.tsv",
    "task.train=headless.tsv": "must have the columns asked for. .*put names above it, or turn `header` off for all",
    "task.dev=headless.tsv": "must have the columns asked for",
    "task.text=sentence": "must have the columns asked for. Received: 'sentence'",
    "task.label=class": "must have the columns asked for. Received: 'class'",
    "task.dev=odd.tsv": "row 3: a label must be one that the training table has. Received: 'maybe'",
    "task.extra_dev.more=odd.tsv": "a label must be one that the training table has. Received: 'maybe'",
    "task.labels=[yes_, no_]": "a label must be",
    "task.train=one.tsv": "must have at least two labels",
    "task.train=empty.tsv": "must hold at least one example",
    "task.dev=ragged.tsv": "must have as many columns",
    "task.dev=blank.tsv": "must hold text",
    "task.dev=corpus.txt": "A table must end in",
    "evaluation.minimal_pairs=nope.jsonl": "A table must be a file. Received: .*nope.jsonl",
    "evaluation.minimal_pairs=train.tsv": "must end in .jsonl",
    "evaluation.minimal_pairs=odd_pairs.jsonl": "odd_pairs.jsonl, row 2: a minimal pair must have",
    "evaluation.minimal_pairs=long_pairs.jsonl": "row 1: `sentence_bad` must fit the model's 512 positions.*513",
    "evaluation.minimal_pairs_limit=0": "greater than or equal to 1",
    "evaluation.minimal_pairs=nowhere://bucket/p.jsonl": "remote address must begin with one of .*Received: nowhere://bucket/p",
    "task.train=nowhere://bucket/t.tsv": "remote address must begin with one of .*Received: nowhere://bucket/t",
    "corpus.input=none.txt": "must be a file, a folder or a glob that matches",
    "corpus.input=*.jsonl.gz": "must be a file, a folder or a glob that matches",
    "corpus.input=train.tsv": "A corpus file must end in",
    "corpus.input=[]": "at least 1 item",
    "corpus.input=one.txt": "two or more different documents to train on.*with 1 of 1 documents",
    "corpus.input=copies.txt": "two or more different documents to train on.*with 1 of 3 documents",
    "records.held_out_fraction=0.999": "two or more different documents to train on.*with 0 of 2 documents",
    "corpus.input=empty.txt": "all of it empty",
    "corpus.input=blank.txt": "blank lines only",
    "corpus.input=latin.txt": r"bytes in 1 line not UTF-8 \(.*latin.txt\).*iconv",
    "corpus={input: latin.txt}": "`corpus.input`: Input should be a valid list. Received: 'latin.txt'",
    "corpus={input: [latin.txt], strict: true}": "must be UTF-8. Received: line 1 of",
    "corpus.input=cut.txt.gz": "must be whole. Received: .*cut.txt.gz, damaged",
    "corpus.input=texts.jsonl": "not a JSON object with the text field",
    "corpus={input: [texts.jsonl], text_field: none}": "not a JSON object with the text field",
    "corpus.input=texts.parquet": "must have the column of text `text`.*columns of text are: body",
    "corpus={input: [texts.parquet], text_field: number}": "must have the column of text `number`",
    "records.max_predictions=128": "must be less than `sequence_length`.*max_predictions=128.*Try .*=19",
    "second_phase={sequence_length: 256, max_predictions: 300}": "max_predictions=300, sequence_length=256",
    "vocabulary.file=nope.txt": "The vocabulary must be a file",
    "vocabulary.file=vocab.txt": r"must hold .*without \[MASK\]",
    "runs=dangling": "link that leads nowhere",
    "runs=dangling/below": "link that leads nowhere",
    "runs=corpus.txt": "must be a folder",
    "runs=loop": "link that leads nowhere",
    "runs=" + "x" * 300: "must be short enough",
    "runs=hdfs://bucket/runs": "must name the host and the port of WebHDFS. Received: hdfs://bucket/runs",
    "model.family=gpt": "A family must be one of .*bert.*Received: 'gpt'",
    "model.family=roberta": "must have no sentence task for the family roberta. Received: mlm_nsp. Use mlm",
    "model.options={embedding_dim: 8}": "must be fields of the family bert: num_segments.*Received: embedding_dim",
    "model={family: albert, size: tiny, options: {num_groups: 3}}": "`num_groups` must be from 1 to `num_layers`",
    "model={family: distilbert, options: {layer_norm_epsilon: 0.1}}": "of the family distilbert.*Received: layer",
    "records.objective=rtd": "must be one of electra for the objective rtd. Received: bert",
    "distillation={student: {size: mini}}": "of one width to be compared. Received: hidden_dim=256, the teacher's 768",
    "distillation={start: teacher, student: {size: base, num_layers: 13}}": "Received: 13 blocks for 12 layers",
    "distillation={attention_score_weight: 1, student: {num_heads: 6}}": "Received: num_heads=6, the teacher's 12",
    "distillation={layer_state_weight: 1, student: {num_layers: 5}}": "divides its teacher's. Received: num_layers=5",
    "distillation={teacher: nope}": "must hold config.json. Received: .*nope",
    "distillation={student: {max_positions: 64}}": "must be at most `distillation.student.max_positions`",
    "distillation={soft_target_weight: 0, masked_lm_weight: 0, hidden_state_weight: 0}": "must learn from something",
    "model.num_heads=5": "`hidden_dim` must be divisible by `num_heads`",
    "distribution.devices=3": "Each device must get as many sequences",
    "pretraining.scan_layers=true": "`pretraining.scan_layers` needs jax. Received: backend=torch",
    "distribution.kind=tpu": "needs jax or tensorflow. Received: backend=torch",
    "distribution.kind=data_parallel": "With torch each device needs a process",
    "distribution.devices=2": "With torch each device needs a process",
    "distribution={kind: model_parallel, model_parallel: 2}": "needs jax. Received: backend=torch",
    "finetuning.seeds=-1": "greater than or equal to 0",
    "finetuning.seeds=[4294967296]": "less than 4294967296",
    "seed=4294967296": "less than 4294967296",
    "pretraining.learning_rate=.inf": "finite number",
    "finetuning.learning_rate=.nan": "finite number",
    "pretraining.batch_size=1000000000000": "less than or equal to 1048576",
    "vocabulary.size=1000000000000": "less than or equal to 10000000",
    "records.shards=1000000000000": "less than or equal to 100000",
    "model.num_layers=1000000000": "less than or equal to 1000",
    "model.hidden_dim=1000000000": "less than or equal to 65536",
    "finetuning.epochs=1000000000000": "less than or equal to 100000",
    "finetuning.max_train_examples=99999999999999999999": "less than or equal to 1000000000000",
    "corpus.input=''": "glob that matches. Received: ''",
    "runs=new/../../../../../../../../../../proc": "a folder that takes new files",
    "finetuning.seeds=[1, 1]": "must name each seed once",
    "finetuning.sequence_length=1000": "must be at most `model.max_positions`",
    "pretraining.warmup_steps=9999999": "must be at most `total_steps`",
    "pretraining.sequence_length=16": "pairs cannot be cut. Received: 16, records of 128 tokens, objective mlm_nsp",
    "pretraining.sequence_length=1000": "must be at most `model.max_positions`",
    "finetuning.pooling=bag_of_words": "must go on from pre-training.*Received: pretraining.bag_of_words=0",
    "finetuning={label_words: {'no': [bad], 'yes': [good]}}": "must go with .*pooling=None, head_start=random",
    f"finetuning={PROBED}, label_words: {{'no': [bad], 'yes': []}}}}": "must have a word for each class.*'yes'",
    f"finetuning={PROBED}, label_words: {{'no': [bad]}}}}": "at least 2 items",
    "task={kind: regression, train: numbers.tsv, dev: numbers.tsv}": "numbers.tsv, row 3",
    "task={kind: token_classification, train: tags.conll, dev: odd.conll}": "ODD",
    "task={kind: question_answering, train: broken.json, dev: broken.json}": "must be JSON",
    "task={kind: multiple_choice, train: choices.csv, dev: choices.csv}": "Received: 'ending3'",
    "task={kind: multi_label, train: names.tsv, dev: odd_names.tsv}": "'z'",
    "task={kind: sentence_embedding, train: train.tsv, dev: train.tsv}": "Received: 'text_pair'",
}


@pytest.mark.parametrize(("setting", "words"), WRONG_SETTINGS.items(), ids=lambda value: value[:50])
def test_run_refuses_before_work(setting, words, place, capsys):
    assert_refused(["run", "run.yaml", "--set", setting], words, place, capsys)


def test_label_words_are_looked_up_in_a_vocabulary_that_is_there(place, capsys):
    words = f"finetuning={PROBED}, label_words: {{'no': [a], 'yes': [b]}}}}"
    settings = ["vocabulary.file=good_vocab.txt", "pretraining.bag_of_words=1", words]
    arguments = ["run", "run.yaml", *(part for setting in settings for part in ("--set", setting))]
    assert_refused(arguments, "that the vocabulary has whole. Received: b for 'yes'", place, capsys)


@pytest.mark.parametrize(
    ("flow", "setting", "words"),
    [
        (bert_pipeline, "task.train=nope.tsv", "A table must be a file"),
        (preprocess, "corpus.input=none.txt", "glob that matches"),
        (pretrain, "model.num_heads=5", "divisible"),
        (finetune, "task.dev=odd.tsv", "'maybe'"),
        (finetune, "finetuning.sequence_length=1000", "must be at most `model.max_positions`"),
        (evaluate, "task.extra_dev.more=nope.tsv", "A table must be a file"),
        (evaluate, "evaluation.minimal_pairs=odd_pairs.jsonl", "row 2: a minimal pair"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_flows_refuse_before_their_first_stage(flow, setting, words, place):
    before = sorted(place.rglob("*"))
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        flow.fn("run.yaml", overrides=(setting,))
    assert sorted(place.rglob("*")) == before


def test_missing_packages_are_named_together(place, monkeypatch, capsys):
    missing = {"prefect", "apache_beam"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else name)
    words = r"prefect, apache_beam, not installed. pip install 'keras-bert-flow\[beam,flows\]'"
    assert_refused(["run", "run.yaml"], words, place, capsys)
