# shellcheck shell=bash
# The database server of an application, which has an outbox: a second Postgres, with the machine's
# clock and disk. Only in a breakable stack, where it can be stopped and frozen alone. Its data is in
# the folder of Punctual's Postgres. Sourced after postgres.sh.

shop_mark() { printf '%s' "--punctual.stack=$STACK/shop"; }
shop_data() { printf '%s' "$(postgres_home)/shop"; }

# Prints the folders in /proc of all its processes. Their working folder is the data folder.
shop_processes() { find /proc/[0-9]*/cwd -maxdepth 0 -lname "$(shop_data)" 2>/dev/null; }
shop_leftovers() { [[ -n $(shop_processes) ]]; }

# Created under another name and then renamed, so that an interrupted attempt does not look complete.
shop_prepare() {
  local bin new log=$STACK/logs/initdb-shop.log
  bin=$(postgres_bin)
  new=$(shop_data).new
  if [[ ! -d $(shop_data) ]]; then
    rm -rf "$new"
    as_postgres "$bin/initdb" --pgdata="$new" --username=punctual --no-instructions \
      --encoding=UTF8 --locale=C --auth-local=trust --auth-host=scram-sha-256 >"$log" 2>&1 ||
      die "shop: initdb failed: $(tail -n 3 "$log")"
    say "alter role punctual password 'punctual'" |
      as_postgres "$bin/postgres" --single -D "$new" postgres >>"$log" 2>&1 || true
    ! grep -E 'ERROR|FATAL|PANIC' "$log" || die "shop: could not set its password; see $log"
    mv "$new" "$(shop_data)"
  fi
  shop_leftovers || rm -f "$(shop_data)/postmaster.pid"
}

shop_spawn() {
  cd / # not a folder that Postgres's user cannot enter
  spawn shop "${POSTGRES_AS[@]}" "$(postgres_bin)/postgres" -D "$(shop_data)" \
    -c listen_addresses=127.0.0.1 -c "port=$(port_of shop)" -c unix_socket_directories= \
    -c jit=off -c 'log_line_prefix=%m [%p] %a ' "$(shop_mark)"
}

shop_ready() { "$(postgres_bin)/pg_isready" -q -U punctual -d postgres -h 127.0.0.1 -p "$(port_of shop)"; }

# SIGNAL for the postmaster and all backends. One that is forked meanwhile is met by the second turn.
shop_all() {
  local folders
  for _ in 1 2; do
    mapfile -t folders < <(shop_processes)
    ((${#folders[@]} > 0)) || return 0
    folders=("${folders[@]#/proc/}")
    kill -s "$1" "${folders[@]%/cwd}" 2>/dev/null || true # some end meanwhile
  done
}
shop_freeze() { shop_all STOP; }
shop_thaw() { shop_all CONT; }

shop_stop() { shop_thaw && signal shop INT 60; }
shop_kill() { shop_thaw && signal shop QUIT 20; }
shop_purge() { :; } # its data is in the folder of Postgres

shop_url() { printf 'postgres://punctual:punctual@%s/postgres' "$(address_of shop)"; }
