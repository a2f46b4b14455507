import pytest

from keras_bert_flow.text.learner import WordLimit, add_histograms, count_places

WORDS = {f"w{number}": 1 + number % 4 for number in range(4000)}  # of about 6 places each, 1,000 of each count


def kept_places(most):
    histogram = add_histograms({count: count_places(word)} for word, count in WORDS.items())
    keep = WordLimit(histogram, most)
    return {word for word, count in WORDS.items() if keep(word, count)}


@pytest.mark.parametrize("most", [0, 1000, 9000, 15_000, 23_000])
def test_frequent_words_are_kept_up_to_the_limit(most):
    kept = kept_places(most)
    assert sum(map(count_places, kept)) == pytest.approx(most, abs=400)  # of a share chosen by digests
    rarest = min((WORDS[word] for word in kept), default=5)
    assert all(word in kept for word, count in WORDS.items() if count > rarest)


def test_all_words_are_kept_that_fit():
    assert kept_places(sum(map(count_places, WORDS))) == set(WORDS)


def test_words_that_the_learner_ignores_take_no_place():
    assert (count_places("a"), count_places("a" * 200), count_places("a" * 201)) == (2, 201, 0)
