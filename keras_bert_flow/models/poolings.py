"""Names of the poolings of heads for whole texts; importable without Keras."""

CLS, MEAN, BAG_OF_WORDS = "cls", "mean", "bag_of_words"
TEXT_POOLINGS = (CLS, MEAN, BAG_OF_WORDS)
