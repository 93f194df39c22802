# shellcheck shell=bash
# Programs from Python's registry, each in an environment of its own. After common.sh.

# python_tool NAME REQUIREMENTS: installs the versions and hashes of the file REQUIREMENTS into .stack/NAME; again when these change.
python_tool() {
  local name=$1 requirements=$2 folder=$STACKS/$1 stamp began
  mkdir -p "$STACKS"
  lock "$name" "waiting for another installation of $name"
  stamp=$(sha256sum <"$requirements" | cut -c1-16)
  [[ $(cat "$folder.stamp" 2>/dev/null) != "$stamp" ]] || return 0
  began=$(now_us)
  python_environment "$folder" "$requirements" >"$folder.log" 2>&1 </dev/null ||
    die "$name: cannot be installed, see $folder.log: $(tail -n 3 "$folder.log")"
  say "$stamp" >"$folder.stamp"
  say "$name: installed ($(seconds_since "$began") s)"
}

# One statement: bash passes over errors inside of what stands in a condition.
python_environment() {
  python3 -m venv --clear "$1" &&
    "$1/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$2"
}
