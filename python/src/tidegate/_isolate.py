"""A Python kernel in a process of its own."""
import os
import shlex
import sys

from ._error import Error


def as_subject(fn):
    """The subject "exec:..." that runs fn in a child process, for check() and for the command line: a crash or a hang
    is then a result. It serves --persistent too.

    fn is a function that can be imported, named by its module and qualified name; one defined in the running script is
    found by the script's path, whose `if __name__ == "__main__":` part does not run in the child."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    found = sys.modules.get(module)
    for part in (name or "").split("."):
        found = getattr(found, part, None)
    if found is None or found is not fn:
        raise Error("fn", "fn: given %s, expected a function that a module holds by its name (no lambda, local "
                    "function, partial or bound method)" % (name or type(fn).__name__))
    path = getattr(sys.modules[module], "__file__", None)
    main = sys.modules["__main__"]
    if module == "__main__" and getattr(main, "__spec__", None) is not None:
        module = main.__spec__.name  # python -m
    elif module == "__main__":
        if path is None:
            raise Error("fn", "fn: given %s of an interactive session, expected a function of a file" % name)
        module = os.path.abspath(path)
    words = [sys.executable, "-m", "tidegate.serve", "%s:%s" % (module, name)]
    if path is not None and not os.path.isabs(module):  # where the child finds the module, whatever its own path is
        folder = os.path.dirname(os.path.abspath(path))
        for _ in range(module.count(".") + (os.path.basename(path) == "__init__.py")):
            folder = os.path.dirname(folder)
        words.append(folder)
    return "exec:" + " ".join(shlex.quote(word) for word in words)
