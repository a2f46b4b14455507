"""Print what a corpus knows of a task beyond its labels, by linear models without word order, as a Markdown table.

    python benchmarks/words_only.py --config configs/wiki_sst2.yaml --vocab vocab.txt

Logistic regression on which pieces a text has, on the mean of their vectors, and on both. The vectors are those from
co-occurrence in the corpus with which `pretraining.token_embeddings: co_occurrence` starts. Where both together
are no better than the pieces alone, the corpus holds little of what the task asks for. Where the configuration has
`finetuning.label_words`, there is a column for the mean vector beside its products with the vectors of these words, to
which a probe of the encoder is fitted as well. Each gets the regularisation with the least loss in cross-validation on
its training rows.

    ... --near-neighbours

The vectors are then those of near neighbours only, as Levy et al. 2015 have them, without the half of the columns that
whole texts give.

    ... --finetuned 200=out/few 6920=out/all

A second table then has, for each number of labels, the mean accuracy of the models that `kbf finetune` made, how far it
is above each linear model, and the standard error of that difference, of examples and seeds (`compare_models`).
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

import keras_bert_flow as kbf
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.evaluation.results import compare_models, draw_scores
from keras_bert_flow.tasks.baselines.linear_head import add_directions
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.corpus.documents import ReadingRule, read_documents
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.training.finetuning.task_data import find_label_words
from keras_bert_flow.training.pretraining.pretrainers import (
    PASSAGE_TOKENS,
    count_neighbours,
    find_token_vectors,
    make_token_vectors,
)

DIMENSIONS = 256
SEEN_OFTEN = 10
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # C of logistic regression
FOLDS = 5


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--config", required=True, help="YAML whose sections `corpus` and `task` count, and its label words"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--vocab", required=True, help="vocab.txt, uncased")
    parser.add_argument("--examples", type=int, nargs="+", default=[200, 1000, 7000], help="labels to learn from")
    parser.add_argument(
        "--finetuned", nargs="+", default=[], type=find_runs, metavar="LABELS=FOLDER", help="by `kbf finetune`"
    )
    parser.add_argument("--near-neighbours", action="store_true", help="make vectors of near neighbours only")
    return parser.parse_args()


def find_runs(text: str) -> tuple[int, list[Path]]:
    """Return the number of labels, and the models of the runs with them."""
    count, _, folder = text.partition("=")
    runs = sorted(Path(folder).glob("pretrained/seed-*/model"))
    if not count.isdecimal() or not runs:
        raise argparse.ArgumentTypeError(f"Must be labels=what `kbf finetune` made, such as 200=out/few. Got: {text}")
    return int(count), runs


def read_lines(paths: Sequence[str]) -> list[str]:
    rule = ReadingRule(split_lines=False)
    documents = (document for path in paths for document in read_documents(path, rule))
    return [line for document in documents for line in document.sentences]


def learn_vectors(lines: Sequence[np.ndarray], tokenizer: WordPieceTokenizer, is_near: bool) -> np.ndarray:
    """Return a vector for each piece, (vocabulary, DIMENSIONS), of length 0 where it has no neighbours."""
    parts = [line[start : start + PASSAGE_TOKENS] for line in lines for start in range(0, len(line), PASSAGE_TOKENS)]
    rows = np.stack([np.pad(part, (0, PASSAGE_TOKENS - len(part)), constant_values=tokenizer.pad_id) for part in parts])
    special = np.array(tokenizer.special_ids)
    if is_near:
        counts = count_neighbours([rows], tokenizer.vocabulary_size, special)
        found, piece_ids = find_token_vectors(counts, DIMENSIONS)
        found *= np.sqrt(DIMENSIONS) / np.linalg.norm(found, axis=1, keepdims=True)  # as large as the others
    else:
        found, piece_ids = make_token_vectors([rows], tokenizer.vocabulary_size, special, DIMENSIONS, seed=0)
    vectors = np.zeros((tokenizer.vocabulary_size, DIMENSIONS), np.float32)
    vectors[piece_ids] = found
    return vectors


def mark_pieces(texts: Sequence[np.ndarray], vocabulary_size: int) -> sparse.csr_matrix:
    """Return 1 where a text has a piece, (texts, vocabulary)."""
    pieces = [np.unique(ids) for ids in texts]
    ends = np.cumsum([0, *map(len, pieces)])
    return sparse.csr_matrix((np.ones(ends[-1]), np.concatenate(pieces), ends), shape=(len(texts), vocabulary_size))


def predict_labels(train, train_labels, dev) -> np.ndarray:
    grid = GridSearchCV(LogisticRegression(max_iter=2000), {"C": STRENGTHS}, scoring="neg_log_loss", cv=FOLDS)
    return grid.fit(train, train_labels).predict(dev)


def compare_runs(
    runs: Sequence[Path], texts: Sequence[str], labels: np.ndarray, linear: Mapping[str, np.ndarray]
) -> list[str]:
    """Return the cells of a row: the mean accuracy of the runs, and how far it is above each linear model.

    Args:
        runs: model directories.
        texts, labels: of the dev table.
        linear: linear model → which of its predictions are right, bool, (texts,).
    """
    answers = [[answer["label"] for answer in kbf.load(run).predict(texts)] for run in runs]
    right = {"runs": np.array(answers) == labels} | {kind: values[None] for kind, values in linear.items()}
    measures = {name: [partial(_take_mean, values) for values in rows] for name, rows in right.items()}
    seeds = {name: [place if name == "runs" else None for place in range(len(rows))] for name, rows in right.items()}
    compared = compare_models(measures, seeds, draw_scores(measures, len(labels)), len(labels), "runs")
    found = [(100 * each["difference"], 100 * each["standard_error"]) for each in compared.values()]
    return [f"{100 * right['runs'].mean():.1f}", *(f"{difference:+.1f} ± {error:.1f}" for difference, error in found)]


def _take_mean(values: np.ndarray, places: np.ndarray) -> float:
    return float(values[places].mean())


def describe_new_words(train: Sequence[str], dev: Sequence[str], lines: Sequence[str]) -> str:
    """Say how many words of the texts measured on are in none to learn from, and how many of those in the corpus."""
    learnt, measured, corpus = (Counter(_split_words(texts)) for texts in (train, dev, lines))
    new = {word: count for word, count in measured.items() if word not in learnt}
    known = sum(count for word, count in new.items() if corpus[word] >= SEEN_OFTEN)
    share, known_share = (100 * count / measured.total() for count in (sum(new.values()), known))
    return (
        f"{share:.1f} % of the words measured on are in no text to learn from; {known_share:.1f} % are not, but are "
        f"{SEEN_OFTEN} times or more in the corpus of {corpus.total():,} words."
    )


def _split_words(texts: Sequence[str]) -> Iterator[str]:
    return (word for text in texts for word in normalize_text(text, cased=False).split())


def main() -> None:
    arguments = parse_arguments()
    finetuned = dict(arguments.finetuned)
    if unknown := finetuned.keys() - set(arguments.examples):
        raise SystemExit(f"--finetuned must be of numbers in --examples. Received: {', '.join(map(str, unknown))}.")
    config = load_config(arguments.config, arguments.set)
    tokenizer = WordPieceTokenizer.from_file(arguments.vocab)
    lines = read_lines(config.corpus.input)
    vectors = learn_vectors(tokenizer.encode_batch(lines), tokenizer, arguments.near_neighbours)
    task = make_task(**config.task.arguments)
    tables = [task.read(path) for path in (config.task.train, config.task.dev)]
    labels = [np.array([example.label for example in table]) for table in tables]
    texts = [[example.text for example in table] for table in tables]
    pieces, means = [], []
    for encoded in map(tokenizer.encode_batch, texts):
        pieces.append(mark_pieces(encoded, tokenizer.vocabulary_size))
        means.append(np.stack([vectors[ids].mean(axis=0) for ids in encoded]))
    sparse_means = [sparse.csr_matrix(table) for table in means]
    both = [sparse.hstack(pair).tocsr() for pair in zip(pieces, sparse_means, strict=True)]
    kinds = {"its pieces": pieces, "vectors of the corpus": sparse_means, "both": both}
    if (words := config.finetuning.label_words) is not None:
        found = find_label_words(words, task.learn(tables[0]).labels, tokenizer)
        directions = np.stack([vectors[ids].mean(axis=0) for ids in found], axis=1)
        both_maps = add_directions(means[0], directions)
        kinds["vectors and label words"] = [sparse.csr_matrix(table @ both_maps) for table in means]
    print("| labels | " + " | ".join(f"{kind} %" for kind in kinds) + " |", "|---:" * (len(kinds) + 1) + "|", sep="\n")
    right = {}
    for examples in arguments.examples:
        train_labels = labels[0][:examples]
        guesses = {kind: predict_labels(train[:examples], train_labels, dev) for kind, (train, dev) in kinds.items()}
        right[examples] = {kind: labels_of_kind == labels[1] for kind, labels_of_kind in guesses.items()}
        cells = " | ".join(f"{100 * values.mean():.1f}" for values in right[examples].values())
        print(f"| {len(train_labels):,} | {cells} |", flush=True)
    if finetuned:
        print("\n| labels | fine-tuned % | " + " | ".join(f"above {kind}" for kind in kinds) + " |")
        print("|---:" * (len(kinds) + 2) + "|")
    for examples, runs in finetuned.items():
        print(f"| {examples:,} | " + " | ".join(compare_runs(runs, texts[1], labels[1], right[examples])) + " |")
    print("\n" + describe_new_words(*texts, lines))


if __name__ == "__main__":
    main()
