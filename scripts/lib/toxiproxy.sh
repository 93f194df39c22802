# shellcheck shell=bash
# Toxiproxy: a proxy from each of three nodes to each server, which can be cut, slowed down and made
# half-open over an API. Only in a breakable stack. Built from the Go module proxy.
#
# Ports: that of the API, then for nodes 1, 2 and 3 those to postgres, etcd, kafka and shop, and in
# a replicated stack to the standby and the other brokers. Kafka tells clients the addresses of
# brokers, so each broker has a listener per node that advertises the proxy of that node.

TOXIPROXY_VERSION=2.12.0
PROXIED_NODES=(1 2 3)

toxiproxy_folder() { printf '%s' "$CACHE/toxiproxy-$TOXIPROXY_VERSION"; }
toxiproxy_binary() { printf '%s' "$(toxiproxy_folder)/server"; }
toxiproxy_is_installed() { [[ -x $(toxiproxy_binary) ]]; }

toxiproxy_install() {
  go_build "$(toxiproxy_folder)" "github.com/Shopify/toxiproxy/v2/cmd/server@v$TOXIPROXY_VERSION"
}

toxiproxy_mark() { printf '%s' "-config=$STACK/toxiproxy.json"; }
toxiproxy_leftovers() { return 1; }
toxiproxy_prepare() { toxiproxy_ways >"$STACK/toxiproxy.json"; }

proxied_services() {
  printf '%s\n' postgres etcd kafka shop
  ! is_replicated || printf '%s\n' standby kafka2 kafka3
}

# Prints the port of a node's proxy to a service.
way_port() { # SERVICE NODE
  local services index
  mapfile -t services < <(proxied_services)
  for index in "${!services[@]}"; do
    [[ ${services[index]} != "$1" ]] || port_of toxiproxy $((($2 - 1) * ${#services[@]} + index + 1))
  done
}

# Prints the port of the service behind a node's proxy.
way_end() { # SERVICE NODE
  if [[ $1 == kafka* ]]; then port_of "$1" $(($2 + 1)); else port_of "$1"; fi
}

toxiproxy_ways() {
  local node service comma=''
  say '['
  for node in "${PROXIED_NODES[@]}"; do
    for service in $(proxied_services); do
      say "$comma{\"name\":\"$service-$node\",\"enabled\":true,\"listen\":\"127.0.0.1:$(way_port "$service" "$node")\",\"upstream\":\"127.0.0.1:$(way_end "$service" "$node")\"}"
      comma=,
    done
  done
  say ']'
}

toxiproxy_spawn() {
  LOG_LEVEL=warn spawn toxiproxy "$(toxiproxy_binary)" -host=127.0.0.1 "-port=$(port_of toxiproxy)" "$(toxiproxy_mark)"
}

toxiproxy_ready() { [[ $(curl -s --noproxy '*' --max-time 2 "http://$(address_of toxiproxy)/proxies") == *'"shop-3"'* ]]; }

toxiproxy_stop() { signal toxiproxy TERM 20; }
toxiproxy_kill() { signal toxiproxy KILL 20; }
toxiproxy_purge() { :; }

# --- what of it stands in Kafka's settings ------------------------------------------------------

# kafka_ways SERVICE way_end|way_port: ",NODE1://127.0.0.1:PORT,.." for each node of a breakable
# stack.
kafka_ways() {
  local node
  is_breakable || return 0
  for node in "${PROXIED_NODES[@]}"; do printf ',NODE%s://127.0.0.1:%s' "$node" "$("$2" "$1" "$node")"; done
}
kafka_way_protocols() {
  local node
  is_breakable || return 0
  for node in "${PROXIED_NODES[@]}"; do printf ',NODE%s:PLAINTEXT' "$node"; done
}
