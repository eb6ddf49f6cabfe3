import shutil

print("width", "=" * shutil.get_terminal_size().columns)
