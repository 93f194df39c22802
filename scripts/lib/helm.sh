# shellcheck shell=bash
# Helm: lints and renders the chart. Built from the Go module proxy. Sourced after common.sh and
# install.sh.

HELM_VERSION=3.22.0

helm_folder() { printf '%s' "$CACHE/helm-$HELM_VERSION"; }
helm_binary() { printf '%s' "$(helm_folder)/helm"; }
helm_is_installed() { [[ -x $(helm_binary) ]]; }

helm_install() { go_build "$(helm_folder)" "helm.sh/helm/v3/cmd/helm@v$HELM_VERSION"; }

# Builds Helm unless it is there. Without Go, nothing is built. Call it outside conditions, because
# bash ignores errors inside them.
helm_get() {
  ! helm_is_installed || return 0
  has_go >/dev/null 2>&1 || return 0
  lock helm "waiting for another installation of helm"
  mkdir -p "$CACHE"
  build helm "building Helm $HELM_VERSION with Go (some minutes)"
}
