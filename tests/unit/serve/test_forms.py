"""Files out of forms, with python-multipart under its name of today and under the one before version 0.0.13."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("python_multipart")

READ = """
import sys

if sys.argv[1] == "multipart":  # as 0.0.9 is installed: under that name alone
    import python_multipart, python_multipart.exceptions, python_multipart.multipart
    for name in [name for name in sys.modules if name.startswith("python_multipart")]:
        sys.modules[name[7:]] = sys.modules.pop(name)
    sys.modules["python_multipart"] = None
from seatrial.serve.http import forms

body = (b'--b\\r\\ncontent-disposition: form-data; name="a"\\r\\n\\r\\nno file\\r\\n'
        b'--b\\r\\nContent-Disposition: form-data; name="file"; filename="x.png"\\r\\n'
        b'Content-Type: image/png\\r\\n\\r\\n'
        b'\\x89PNG\\r\\n\\r\\n--b--\\r\\n')
print(forms.MultipartParser.__module__, forms.first_file(body, b"multipart/form-data; boundary=b"))
"""


@pytest.mark.parametrize("name", ["python_multipart", "multipart"])
def test_a_file_is_found_under_both_names_of_the_package(name):
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", READ, name], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(r"(b'\x89PNG\r\n', b'image/png')" + "\n")
