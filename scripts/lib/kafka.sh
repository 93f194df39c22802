# shellcheck shell=bash
# Kafka: one process, broker and controller (KRaft), from Maven Central's jars. With
# --three-brokers three of them, the services kafka, kafka2 and kafka3.
# STACK_KAFKA_HEAP: heap size, 1g by default, as Kafka's own scripts have it.

KAFKA_VERSION=4.3.1
LOG4J_VERSION=2.24.3

kafka_jars() { printf '%s' "$CACHE/kafka-$KAFKA_VERSION"; }
kafka_is_installed() { [[ -d $(kafka_jars) ]]; }

kafka_pom() {
  cat <<END
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>test.punctual</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    $(pom_dependency org.apache.kafka kafka_2.13 "$KAFKA_VERSION")
    $(pom_dependency org.apache.kafka kafka-tools "$KAFKA_VERSION")
    $(pom_dependency org.apache.logging.log4j log4j-core "$LOG4J_VERSION")
    $(pom_dependency org.apache.logging.log4j log4j-slf4j-impl "$LOG4J_VERSION")
  </dependencies>
</project>
END
}

# Without Kafka Connect, which the tools bring with a web server.
pom_dependency() { # GROUP ARTIFACT VERSION
  printf '<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version>' "$@"
  printf '<exclusions>'
  printf '<exclusion><groupId>org.apache.kafka</groupId><artifactId>connect-%s</artifactId></exclusion>' \
    api json runtime transforms
  printf '</exclusions></dependency>\n'
}

kafka_install() {
  local new=$CACHE/kafka.new
  rm -rf "$new" && mkdir -p "$new"
  kafka_pom >"$new/pom.xml"
  mvn -q -B -Dstyle.color=never -f "$new/pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$new/lib"
  mv -T "$new/lib" "$(kafka_jars)"
  rm -rf "$new"
}

# --- made once, started often -------------------------------------------------------------------

broker_mark() { printf '%s' "-Dpunctual.stack=$STACK/$1"; }

broker_prepare() { # SERVICE
  mkdir -p "$STACK/$1" "$STACK/logs"
  kafka_log4j >"$STACK/$1/log4j2.properties"
  [[ -d $STACK/$1/data ]] || broker_format "$1"
  broker_properties "$1" "$STACK/$1/data" >"$STACK/$1/server.properties"
}

# Created under another name and then renamed, so that an interrupted attempt does not look
# complete.
broker_format() { # SERVICE
  local new=$STACK/$1/data.new log=$STACK/logs/$1-format.log users
  rm -rf "$new"
  broker_properties "$1" "$new" >"$STACK/$1/format.properties"
  mapfile -t users < <(tls_kafka_users)
  # Eligible leader replicas are off: if the only broker crashes while a topic wants two replicas in
  # sync, the topic would be without a leader for good.
  kafka_tool kafka.tools.StorageTool format -t "$(cat "$STACK/cluster-id")" -c "$STACK/$1/format.properties" \
    --feature eligible.leader.replicas.version=0 "${users[@]}" >"$log" 2>&1 ||
    die "$1: format failed: $(tail -n 3 "$log")"
  mv "$new" "$STACK/$1/data"
}

# A Kafka uuid: 22 characters. Made before the brokers, which share it.
kafka_cluster_id() {
  [[ -s $STACK/cluster-id ]] ||
    head -c 16 /dev/urandom | base64 | tr '+/' 'ab' | tr -d '=' >"$STACK/cluster-id"
}

is_three() { [[ -e $STACK/three-brokers ]]; }
brokers() { if is_three; then printf '%s\n' kafka kafka2 kafka3; else say kafka; fi; }
broker_number() { if [[ $1 == kafka ]]; then say 1; else say "${1#kafka}"; fi; }

# Prints the address of each broker, separated by commas.
kafka_addresses() {
  local broker list=''
  for broker in $(brokers); do list+=,$(address_of "$broker"); done
  printf '%s' "${list#,}"
}

kafka_voters() {
  local broker list=''
  for broker in $(brokers); do list+=",$(broker_number "$broker")@127.0.0.1:$(port_of "$broker" 1)"; done
  printf '%s' "${list#,}"
}

