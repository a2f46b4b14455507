"""Rule-based sentence splitting, for alphabets with capitals and for Chinese and Japanese."""

import re

# A run of marks always gives one match, never a failed one, so a scan takes linear time for any text.
_TERMINATOR = re.compile(r"[.!?…؟۔।॥。！？；]+[\"'”’»)\]」』）】》〉]*")
_NEXT = re.compile(r"\s*[\"'“‘«(\[{¿¡]*([^\W\d_]+|.)?", re.DOTALL)
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_WIDE_MARKS = frozenset("。！？；")  # they end a sentence without a space after them
_OPENERS = "\"'“‘«([{"
_LONGEST_ABBREVIATION = 24


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(
    "mr mrs ms dr prof st rev fr gen col lt sgt capt cmdr maj adm sen rep gov pres hon mt messrs mme mlle "
    "e.g i.e eg ie cf vs viz approx ca"
)
_SOMETIMES_LAST = _words("jr sr inc co corp ltd bros etc al ph.d d.c dept univ assn est resp ave blvd rd")
_BEFORE_NUMBERS = _words(
    "no nos vol vols fig figs p pp ch chap sec sect art eq eqs ref refs ver "
    "jan feb mar apr jun jul aug sep sept oct nov dec"
)
_STARTERS = _words(
    "The A An In On At By For From With After Before During When While Since Until As If Although Though However But "
    "And Or So Yet Then Thus There Here This That These Those It Its He She His Her We You They Their Our My What Who "
    "Why How Where Which Some Many Most All Each Both No Not One Two Another Other Also"
)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, stripped and not empty, without leaving anything out.

    A sentence ends at . ! ? … and the quotes and brackets that close it, if whitespace follows and the next word does
    not begin in lower case; or at 。！？； anywhere. A full stop does not end a sentence after titles and the like
    (`Dr.`, `e.g.`), after `No.`, `Fig.` or a month before a number, or after a number at the start of the sentence.
    After initials and common abbreviations (`J.`, `U.S.`, `Inc.`) it ends one only before a word that usually begins
    sentences. When in doubt, the rules join two sentences rather than split one.
    """
    sentences = []
    start = 0
    for match in _TERMINATOR.finditer(text):
        if _ends_sentence(text, start, match):
            sentences.append(text[start : match.end()].strip())
            start = match.end()
    rest = text[start:].strip()
    return [*sentences, rest] if rest else sentences


def _ends_sentence(text: str, start: int, match: re.Match) -> bool:
    if not _WIDE_MARKS.isdisjoint(match[0]):
        return True
    if match.end() < len(text) and not text[match.end()].isspace():
        return False
    following = _NEXT.match(text, match.end())[1]  # type: ignore[index]  # matches anywhere
    if following is None:
        return True
    if following[0].islower() or following in ".,;:!?…)]}":
        return False
    if match[0].startswith(".") and match[0][1:2] not in (".", "…"):
        return _full_stop_ends_sentence(text, start, match.start(), following)
    return True


def _full_stop_ends_sentence(text: str, start: int, stop: int, following: str) -> bool:
    window = text[max(start, stop - _LONGEST_ABBREVIATION) : stop]
    word = window.split()[-1].lstrip(_OPENERS) if window and not window[-1].isspace() else ""
    if word.lower() in _NEVER_LAST:
        return False
    if word.lower() in _BEFORE_NUMBERS and following[0].isdigit():
        return False
    if word.lower() in _SOMETIMES_LAST or _INITIALS.fullmatch(word):
        return following in _STARTERS
    opens_sentence = stop - start <= _LONGEST_ABBREVIATION and window.strip() == word
    return not (opens_sentence and word.isdecimal())
