# Sourced by the scripts of this folder. python_with PACKAGE==VERSION... sets PYTHON to an interpreter with these
# packages: the caller's $PYTHON, if it has these versions, or else that of a new environment in a temporary folder.
python_with() {
  local check='import importlib.metadata as m, sys
for wanted in sys.argv[1:]:
    name, version = wanted.split("==")
    if m.version(name) != version: sys.exit(f"{name} is {m.version(name)}, this finding was seen with {version}")
    print(name, version)'
  if [ -z "${PYTHON:-}" ]; then
    FINDING_FOLDER=$(mktemp -d)
    trap 'rm -rf "$FINDING_FOLDER"' EXIT
    python3 -m venv "$FINDING_FOLDER"
    PYTHON=$FINDING_FOLDER/bin/python
    "$PYTHON" -m pip install --quiet "$@"
  fi
  "$PYTHON" -c "$check" "$@"
}
