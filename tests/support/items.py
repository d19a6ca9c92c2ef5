"""Items that can be pickled, and fail when they are rebuilt."""


class Unloadable:
    """Raises an error."""

    def __reduce__(self):
        return _fail, (ValueError, "not here")


class Ends:
    """Raises an error that ends programs, for example `SystemExit`."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return _fail, (self.error, "on purpose")


def _fail(error, text):
    raise error(text)