# Prints how many replicas internal topics have, and how many of them must be in sync.
kafka_copies() { if is_three; then say 3; else say 1; fi; }
kafka_in_sync() { if is_three; then say 2; else say 1; fi; }

broker_properties() { # SERVICE DATA-FOLDER
  cat <<END
# Written by scripts/stack at each start.
process.roles=broker,controller
node.id=$(broker_number "$1")
controller.quorum.voters=$(kafka_voters)
listeners=PLAINTEXT://$(address_of "$1"),CONTROLLER://127.0.0.1:$(port_of "$1" 1)$(kafka_ways "$1" way_end)$(tls_kafka_listeners)
advertised.listeners=PLAINTEXT://$(address_of "$1")$(kafka_ways "$1" way_port)$(tls_kafka_listeners)
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT$(kafka_way_protocols)$(tls_kafka_protocols)
log.dirs=$2

# A broker whose machine stalls for the session timeout (9 s by default) loses its session, and all
# partitions their leader. A slow machine takes more than 3 s for the start of a broker alone.
broker.heartbeat.interval.ms=500

# A missing topic must be refused, not created.
auto.create.topics.enable=false
delete.topic.enable=true

# The tests delete topics of gigabytes. By default their files stay for a minute.
log.segment.delete.delay.ms=5000

# Few internal partitions, because a first consumer waits for them.
default.replication.factor=$(kafka_copies)
min.insync.replicas=$(kafka_in_sync)
offsets.topic.replication.factor=$(kafka_copies)
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=$(kafka_copies)
transaction.state.log.min.isr=$(kafka_in_sync)
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=$(kafka_copies)
share.coordinator.state.topic.min.isr=$(kafka_in_sync)
group.initial.rebalance.delay.ms=0
$(kafka_quota_windows)
$(kafka_leader_checks)
$(kafka_authorizer)
$(tls_kafka_properties)
END
}

# By default a quota is measured over 11 s, and throttles nothing before 10 s. Quotas of the fault
# runner are shorter.
kafka_quota_windows() { ! is_breakable || say "quota.window.num=3"; }

# By default the controller moves leaders back to a broker that was away within five minutes. Here
# it does so at once, so that an operation on a broker ends with all that it causes.
kafka_leader_checks() { ! is_three || say "leader.imbalance.check.interval.seconds=2"; }

# Tests withdraw rights on a topic. Without a rule on the topic, everyone has all rights. Benchmarks
# check no rights. Nor do three brokers: their controllers would refuse each other before they have
# the rules.
kafka_authorizer() {
  if [[ $STACK == */bench ]] || is_three; then return 0; fi
  say "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
  say "allow.everyone.if.no.acl.found=true"
}

# To standard output, which is the log file.
kafka_log4j() {
  cat <<'END'
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
logger.state.name = state.change.logger
logger.state.level = warn
END
}

# A short-lived program from Kafka's jars, with the fastest start of the JVM.
kafka_tool() {
  java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -cp "$(kafka_jars)/*" "$@"
}

# For a short-lived broker, quick compilation is better than quick code.
kafka_jvm() {
  case $STACK in
    */main | */bench) printf '%s\n' -XX:+UseG1GC -XX:MaxGCPauseMillis=20 ;;
    *) printf '%s\n' -XX:+UseSerialGC -XX:TieredStopAtLevel=1 ;;
  esac
  tls_kafka_jvm
}

# A broker without memory may go on without some of its threads, so it had better end, and say so.
broker_spawn() { # SERVICE
  local jvm
  mapfile -t jvm < <(kafka_jvm)
  spawn "$1" java "-Xmx${STACK_KAFKA_HEAP:-1g}" -XX:+ExitOnOutOfMemoryError "${jvm[@]}" -XX:-UsePerfData -Djava.awt.headless=true "$(broker_mark "$1")" \
    -Dlog4j2.configurationFile="$STACK/$1/log4j2.properties" \
    -cp "$(kafka_jars)/*" kafka.Kafka "$STACK/$1/server.properties"
}

