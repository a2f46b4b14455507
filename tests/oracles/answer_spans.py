"""Cut windows and choose spans one by one, by the rules of google-research/bert's run_squad.py, to compare with."""


def slow_windows(count, room, stride):
    """Return (begin, end) of each window of `count` pieces."""
    windows, begin = [], 0
    while True:
        length = min(count - begin, room)
        windows.append((begin, begin + length))
        if begin + length >= count:
            return windows
        begin += min(length, stride)


def best_window(windows, piece):
    """Return the window that shows most of what stands around a piece; the first among equals."""
    best, best_score = None, None
    for number, (begin, end) in enumerate(windows):
        if begin <= piece < end:
            left, right = piece - begin, end - 1 - piece
            score = min(left, right) + 0.01 * (end - begin)
            if best_score is None or score > best_score:
                best, best_score = number, score
    return best


def all_spans(windows, first, starts, ends, longest):
    """Return (score, first piece, last piece) of every legal span, the best first, from the logits of each window.

    Args:
        first: place in each row of the first piece of its window.
        starts: of each window, the logits of its row; likewise `ends`.
        longest: pieces of a span at most.
    """
    spans = []
    for number, (begin, end) in enumerate(windows):
        for piece in range(begin, end):
            if best_window(windows, piece) != number:
                continue
            for last in range(piece, min(end, piece + longest)):
                score = starts[number][piece - begin + first] + ends[number][last - begin + first]
                spans.append((score, piece, last))
    return sorted(spans, key=lambda span: (-span[0], span[1], span[2]))


def null_score(starts, ends):
    return min(start[0] + end[0] for start, end in zip(starts, ends, strict=True))
