"""Tokenizer files: read and compare tokenizers, and write WordPiece as a `tokenizer.json`.

A file is a `vocab.txt` for WordPiece, or a `tokenizer.json` for any tokenizer.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordPiece

from keras_bert_flow.files.documents import Read, read_file, read_json_object
from keras_bert_flow.text.tokenizers.loaded import LoadedTokenizer
from keras_bert_flow.text.tokenizers.settings import (
    ADDED_TOKENS,
    CASED,
    FAST_TOKENIZER,
    SPECIAL_MAP,
    Said,
    is_bert_pipeline,
    order_pieces,
    read_said,
)
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import PLAIN, SETTINGS, WordPieceTokenizer, WordRules
from keras_bert_flow.text.vocabulary import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    SPECIAL_PIECES,
    VOCABULARY_FILE,
    check_vocabulary,
    read_vocabulary,
)

UNK, CLS, SEP = "[UNK]", "[CLS]", "[SEP]"
CASED_SHARE = 0.01  # of pieces with capital letters: a vocabulary with more is taken to be cased


def find_tokenizer_file(folder: str | Path) -> Path:
    """Return the tokenizer file of a folder: `vocab.txt`, or without it `tokenizer.json`.

    If there is neither, it is `vocab.txt`, and reading it fails.
    """
    vocabulary, fast = Path(folder) / VOCABULARY_FILE, Path(folder) / FAST_TOKENIZER
    return fast if fast.is_file() and not vocabulary.is_file() else vocabulary


def read_tokenizer_file(path: str | Path, cased: bool | None = None, read: Read = read_file) -> Tokenizer:
    """Read a tokenizer from its file, with what the files beside it say; see `settings.read_said`.

    Args:
        path: a vocabulary with one piece per line, or a `tokenizer.json`.
        cased: whether WordPiece keeps case. None: as the files say, otherwise False. Other tokenizers define it
            themselves.
        read: as for `documents.read_json`.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, joins texts in another way than BERT, or is WordPiece with another value of `cased`.
    """
    path = Path(path)
    if (found := _read_word_piece(path, read)) is None:
        return LoadedTokenizer.from_file(path, read)
    vocabulary, said = found
    if said.cased is not None and cased not in (None, said.cased):
        raise ValueError(
            f"`cased` must be as the tokenizer has it. Received: {str(cased).lower()}, {path} of "
            f"{str(said.cased).lower()}, by {said.sources[CASED].name} beside it. Give --"
            f"{'cased' if said.cased else 'uncased'}, or set `vocabulary.cased`."
        )
    return WordPieceTokenizer(vocabulary, bool(said.cased if cased is None else cased), said.rules)


def read_word_piece(path: str | Path, cased: bool | None = None, read: Read = read_file) -> WordPieceTokenizer:
    """Read a `vocab.txt`, which is always WordPiece, as `read_tokenizer_file` does."""
    tokenizer = read_tokenizer_file(path, cased, read)
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise ValueError(f"A vocabulary must be a vocab.txt. Received: {path}, another tokenizer. Name the vocab.txt.")
    return tokenizer


def find_case(path: str | Path, given: bool | None) -> bool:
    """Return whether WordPiece keeps case: as given, or else as the files say; False for another tokenizer.

    Raises:
        FileNotFoundError, ValueError: as for `read_tokenizer_file`; or nothing says it, and the pieces have capitals.
    """
    if given is not None or (found := _read_word_piece(Path(path))) is None:
        return bool(given)
    vocabulary, said = found
    # Special and unused pieces aside.
    ordinary = [piece for piece in vocabulary if not (piece.startswith("[") and piece.endswith("]"))]
    capitals = sum(piece != piece.lower() for piece in ordinary)
    if said.cased is None and capitals > CASED_SHARE * len(ordinary):
        raise ValueError(
            f"It must be known whether a vocabulary keeps case. Received: {path}, with capital letters, and nothing "
            "beside it says so. Give --cased or --uncased, or set `vocabulary.cased`."
        )
    return bool(said.cased)


def list_tokenizer_files(path: str | Path) -> list[Path]:
    """Return the files of a tokenizer: this one, and those beside it that say something of it."""
    beside = (Path(path).with_name(name) for name in (SETTINGS, FAST_TOKENIZER, SPECIAL_MAP, ADDED_TOKENS))
    return [Path(path), *(file for file in beside if file.is_file() and file != Path(path))]


def copy_tokenizer(path: str | Path, cased: bool, folder: Path, read: Read = read_file) -> None:
    """Copy a tokenizer into a folder: `vocab.txt` unchanged with what it does not hold, or a `tokenizer.json`."""
    tokenizer = read_tokenizer_file(path, cased, read)
    if Path(path).suffix != ".json" and isinstance(tokenizer, WordPieceTokenizer):
        (folder / VOCABULARY_FILE).write_bytes(read(Path(path), -1))
        tokenizer.write_rules(folder)
    else:
        tokenizer.write(folder)


def describe_rules(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what keys and manifests say of a WordPiece tokenizer besides its case; {} if it is as the original."""
    rules = tokenizer.rules.describe() if isinstance(tokenizer, WordPieceTokenizer) else {}
    return {"tokenizer": rules} if rules else {}


