"""Channel keys of routed batches: the same for both ends of a route."""

from typing import Any

__all__ = [
    "ROUTING_DEFAULT_TAG",
    "ROUTING_KEY_PREFIX",
    "RouteKey",
    "build_route_channel_key",
    "build_send_key",
    "normalize_route_key",
    "normalize_route_tag",
]

ROUTING_KEY_PREFIX = "scheduler_route"
"""First part of every key of a route."""

ROUTING_DEFAULT_TAG = "default"
"""The tag of messages for which no tag is given."""

RouteKey = tuple[str, str, str, str, str, int | None, int | None]
"""(prefix, source group, destination group, tag, route key, source rank, destination rank)."""


def normalize_route_tag(tag: str | None) -> str:
    """Return the tag, `"default"` for None and for an empty text."""
    return tag or ROUTING_DEFAULT_TAG


def normalize_route_key(route_key: Any) -> str:
    """Return a route key as text: empty for None, `repr` of a value that is not a text."""
    if route_key is None:
        return ""
    return route_key if isinstance(route_key, str) else repr(route_key)


def build_route_channel_key(
    src_group_name: str,
    dst_group_name: str,
    src_rank: int | None,
    dst_rank: int | None,
    tag: str | None,
    route_key: Any = None,
) -> RouteKey:
    """Return the channel key of a route.

    Args:
        src_group_name: The sending group.
        dst_group_name: The receiving group.
        src_rank: The sender; None for any.
        dst_rank: The receiver; None for any.
        tag: The kind of message.
        route_key: Separates parallel streams of one kind.
    """
    return (
        ROUTING_KEY_PREFIX,
        src_group_name,
        dst_group_name,
        normalize_route_tag(tag),
        normalize_route_key(route_key),
        src_rank,
        dst_rank,
    )


def build_send_key(
    *,
    src_group_name: str,
    dst_group_name: str,
    src_rank: int | None,
    dst_rank: int | None,
    tag: str | None,
    route_key: Any = None,
) -> RouteKey:
    """Return the same key as `build_route_channel_key`, from keywords."""
    return build_route_channel_key(
        src_group_name, dst_group_name, src_rank, dst_rank, tag, route_key
    )
