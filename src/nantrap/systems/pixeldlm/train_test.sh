#!/usr/bin/env bash
# A short run. The variables may also be given as a config: --config train_test.sh (it is read then, not run).
LR=1e-2
MAX_GRAD_NORM=1.0
BATCH_SIZE=16

python -m nantrap.systems.pixeldlm.train \
    --lr "$LR" \
    --set "max_grad_norm=$MAX_GRAD_NORM" \
    --set "batch_size=$BATCH_SIZE" \
    "$@"
