"""The colours of components on the page, distinct with any kind of colour vision."""

from collections.abc import Sequence

__all__ = ["color_rules", "split", "stripes"]

# Okabe and Ito's palette, calm colours first, each with a text colour that is readable on it.
_PALETTE = (
    ("#0072b2", "#fff"),
    ("#e69f00", "#000"),
    ("#009e73", "#fff"),
    ("#cc79a7", "#000"),
    ("#56b4e9", "#000"),
    ("#d55e00", "#fff"),
    ("#f0e442", "#000"),
)
# More components than colours: the colours repeat, with a mark at an edge, beside the number.
_MARKS = (
    "",
    "linear-gradient(135deg, var(--box) 0 25%, transparent 25%)",
    "linear-gradient(transparent 78%, var(--box) 78% 90%, transparent 90%)",
    "linear-gradient(90deg, transparent 8%, var(--box) 8% 20%, transparent 20%)",
    "linear-gradient(315deg, var(--box) 0 25%, transparent 25%)",
)
_STRIPE_PX = 5
_MOST_STRIPES = 6


def color_rules(components: int) -> list[str]:
    """Return a CSS rule for each component, of the class `c` and its number: `c0`."""
    rules = []
    for index in range(components):
        color, ink = _PALETTE[index % len(_PALETTE)]
        mark = _MARKS[index // len(_PALETTE) % len(_MARKS)]
        layers = f"{mark} border-box, {color}" if mark else color
        rules.append(f".c{index} {{ background: {layers} border-box; color: {ink}; }}")
    rules.append(f"i.shared-key {{ border-color: transparent; background: {stripes([0, 1])}; }}")
    return rules


def stripes(components: Sequence[int]) -> str:
    """Return a CSS background striped in the colours of some components."""
    colors = _colors(components)
    parts = [
        f"{color} {position * _STRIPE_PX}px {(position + 1) * _STRIPE_PX}px"
        for position, color in enumerate(colors)
    ]
    return f"repeating-linear-gradient(135deg, {', '.join(parts)})"


def split(components: Sequence[int]) -> str:
    """Return a CSS background with one part for each component, for cells of a few pixels."""
    colors = _colors(components)
    width = 100 / len(colors)
    parts = [
        f"{color} {position * width:.3g}% {(position + 1) * width:.3g}%"
        for position, color in enumerate(colors)
    ]
    return f"linear-gradient(135deg, {', '.join(parts)})"


def _colors(components: Sequence[int]) -> list[str]:
    return [_PALETTE[index % len(_PALETTE)][0] for index in components[:_MOST_STRIPES]]
