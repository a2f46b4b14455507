"""Draw figures with matplotlib, as inline SVG in the page's text colour."""

import io
import re
from collections.abc import Callable
from html import escape
from typing import Any

INK = "#010203"  # a unique colour, replaced by the page's text colour
# Visible on white and on near-black: contrast of at least 3 with both (WCAG 2.1, 1.4.11).
COLOURS = ("#3a80c9", "#d0691b", "#2a9262", "#b5518f", "#8a7a2f", "#6f6fd0")
GREY = "#80868f"
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")


def draw_figure(draw: Callable[[Any], None], inches: tuple[float, float], salt: str, alternative: str) -> str:
    """Return a figure as a self-contained `<svg>` element that reads well on light and on dark pages.

    Args:
        draw: draws on the axes of matplotlib that it is given.
        inches: width and height.
        salt: makes the ids of this drawing differ from those of others on the page.
        alternative: the text that screen readers read instead.
    Raises:
        ImportError: matplotlib, of the extra `plots`, is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    settings = {"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": 9.5, "text.parse_math": False}
    with rc_context({**settings, **dict.fromkeys(_INKED, INK)}):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True)
    return _inline(file.getvalue(), salt, alternative)


def _inline(svg: str, salt: str, alternative: str) -> str:
    svg = svg[svg.index("<svg") :]  # without the XML and DOCTYPE lines, which HTML does not allow
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)  # the date, and addresses on the web
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{salt}-", svg)
    named = f'<svg role="img" aria-label="{escape(alternative)}"'
    return named + svg.removeprefix("<svg").replace(INK, "currentColor").strip()
