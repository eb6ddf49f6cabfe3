from pathlib import Path

print(Path('../data/points.csv').read_text())
