"""Reports without the drawing of their figures, which takes most of their time."""

import pytest

from keras_bert_flow.evaluation import curves

DRAWN = "figures"  # marks the tests that look at what is drawn


@pytest.fixture(autouse=True)
def drawn_quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the figures of a report empty, but for their text for screen readers, unless the test looks at them."""
    if not request.node.get_closest_marker(DRAWN):
        monkeypatch.setattr(curves, "draw_figure", lambda draw, inches, salt, alternative: f"<svg>{alternative}</svg>")