def describe_beside(path: str | Path) -> dict[str, Any]:
    """Return what a key must hold besides the digest of a tokenizer file: what other files say of a `vocab.txt`."""
    if Path(path).suffix == ".json" or len(list_tokenizer_files(path)) == 1:
        return {}
    return describe_rules(read_tokenizer_file(path))


def find_difference(mine: Tokenizer, other: Tokenizer) -> str | None:
    """Return what two tokenizers do differently, for a message; None if they give every text the same ids."""
    facts, others = mine.describe(), other.describe()
    if (name := next((name for name in {**facts, **others} if facts.get(name) != others.get(name)), None)) is None:
        return "other pieces" if mine.pieces != other.pieces else None
    if mine.pieces != other.pieces:
        return "other pieces"
    values = [str(values.get(name)) for values in (facts, others)]
    return f"`{name}` {' and '.join(values)}" if max(map(len, values)) < 40 else f"another `{name}`"


def _read_word_piece(path: Path, read: Read = read_file) -> tuple[tuple[str, ...], Said] | None:
    """Return the pieces of a WordPiece file, and what the files say of it; None for another tokenizer."""
    if path.suffix != ".json":
        vocabulary = read_vocabulary(path, read)
    elif not path.is_file():
        raise FileNotFoundError(f"A tokenizer must be a file. Received: {path}, which is not one. Check the path.")
    elif is_bert_pipeline(content := read_json_object(path, read)):
        vocabulary = order_pieces(path, content["model"].get("vocab"))
        check_vocabulary(vocabulary, str(path))
    else:
        return None
    return vocabulary, read_said(path, vocabulary, read)


# Write WordPiece as a `tokenizer.json`, which `tokenizers` and libraries built on it read.


def encode_fast_tokenizer(
    pieces: Sequence[str], cased: bool, rules: WordRules = PLAIN, cuts_long_words: bool = False
) -> bytes:
    """Return the content of a `tokenizer.json`.

    It gives the ids of `WordPieceTokenizer`, except for the differences listed in docs/tokenizer.md, and joins texts as
    [CLS] A [SEP] B [SEP]. A special piece that is written out in a text is that piece, as in `transformers`.

    Args:
        pieces: the vocabulary, in the order of ids, special pieces included.
        cased, rules: as of `WordPieceTokenizer`.
        cuts_long_words: divide words after every `MAX_WORD_CHARACTERS`, as `cut_long_words` does; else they are [UNK].
    """
    ids = {piece: piece_id for piece_id, piece in enumerate(pieces)}
    model = WordPiece(
        ids,
        unk_token=UNK,
        max_input_chars_per_word=MAX_WORD_CHARACTERS,
        continuing_subword_prefix=CONTINUATION,
    )
    tokenizer = FastTokenizer(model)
    tokenizer.normalizer = rules.make_normalizer(cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if cuts_long_words:
        cut = pre_tokenizers.Split(Regex(f".{{1,{MAX_WORD_CHARACTERS}}}"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, cut])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(piece, ids[piece]) for piece in (CLS, SEP)],
    )
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens(list(SPECIAL_PIECES))
    tokenizer.add_tokens([piece.make() for piece in rules.added])
    return tokenizer.to_str(pretty=True).encode()


def make_cutting_tokenizer(pieces: Sequence[str], cased: bool) -> LoadedTokenizer:
    """Return the tokenizer of a vocabulary that was learnt with `long_words: characters`.

    A `vocab.txt` cannot say that words are cut, so this one is written as `tokenizer.json`, to be loaded as it stands.
    """
    names = {f"{piece[1:-1].lower()}_token": piece for piece in SPECIAL_PIECES}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | names
    return LoadedTokenizer(encode_fast_tokenizer(pieces, cased, cuts_long_words=True).decode(), settings)


def cut_long_words(words: Iterable[str]) -> list[str]:
    """Divide words after every `MAX_WORD_CHARACTERS`; each part is a word of its own."""
    size = MAX_WORD_CHARACTERS
    return [word[start : start + size] for word in words for start in range(0, len(word), size)]
