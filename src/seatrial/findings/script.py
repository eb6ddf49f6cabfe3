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
    *(_missing(program) for program in PROGRAMS),
    Known(
        id="arguments-missing",
        title="The script was not given {arguments}",
        symptoms=(
            "error: the following arguments are required: {arguments…}",
            "Error: Missing option '{arguments}'",
            "Error: Missing argument '{arguments}'",
        ),
        cause="The script's own arguments go after --",
        fix="seatrial run … -- {arguments} VALUE   # or, to see them all: -- --help",
        sources=("https://docs.python.org/3/library/argparse.html",),
    ),
    Known(
        id="arguments-unknown",
        title="The script does not know the argument {arguments}",
        symptoms=("error: unrecognized arguments: {arguments…}", "Error: No such option: {arguments}"),
        cause="What stands after -- goes to the script; seatrial's own options stand before it",
        fix="seatrial run … -- --help   # the script's own options",
        sources=("https://docs.python.org/3/library/argparse.html",),
    ),
)
