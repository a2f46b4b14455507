"""Questions for tests: a tokenizer of letters and a few words, and contexts written with them."""

from keras_bert_flow.tasks.formats.squad import Answer, ContextQuestion
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

LETTERS = [*"abcdefghijklmnopqrstuvwxyz"]
PIECES = [
    *SPECIAL_PIECES,
    *LETTERS,
    *(f"##{x}" for x in LETTERS),
    "who",
    "ran",
    "home",
    ",",
    "?",
]
TOKENIZER = WordPieceTokenizer(PIECES)


def ask(context, *answers, question="Who?", is_impossible=False, name="q"):
    golds = tuple(Answer(text, context.index(text)) for text in answers)
    return ContextQuestion(name, question, context, golds, is_impossible)


def pieces_of(row):
    return " ".join(PIECES[piece_id] for piece_id in row)
