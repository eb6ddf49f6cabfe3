"""Where a training's seconds go besides the loop: runs a module and samples what its main thread does.

    python benchmarks/startup.py seatrial.recipes.mnist --data DIR --models DIR

Prints, after the module's own output, seconds by the module imported or the line of seatrial that was waiting.
"""

import atexit
import runpy
import sys
import threading
import time
from collections import Counter

EVERY_S = 0.004
SHOWN_S = 0.04


def sample(main_thread, seconds):
    """Attribute the time between two looks at the main thread to what it does at the second."""
    before = time.perf_counter()
    while True:
        time.sleep(EVERY_S)
        now = time.perf_counter()
        seconds[place(sys._current_frames().get(main_thread))] += now - before
        before = now


def place(frame):
    """The outermost import that our code waits for, or the innermost line of ours."""
    imported = ours = None
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and "importlib" in code.co_filename:
            imported = str(frame.f_locals.get("name"))
        elif "seatrial" in code.co_filename and not code.co_filename.endswith("startup.py"):
            if imported and not imported.startswith("seatrial"):
                return f"import {imported} (from {code.co_filename.rsplit('seatrial/', 1)[1]}:{frame.f_lineno})"
            ours = ours or f"{code.co_filename.rsplit('seatrial/', 1)[1]}:{frame.f_lineno} {code.co_name}"
            imported = None
        frame = frame.f_back
    return ours or (f"import {imported}" if imported else "start and exit of Python")


def report(seconds, began):
    """The table, longest first."""
    print(f"--- {time.perf_counter() - began:.2f} s in this process, of which", flush=True)
    for where, spent in seconds.most_common():
        if spent >= SHOWN_S:
            print(f"{spent:8.2f} s  {where}", flush=True)
    heavy = [name for name in ("torch._dynamo", "torch._inductor", "sympy", "triton") if name in sys.modules]
    print(f"imported: {', '.join(heavy) or 'no compiler'}", flush=True)


def main():
    """Run the module named by the first argument as ``python -m`` does."""
    seconds, began = Counter(), time.perf_counter()
    atexit.register(report, seconds, began)
    threading.Thread(target=sample, args=(threading.get_ident(), seconds), daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
