"""Names of the ways in which a head for whole texts pools them; known without Keras."""

CLS, MEAN, BAG_OF_WORDS = "cls", "mean", "bag_of_words"
TEXT_POOLINGS = (CLS, MEAN, BAG_OF_WORDS)
