# shellcheck shell=bash
# Ports on 127.0.0.1 only, free at the first start and kept for later ones. $STACK/ports/SERVICE has
# them on one line. A stopped stack keeps its ports: no other stack of this clone takes them.

port_of() { # SERVICE [INDEX]
  local ports
  { read -r -a ports <"$STACK/ports/$1"; } 2>/dev/null || return 1
  printf '%s' "${ports[${2:-0}]}"
}

address_of() { printf '127.0.0.1:%s' "$(port_of "$1")"; }

# Memorable numbers, below the ports that the kernel assigns, and far from the servers' usual ones.
default_ports() {
  case $1 in
    postgres) echo 15432 ;;
    standby) echo 15437 ;;
    shop) echo 15438 ;;
    etcd) echo 12379 12380 ;;
    kafka) if is_breakable || is_tls; then echo 19092 19093 19094 19095 19096; else echo 19092 19093; fi ;;
    kafka2) if is_breakable; then seq -s ' ' 19192 19196; else echo 19192 19193; fi ;;
    kafka3) if is_breakable; then seq -s ' ' 19292 19296; else echo 19292 19293; fi ;;
    toxiproxy) if is_replicated; then seq -s ' ' 18470 18491; else seq -s ' ' 18470 18482; fi ;;
  esac
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

any_answers() {
  local port
  for port in "$@"; do
    if answers "$port"; then return 0; fi
  done
  return 1
}

reserved_by_another() { # SERVICE PORT..
  local service=$1 file port ports
  shift
  for file in "$STACKS"/*/ports/*; do
    [[ -e $file && $file != "$STACK/ports/$service" ]] || continue
    read -r -a ports <"$file" || continue
    for port in "$@"; do
      [[ " ${ports[*]} " != *" $port "* ]] || return 0
    done
  done
  return 1
}

# Another program listens on the port of this service.
ports_are_taken() {
  local ports
  read -r -a ports <"$STACK/ports/$1" || return 1
  ! runs "$1" && any_answers "${ports[@]}"
}

ports_at() { # SERVICE STEP
  local port ports=()
  for port in $(default_ports "$1"); do ports+=("$((port + $2 * 10))"); done
  printf '%s\n' "${ports[*]}"
}

pick_ports() {
  local service=$1 step ports
  for ((step = 0; step < 100; step++)); do
    read -r -a ports <<<"$(ports_at "$service" "$step")"
    any_answers "${ports[@]}" && continue
    reserved_by_another "$service" "${ports[@]}" && continue
    say "${ports[*]}" >"$STACK/ports/$service"
    return
  done
  die "$service: no free port found in 100 tries from $(default_ports "$service") on"
}

# Keeps the service's ports if they are free. Otherwise picks others, ten further each time.
settle_ports() {
  local service=$1
  runs "$service" && return
  mkdir -p "$STACK/ports"
  exec 8>"$LOCKS/ports" # two names may look for ports at the same time
  flock 8
  if [[ ! -s $STACK/ports/$service ]] || ports_are_taken "$service"; then
    pick_ports "$service"
  fi
  exec 8>&-
}
