# shellcheck shell=bash
# Servers as processes: they outlive the script that starts them, are found again by process id, and
# get signals only while the id is still theirs. $STACK is the folder of the stack.

pid_file() { printf '%s' "$STACK/$1.pid"; }
log_file() { printf '%s' "$STACK/logs/$1.log"; }

# spawn SERVICE COMMAND..: starts a server in a session of its own.
# - The process id is written before the server runs, so that a killed script does not lose it.
# - The server inherits no open file: neither the lock nor the pipe of the script's reader.
# - Background jobs of a script ignore SIGINT and SIGQUIT. The server gets the defaults again.
spawn() {
  local service=$1 log
  shift
  log=$(log_file "$service")
  mkdir -p "${log%/*}"
  [[ ! -e $log ]] || mv -f "$log" "$log.1"
  rm -f "$(pid_file "$service")"
  # shellcheck disable=SC2016 # expanded by the inner shell
  setsid --fork bash -c '
    echo $$ >"$0.new" && mv "$0.new" "$0"
    for fd in /proc/self/fd/*; do
      fd=${fd##*/}
      if ((fd > 2)); then eval "exec $fd>&-"; fi
    done
    ulimit -S -n 65536 2>/dev/null || ulimit -S -n "$(ulimit -H -n)"
    exec env --default-signal "$@"' "$(pid_file "$service")" "$@" </dev/null >"$log" 2>&1
  wait_until 30 test -s "$(pid_file "$service")" # long before, but on a machine that is full
}

# is_process PID ARGUMENT: succeeds if there is such a process, started with exactly this argument.
# Process ids are reused, but an argument with the path of our data folder is not.
is_process() {
  local arguments=() argument tries
  for ((tries = 0; tries < 50; tries++)); do
    { mapfile -d '' -t arguments <"/proc/$1/cmdline"; } 2>/dev/null || return 1
    # During an exec a process has no arguments for a moment. Zombies and kernel threads have no
    # arguments and no program.
    if ((${#arguments[@]} > 0)) || [[ ! -e /proc/$1/exe ]]; then break; fi
    sleep 0.02
  done
  for argument in "${arguments[@]}"; do
    [[ $argument != "$2" ]] || return 0
  done
  return 1
}

# our_pid SERVICE: prints the process id. Fails if the service does not run.
our_pid() {
  local pid
  { read -r pid <"$(pid_file "$1")"; } 2>/dev/null || return 1
  [[ $pid =~ ^[0-9]+$ ]] && is_process "$pid" "$("$1_mark")" && printf '%s' "$pid"
}

runs() { our_pid "$1" >/dev/null; }
is_up() { runs "$1" && "$1_ready"; }

# A dying process loses its name first and its ports last. A single-threaded zombie has lost both.
# It may stay for good if no process reaps it (a container without an init).
has_ended() { # PID
  local threads
  [[ -e /proc/$1/status ]] || return 0
  threads=(/proc/"$1"/task/*)
  ((${#threads[@]} == 1)) && grep -qs '^State:.Z' "/proc/$1/status"
}
is_gone() { has_ended "$2" && ! "$1_leftovers"; }

# signal SERVICE SIGNAL SECONDS: fails if the process still exists afterwards.
signal() {
  local pid
  pid=$(our_pid "$1") || return 0
  kill -s "$2" "$pid" 2>/dev/null || true # it may have ended by itself just now
  wait_until "$3" is_gone "$1" "$pid"
}

# Ends processes on our data folder without a pid file, after .stack was deleted under a running
# stack.
end_strays() {
  local service=$1 mark proc
  runs "$service" && return
  mark=$("${service}_mark")
  for proc in /proc/[0-9]*; do
    if is_process "${proc##*/}" "$mark"; then
      warn "$service: ended process ${proc##*/}, left over from a stack whose folder was deleted"
      kill -KILL "${proc##*/}" 2>/dev/null || true
      wait_until 10 has_ended "${proc##*/}" || true
    fi
  done
}
