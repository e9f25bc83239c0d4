#!/usr/bin/env bash
# Installs profpipe on first use and runs a pipeline file. `./auto_profile.sh --help` lists the variables.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
venv=$here/.venv
python=${PYTHON:-python3}
torch=${TORCH-torch==2.13.0}
pipeline=${PIPELINE:-$here/pipeline.yaml}

# The pipeline file reads these as ${NAME:-default}. PROFILERS, WORKLOADS, OUT and PIPELINE become options of the program.
placeholders=(BATCH SEQLEN NHEADS KVHEADS HEADDIM DTYPE CAUSAL MODE IMPLS WARMUP REPEATS)

declare -A meaning=(
  [BATCH]="batch sizes" [SEQLEN]="sequence lengths" [NHEADS]="query heads" [KVHEADS]="key and value heads, one number"
  [HEADDIM]="head dimension, one number" [DTYPE]="one data type" [CAUSAL]="causal mask, true or false"
  [MODE]="fwd, fwd_bwd" [IMPLS]="attention implementations"
  [WARMUP]="iterations before the timed ones" [REPEATS]="timed iterations"
)

say() { echo "auto_profile: $*" >&2; }

# 3 is the program's own code for "a required tool is missing".
fail() {
  say "$@"
  exit 3
}

default_of() {
  local found
  found=$(sed -nE "s/.*\\$\{$1:-([^}]*)\}.*/\1/p;ta;b;:a;q" "$pipeline" 2>/dev/null || true)
  echo "${found:-not used by this pipeline file}"
}

show_help() {
  local name
  cat <<TEXT
Usage: [NAME=VALUE ...] ./auto_profile.sh [ARGUMENT ...]

Runs the workloads of a pipeline file under each profiler of this machine and prints the start of SUMMARY.md.
The first use creates .venv beside this script, which also sees the system's packages, and installs profpipe there.

Variables of the pipeline file (write a list as 1024,4096), with the defaults of $pipeline:
TEXT
  for name in "${placeholders[@]}"; do
    printf '  %-10s %-34s %s\n' "$name" "${meaning[$name]}" "$(default_of "$name")"
  done
  cat <<TEXT

  PROFILERS  profilers, a list                  those of the pipeline file
  WORKLOADS  workloads, a list                  all
  OUT        results folder                     out
  PIPELINE   pipeline file                      pipeline.yaml beside this script

Installation, on first use:
  PYTHON     interpreter, 3.10 or later         python3
  TORCH      what pip installs if torch cannot  torch==2.13.0
             be imported; empty: nothing

Options: --help shows this, --setup only installs. All other arguments go to \`profpipe run\`, for instance --dry-run
or a program as it is: -- python train.py --batch 8.
Exit codes: 0 success, 1 a case failed or an expectation of the pipeline file was not met (SUMMARY.md names it),
2 wrong pipeline file or arguments, 3 a required tool is missing, 130 interrupted.

Example: BATCH=4 SEQLEN=1024,4096 NHEADS=16 PROFILERS=plain,nsys ./auto_profile.sh
TEXT
}

# "1024, 4096" and "1024 4096" mean 1024,4096.
as_list() { tr -s '[:space:],' ',' <<<"$1" | sed 's/^,//; s/,$//'; }

has_module() { "$1" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$2') is None)"; }

# A venv made from inside another venv sees the system's packages, not those of the other one, where torch may well be.
share_outer_venv() {
  local code='import sys, sysconfig; print(sysconfig.get_path("purelib") if sys.prefix != sys.base_prefix else "")'
  local outer inner
  outer=$("$python" -c "$code")
  inner=$("$venv/bin/python" -c "$code")
  if [ -n "$outer" ] && [ "$outer" != "$inner" ]; then
    echo "$outer" >"$inner/outer_venv.pth"
  fi
}

make_venv() {
  command -v "$python" >/dev/null || fail "no $python here. Install Python 3.10 or later, or set PYTHON to one."
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$("$python" --version 2>&1) is too old. Install Python 3.10 or later and set PYTHON to it."
  say "making $venv with $("$python" --version), the system's packages in reach"
  "$python" -m venv --system-site-packages "$venv" >&2 ||
    fail "$python cannot make a venv. On Debian and Ubuntu: apt install python3-venv."
  share_outer_venv
  # Up to Python 3.11 a venv is given an old setuptools, which would hide the one that the machine's torch came with.
  "$venv/bin/python" -m pip uninstall --quiet --yes setuptools >/dev/null 2>&1 || true
}

install() {
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet) isolation=() extra=""
  if has_module "$venv/bin/python" torch; then
    say "using the torch that is installed; nothing is installed over it"
  elif [ -n "$torch" ]; then
    say "no torch can be imported: installing $torch into .venv"
    # Unquoted: TORCH may carry options, such as an index for another build.
    # shellcheck disable=SC2086
    "${pip[@]}" $torch >&2 || fail "pip could not install $torch. Install torch yourself, or set TORCH= to go without."
  fi
  # With a setuptools in reach nothing needs to be downloaded to build; a machine without a network can have all the rest.
  if "$venv/bin/python" -c 'import setuptools, sys; sys.exit(int(setuptools.__version__.split(".")[0]) < 77)' 2>/dev/null; then
    isolation=(--no-build-isolation)
  fi
  say "installing profpipe and what it needs into .venv"
  # Only where ncu is installed are its reports read.
  if command -v ncu >/dev/null; then extra="[ncu]"; fi
  "${pip[@]}" "${isolation[@]}" --editable "$here$extra" >&2 || fail "pip could not install profpipe; its message is above."
}

# What was installed. Without that interpreter, in a moved checkout or with other dependencies it is installed again.
stamp() { echo "$here $(cksum <"$here/pyproject.toml")"; }

set_up() {
  local mark=$venv/.installed
  # From Python 3.11 on, nothing is imported from the current folder.
  local -x PYTHONSAFEPATH=1
  if [ -x "$venv/bin/python" ] && [ "$(cat "$mark" 2>/dev/null)" = "$(stamp)" ]; then
    return
  fi
  make_venv
  install
  stamp >"$mark"
  say "ready; the next start is immediate"
}

# The pipeline file may be given as an argument too, as for `profpipe run`. A program after -- needs none.
names_pipeline() {
  local argument
  for argument in "$@"; do
    case $argument in
      --) return 0 ;;
      *.yaml | *.yml) if [ -f "$argument" ]; then return 0; fi ;;
    esac
  done
  return 1
}

export_placeholders() {
  local name
  for name in "${placeholders[@]}" PROFILERS; do
    [ -n "${!name:-}" ] || continue
    export "$name=$(as_list "${!name}")"
    if [ "$name" != PROFILERS ] && [ -f "$pipeline" ] && ! grep -q "\${$name\b" "$pipeline"; then
      say "$name=${!name} has no effect: $pipeline does not use \${$name}"
    fi
  done
}

for argument in "$@"; do
  case $argument in
    --) break ;;
    --help | -h)
      show_help
      exit
      ;;
    --setup)
      set_up
      exit
      ;;
  esac
done

set_up
if names_pipeline "$@"; then pipeline=""; fi
export_placeholders
options=()
if [ -n "$pipeline" ]; then options+=("$pipeline"); fi
if [ -n "${PROFILERS:-}" ]; then options+=(-p "$PROFILERS"); fi
if [ -n "${WORKLOADS:-}" ]; then options+=(-w "$(as_list "$WORKLOADS")"); fi
if [ -n "${OUT:-}" ]; then options+=(--out "$OUT"); fi

exec "$venv/bin/profpipe" run "${options[@]}" "$@"
