# shellcheck shell=bash
# Steps of a check, each with its name, its outcome and how long it took. After common.sh.

# step NAME COMMAND..: runs the command, ends the script when it fails. COMMAND is a program, or a
# function of one statement: bash passes over errors inside of what stands in a condition.
step() {
  local name=$1 began
  shift
  began=$(now_us)
  say "==> $name"
  "$@" || die "$name: failed after $(seconds_since "$began") s"
  say "==> $name: ok ($(seconds_since "$began") s)"
}
