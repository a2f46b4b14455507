"""Linear models: TF-IDF of texts as the baseline of every report, and heads on vectors of texts."""
