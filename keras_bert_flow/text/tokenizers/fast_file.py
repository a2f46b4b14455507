"""Write WordPiece as a `tokenizer.json`, which `tokenizers` and libraries built on it read."""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from keras_bert_flow.text.tokenizers.wordpiece import MAX_WORD_CHARACTERS
from keras_bert_flow.text.vocabulary.vocab_file import CONTINUATION, SPECIAL_PIECES

UNK, CLS, SEP = "[UNK]", "[CLS]", "[SEP]"


def encode_fast_tokenizer(pieces: Sequence[str], cased: bool) -> bytes:
    """Return the content of a `tokenizer.json`.

    It gives the ids of `WordPieceTokenizer`, except for the differences listed in docs/tokenizer.md, and joins texts as
    [CLS] A [SEP] B [SEP]. A special piece that is written out in a text is that piece, as in `transformers`.

    Args:
        pieces: the vocabulary, in the order of ids, special pieces included.
        cased: keep case and accents.
    """
    ids = {piece: piece_id for piece_id, piece in enumerate(pieces)}
    model = WordPiece(
        ids,
        unk_token=UNK,
        max_input_chars_per_word=MAX_WORD_CHARACTERS,
        continuing_subword_prefix=CONTINUATION,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(piece, ids[piece]) for piece in (CLS, SEP)],
    )
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens(list(SPECIAL_PIECES))
    return tokenizer.to_str(pretty=True).encode()
