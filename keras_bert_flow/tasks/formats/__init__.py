"""File formats of tasks: tables, plain or compressed, SQuAD and CoNLL, with their official scores, and predictions."""
