"""Write WordPiece as a `tokenizer.json`, which `tokenizers` and libraries built on it read."""

from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import WordPiece

from keras_bert_flow.text.tokenizers.added import WordRules
from keras_bert_flow.text.tokenizers.loaded import LoadedTokenizer
from keras_bert_flow.text.tokenizers.wordpiece import MAX_WORD_CHARACTERS, PLAIN
from keras_bert_flow.text.vocabulary.vocab_file import CONTINUATION, SPECIAL_PIECES

UNK, CLS, SEP = "[UNK]", "[CLS]", "[SEP]"


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
    tokenizer = Tokenizer(model)
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
