"""Seconds of weights: of their publishers, their readers and the nodes that follow."""

from dataclasses import dataclass

__all__ = ["TIMING", "WeightsTiming"]


@dataclass(frozen=True)
class WeightsTiming:
    """Seconds of weights: of their publishers, their readers and the nodes that follow.

    A test replaces `TIMING`.
    """

    slice_s: float = 0.5
    """At most, for one sleep of a wait: a publisher may die before it rings the bell."""
    try_s: float = 0.005
    """Between two looks of a wait for an event that rings no bell."""
    look_s: float = 2.0
    """Between two looks whether the weights ended, or readers have let go of versions."""
    part_lock_s: float = 30.0
    """At most, for the publisher's lock, to publish what is complete or to give up."""
    transfer_lock_s: float = 60.0
    """At most, for another process that publishes in the receiver's folder."""
    close_s: float = 5.0
    """At most, to tell the other nodes why the weights were closed."""
    diff_s: float = 60.0
    """For the newest version to come to this node before `diff` compares with it, by default."""

    claim_s: float = 0.5
    """Between two questions on which node versions are published, before the first one is."""
    followed_s: float = 2.0
    """At most, for the node of the publisher to answer; then the version that a node has is the newest."""
    retry_s: float = 1.0
    """Between two attempts to reach the source."""
    patience_s: float = 10.0
    """For which a source looks for a newer version before it says that there is none."""
    kept_s: float = 20.0
    """Without a reader, after which a node follows no more."""
    coming_s: float = 5.0
    """Between two messages which say that a version is on its way to the source itself."""
    return_s: float = 60.0
    """After which a node whose source failed asks it again, instead of the home."""
    answer_s: float = 30.0
    """Beyond a deadline, for an answer or the next message of one; also for another node to take a message.

    An actor that Ray starts again, or a node that is busy, needs several of them.
    """

    beat_s: float = 1.0
    """Between two messages of a publisher on another node that waits.

    Several come before it counts as dead, and they cost the home next to nothing.
    """
    silent_s: float = 5.0
    """Without a message, after which a publisher that waits is dead.

    Within them its part may still go into a version. Five messages in a row are late only if the
    publisher or its node stands still.
    """
    sending_s: float = 10.0
    """Without a message, after which one that sends is dead: it may copy much between two."""
    still_s: float = 2.0
    """By which a look may be late before the home itself counts as having stood still.

    Twice the pause between two messages, so that one that is late does not excuse a publisher.
    """
    former_s: float = 11.0
    """Until the same part of another publisher, which may have died, is taken back.

    A little longer than `sending_s`, after which the home notices the death.
    """
    former_look_s: float = 0.1
    """Between two looks for that: short beside that wait, and each look lists a folder."""


TIMING = WeightsTiming()
