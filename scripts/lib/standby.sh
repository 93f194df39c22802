# shellcheck shell=bash
# A synchronous standby of Postgres, and a failover to it. The standby streams from the primary of
# the same stack, in the same folder, on a port of its own. Sourced after postgres.sh.
#
# There are two places, each with data and a port: the services postgres and standby. The primary is
# in the first one until a failover. The other place can then be made the standby of the new
# primary.

STANDBY_NAME=standby # in synchronous_standby_names
# In a replicated stack, the socket with this port leads to the primary, wherever it is.
PRIMARY_SOCKET=5432

is_replicated() { [[ -e $STACK/replicated ]]; }
has_standby() { [[ -s $STACK/ports/standby ]]; }

primary() { cat "$STACK/primary" 2>/dev/null || say postgres; }
follower() { if [[ $(primary) == postgres ]]; then say standby; else say postgres; fi; }
place_data() { if [[ $1 == standby ]]; then standby_data; else printf '%s' "$(postgres_home)/data"; fi; }

# With segments kept, a standby that was away for a moment needs no new copy.
standby_settings() {
  ! is_replicated || printf '%s\n' "wal_keep_size = 512MB" "wal_retrieve_retry_interval = 500ms"
}

# Points the primary's socket at a place. A rename replaces the link at once.
primary_socket() { # PLACE
  local link
  is_replicated || return 0
  link=$(postgres_socket_folder)/.s.PGSQL.$PRIMARY_SOCKET
  ln -sf ".s.PGSQL.$(port_of "$1")" "$link.new" && mv -T "$link.new" "$link"
}

standby_mark() { printf '%s' "--punctual.stack=$STACK/standby"; }
standby_data() { printf '%s' "$(postgres_home)/standby"; }
standby_leftovers() {
  [[ -n $(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$(standby_data)" 2>/dev/null) ]]
}

# Copies the primary into the other place, unless that has the data of a standby: a former primary
# has none. Copied under another name and then renamed, so that an interrupted attempt does not look
# complete. Once promoted, the copy waits for no standby until it has one.
standby_copy() { # PLACE
  local data new log=$STACK/logs/basebackup.log
  data=$(place_data "$1")
  new=$data.new
  [[ ! -e $data/standby.signal ]] || return 0
  rm -rf "$new"
  as_postgres "$(postgres_bin)/pg_basebackup" --pgdata="$new" --write-recovery-conf --checkpoint=fast \
    --wal-method=stream --dbname="host=$(postgres_socket_folder) port=$(port_of "$(primary)") user=punctual application_name=$STANDBY_NAME" \
    >"$log" 2>&1 || die "$1: pg_basebackup failed: $(tail -n 3 "$log")"
  sed -i '/^synchronous_standby_names/d' "$new/postgresql.auto.conf"
  postgres_owns "$new/postgresql.auto.conf"
  rm -rf "$data"
  mv "$new" "$data"
}

standby_prepare() {
  standby_leftovers || rm -f "$(standby_data)/postmaster.pid" "$(postgres_socket_folder)/.s.PGSQL.$(port_of standby)"*
}

# Its copy of postgresql.conf includes the settings of the primary. The port overrides theirs. In a
# breakable stack it has the same clock: otherwise a failover would move the clock back.
standby_spawn() {
  local clock=()
  ! is_breakable || mapfile -t clock < <(clock_words)
  cd / # not a folder that Postgres's user cannot enter
  spawn standby "${POSTGRES_AS[@]}" "${clock[@]}" "$(postgres_bin)/postgres" -D "$(standby_data)" \
    -c "port=$(port_of standby)" "$(standby_mark)"
}

standby_ready() {
  "$(postgres_bin)/pg_isready" -q -U punctual -d punctual -h "$(postgres_socket_folder)" -p "$(port_of standby)"
}

standby_stop() { signal standby INT 60; }
standby_kill() { signal standby QUIT 20; }
standby_purge() { :; } # its data is in the folder of Postgres

# primary_says QUERY: asks the primary, over its socket.
primary_says() {
  "$(postgres_bin)/psql" -X -A -t -q -U punctual -d punctual -h "$(postgres_socket_folder)" \
    -p "$(port_of "$(primary)")" -c "$1"
}

# From then on each commit waits for the standby.
standby_synchronous() {
  primary_says "alter system set synchronous_standby_names = '$STANDBY_NAME'" &&
    primary_says "select pg_reload_conf()" >/dev/null &&
    wait_until 30 standby_is_synchronous
}
standby_is_synchronous() {
  [[ $(primary_says "select sync_state from pg_stat_replication where application_name = '$STANDBY_NAME'") == sync ]]
}

# Has the other place follow the primary, as its synchronous standby.
standby_follow() {
  local place
  place=$(follower)
  runs "$place" || standby_copy "$place"
  bring_up "$place" || die "the standby of stack $NAME is not up"
  standby_synchronous || die "$place: not synchronous after 30 s; see $(log_file "$place")"
}

standby_promote() { # PLACE
  as_postgres "$(postgres_bin)/pg_ctl" promote --pgdata="$(place_data "$1")" --wait --timeout=60 >"$STACK/logs/promote.log" 2>&1 &&
    say "$1" >"$STACK/primary" && primary_socket "$1"
}

# SIGKILL for every process of the primary at once, as when its machine is lost. Their working
# folder is the data folder of this stack.
primary_lose() {
  local folders
  mapfile -t folders < <(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$(place_data "$(primary)")" 2>/dev/null)
  ((${#folders[@]} > 0)) || return 0
  folders=("${folders[@]#/proc/}")
  kill -KILL "${folders[@]%/cwd}" 2>/dev/null || true # some end with their parent
  return 1
}
