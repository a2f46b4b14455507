"""Score the baseline without a network, for the cards of models.

Apart from the task's data, which every command looks at: scikit-learn takes longer to load than all else that it needs.
"""

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.tasks.baselines.word_baseline import answer_from_words
from keras_bert_flow.training.finetuning.task_data import TaskData


def score_word_baseline(config: PipelineConfig, data: TaskData) -> float | None:
    """Return the main metric of TF-IDF with a linear model on the dev table, fitted on the training table as the report
    does; None of a kind of task that has no such baseline.
    """
    task, training = data.task, data.task.read(config.task.train, config.finetuning.max_train_examples)
    answers = answer_from_words(task, training, {"dev": data.dev_examples}, config.seed)
    return None if answers is None else task.score(data.dev_examples, answers.predictions["dev"])[task.main_metric]
