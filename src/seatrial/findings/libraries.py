"""Failures of the libraries around a framework: Hugging Face, Weights & Biases, protobuf, bitsandbytes, Triton."""

from seatrial.findings.known import Known

LIBRARIES_AROUND = (
    Known(
        id="hub-unreachable",
        title="The Hugging Face hub cannot be reached",
        symptoms=(
            "We couldn't connect to 'https://huggingface.co' to load",
            "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded",
            "Cannot reach https://huggingface.co/",
            "on the Hub and we cannot find the requested files in the local cache",
        ),
        cause="There is no way from here to huggingface.co, or only by a proxy, and the files are not in the cache",
        fix="seatrial run --env HTTPS_PROXY=http://HOST:PORT …   # or: --mount ./hub:/hub --env HF_HOME=/hub",
        sources=("https://huggingface.co/docs/transformers/installation#offline-mode", "MILVLG/prophet#46"),
        healthy=r"(?m)^.*?\b(f[ae]ll(s|ing)? back (to|on)|using (the |a )?(latest )?(local |locally )?cached"
        r"|returning existing local_dir|silently ignoring the lookup)\b.*",
    ),
    Known(
        id="hub-name-unknown",
        title="The Hugging Face hub does not know the name",
        symptoms=(
            "Repository Not Found for url: {url}",
            "RepositoryNotFoundError: 404",
            "is not a local folder and is not a valid model identifier",
            "DatasetNotFoundError: ",
        ),
        cause="It is misspelled or was renamed, or it is private and no token was passed",
        fix="look it up on huggingface.co; a private one: export HF_TOKEN=… && seatrial run --secret HF_TOKEN …",
        sources=("https://huggingface.co/docs/huggingface_hub/package_reference/utilities#errors",),
    ),
    Known(
        id="optional-package-missing",
        title="A library needs the package {package}, which is not installed",
        symptoms=(
            "requires the {package} library but it was not found in your environment",
            "Using the `Trainer` with `PyTorch` requires `{package}`",
            "Using `low_cpu_mem_usage=True` or a `device_map` requires {package}:",
            "Using `bitsandbytes` 8-bit quantization requires {package}:",
        ),
        cause="It is not among the packages that this library brings by itself",
        fix="add it to requirements.txt, or [image] requirements in seatrial.toml",
        sources=("huggingface/transformers: src/transformers/utils/import_utils.py",),
    ),
    Known(
        id="no-padding-token",
        title="The tokenizer has no padding token",
        symptoms=("Asking to pad but the tokenizer does not have a padding token",),
        cause="GPT-2, Llama and others were trained without one",
        fix="tokenizer.pad_token = tokenizer.eos_token",
        sources=("huggingface/transformers: src/transformers/tokenization_utils_base.py",),
    ),
    Known(
        id="wandb-login",
        title="Weights & Biases wants a login",
        symptoms=("api_key not configured (no-tty)", "wandb: ERROR api_key not configured"),
        cause="Its key was not passed, and nobody can type it here",
        fix="export WANDB_API_KEY=… && seatrial run --secret WANDB_API_KEY …   # or --env WANDB_MODE=offline",
        sources=("https://docs.wandb.ai/models/track/environment-variables",),
    ),
    Known(
        id="protobuf-version",
        title="A package was made for an older protobuf",
        symptoms=("Descriptors cannot be created directly", "Descriptors cannot not be created directly"),
        cause="Its generated code is older than protobuf 3.19, and protobuf 4 and later do not take it",
        fix="pin protobuf<3.21 in requirements.txt, or take a newer release of the package",
        sources=("https://protobuf.dev/news/2022-05-06/#python-updates",),
    ),
    Known(
        id="bitsandbytes-cuda",
        title="bitsandbytes has no library for this CUDA",
        symptoms=(
            "CUDA Setup failed despite GPU being available",
            "Could not find the bitsandbytes CUDA binary at",
            "libbitsandbytes_cpu.so: undefined symbol",
        ),
        cause="Its release is older than the CUDA that torch brings, or it finds no CUDA library at all",
        fix="pip install --upgrade bitsandbytes && python -m bitsandbytes",
        sources=("https://huggingface.co/docs/bitsandbytes/installation",),
    ),
    Known(
        id="triton-missing",
        title="torch.compile finds no working Triton",
        symptoms=("Cannot find a working triton installation",),
        cause="triton is not installed, belongs to another torch, or the GPU is older than it supports (compute "
        "capability 7.0)",
        fix="pip install --force-reinstall torch   # brings its own triton; or leave out torch.compile",
        sources=("pytorch: torch/_inductor/exc.py",),
    ),
)
