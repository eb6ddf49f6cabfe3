import pathlib
import sys

print(sys.argv[1:])
print(pathlib.Path("数据/列表.txt").read_text(encoding="utf-8"))
pathlib.Path("Versuch 1/ergebnis ß.txt").write_text("gut", encoding="utf-8")
