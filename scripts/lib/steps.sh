# shellcheck shell=bash
# Steps of a check, each with its name, outcome and duration. Sourced after common.sh.

# step NAME COMMAND..: runs the command, and ends the script if the command fails. COMMAND is a
# program, or a function of one statement, because bash ignores errors inside a condition.
step() {
  local name=$1 began
  shift
  began=$(now_us)
  say "==> $name"
  "$@" || die "$name: failed after $(seconds_since "$began") s"
  say "==> $name: ok ($(seconds_since "$began") s)"
}
