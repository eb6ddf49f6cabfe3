#!/usr/bin/env bash
set -euo pipefail
export OMP_NUM_THREADS=1

torchrun --standalone --nproc_per_node=4 \
    train.py --lr 0.1 --epochs 3
