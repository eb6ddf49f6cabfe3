"""The slimming program: runs inside the user's own build, on the standard library alone, Python >= 3.8.

Nothing of the host side is imported here. Numbers of the ELF format:
https://refspecs.linuxfoundation.org/elf/elf.pdf and
https://refspecs.linuxbase.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
"""
