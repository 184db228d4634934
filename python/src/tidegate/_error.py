class Error(ValueError):
    """An argument breaks the contract. The text says what was given, what was expected and where; `argument` is the
    name of the offending tensor or option. Nothing has been written when it is raised."""

    def __init__(self, argument, text):
        super().__init__(text)
        self.argument = argument

    def __reduce__(self):
        return Error, (self.argument, str(self))


class CheckFailed(AssertionError):
    """Raised by check(..., raise_on_failure=True); `result` is what check() would have returned."""

    def __init__(self, result):
        super().__init__("\n" + str(result))
        self.result = result
