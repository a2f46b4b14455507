"""Tasks on texts or text pairs: classification, multi-label classification and regression."""
