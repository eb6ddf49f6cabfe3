"""Failures of files and processes of the data: pictures, checkpoints, pickles, loader processes."""

from seatrial.findings.known import Known

TRAINING_FILES = (
    Known(
        id="loader-process-ended",
        title="A process of the data loader ended without a word",
        symptoms=(
            "DataLoader worker (pid(s) … exited unexpectedly",
            "DataLoader worker (pid {pid}) exited unexpectedly with exit code",
            "is killed by signal: Segmentation fault",
            "is killed by signal: Aborted",
            "Unexpected segmentation fault encountered in worker",
            "RuntimeError: Pin memory thread exited unexpectedly",
            "could not be retrieved. It could be because a worker has died",
        ),
        cause="It ran out of memory, or crashed where Python cannot raise",
        fix="num_workers=0 shows the error itself; for memory: seatrial run --memory 32g …",
        sources=("pytorch: torch/utils/data/dataloader.py", "dbolya/yolact#147"),
    ),
    Known(
        id="loader-timeout",
        title="A process of the data loader gave no batch in time",
        symptoms=("RuntimeError: DataLoader timed out after",),
        cause="Reading one batch takes longer than the loader's timeout, or a process of it waits for a lock for ever",
        fix="num_workers=0 shows which; then a longer DataLoader(…, timeout=…), or fewer threads: OMP_NUM_THREADS=1",
        sources=("pytorch: torch/utils/data/dataloader.py",),
    ),
    Known(
        id="loader-process-killed",
        title="A process of the data loader was killed (SIGKILL)",
        symptoms=("is killed by signal: Killed",),
        cause="Nearly always by the kernel: the container's memory limit, or the machine's memory, is too small for "
        "the data and its workers",
        fix="seatrial run --memory 32g …   # or fewer DataLoader workers, or read the data in chunks",
        sources=("pytorch: torch/utils/data/_utils/signal_handling.py",),
    ),
    Known(
        id="cannot-pickle",
        title="An object cannot be pickled",
        symptoms=(
            "Can't pickle local object '{name}'",
            "Can't get local object '{name}'",
            "TypeError: cannot pickle '{name}' object",
        ),
        cause="What goes to another process or into a checkpoint is pickled; a lambda, a function within a function, "
        "an open file or a lock cannot be",
        fix="def it at the top of a module; or, for a loader's processes, DataLoader(…, num_workers=0)",
        sources=("https://docs.python.org/3/library/pickle.html#what-can-be-pickled-and-unpickled",),
    ),
    Known(
        id="main-guard-missing",
        title="A new process runs the script from its top again",
        symptoms=("An attempt has been made to start a new process before the",),
        cause="With spawn each new process imports the script, so its top level must not start processes",
        fix='put it into main(), and at the end: if __name__ == "__main__": main()',
        sources=("https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods",),
    ),
    Known(
        id="lfs-pointer",
        title="The file is a pointer of Git LFS, not the file itself",
        symptoms=(
            "invalid load key, 'v'",
            "Unsupported operand 118¦",  # the same letter, as torch.load writes it since it loads weights only
            "Error while deserializing header: HeaderTooLarge",
        ),
        cause="It was cloned without git-lfs, which leaves a text of three lines in place of each large file",
        fix="git lfs install && git lfs pull   # where the file was cloned; `head -c 60 FILE` shows which it is",
        sources=("https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md",),
    ),
    Known(
        id="file-damaged",
        title="A saved file is damaged or not complete",
        symptoms=(
            "PytorchStreamReader failed",
            "Parquet magic bytes not found",
            "EOFError: Ran out of input",
            "Error while deserializing header: ",
            "UnpicklingError: pickle data was truncated",
            "invalid load key, '{key}'",
            "Unsupported operand 60¦",  # "<", as a web page begins
            "Unsupported operand 123¦",  # "{", as a server says that there is no such file
            "zipfile.BadZipFile: File is not a zip file",
            "Unable to open file (truncated file: eof",
            "tarfile.ReadError: ",
            "Compressed file ended before the end-of-stream marker",
        ),
        cause="Its download or its writing was cut off (a full disk, a run that was killed), or it is a web page or "
        "another format",
        fix="ls -l FILE; file FILE   # then load or save it again",
        sources=("pytorch: caffe2/serialize/inline_container.cc",),
    ),
    Known(
        id="checkpoint-of-another-gpu",
        title="The checkpoint was saved on a GPU of a number that is not here",
        symptoms=("Attempting to deserialize object on CUDA device",),
        cause="torch.load brings tensors back to the device that they were saved from",
        fix='torch.load(…, map_location="cpu"), then model.to(device)',
        sources=(
            "floodsung/LearningToCompare_FSL#33",
            "https://docs.pytorch.org/docs/stable/generated/torch.load.html",
        ),
    ),
    Known(
        id="checkpoint-incomplete",
        title="The checkpoint to resume from is not complete: {path}",
        symptoms=("No such file or directory: '{path…}/trainer_state.json'",),
        cause="The run ended while it was saving; the Trainer takes the folder with the highest number",
        fix="rm -r {path}   # then resume: from the one before",
        sources=("huggingface/transformers#35782",),
    ),
    Known(
        id="image-unreadable",
        title="A picture cannot be read: {file}",
        symptoms=(
            "UnidentifiedImageError: cannot identify image file '{file}'",
            "UnidentifiedImageError: cannot identify image file",
            "OSError: cannot identify image file",
            "OSError: image file is truncated",
            "OSError: broken data stream when reading image file",
        ),
        cause="It is damaged, was not downloaded to its end, or is no picture",
        fix="remove it or load it again; a picture that is only cut short: PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True",
        sources=("facebookresearch/deit#76", "https://pillow.readthedocs.io/en/stable/reference/ImageFile.html"),
    ),
)
