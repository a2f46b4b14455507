"""Tables of tasks, plain or packed, and the formats in which others take predictions."""
