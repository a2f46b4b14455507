"""Count chunks as conlleval does: in one pass over the lines, remembering only the line before.

The tests of beginning and end are those of its subroutines `startOfChunk` and `endOfChunk` for the tags B, I and O.
"""

ENDS = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}
STARTS = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}


def conlleval(gold, predicted, raw=False):
    """Return (found in gold, found in predictions, correct) by type, and (words with the right tag, words).

    raw: tags without prefix; each word that is not O is a chunk (option -r).
    """
    lines = []
    for tags, answers in zip(gold, predicted, strict=True):
        lines += [(split(tag, raw), split(answer, raw), True) for tag, answer in zip(tags, answers, strict=True)]
        lines.append((("O", ""), ("O", ""), False))
    found, guessed, correct = {}, {}, {}
    right = words = 0
    last_gold = last_answer = ("O", "")
    in_correct = False
    for tag, answer, is_word in lines:
        gold_ends, answer_ends = ends(last_gold, tag), ends(last_answer, answer)
        gold_starts, answer_starts = starts(last_gold, tag), starts(last_answer, answer)
        if in_correct:
            if gold_ends and answer_ends and last_gold[1] == last_answer[1]:
                in_correct = False
                correct[last_gold[1]] = correct.get(last_gold[1], 0) + 1
            elif gold_ends != answer_ends or tag[1] != answer[1]:
                in_correct = False
        if gold_starts and answer_starts and tag[1] == answer[1]:
            in_correct = True
        if gold_starts:
            found[tag[1]] = found.get(tag[1], 0) + 1
        if answer_starts:
            guessed[answer[1]] = guessed.get(answer[1], 0) + 1
        if is_word:
            right += tag == answer
            words += 1
        last_gold, last_answer = tag, answer
    types = sorted(found.keys() | guessed.keys())
    return {t: (found.get(t, 0), guessed.get(t, 0), correct.get(t, 0)) for t in types}, (right, words)


def split(tag, raw):
    if raw and tag != "O":
        tag = f"B-{tag}"
    if "-" not in tag:
        return tag, ""
    place = tag.index("-")
    return tag[:place], tag[place + 1 :]


def ends(last, tag):
    return (last[0], tag[0]) in ENDS or (last[0] != "O" and last[1] != tag[1])


def starts(last, tag):
    return (last[0], tag[0]) in STARTS or (tag[0] != "O" and last[1] != tag[1])
