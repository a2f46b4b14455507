"""Score of the TF-IDF baseline, for model cards.

It is separate from `task_data`, which every command imports: scikit-learn takes longer to load than everything else.
"""

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.job_progress import told_if_long
from keras_bert_flow.tasks.baselines.word_baseline import answer_from_words
from keras_bert_flow.training.finetuning.task_data import TaskData, read_training


def score_word_baseline(config: PipelineConfig, data: TaskData) -> float | None:
    """Return the main metric on the dev table of TF-IDF with a linear model, fitted on the training table.

    The report computes the same. None if the kind of task has no such baseline.
    """
    task, training = data.task, read_training(config, data.task)[0]
    with told_if_long(f"Fitting TF-IDF and a linear model to {len(training):,} examples, for the cards"):
        answers = answer_from_words(task, training, {"dev": data.dev_examples}, config.seed)
    return None if answers is None else task.score(data.dev_examples, answers.predictions["dev"])[task.main_metric]
