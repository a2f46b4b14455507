"""Check that an encoder can be trained on an objective as the settings say."""

from keras_bert_flow.models.families.registry import find_family
from keras_bert_flow.text.objectives.registry import find_objective


def check_objective(name: str, family: str, bag_of_words: float) -> None:
    """Raise ValueError if a family of encoders has no model for an objective, or the objective no bag of words.

    Args:
        name: of the objective.
        bag_of_words: weight of that loss.
    """
    objective = find_objective(name)
    if objective.has_pairs and not find_family(family).has_sentence_task:
        raise ValueError(
            f"`records.objective` must have no sentence task for the family {family}. Received: {name}. Use mlm."
        )
    if objective.families and family not in objective.families:
        raise ValueError(
            f"`model.family` must be one of {', '.join(objective.families)} for the objective {name}. Received: "
            f"{family}."
        )
    if bag_of_words and not objective.has_words_head:
        raise ValueError(
            f"`pretraining.bag_of_words` must be 0 with the objective {name}. Received: {bag_of_words}. Leave it "
            "out, or use mlm."
        )
