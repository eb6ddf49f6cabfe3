import subprocess

show = "import os; print(os.environ.get('PYTHONPATH'), sorted(k for k in os.environ if 'PYTHONPA' in k))"
child = [sys.executable, "-c", show]
steps(12)
exec(show)
for env in (None, os.environ, os.environ.copy(), {**os.environ, "PYTHONPATH": "lib"}, {"PATH": os.environ["PATH"]}):
    print(subprocess.run(child, env=env, capture_output=True, text=True).stdout)
exec(show)
os.environ["PYTHONPATH"] = "mine"
exec(show)
print(subprocess.run(child, capture_output=True, text=True).stdout)
steps(20)
print(digest())
