"""`Version`: the number of a published state of weights."""

from typing import NamedTuple

__all__ = ["MOST_IN_EPOCH", "FilePart", "Version"]

_NUMBER_BITS = 40

MOST_IN_EPOCH = 2**_NUMBER_BITS - 1


class Version(NamedTuple):
    """A version of weights; later versions compare greater.

    Attributes:
        epoch: Counts the publishers: each process that publishes begins an epoch of its own.
        number: Counts the versions of the epoch, or is the number that the publisher gave.
    """

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.number}"

    def packed(self) -> int:
        """Return the version as one integer of 64 bits with the same order; 0 is no version."""
        return self.epoch << _NUMBER_BITS | self.number

    @classmethod
    def unpacked(cls, packed: int) -> "Version | None":
        """Return the version of an integer from `packed`."""
        return cls(packed >> _NUMBER_BITS, packed & MOST_IN_EPOCH) if packed else None


class FilePart(NamedTuple):
    """A file of a version: the version, and 0 for its own file, or the number of a further one.

    Negative numbers are buffers in the memory of GPUs.
    """

    epoch: int
    number: int
    file: int = 0

    @property
    def version(self) -> Version:
        """The version."""
        return Version(self.epoch, self.number)
