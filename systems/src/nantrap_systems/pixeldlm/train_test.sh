#!/usr/bin/env bash
# A short run: edit the variables, or set them in the environment (LR=1e-5 bash train_test.sh).
# The file may also be given as a config, --config train_test.sh; then it is read and not run.
LR=${LR:-1e-2}
MAX_GRAD_NORM=${MAX_GRAD_NORM:-1.0}
BATCH_SIZE=${BATCH_SIZE:-16}

"${PYTHON:-python}" -m nantrap_systems.pixeldlm.train \
    --lr "$LR" \
    --set "max_grad_norm=$MAX_GRAD_NORM" \
    --set "batch_size=$BATCH_SIZE" \
    "$@"
