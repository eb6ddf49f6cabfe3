"""Items of a tutorial: which there are, their names, and when a digest changes."""

from __future__ import annotations

from pathlib import Path

from .items import Item, contents, read

TUTORIAL = """# Title
Prose, and a list of no item:
1. one

## Try it
```bash
# a comment
docker run a \\
  b
for i in 1 2; do
  echo "$i"   # don't stop here
done
cat > a.py << 'EOF'
print("WARNING: no GPU")
EOF
```
```python
raise ValueError(f"unknown {kind}")
```

| Flavour | Size |
|---|---|
| **base** | small |

### Issue: "it failed"
- [ ] It runs
**TODO: Do it**

## Stretch goals
1. **More**: two

## A terminal
   ```shell
ada@host:~$ ls -l
total 8
ada@host:~$
   ```
"""


def items(folder: Path, text: str = TUTORIAL) -> list[Item]:
    path = folder / "7-try.md"
    path.write_text(text)
    return read(path)


def test_every_kind_of_item_is_listed(tmp_path: Path) -> None:
    assert [(item.id, item.kind, item.text.splitlines()[0]) for item in items(tmp_path)] == [
        ("7.2.1", "command", "docker run a \\"),
        ("7.2.2", "command", "for i in 1 2; do"),
        ("7.2.3", "command", "cat > a.py << 'EOF'"),
        ("7.2.4", "message", "WARNING: no GPU"),
        ("7.2.5", "block", 'raise ValueError(f"unknown {kind}")'),
        ("7.2.6", "message", "unknown {kind}"),
        ("7.2.7", "row", "| **base** | small |"),
        ("7.3.1", "message", "it failed"),
        ("7.3.2", "tick", "It runs"),
        ("7.3.3", "task", "Do it"),
        ("7.4.1", "task", "**More**: two"),
        ("7.5.1", "command", "ls -l"),
    ]


def test_a_here_document_is_a_file(tmp_path: Path) -> None:
    [written] = [item for item in items(tmp_path) if item.id == "7.2.3"]
    assert contents(written) == 'print("WARNING: no GPU")\n'


def test_a_digest_changes_with_the_text_alone(tmp_path: Path) -> None:
    before = {item.id: item.digest for item in items(tmp_path)}
    after = {
        item.id: item.digest
        for item in items(tmp_path, TUTORIAL.replace("small", "200 MB").replace("  b\n", "   b \n"))
    }
    assert {key for key in before if before[key] != after[key]} == {"7.2.7"}
