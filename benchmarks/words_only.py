"""Print what a corpus knows of a task beyond its labels, by linear models without word order, as a Markdown table.

    python benchmarks/words_only.py --config configs/wiki_sst2.yaml --vocab vocab.txt

Logistic regression on which pieces a text has, on the mean of their vectors, and on both. The vectors are the singular
vectors of the pieces' positive pointwise mutual information in the corpus, five pieces around (Levy and Goldberg 2014,
"Neural word embedding as implicit matrix factorization"). Where both together are no better than the pieces alone,
the corpus holds little of what the task asks for. Each gets the best of its regularisations, so all are flattered.
Below stands how many words could be known from the corpus alone: those of no text with a label.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse as sparse
from scipy.sparse.linalg import svds
from sklearn.linear_model import LogisticRegression

from keras_bert_flow.config_file import load_config
from keras_bert_flow.tasks.tables import label_ids, label_names, read_table
from keras_bert_flow.text.documents import ReadingRule, read_documents
from keras_bert_flow.text.normalization import normalize_text
from keras_bert_flow.text.tokenizer import WordPieceTokenizer

NEIGHBOURS, DIMENSIONS = 5, 256
SEEN_OFTEN = 10
CONTEXT_POWER = 0.75  # flattens the frequencies of contexts: Levy, Goldberg and Dagan 2015, section 3.1
REGULARISATIONS = (0.01, 0.03, 0.1, 0.3, 1.0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="YAML whose sections `corpus` and `task` count")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--vocab", required=True, help="vocab.txt, uncased")
    parser.add_argument("--examples", type=int, nargs="+", default=[200, 1000, 7000], help="labels to learn from")
    return parser.parse_args()


def read_lines(paths: Sequence[str]) -> list[str]:
    rule = ReadingRule(split_lines=False)
    documents = (document for path in paths for document in read_documents(path, rule))
    return [line for document in documents for line in document.sentences]


def learn_vectors(documents: Sequence[np.ndarray], vocabulary_size: int) -> np.ndarray:
    """Return a vector for each piece, (vocabulary, DIMENSIONS); near pieces count more."""
    counts = sparse.csr_matrix((vocabulary_size, vocabulary_size))
    for distance in range(1, NEIGHBOURS + 1):
        left = np.concatenate([ids[:-distance] for ids in documents if len(ids) > distance])
        right = np.concatenate([ids[distance:] for ids in documents if len(ids) > distance])
        weights = np.full(len(left), 1 / distance)
        counts += sparse.csr_matrix((weights, (left, right)), shape=counts.shape)
    counts = (counts + counts.T).tocoo()
    totals = np.asarray(counts.sum(axis=1)).ravel()
    contexts = totals**CONTEXT_POWER / (totals**CONTEXT_POWER).sum()
    information = np.log(counts.data / (totals[counts.row] * contexts[counts.col]))
    kept = information > 0
    matrix = sparse.csr_matrix((information[kept], (counts.row[kept], counts.col[kept])), shape=counts.shape)
    left_vectors, sizes, _ = svds(matrix, DIMENSIONS, random_state=0)
    vectors = left_vectors * np.sqrt(sizes)
    return vectors / vectors.std()


def mark_pieces(texts: Sequence[np.ndarray], vocabulary_size: int) -> sparse.csr_matrix:
    """Return 1 where a text has a piece, (texts, vocabulary)."""
    pieces = [np.unique(ids) for ids in texts]
    ends = np.cumsum([0, *map(len, pieces)])
    return sparse.csr_matrix((np.ones(ends[-1]), np.concatenate(pieces), ends), shape=(len(texts), vocabulary_size))


def best_accuracy(train, train_labels, dev, dev_labels) -> float:
    models = [LogisticRegression(C=strength, max_iter=2000) for strength in REGULARISATIONS]
    return max(model.fit(train, train_labels).score(dev, dev_labels) for model in models)


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
    config = load_config(arguments.config, arguments.set)
    tokenizer = WordPieceTokenizer.from_file(arguments.vocab)
    lines = read_lines(config.corpus.input)
    vectors = learn_vectors(tokenizer.encode_batch(lines), tokenizer.vocabulary_size)
    tables = [read_table(path, **config.task.columns) for path in (config.task.train, config.task.dev)]
    names = label_names(tables[0])
    labels = [label_ids(table, names) for table in tables]
    pieces, means = [], []
    for table in tables:
        texts = tokenizer.encode_batch(table.texts)
        pieces.append(mark_pieces(texts, tokenizer.vocabulary_size))
        means.append(sparse.csr_matrix(np.stack([vectors[ids].mean(axis=0) for ids in texts])))
    both = [sparse.hstack(pair).tocsr() for pair in zip(pieces, means, strict=True)]
    print("| labels | its pieces % | vectors of the corpus % | both % |", "|---:|---:|---:|---:|", sep="\n", flush=True)
    for examples in arguments.examples:
        train_labels = labels[0][:examples]
        scores = [best_accuracy(train[:examples], train_labels, dev, labels[1]) for train, dev in (pieces, means, both)]
        cells = " | ".join(f"{100 * score:.1f}" for score in scores)
        print(f"| {len(train_labels):,} | {cells} |", flush=True)
    print("\n" + describe_new_words(tables[0].texts, tables[1].texts, lines))


if __name__ == "__main__":
    main()
