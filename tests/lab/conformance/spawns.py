import subprocess

steps(12)
child = [
    sys.executable,
    "-c",
    "import sys, os; print(sys.excepthook is sys.__excepthook__, len(sys.argv), 'torch' in sys.modules, 'sitecustomize' in os.environ)",
]
print(subprocess.run(child, capture_output=True, text=True))
steps(20)
print(digest())
