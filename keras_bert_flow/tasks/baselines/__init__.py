"""Linear models: the TF-IDF baseline of every report, and linear heads on text vectors."""
