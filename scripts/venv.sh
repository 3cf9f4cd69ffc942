# Sourced by the other scripts: goes to the top of the repository, takes a leading `--python X.Y` off the arguments,
# sets up that virtual environment, and puts its programs first in PATH.
cd "$(dirname "$0")/.."
case "${1-}" in
  --python)
    python=${2:?"--python needs a version, such as 3.13"}
    shift 2
    ;;
  --python=*)
    python=${1#--python=}
    shift
    ;;
  *) python= ;;
esac
scripts/setup ${python:+--python "$python"}
PATH=$PWD/.venv${python:+-$python}/bin:$PATH
export PATH
