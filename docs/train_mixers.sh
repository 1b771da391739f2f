#!/usr/bin/env bash
# The runs behind the README's picture: the hybrid of 142,026 parameters with one mixer in all layers, five epochs of CIFAR-10.
set -euo pipefail
for mixer in "softmax" "relu(m=64)" "favor(m=64)" "uniform" "none"; do
  favorit train --data cifar10 --preset hybrid --set "model.layout=$mixer" --set "data.augment=crop(4)|flip" --epochs 5 --seed 42 --out "${1:-runs/mixers}"
done
