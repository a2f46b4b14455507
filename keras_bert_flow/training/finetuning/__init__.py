"""Fine-tuning on a task, once per seed, from pre-trained and from random weights."""
