if os.environ.get("AGAIN") != "1":
    steps(4)
    os.environ["AGAIN"] = "1"
    sys.stdout.flush()
    os.execv(
        sys.executable,
        [sys.executable, "-c", "import sys; print('again', sys.flags.dev_mode, sys.excepthook is sys.__excepthook__)"],
    )
