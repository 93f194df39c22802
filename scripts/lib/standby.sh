# shellcheck shell=bash
# A synchronous standby of Postgres, and a failover to it. The standby streams from the primary of
# the same stack, in the same folder, on a port of its own. Sourced after postgres.sh.

STANDBY_NAME=standby # in synchronous_standby_names

is_replicated() { [[ -s $STACK/ports/standby ]]; }

standby_mark() { printf '%s' "--punctual.stack=$STACK/standby"; }
standby_data() { printf '%s' "$(postgres_home)/standby"; }
standby_leftovers() {
  [[ -n $(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$(standby_data)" 2>/dev/null) ]]
}

# Copied under another name and then renamed, so that an interrupted attempt does not look complete.
standby_prepare() {
  local new log=$STACK/logs/basebackup.log
  new=$(standby_data).new
  if [[ ! -d $(standby_data) ]]; then
    rm -rf "$new"
    as_postgres "$(postgres_bin)/pg_basebackup" --pgdata="$new" --write-recovery-conf --checkpoint=fast \
      --wal-method=stream --dbname="host=$(postgres_socket_folder) port=$(port_of postgres) user=punctual application_name=$STANDBY_NAME" \
      >"$log" 2>&1 || die "standby: pg_basebackup failed: $(tail -n 3 "$log")"
    mv "$new" "$(standby_data)"
  fi
  standby_leftovers || rm -f "$(standby_data)/postmaster.pid" "$(postgres_socket_folder)/.s.PGSQL.$(port_of standby)"*
}

# Its copy of postgresql.conf includes the settings of the primary. The port overrides theirs.
standby_spawn() {
  cd / # not a folder that Postgres's user cannot enter
  spawn standby "${POSTGRES_AS[@]}" "$(postgres_bin)/postgres" -D "$(standby_data)" \
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
    -p "$(port_of postgres)" -c "$1"
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

standby_promote() {
  as_postgres "$(postgres_bin)/pg_ctl" promote --pgdata="$(standby_data)" --wait --timeout=60 >"$STACK/logs/promote.log" 2>&1
}

# SIGKILL for every process of the primary at once, as when its machine is lost. Their working
# folder is the data folder of this stack.
postgres_lose() {
  local folders
  mapfile -t folders < <(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$(postgres_home)/data" 2>/dev/null)
  ((${#folders[@]} > 0)) || return 0
  folders=("${folders[@]#/proc/}")
  kill -KILL "${folders[@]%/cwd}" 2>/dev/null || true # some end with their parent
  return 1
}
