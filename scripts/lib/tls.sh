# shellcheck shell=bash
# TLS of a stack with --tls: an authority, and one certificate for all servers, for localhost and
# 127.0.0.1. $STACK/tls has ca.pem, server.pem, server.key and kafka.pem. Kafka takes tokens that are
# signed with token.key; jwks.json has its public half.

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
    cat server.key server.pem >kafka.pem &&
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out token.key &&
    tls_jwks token.key >jwks.json
}

# Prints the public half of a P-256 key as a set of keys. The last 64 bytes of its DER are x and y.
tls_jwks() { # KEY
  local point=() part
  for part in 'head -c 32' 'tail -c 32'; do
    point+=("$(openssl pkey -in "$1" -pubout -outform DER | tail -c 64 | $part | base64 -w 0 | tr '+/' '-_' | tr -d '=')")
  done
  printf '{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"stack","x":"%s","y":"%s"}]}\n' "${point[@]}"
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

# --- Kafka: three listeners beside the plain one, which the tests' own clients use --------------

tls_kafka_listeners() {
  is_tls || return 0
  printf ',SSL://127.0.0.1:%s,SASL_SSL://127.0.0.1:%s,OAUTH://127.0.0.1:%s' \
    "$(port_of kafka 2)" "$(port_of kafka 3)" "$(port_of kafka 4)"
}
tls_kafka_protocols() { ! is_tls || printf ',SSL:SSL,SASL_SSL:SASL_SSL,OAUTH:SASL_SSL'; }
# A connection ends with its token. Without the last line, Kafka would allow tokens half a minute
# more.
tls_kafka_properties() {
  is_tls || return 0
  cat <<END

ssl.keystore.type=PEM
ssl.keystore.location=$STACK/tls/kafka.pem
sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;

listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oauth.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;
listener.name.oauth.oauthbearer.sasl.server.callback.handler.class=org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.oauth.oauthbearer.connections.max.reauth.ms=3600000
sasl.oauthbearer.jwks.endpoint.url=$(tls_jwks_url)
sasl.oauthbearer.expected.audience=kafka
sasl.oauthbearer.expected.issuer=https://issuer.example
sasl.oauthbearer.clock.skew.seconds=0
END
}
tls_jwks_url() { printf 'file://%s/tls/jwks.json' "$STACK"; }
# Kafka reads keys only from addresses that its JVM was started with.
tls_kafka_jvm() { ! is_tls || say "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=$(tls_jwks_url)"; }

# Prints the commands that create the test user.
tls_kafka_users() { ! is_tls || printf '%s\n' --add-scram 'SCRAM-SHA-256=[name=punctual,password=punctual]'; }

# --- etcd ---------------------------------------------------------------------------------------

etcd_url() { if is_tls; then printf 'https://%s' "$(address_of etcd)"; else printf 'http://%s' "$(address_of etcd)"; fi; }
# Once a test has written clients.pem, etcd demands a certificate of an authority in it.
etcd_wants_certificates() { [[ -e $STACK/tls/clients.pem ]]; }
tls_etcd_words() {
  is_tls || return 0
  printf '%s\n' "--cert-file=$STACK/tls/server.pem" "--key-file=$STACK/tls/server.key"
  ! etcd_wants_certificates ||
    printf '%s\n' --client-cert-auth "--trusted-ca-file=$STACK/tls/clients.pem"
}
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
  say "export PUNCTUAL_TEST_KAFKA_OAUTH='127.0.0.1:$(port_of kafka 4)'"
}
