# shellcheck shell=bash
# TLS of a stack with --tls: an authority, and one certificate for all servers, for localhost and
# 127.0.0.1. $STACK/tls has ca.pem, server.pem, server.key and kafka.pem.

TLS_DAYS=3650

is_tls() { [[ -d $STACK/tls ]]; }

# Created under another name and then renamed, so that an interrupted attempt does not look
# complete.
tls_make() {
  local new=$STACK/tls.new log=$STACK/logs/tls.log
  rm -rf "$new"
  mkdir -p "$new" "${log%/*}"
  (cd "$new" && tls_certificates) >"$log" 2>&1 || die "tls: openssl failed: $(tail -n 3 "$log")"
  mv -T "$new" "$STACK/tls"
}

tls_certificates() {
  local key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
  openssl req -x509 "${key[@]}" -days "$TLS_DAYS" -subj '/CN=Punctual stack' -keyout ca.key -out ca.pem &&
    openssl req "${key[@]}" -subj '/CN=localhost' -keyout server.key -out server.csr &&
    say 'subjectAltName=DNS:localhost,IP:127.0.0.1' >names &&
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days "$TLS_DAYS" \
      -extfile names -out server.pem &&
    cat server.key server.pem >kafka.pem
}

# --- Postgres: it reads its key only when nobody else can ---------------------------------------

tls_for_postgres() {
  is_tls || return 0
  install -m 600 "$STACK/tls/server.pem" "$STACK/tls/server.key" "$STACK/postgres/"
  postgres_owns "$STACK/postgres/server.pem" "$STACK/postgres/server.key"
}

tls_postgres_settings() {
  is_tls || return 0
  cat <<END

ssl = on
ssl_cert_file = '$(postgres_home)/server.pem'
ssl_key_file = '$(postgres_home)/server.key'
END
}

tls_postgres_url() {
  printf '%s?sslmode=verify-full&sslrootcert=%s' "$(postgres_tcp_url)" "$(url_encode "$STACK/tls/ca.pem")"
}

# --- Kafka: two listeners beside the plain one, which the tests' own clients use ----------------

tls_kafka_listeners() { ! is_tls || printf ',SSL://127.0.0.1:%s,SASL_SSL://127.0.0.1:%s' "$(port_of kafka 2)" "$(port_of kafka 3)"; }
tls_kafka_protocols() { ! is_tls || printf ',SSL:SSL,SASL_SSL:SASL_SSL'; }
tls_kafka_properties() {
  is_tls || return 0
  cat <<END

ssl.keystore.type=PEM
ssl.keystore.location=$STACK/tls/kafka.pem
sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
END
}

# Prints the commands that create the test user.
tls_kafka_users() { ! is_tls || printf '%s\n' --add-scram 'SCRAM-SHA-256=[name=punctual,password=punctual]'; }

# --- etcd ---------------------------------------------------------------------------------------

etcd_url() { if is_tls; then printf 'https://%s' "$(address_of etcd)"; else printf 'http://%s' "$(address_of etcd)"; fi; }
tls_etcd_words() { ! is_tls || printf '%s\n' "--cert-file=$STACK/tls/server.pem" "--key-file=$STACK/tls/server.key"; }
tls_curl_words() { ! is_tls || printf '%s\n' --cacert "$STACK/tls/ca.pem"; }

# --- settings for tests -------------------------------------------------------------------------

tls_env() {
  say "export PUNCTUAL_ETCD_CA_FILE='$STACK/tls/ca.pem'"
  say "export PUNCTUAL_TEST_CA='$STACK/tls/ca.pem'"
  say "export PUNCTUAL_TEST_CERTIFICATE='$STACK/tls/server.pem'"
  say "export PUNCTUAL_TEST_KEY='$STACK/tls/server.key'"
  say "export PUNCTUAL_TEST_DATABASE_TLS_URL='$(tls_postgres_url)'"
  say "export PUNCTUAL_TEST_KAFKA_SSL='127.0.0.1:$(port_of kafka 2)'"
  say "export PUNCTUAL_TEST_KAFKA_SASL_SSL='127.0.0.1:$(port_of kafka 3)'"
}
