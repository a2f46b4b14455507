"""Words that an augmentation never replaces: function words of English, or those of a file."""

from pathlib import Path

from keras_bert_flow.files.documents import read_file

# English function words, auxiliaries and negations; a replacement of one changes what a sentence says, or nothing.
_ENGLISH = """
a about above after again against all am an and any are as at be because been before being below between both but by
can could did do does doing down during each few for from further had has have having he her here hers herself him
himself his how i if in into is it its itself just may me might more most must my myself neither never no nor not now
of off on once only or other our ours ourselves out over own s same shall she should so some such t than that the
their theirs them themselves then there these they this those through to too under until up upon very was we were what
when where whether which while who whom whose why will with without would you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_ENGLISH.split())


def read_stop_words(path: str | Path | None) -> frozenset[str]:
    """Return the words of a file, one per line, in lower case; those of English without a file.

    Raises:
        FileNotFoundError, ValueError: the file is missing, or not UTF-8.
    """
    if path is None:
        return STOP_WORDS
    try:
        return frozenset(read_file(path).decode("utf-8-sig").lower().split())
    except UnicodeDecodeError:
        raise ValueError(f"`augmentation.stop_words` must be UTF-8. Received: {path}. Convert it.") from None
