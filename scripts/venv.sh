# Sourced by the other scripts, from the root of the checkout: makes .venv and installs embbench.
# Usage: ensure_venv [EXTRAS]     such as: ensure_venv '[dev]'

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    if [ -n "$candidate" ] && "$candidate" -c '
import sys, venv, ensurepip
sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  echo "embbench needs Python 3.11, 3.12 or 3.13 with the venv module; none was found." \
    "Name one: PYTHON=/path/to/python3.12 $0" >&2
  return 2
}

# Installs again only when pyproject.toml or the extras have changed.
ensure_venv() {
  local extras="${1:-}" python stamp
  stamp="$(cksum <pyproject.toml)"
  if [ -x .venv/bin/embbench ] && grep -qsF "$stamp" .venv/embbench-installed &&
    { [ -z "$extras" ] || grep -qsF "$stamp $extras" .venv/embbench-installed; }; then
    return
  fi
  if [ ! -x .venv/bin/python ]; then
    python="$(find_python)" || return
    echo "making .venv with $python" >&2
    "$python" -m venv .venv
  fi
  echo "installing embbench$extras into .venv (a minute or two the first time)" >&2
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".$extras" >&2
  echo "$stamp $extras" >.venv/embbench-installed
}
