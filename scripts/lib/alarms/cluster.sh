# shellcheck shell=bash
# The cluster of `scripts/alarms`: two nodes with most settings that an alert is about, what calls
# them, and what is outside of them. Sourced, never run. $WORK is a folder of this run.

NODES=(1 2)
TOPIC=alarms.orders
INTAKE=alarms.in

# Processes that the run has started: `began NAME PID`, and `end NAME [SIGNAL]`.
declare -A PIDS=()
began() { PIDS[$1]=$2; }
end() {
  local pid=${PIDS[$1]:-}
  [[ -n $pid ]] || return 0
  kill -s "${2:-TERM}" "$pid" 2>/dev/null || true
  [[ ${2:-TERM} == KILL ]] || kill -s CONT "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  unset "PIDS[$1]"
}

free_port() {
  local port
  while port=$((20000 + RANDOM % 10000)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
  printf '%s' "$port"
}

sql() { psql "$DATABASE" -X -q -v ON_ERROR_STOP=1 "$@" >>"$WORK/psql.log" 2>&1; }
shop_sql() { psql "$SHOP" -X -q -v ON_ERROR_STOP=1 "$@" >>"$WORK/psql.log" 2>&1; }
stack() { "$ROOT/scripts/stack" "$@" --name "$STACK_NAME" >>"$WORK/stack.log" 2>&1; }
topic() { stack topic "$@"; }
kafka_command() { kafka_tool "$@" >>"$WORK/kafka.log" 2>&1; } # CLASS WORD..

# The port of a node's way to a server, through toxiproxy.
way() { jq -r --arg name "$1-$2" '.[] | select(.name == $name) | .listen | split(":")[1]' "$STACKS/$STACK_NAME/toxiproxy.json"; }
toxiproxy() { curl -sf -o /dev/null --noproxy '*' --max-time 5 "$PUNCTUAL_TEST_TOXIPROXY$1" "${@:2}"; }
cut_way() { toxiproxy "/proxies/$1-$2" -d '{"enabled":false}'; } # SERVER NODE
mend_way() { toxiproxy "/proxies/$1-$2" -d '{"enabled":true}'; }
slow_way() { # SERVER NODE TYPE ATTRIBUTES
  toxiproxy "/proxies/$1-$2/toxics" -d "{\"name\":\"slow\",\"type\":\"$3\",\"stream\":\"upstream\",\"attributes\":$4}"
}
quick_way() { toxiproxy "/proxies/$1-$2/toxics/slow" -X DELETE; }

# call NODE PATH WORD..: a request with the operator's token; fails unless the status is 2xx.
call() {
  curl -sf --noproxy '*' --max-time 10 --cacert "$WORK/ca.pem" -H @"$WORK/operator.header" \
    -H 'content-type: application/json' "https://localhost:${PORTS[$1]}$2" "${@:3}"
}
submit() { call "${NODE:-1}" /v1/tasks -o /dev/null -d "$1"; }
cli() { # WORD..: of the command line
  "$PROGRAM" "$@" --url "https://localhost:${PORTS[1]}" --token-file "$WORK/operator.token" --ca-file "$WORK/ca.pem" \
    >>"$WORK/command.log" 2>&1
}
metric() { # NODE NAME
  curl -sf --noproxy '*' --max-time 5 --cacert "$WORK/ca.pem" "https://localhost:${OPERATOR_PORTS[$1]}/metrics" | grep -q "^$2\$"
}
is_ready() { curl -sf -o /dev/null --noproxy '*' --max-time 5 --cacert "$WORK/ca.pem" "https://localhost:${OPERATOR_PORTS[$1]}/readyz"; }
all_ready() {
  local node
  for node in "${NODES[@]}"; do is_ready "$node" || return 1; done
}

# --- made once ------------------------------------------------------------------------------------

make_files() {
  (cd "$WORK" && tls_certificates) >"$WORK/openssl.log" 2>&1 || die "openssl failed: $(tail -n 3 "$WORK/openssl.log")"
  mv "$WORK/server.pem" "$WORK/outside.pem"
  mv "$WORK/server.key" "$WORK/outside.key"
  tls_jwks "$WORK/token.key" >"$WORK/jwks.json"
  local node who
  for who in operator small; do
    "$PROGRAM" token new --principal "$who" >"$WORK/$who.token" 2>"$WORK/$who.lines"
    printf 'Authorization: Bearer %s\n' "$(<"$WORK/$who.token")" >"$WORK/$who.header"
  done
  make_auth_file >"$WORK/auth.toml"
  printf '%s\n' 'current = 1' '[keys]' "1 = '$(openssl rand -base64 32)'" >"$WORK/keys.toml"
  openssl rand -base64 32 >"$WORK/callback.keys"
  mkdir "$WORK/audit"
  mount -t tmpfs -o size=4m punctual-alarms "$WORK/audit" || die "cannot mount a tmpfs (it takes root)"
  for node in "${NODES[@]}"; do
    cp "$WORK/outside.pem" "$WORK/server-$node.pem"
    cp "$WORK/outside.key" "$WORK/server-$node.key"
    cp "$WORK/auth.toml" "$WORK/auth-$node.toml"
    cp "$WORK/keys.toml" "$WORK/keys-$node.toml"
    printf 'postgres://punctual:punctual@127.0.0.1:%s/%s' "$(way postgres "$node")" "$NAME_OF_RUN" >"$WORK/url-$node"
    printf 'shop=postgres://punctual:punctual@127.0.0.1:%s/%s\n' "$(way shop "$node")" "$NAME_OF_RUN" >"$WORK/outboxes-$node"
    mkfifo "$WORK/node-$node.fifo"
  done
  chmod 600 "$WORK"/*.toml "$WORK"/*.keys "$WORK"/url-* "$WORK"/outboxes-* "$WORK"/*.key
}

make_auth_file() {
  say 'version = 1'
  cat "$WORK/operator.lines"
  say "allow = [ { actions = ['*', 'callback'], topics = ['*'] } ]"
  say 'operate = true'
  cat "$WORK/small.lines"
  say "allow = [ { actions = ['read'], topics = ['*'] } ]"
  say 'limits = { reads_per_second = 1 }'
  say '[principals.shop]'
  say "allow = [ { actions = ['submit'], topics = ['alarms.*'] } ]"
  say "[principals.'$INTAKE']"
  say "allow = [ { actions = ['submit'], topics = ['alarms.*'] } ]"
  say '[[jwt]]'
  say "name = 'test'"
  say "issuer = 'https://localhost:$OUTSIDE_PORT'"
  say "audience = 'punctual'"
  say "jwks_url = 'https://localhost:$OUTSIDE_PORT/jwks'"
  say "ca_file = '$WORK/ca.pem'"
}

make_databases() {
  psql "$PUNCTUAL_DATABASE_URL" -Xqc "create tablespace small_disk location '$PUNCTUAL_TEST_DISK'"
  psql "$PUNCTUAL_DATABASE_URL" -Xqc "create database $NAME_OF_RUN tablespace small_disk"
  psql "$PUNCTUAL_TEST_SHOP" -Xqc "create database $NAME_OF_RUN"
  DATABASE=${PUNCTUAL_DATABASE_URL/:\/\/\/punctual?/:\/\/\/$NAME_OF_RUN?}
  SHOP=${PUNCTUAL_TEST_SHOP/%\/postgres/\/$NAME_OF_RUN}
  "$PROGRAM" migrate --database-url "$DATABASE" >"$WORK/migrate.log" 2>&1 || die "$(tail -n 3 "$WORK/migrate.log")"
  "$PROGRAM" outbox install --database-url "$SHOP" >"$WORK/outbox.log" 2>&1 || die "$(tail -n 3 "$WORK/outbox.log")"
}

# --- processes ------------------------------------------------------------------------------------

outside_start() {
  "$PYTHON" "$ROOT/scripts/lib/alarms/outside.py" "$OUTSIDE_PORT" "$WORK" "$PUNCTUAL_TEST_DISK" >"$WORK/outside.log" 2>&1 &
  began outside $!
}

# Without a reader of its log, a node could not start.
reader_start() { # NODE
  cat "$WORK/node-$1.fifo" >>"$WORK/node-$1.log" &
  began "reader-$1" $!
}

# PRELOAD: a library that the node loads before all others.
node_start() { # NODE [WORD..]
  end "reader-$1"
  reader_start "$1"
  LD_PRELOAD=${PRELOAD-} SSL_CERT_FILE=$WORK/ca.pem "$PROGRAM" serve --cluster "$NAME_OF_RUN" --node-name "node-$1" \
    --database-url-file "$WORK/url-$1" --kafka "127.0.0.1:$(way kafka "$1")" --etcd "http://127.0.0.1:$(way etcd "$1")" \
    --listen "127.0.0.1:${PORTS[$1]}" --operator-listen "127.0.0.1:${OPERATOR_PORTS[$1]}" \
    --tls-certificate-file "$WORK/server-$1.pem" --tls-key-file "$WORK/server-$1.key" \
    --auth-file "$WORK/auth-$1.toml" --audit-file "$WORK/audit/$1" --payload-key-file "$WORK/keys-$1.toml" \
    --outbox-file "$WORK/outboxes-$1" --intake-topic "$INTAKE" \
    --callback-host "localhost:$OUTSIDE_PORT" --callback-network 127.0.0.0/8 --callback-key-file "$WORK/callback.keys" \
    --in-flight-tasks 1000 --topic-in-flight-tasks 1000 --metrics-topics 'alarms.*' --log info,punctual=debug "${@:2}" \
    >"$WORK/node-$1.fifo" 2>&1 &
  began "node-$1" $!
}

prometheus_start() {
  local node
  {
    say 'global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }'
    say "rule_files: ['$WORK/rules.yml']"
    say 'scrape_configs:'
    say '  - job_name: punctual'
    say '    scheme: https'
    say '    tls_config: { insecure_skip_verify: true }'
    say '    static_configs:'
    for node in "${NODES[@]}"; do
      say "      - { targets: ['localhost:${OPERATOR_PORTS[$node]}'], labels: { instance: node-$node } }"
    done
    say '  - job_name: machine'
    say '    scheme: https'
    say '    tls_config: { insecure_skip_verify: true }'
    say "    static_configs: [{ targets: ['localhost:$OUTSIDE_PORT'], labels: { instance: postgres } }]"
  } >"$WORK/prometheus.yml"
  prometheus --config.file="$WORK/prometheus.yml" --storage.tsdb.path="$WORK/prometheus" \
    --web.listen-address="127.0.0.1:$PROMETHEUS_PORT" >"$WORK/prometheus.log" 2>&1 &
  began prometheus $!
}

# Ten tasks a second, to each node in turn, due within three seconds. Refusals are no matter.
traffic() {
  local turn tasks delay
  for ((turn = 0; ; turn++)); do
    tasks=''
    for delay in 300 600 900 1200 1500 1800 2100 2400 2700 3000; do
      tasks+=",{\"topic\":\"$TOPIC\",\"delay\":$delay,\"payload\":$turn}"
    done
    call $((1 + turn % 2)) /v1/tasks/batch -o /dev/null --max-time 3 -d "{\"tasks\":[${tasks#,}]}" || true
    sleep 1
  done
}

# Everything that has to be there before the first incident.
cluster_up() {
  NAME_OF_RUN=alarms_$RANDOM$RANDOM
  OUTSIDE_PORT=$(free_port)
  PORTS=() OPERATOR_PORTS=()
  local node name
  for node in "${NODES[@]}"; do PORTS[node]=$(free_port) OPERATOR_PORTS[node]=$(free_port); done
  make_files
  make_databases
  for name in "$TOPIC" "$INTAKE" "$INTAKE.rejected"; do topic "$name" --config message.timestamp.type=LogAppendTime; done
  outside_start
  for node in "${NODES[@]}"; do node_start "$node"; done
  wait_until 60 all_ready || die "the nodes are not ready: $(tail -n 3 "$WORK"/node-?.log)"
  prometheus_start
  traffic >"$WORK/traffic.log" 2>&1 &
  began traffic $!
}

cluster_down() {
  local name
  for name in "${!PIDS[@]}"; do
    case $name in
      node-* | prometheus | outside) end "$name" KILL ;;
      *) end "$name" ;;
    esac
  done
  ! mountpoint -q "$WORK/audit" || umount "$WORK/audit" || umount --lazy "$WORK/audit"
}
