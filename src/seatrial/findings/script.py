"""Failures of a script that every user meets: a program that is not there, arguments that were not given."""

from seatrial.findings.known import Known

#: Programs that scripts call → the Debian package that has them (packages.debian.org, bookworm).
PROGRAMS = {
    "aria2c": "aria2",
    "cmake": "cmake",
    "curl": "curl",
    "dot": "graphviz",
    "ffmpeg": "ffmpeg",
    "ffprobe": "ffmpeg",
    "git": "git",
    "git-lfs": "git-lfs",
    "java": "default-jre-headless",
    "make": "make",
    "pdflatex": "texlive-latex-base",
    "rsync": "rsync",
    "sox": "sox",
    "tesseract": "tesseract-ocr",
    "unzip": "unzip",
    "wget": "wget",
    "xvfb-run": "xvfb",
}


#: Libraries that wheels ask for and slim images lack → the Debian package (packages.debian.org, bookworm).
LIBRARIES = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libGLESv2.so.2": "libgles2",
    "libSM.so.6": "libsm6",
    "libX11.so.6": "libx11-6",
    "libXext.so.6": "libxext6",
    "libXrender.so.1": "libxrender1",
    "libaio.so.1": "libaio1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgomp.so.1": "libgomp1",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libibverbs.so.1": "libibverbs1",
    "libmagic.so.1": "libmagic1",
    "libmpi.so.12": "mpich",
    "libmpi.so.40": "openmpi-bin",
    "libnuma.so.1": "libnuma1",
    "libodbc.so.2": "unixodbc",
    "libportaudio.so.2": "libportaudio2",
    "libsndfile.so.1": "libsndfile1",
    "libusb-1.0.so.0": "libusb-1.0-0",
    "libxcb.so.1": "libxcb1",
}


def _missing_library(name: str) -> Known:
    return Known(
        id="library-missing-" + name.lower().replace(".", "-"),
        title="The image has no library " + name,
        symptoms=(name + ": cannot open shared object file",),
        cause="A Python package is linked with %s, which its wheel does not bring and slim images lack" % name,
        fix='in seatrial.toml: [image] system_packages = ["%s"]' % LIBRARIES[name],
        sources=("https://packages.debian.org/" + LIBRARIES[name],),
    )


def _missing(program: str) -> Known:
    return Known(
        id="program-missing-" + program,
        title="The image has no program " + program,
        symptoms=(
            "No such file or directory: '%s'" % program,
            "%s: not found" % program,
            "%s: command not found" % program,
        ),
        cause="The script calls %s, a program of the system that no Python package brings" % program,
        fix='in seatrial.toml: [image] system_packages = ["%s"]' % PROGRAMS[program],
        sources=("https://packages.debian.org/" + PROGRAMS[program],),
    )


SCRIPT = (
    *(_missing_library(name) for name in LIBRARIES),
    *(_missing(program) for program in PROGRAMS),
    Known(
        id="relative-import",
        title="The script imports from the package around it, and was started without it",
        symptoms=("attempted relative import with no known parent package",),
        cause="Python takes a file that is started by its path for no part of its package",
        fix="seatrial run -m PACKAGE.MODULE",
        sources=("https://docs.python.org/3/using/cmdline.html#cmdoption-m",),
    ),
    Known(
        id="arguments-missing",
        title="The script was not given {arguments}",
        symptoms=(
            "error: the following arguments are required: {arguments…}",
            "Error: Missing option '{arguments}'",
            "Error: Missing argument '{arguments}'",
            "│ Missing option '{arguments}'",
            "│ Missing argument '{arguments}'",
        ),
        cause="The script's own arguments go after --",
        fix="seatrial run … -- {arguments} VALUE   # or, to see them all: -- --help",
        sources=("https://docs.python.org/3/library/argparse.html",),
    ),
    Known(
        id="command-missing",
        title="The script was not given one of its commands",
        symptoms=(
            "Error: Missing command.",
            "│ Missing command.",
            "Error: No such command '{command}'",
            "│ No such command '{command}'",
        ),
        cause="It has commands of its own, and the one to run goes after --",
        fix="seatrial run … -- --help   # lists them",
        sources=("https://typer.tiangolo.com/tutorial/commands/",),
    ),
    Known(
        id="arguments-unknown",
        title="The script does not know the argument {arguments}",
        symptoms=(
            "error: unrecognized arguments: {arguments…}",
            "Error: No such option: {arguments}",
            "│ No such option: {arguments}",
        ),
        cause="What stands after -- goes to the script; seatrial's own options stand before it",
        fix="seatrial run … -- --help   # the script's own options",
        sources=("https://docs.python.org/3/library/argparse.html",),
    ),
    Known(
        id="name-of-another-release",
        title="The package {package} has no {name}",
        symptoms=(
            "ImportError: cannot import name '{name}' from '{package}'",
            "AttributeError: module '{package}' has no attribute '{name}'",
        ),
        cause="The code was written for another release of it; or a file of the project has its name and hides it",
        fix="python -c 'import {package}; print({package}.__file__)'   # whose? Then pin the release of that time",
        sources=("axolotl-ai-cloud/axolotl#685", "https://docs.python.org/3/library/exceptions.html#ImportError"),
    ),
)
