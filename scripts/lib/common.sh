# shellcheck shell=bash
# Shared by every script here: paths, messages, waiting, time and locks.
# Sourced, never run.
# shellcheck disable=SC2034 # what is set here is used there

export LC_ALL=C # one decimal point and one sort order everywhere

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
STACKS=$ROOT/.stack  # all that the stacks keep: ignored by git, safe to delete when they are down
CACHE=$STACKS/cache  # servers fetched or built once, shared by all stacks of this clone
LOCKS=$STACKS/locks  # outside the stacks' own folders, which `down --purge` removes

# The folders where the usual installers put Rust and Go, for shells without them (cron, CI).
PATH=$PATH:${HOME:-/root}/.cargo/bin:/usr/local/go/bin
# Go of this clone, installed where that of the machine is missing or too old.
find_own_go() {
  local folder
  for folder in "$STACKS"/go/lib/python3*/site-packages/go/bin; do
    [[ ! -d $folder ]] || PATH=$folder:$PATH
  done
}
find_own_go

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }
die() {
  warn "error: $*"
  exit 1
}

# Prints microseconds since the epoch, without a process.
now_us() { printf '%s' "${EPOCHREALTIME/[.,]/}"; }

# seconds_since START_US: prints seconds such as "2.1".
seconds_since() {
  local us=$(($(now_us) - $1))
  printf '%d.%d' $((us / 1000000)) $((us % 1000000 / 100000))
}

# wait_until SECONDS COMMAND..: waits until the command succeeds. Fails after SECONDS.
wait_until() {
  local deadline=$(($(now_us) + $1 * 1000000))
  shift
  until "$@"; do
    (($(now_us) < deadline)) || return 1
    sleep 0.05
  done
}

# lock NAME MESSAGE [--shared]: takes a lock, exclusive or shared, until this process and all its
# helpers have ended. Helpers inherit the lock on purpose: the helpers of a killed `up` still hold
# it. Servers do not.
lock() {
  local fd
  mkdir -p "$LOCKS" 2>/dev/null || true
  [[ -w $LOCKS ]] || die "$STACKS belongs to $(stat -c %U "$STACKS"): run this as that user"
  exec {fd}>"$LOCKS/$1"
  flock "${3:---exclusive}" -n "$fd" && return
  say "$2"
  flock "${3:---exclusive}" -w 900 "$fd" || die "waited 15 minutes for $LOCKS/$1; see who holds it: fuser -v $LOCKS/$1"
}

# Prints a short name that is unique to this clone and this path.
hash_of() { sha256sum <<<"$1" | cut -c1-12; }
