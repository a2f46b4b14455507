import pytest

from flows.progress import parse_share


@pytest.mark.parametrize(
    "line, share",
    [
        ("step 1,200 of 4,800: loss 6.913, 0:12:30 left", 25),
        (
            "Records of 64 tokens an instance, part 2 of 4, tokenizing: 1,200 of 4,800 documents, 0:00:20 left of it",
            31.25,
        ),
        ("Vocabulary of 8,000 pieces, part 3 of 3, choosing pieces, 0:00:25 so far", 100 * 2 / 3),
        ("Records of 64 tokens an instance, 0:00:05 so far", None),
        ("Asking: 5 of 0", None),
    ],
)
def test_the_bar_of_a_stage_moves_through_its_parts(line, share):
    assert parse_share(line) == (share if share is None else pytest.approx(share))
