#!/usr/bin/env bash
# Installs the newest wheel of dist/ in a fresh environment, outside of the checkout, and runs a small study from it.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(ls -t "$PWD"/dist/fedtuner-*.whl | head -n 1)
constraints=$PWD/constraints.txt
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$constraints" "$wheel[digits]"
cd "$folder"
venv/bin/python -c "import fedtuner, pathlib; assert 'site-packages' in fedtuner.__file__, fedtuner.__file__"
venv/bin/fedtuner run digits --quiet --set schedule.budget=60 --set schedule.longest=15 --set schedule.eliminations=2
venv/bin/python -m fedtuner show runs/digits-fedavg-seed0 > /dev/null
echo "$(basename "$wheel") installs in a fresh environment and runs."
