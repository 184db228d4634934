"""A right kernel that misbehaves where K == 80 (or everywhere: TIDEGATE_MISBEHAVE=all), to see how Tidegate reports it.
First argument: segfault, abort, exit3, hang-busy, hang-idle or truncated."""
import os
import signal
import sys
import time

from gdn_numpy_subject import kernel as right_kernel
import tidegate_subject


def busy():
    while True:
        pass


def truncate_answers():
    write = tidegate_subject.write

    def write_half(path, *content):
        write(path, *content)
        os.truncate(path, os.path.getsize(path) // 2)
        tidegate_subject.write = write

    tidegate_subject.write = write_half


MODES = {"segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV), "abort": os.abort, "exit3": lambda: os._exit(3),
         "hang-busy": busy, "hang-idle": lambda: time.sleep(1e6), "truncated": truncate_answers}


def kernel(q, *inputs, **options):
    if q.shape[-1] == 80 or os.environ.get("TIDEGATE_MISBEHAVE") == "all":
        MODES[sys.argv[1]]()
    return right_kernel(q, *inputs, **options)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in MODES:
        sys.exit("usage: %s %s [REQUEST ANSWER]" % (sys.argv[0], "|".join(MODES)))
    tidegate_subject.serve(kernel)
