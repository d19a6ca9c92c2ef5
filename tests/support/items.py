"""Items that can be pickled, and act or fail when they are rebuilt."""

_functions = []


class Acts:
    """Becomes the result of a function, which is called in this process when the item is rebuilt."""

    def __init__(self, function):
        self._number = len(_functions)
        _functions.append(function)

    def __reduce__(self):
        return _act, (self._number,)


def _act(number):
    return _functions[number]()


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
