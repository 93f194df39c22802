# shellcheck shell=bash
# etcd: one member with durable data, built from the Go module proxy (Debian has 3.4, of 2022).

ETCD_VERSION=3.7.3

etcd_binary() { printf '%s' "$CACHE/etcd-$ETCD_VERSION/etcd"; }
etcd_is_installed() { [[ -x $(etcd_binary) ]]; }

# A wrapper module, because `go install ..@version` is refused (replace directives).
etcd_install() {
  local new=$CACHE/etcd.new
  rm -rf "$new" && mkdir -p "$new"
  (
    cd "$new" || exit
    export GOFLAGS=-buildvcs=false GOWORK=off CGO_ENABLED=0
    go mod init punctual.test/etcd
    go get "go.etcd.io/etcd/server/v3@v$ETCD_VERSION"
    go build -trimpath -o etcd go.etcd.io/etcd/server/v3
  )
  mv -T "$new" "${new%.new}-$ETCD_VERSION"
}

etcd_mark() { printf '%s' "--data-dir=$STACK/etcd/data"; }
etcd_leftovers() { return 1; }
etcd_prepare() { mkdir -p "$STACK/etcd"; }

# etcd holds only the keys of running nodes, and they write them again. Without waits for the disk,
# it answers while tests keep the disk busy for seconds.
etcd_spawn() {
  local client peer tls
  mapfile -t tls < <(tls_etcd_words)
  client=$(etcd_url)
  peer=http://127.0.0.1:$(port_of etcd 1)
  spawn etcd "$(etcd_binary)" --name=stack "$(etcd_mark)" --auto-compaction-retention=1h --unsafe-no-fsync \
    --listen-client-urls="$client" --advertise-client-urls="$client" "${tls[@]}" \
    --listen-peer-urls="$peer" --initial-advertise-peer-urls="$peer" --initial-cluster="stack=$peer"
}

# The log line first. Otherwise an etcd of another clone might answer on the port.
etcd_ready() {
  local tls
  mapfile -t tls < <(tls_curl_words)
  grep -q 'ready to serve client requests' "$(log_file etcd)" || return 1
  # Nobody here has a certificate for it.
  if etcd_wants_certificates; then answers "$(port_of etcd)"; else
    [[ $(curl -s --noproxy '*' --max-time 2 "${tls[@]}" "$(etcd_url)/health") == *'"health":"true"'* ]]
  fi
}

etcd_stop() { signal etcd TERM 20; }
etcd_kill() { signal etcd KILL 20; }
etcd_purge() { :; }
