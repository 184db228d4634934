"""python -m tidegate.serve MODULE:NAME [FOLDER] [REQUEST ANSWER]: a function as a subject; see tidegate.as_subject.

MODULE may be the path of a .py file. FOLDER is put on the module search path if it is not there. What follows is
docs/subjects.md's protocol."""
import functools
import importlib
import importlib.util
import os
import sys

from .tidegate_subject import serve


def load(target):
    module, _, name = target.rpartition(":")
    if module.endswith(".py"):
        # Siblings of the file are importable, as they were when it ran as a script.
        sys.path.insert(0, os.path.dirname(os.path.abspath(module)))
        spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(module))[0], module)
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded
        spec.loader.exec_module(loaded)
    else:
        loaded = importlib.import_module(module)
    return functools.reduce(getattr, name.split("."), loaded)


def main():
    if len(sys.argv) < 2 or ":" not in sys.argv[1]:
        sys.exit(__doc__)
    if len(sys.argv) in (3, 5) and sys.argv[2] not in sys.path:
        sys.path.insert(0, sys.argv[2])
    kernel = load(sys.argv[1])
    serve(kernel, backward=kernel, decode=kernel, packed=kernel)


if __name__ == "__main__":
    main()
