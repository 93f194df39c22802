# shellcheck shell=bash
# Postgres: Debian's own, durable as in production. Postgres refuses to run as root, so root uses
# the system user `postgres`. $STACK/postgres has data/, the socket and settings.conf.
# STACK_POSTGRES_BUFFERS and STACK_POSTGRES_WAL: shared_buffers and max_wal_size, 512MB and 4GB by
# default.

POSTGRES_VERSION_MIN=15

# What the caller has set for its own psql is not for the servers of a stack.
unset PGHOST PGPORT PGUSER PGDATABASE PGPASSWORD PGDATA PGOPTIONS PGSERVICE

# Prints the folder of the newest installed server, or of the one that created the data.
postgres_bin() {
  local major folder
  if { read -r major <"$STACK/postgres/data/PG_VERSION"; } 2>/dev/null; then
    folder=/usr/lib/postgresql/$major/bin
  else
    folder=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
  fi
  if [[ ! -x $folder/postgres ]]; then # not Debian
    folder=$(command -v postgres) && folder=$(dirname "$(readlink -f "$folder")") || return 1
  fi
  printf '%s' "$folder"
}

postgres_is_installed() {
  local bin version
  bin=$(postgres_bin) || return 1
  version=$("$bin/postgres" --version) || return 1
  version=${version#* (PostgreSQL) }
  ((${version%%[!0-9]*} >= POSTGRES_VERSION_MIN))
}

# The words before a command that run it as Postgres's user.
POSTGRES_AS=()
if ((EUID == 0)); then
  POSTGRES_AS=(setpriv --reuid=postgres --regid=postgres --init-groups --)
fi
as_postgres() { (cd / && exec "${POSTGRES_AS[@]}" "$@"); }

postgres_mark() { printf '%s' "--punctual.stack=$STACK/postgres"; }
postgres_home() { readlink -f "$STACK/postgres"; }

# Backends may outlive their postmaster for a moment. Their working folder is the data folder.
postgres_leftovers() {
  [[ -n $(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$(postgres_home)/data" 2>/dev/null) ]]
}

# --- where ------------------------------------------------------------------------------------

# A short path, open to Postgres's user, one per stack.
postgres_outside() { printf '%s' "/var/tmp/punctual-$(hash_of "$STACK/postgres")"; }

# Creates a folder that belongs only to Postgres's user, in a place where others can write, too.
make_outside() {
  local folder=$1 owner
  if [[ -e $folder || -L $folder ]]; then
    owner=$(stat -c %U "$folder")
    [[ ! -L $folder && ($owner == postgres || $owner == "$(id -un)") ]] ||
      die "$folder is somebody else's ($owner): remove it"
    rm -rf "$folder"
  fi
  mkdir -m 700 "$folder"
}

# Usually a plain folder. In a clone that Postgres's user cannot enter (mktemp -d, /root), a link.
postgres_place() {
  local place=$STACK/postgres
  if [[ -L $place && $(readlink "$place") != "$(postgres_outside)" ]]; then
    rm "$place" # the clone was copied together with its .stack: this data is another's
  fi
  [[ ! -d $place ]] || return 0
  rm -f "$place"
  if as_postgres test -x "$STACK"; then
    mkdir -m 700 "$place"
  else
    make_outside "$(postgres_outside)"
    ln -s "$(postgres_outside)" "$place"
  fi
  postgres_owns "$place/"
}

postgres_owns() { ((EUID != 0)) || chown -R postgres:postgres "$@"; }

# The kernel allows 107 bytes for a socket's path; ".s.PGSQL.15432" and a slash take 15.
postgres_socket_folder() {
  local folder
  folder=$(postgres_home)/socket
  ((${#folder} + 15 <= 107)) || folder=/tmp/punctual-$(hash_of "$STACK/postgres")
  printf '%s' "$folder"
}

postgres_purge() {
  local outside
  outside=$(postgres_outside)
  [[ ! -L $STACK/postgres || $(readlink "$STACK/postgres") != "$outside" ]] || rm -rf "$outside"
  outside=/tmp/punctual-$(hash_of "$STACK/postgres")
  [[ ! -O $outside && $(stat -c %U "$outside" 2>/dev/null) != postgres ]] || rm -rf "$outside"
}

# --- made once, started often -------------------------------------------------------------------

postgres_prepare() {
  local socket
  postgres_place
  [[ -d $STACK/postgres/data ]] || postgres_create
  ! is_breakable || { disk_mount && clock_prepare; }
  postgres_unlock
  socket=$(postgres_socket_folder)
  [[ -d $socket ]] || make_outside "$socket"
  postgres_owns "$socket"
  tls_for_postgres
  postgres_settings >"$STACK/postgres/settings.conf"
  postgres_owns "$STACK/postgres/settings.conf"
}

# Created under another name and then renamed, so that an interrupted attempt does not look
# complete.
postgres_create() {
  local bin home log
  bin=$(postgres_bin)
  home=$(postgres_home)
  log=$STACK/logs/initdb.log
  mkdir -p "$STACK/logs"
  rm -rf "$home/data.new"
  as_postgres "$bin/initdb" --pgdata="$home/data.new" --username=punctual --no-instructions \
    --encoding=UTF8 --locale=C --auth-local=trust --auth-host=scram-sha-256 >"$log" 2>&1 ||
    die "postgres: initdb failed: $(tail -n 3 "$log")"
  printf '%s\n' "alter role punctual password 'punctual'" "create database punctual" |
    as_postgres "$bin/postgres" --single -D "$home/data.new" postgres >>"$log" 2>&1 || true
  ! grep -E 'ERROR|FATAL|PANIC' "$log" || die "postgres: could not make its database; see $log"
  say "include = '../settings.conf'" >>"$home/data.new/postgresql.conf"
  mv "$home/data.new" "$home/data"
}

# After a crash, the process ids in Postgres's lock files may belong to other programs, which
# Postgres takes for a running server. Real Postgres processes have the data folder as working
# folder.
postgres_unlock() {
  postgres_leftovers ||
    rm -f "$(postgres_home)"/data/postmaster.pid "$(postgres_socket_folder)/.s.PGSQL.$(port_of postgres)"*
}

# Written at each start, because ports may change. `alter system` overrides these settings.
postgres_settings() {
  cat <<END
# Written by scripts/stack at each start.
listen_addresses = '127.0.0.1'
port = $(port_of postgres)
unix_socket_directories = '$(postgres_socket_folder)'
max_connections = 400

# Durable, because the guarantees are tested on this server.
fsync = on
full_page_writes = on
synchronous_commit = on

# Rare checkpoints, because full page images after each one would blur measurements.
checkpoint_timeout = 30min
max_wal_size = ${STACK_POSTGRES_WAL:-4GB}
shared_buffers = ${STACK_POSTGRES_BUFFERS:-512MB}
autovacuum = on
jit = off
log_line_prefix = '%m [%p] %a '

# pglz costs more CPU than the rest of a small insert. Not every build has lz4.
wal_compression = $(postgres_takes wal_compression lz4 || echo off)
default_toast_compression = $(postgres_takes default_toast_compression lz4 || echo pglz)
$(standby_settings)
$(tls_postgres_settings)
END
}

# Prints the value if this build supports it.
postgres_takes() { # SETTING VALUE
  as_postgres "$(postgres_bin)/postgres" -D "$(postgres_home)/data" -c "$1=$2" -C "$1" 2>/dev/null
}

postgres_spawn() {
  local clock=()
  ! is_breakable || mapfile -t clock < <(clock_words)
  cd / # not a folder that Postgres's user cannot enter
  spawn postgres "${POSTGRES_AS[@]}" "${clock[@]}" "$(postgres_bin)/postgres" -D "$(postgres_home)/data" \
    "$(postgres_mark)"
}

# Over the stack's own socket, so that no other server answers.
postgres_ready() {
  "$(postgres_bin)/pg_isready" -q -U punctual -d punctual -h "$(postgres_socket_folder)" -p "$(port_of postgres)"
}

postgres_stop() { signal postgres INT 60; } # "fast": ends the sessions, writes a checkpoint

# Crashes the postmaster and all its children at once. The next start recovers from the WAL.
postgres_kill() { signal postgres QUIT 20; }

# --- how to reach it ----------------------------------------------------------------------------

url_encode() {
  local i char
  for ((i = 0; i < ${#1}; i++)); do
    char=${1:i:1}
    case $char in
      [A-Za-z0-9/._~-]) printf '%s' "$char" ;;
      *) printf '%%%02X' "'$char" ;;
    esac
  done
}

# For both libpq and sqlx. The socket is the default, because sqlx never sets TCP_NODELAY.
postgres_socket_url() {
  printf 'postgres:///punctual?host=%s&port=%s&user=punctual' \
    "$(url_encode "$(postgres_socket_folder)")" "$(if is_replicated; then say "$PRIMARY_SOCKET"; else port_of postgres; fi)"
}
postgres_tcp_url() { printf 'postgres://punctual:punctual@%s/punctual' "$(address_of postgres)"; }
