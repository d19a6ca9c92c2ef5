"""`WeightedItem`: an item of a channel with its weight; and the default key."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["DEFAULT_KEY", "WeightedItem"]

DEFAULT_KEY = "default_queue"


@dataclass(order=True)
class WeightedItem:
    """An item and its weight; ordered by weight.

    Attributes:
        weight: The weight, which `get_batch` adds up.
        item: Any object.
    """

    weight: int
    item: Any = field(compare=False)
