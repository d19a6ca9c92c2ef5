"""Why a queue refused a call: the names of `shoal.refusals`, which the core uses too."""

from shoal.refusals import Refusal, timeout_error, timeout_text

__all__ = ["Refusal", "timeout_error", "timeout_text"]
