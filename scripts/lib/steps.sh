# shellcheck shell=bash
# Steps of a check, each with its name, outcome and duration, and how many cores were busy. Sourced
# after common.sh.

# Prints the busy time of all cores, in hundredths of a second: without idle time, waits for the
# disk, and time stolen by the host.
busy_time() {
  local user nice system interrupts soft
  read -r _ user nice system _ _ interrupts soft _ </proc/stat
  printf '%s\n' $((user + nice + system + interrupts + soft))
}

# step NAME COMMAND..: runs the command, and ends the script if the command fails. COMMAND is a
# program, or a function of one statement, because bash ignores errors inside a condition.
step() {
  local name=$1 began busy tenths
  shift
  began=$(now_us) busy=$(busy_time)
  say "==> $name"
  "$@" || die "$name: failed after $(seconds_since "$began") s"
  tenths=$((($(busy_time) - busy) * 100000 / ($(now_us) - began + 1)))
  say "==> $name: ok ($(seconds_since "$began") s, $((tenths / 10)).$((tenths % 10)) cores)"
}
