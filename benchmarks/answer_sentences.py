"""Write a pair classification task made of SQuAD: does a sentence hold the answer to a question?

    python -m benchmarks.answer_sentences --input train-v1.1.json --rows 3700 --output train.tsv
    python -m benchmarks.answer_sentences --input dev-v1.1.json --rows 1700 --output dev.tsv

A pair is a question with a sentence of its context. Half of the pairs, label 1, have the sentence that holds the first
answer; the others, label 0, have another sentence of the same context, drawn at random, as in QNLI (Wang et al. 2019,
arXiv:1804.07461, section 3.3). Questions are drawn at random, each once. The table has a header: question, sentence,
label. SQuAD's own files share no article, so two of them make a training and a dev table.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

from keras_bert_flow.tasks.formats.squad import ContextQuestion, read_questions
from keras_bert_flow.text.corpus.documents import split_sentences

HEADER = ("question", "sentence", "label")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", required=True, help="questions in SQuAD's format")
    parser.add_argument("--rows", required=True, type=int, help="pairs to write")
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--output", required=True, type=Path, help="table to write, .tsv")
    return parser.parse_args()


def sort_sentences(asked: ContextQuestion) -> tuple[list[str], list[str]]:
    """Return the sentences of a context that hold the first answer, one at most, and the others.

    A sentence in which the words of the answer stand by chance counts as neither.
    """
    answer, start, holding, others = asked.answers[0], 0, [], []
    for sentence in split_sentences(asked.context):
        start = asked.context.index(sentence, start)
        if start <= answer.start and answer.start + len(answer.text) <= start + len(sentence):
            holding.append(sentence)
        elif answer.text not in sentence:
            others.append(sentence)
        start += len(sentence)
    return holding, others


def make_pairs(questions: tuple[ContextQuestion, ...], rows: int, rng: np.random.Generator) -> list[tuple]:
    """Return so many rows of `HEADER`, half of either label."""
    pairs = []
    for number in rng.permutation(len(questions)):
        asked = questions[number]
        holding, others = sort_sentences(asked)
        if len(pairs) == rows:
            break
        if holding and others:
            label = len(pairs) % 2
            sentence = holding[0] if label else others[rng.integers(len(others))]
            pairs.append((" ".join(asked.question.split()), " ".join(sentence.split()), label))
    if len(pairs) < rows:
        raise SystemExit(f"The file must have enough questions. Received: {len(pairs)} pairs for {rows} rows.")
    return pairs


def main() -> None:
    arguments = parse_arguments()
    pairs = make_pairs(read_questions(arguments.input), arguments.rows, np.random.default_rng(arguments.seed))
    with arguments.output.open("w", encoding="utf-8", newline="") as table:
        csv.writer(table, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n").writerows(
            [HEADER, *pairs]
        )


if __name__ == "__main__":
    main()
