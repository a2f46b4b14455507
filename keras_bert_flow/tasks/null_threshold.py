"""Choose how sure a model must be that there is no answer."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from keras_bert_flow.tasks.question_answering import QuestionAnswering, best_answers
from keras_bert_flow.tasks.squad import ContextQuestion, gold_answers
from keras_bert_flow.tasks.squad_metrics import count_exact, find_threshold, score_each, word_f1
from keras_bert_flow.tasks.task import Prediction


def tune_null_threshold(
    task: QuestionAnswering, examples: Sequence[ContextQuestion], predictions: Sequence[Prediction]
) -> QuestionAnswering:
    """Return the task with the threshold that gives these predictions the highest `main_metric`."""
    golds = gold_answers(examples)
    measure = {"f1": word_f1, "exact": count_exact}[task.main_metric]
    answered = score_each(golds, best_answers(predictions), measure)
    refused = score_each(golds, dict.fromkeys(golds, ""), measure)
    gains = [answered[prediction["id"]] - refused[prediction["id"]] for prediction in predictions]
    differences = [prediction["null_difference"] for prediction in predictions]
    return replace(task, null_threshold=find_threshold(np.array(gains), np.array(differences)))
