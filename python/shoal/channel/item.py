"""An item as a channel holds it."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["DEFAULT_KEY", "WeightedItem"]

DEFAULT_KEY = "default_queue"


@dataclass(order=True)
class WeightedItem:
    """An item and its weight; ordered by weight.

    Attributes:
        weight: What `get_batch` adds up.
        item: Anything.
    """

    weight: int
    item: Any = field(compare=False)