# The broker logs this line after the controller has accepted it.
broker_ready() { grep -q 'Kafka Server started' "$(log_file "$1")" && answers "$(port_of "$1")"; } # SERVICE

# --- the three services, of which a stack without --three-brokers has the first ------------------

kafka_mark() { broker_mark kafka; }
kafka_leftovers() { return 1; }
kafka_prepare() { broker_prepare kafka; }
kafka_spawn() { broker_spawn kafka; }
kafka_ready() { broker_ready kafka; }
kafka_stop() { signal kafka TERM 60; }
kafka_kill() { signal kafka KILL 20; }
kafka_purge() { :; }

kafka2_mark() { broker_mark kafka2; }
kafka2_leftovers() { return 1; }
kafka2_prepare() { broker_prepare kafka2; }
kafka2_spawn() { broker_spawn kafka2; }
kafka2_ready() { broker_ready kafka2; }
kafka2_stop() { signal kafka2 TERM 60; }
kafka2_kill() { signal kafka2 KILL 20; }
kafka2_purge() { :; }

kafka3_mark() { broker_mark kafka3; }
kafka3_leftovers() { return 1; }
kafka3_prepare() { broker_prepare kafka3; }
kafka3_spawn() { broker_spawn kafka3; }
kafka3_ready() { broker_ready kafka3; }
kafka3_stop() { signal kafka3 TERM 60; }
kafka3_kill() { signal kafka3 KILL 20; }
kafka3_purge() { :; }

# --- a replica that is away -----------------------------------------------------------------------

second_mark() { printf '%s' "-Dpunctual.stack=$STACK/second"; }
second_leftovers() { return 1; }

# A second broker joins the cluster and later leaves cleanly for good. Meanwhile the controller
# would give it partitions of new topics, which no broker would have afterwards, so no topic may be
# created. A topic with a replica there that wants two in sync (min.insync.replicas) takes no
# records until it wants one again. With one broker this cannot be staged, because no topic can want
# more replicas than it has.
kafka_second() {
  [[ ! -e $STACK/kafka/second ]] || return 0
  mkdir -p "$STACK/second"
  second_properties >"$STACK/second/server.properties"
  kafka_tool kafka.tools.StorageTool format -c "$STACK/second/server.properties" \
    -t "$(sed -n 's/^cluster.id=//p' "$STACK/kafka/data/meta.properties")" >"$STACK/logs/second-format.log" 2>&1 ||
    die "kafka: format failed: $(tail -n 3 "$STACK/logs/second-format.log")"
  spawn second java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData "$(second_mark)" \
    -Dlog4j2.configurationFile="$STACK/kafka/log4j2.properties" \
    -cp "$(kafka_jars)/*" kafka.Kafka "$STACK/second/server.properties"
  wait_until "$READY_SECONDS" grep -q 'Kafka Server started' "$(log_file second)" ||
    die "kafka: the second broker did not start: $(tail -n 3 "$(log_file second)")"
  signal second TERM 60 || die "kafka: the second broker does not end"
  rm -rf "$STACK/second"
  touch "$STACK/kafka/second"
}

second_properties() {
  cat <<END
process.roles=broker
node.id=2
controller.quorum.voters=1@127.0.0.1:$(port_of kafka 1)
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:0
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT$(kafka_way_protocols)
log.dirs=$STACK/second/data
END
}

# kafka_topic NAME [OPTION OF kafka-topics]..
kafka_topic() {
  local name=$1 log=$STACK/logs/kafka-topic.log
  shift
  kafka_tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$(address_of kafka)" \
    --create --if-not-exists --topic "$name" "$@" >"$log" 2>&1 ||
    die "kafka: could not create topic $name: $(grep -v '^$' "$log" | head -n 1)"
}

# kafka_password PASSWORD: of the user of a stack with TLS
kafka_password() {
  local log=$STACK/logs/kafka-password.log
  kafka_tool kafka.admin.ConfigCommand --bootstrap-server "$(address_of kafka)" --alter \
    --entity-type users --entity-name punctual --add-config "SCRAM-SHA-256=[password=$1]" >"$log" 2>&1 ||
    die "kafka: could not change the password: $(grep -v '^$' "$log" | head -n 1)"
}
