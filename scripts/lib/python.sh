# shellcheck shell=bash
# Python programs from the registry, each in an environment of its own. Sourced after common.sh.

# python_tool NAME REQUIREMENTS: installs the versions and hashes in REQUIREMENTS into .stack/NAME,
# and again when these change.
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

# One statement, because bash ignores errors inside a condition.
python_environment() {
  python3 -m venv --clear "$1" &&
    "$1/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$2"
}
