# shellcheck shell=bash
# The incidents of `scripts/alarms`, in their order. An incident NAME has the functions NAME_begins
# and NAME_ends. Sourced, never run.
#
# incident NAME 'TITLE' 'EXPECTED..' ['ALSO..']: EXPECTED alerts must fire and end; ALSO may fire.
# Whatever else fires fails the run.

incidents() {
  # Before the outage of Kafka, after which PunctualLateSlowly is silent for six hours.
  incident slow_kafka 'Kafka takes 1.05 s for each request' 'Late LateSlowly' 'Full'
  incident slow_postgres 'Postgres takes 0.5 s for each request' 'ClaimedAfterDue' 'Late LateSlowly PostgresUnanswered Rejects Unavailable TakeOver Shards NotCounted'

  incident quota 'a caller reads more than its quota' 'Rejects Unavailable'
  incident bad_rows 'rows of an outbox name a forbidden topic' 'OutboxRejected'
  incident bad_records 'records of an intake topic have no headers' 'IntakeRejected'
  incident service_gone 'a service of a callback answers 410' 'CallbackPaused'
  incident bad_auth_file 'the auth file of a node is not TOML' 'AuthFile'
  incident bad_url_file 'the file with the URL of Postgres is empty' 'Credentials'
  incident bad_callback_keys 'the file with the keys of callbacks is empty' 'Credentials'
  incident bad_certificate 'the certificate file of a node is not PEM' 'Certificate'
  incident bad_key_file 'the file with the payload keys is not TOML' 'PayloadKeyFile'
  incident no_payload_key 'the payload key is removed while records need it' 'PayloadKey' 'NodeNotReady NotReady TakeOver Unavailable NotTaken Deferred'
  incident no_issuer 'the server with the keys of an issuer is away at a start' 'IssuerKeys' 'TakeOver Members Shards'
  incident audit_full 'the disk of the audit trails is full' 'Audit' 'Rejects Unavailable'
  incident slow_log 'the reader of the log of a node hangs' 'LogLinesLost'
  incident no_token 'a node gets no token for its login to Kafka' 'NoKafkaToken' 'NodeNoKafka NodeNotReady Members TakeOver Shards Late LateSlowly Unavailable IntakeWaits'
  incident leak 'a node takes two gigabytes too much' 'Memory' 'TakeOver Members Shards'

  incident too_large 'the largest record of a topic is made smaller' 'NotTaken DeadLetters DeadLettersStay'
  incident no_answers 'consumers do not answer' 'Exhausted TimedOut DeadLetters' 'DeadLettersStay'
  incident paused 'a topic is paused and forgotten' 'TopicPaused'
  incident damaged_row 'a row of a task is damaged' 'Quarantined' 'ClaimsFail'
  incident far_stuck 'Postgres refuses a far task' 'FarStuck' 'PartitionsStay'
  incident no_runs 'Postgres refuses the runs of schedules' 'SchedulesLate'
  incident no_partition 'a table has the name of a partition' 'PartitionsMissing PartitionsStay'

  incident no_rejected_topic 'there is no topic for rejected records' 'IntakeNoRejectedTopic IntakeWaits'
  incident retention 'Kafka deletes records that a partition waits for' 'IntakeLost IntakeReset' 'IntakeRejected IntakeNoRejectedTopic IntakeWaits Members Shards TakeOver Restarts Late LateSlowly'
  incident shop_down 'the database of an outbox is down' 'OutboxWaits'
  incident topic_deleted 'a topic is deleted' 'TopicUnavailable Deferred' 'NotTaken Late LateSlowly DeadLetters'
  incident burst 'more tasks are due than Kafka takes' 'Full' 'Late LateSlowly TopicUnavailable Deferred NotTaken'
  incident lock 'a transaction locks execlog_batch' 'ClaimsFail Batches Overdue Unsettled PostgresUnanswered NodeNotReady NotReady' \
    'Late LateSlowly Full TakeOver Rejects Unavailable'

  incident one_without_kafka 'one node does not reach Kafka' 'NodeNoKafka NodeNotReady Members' 'TakeOver Late LateSlowly Shards'
  incident one_frozen 'one node hangs' 'Members TakeOver' 'Shards NodeNotReady Late LateSlowly Restarts'
  incident restarts 'one node is killed again and again' 'Restarts TakeOver' 'Members Shards NodeNotReady Late LateSlowly'
  incident etcd_down 'etcd is down' 'NoEtcdSession'
  incident killed_without_etcd 'a node is killed while etcd is down' 'Shards' 'NoEtcdSession Members TakeOver Restarts NodeNotReady Late LateSlowly Unavailable'
  incident kafka_down 'Kafka is down' 'NoKafka'
  incident postgres_down 'Postgres is down' 'NotReady HeartbeatOld NotCounted PostgresUnanswered NodeNotReady Unavailable' \
    'Shards ClaimsFail Batches Overdue Late LateSlowly TakeOver Members Rejects PartitionsStay NoEtcdSession IntakeWaits'
  incident disk_full 'the disk of Postgres is full' 'PostgresDisk' \
    'ClaimsFail Batches NotReady NodeNotReady PostgresUnanswered Unavailable Rejects HeartbeatOld Late LateSlowly TakeOver Shards Members Overdue OutboxWaits PartitionsStay NotCounted'
  incident clock_ahead 'the clock of Postgres is 20 s ahead' 'Clock NodeClock OutboxClock NotReady' \
    'NodeNotReady Late LateSlowly Overdue ClaimedAfterDue Shards'
}

each_node() { # COMMAND WORD..: with the number of each node in the place of @
  local node
  for node in "${NODES[@]}"; do "${@//@/$node}"; done
}

slow_kafka_begins() { each_node slow_way kafka @ latency '{"latency":1050}'; }
slow_kafka_ends() { each_node quick_way kafka @; }

slow_postgres_begins() { each_node slow_way postgres @ latency '{"latency":500}'; }
slow_postgres_ends() { each_node quick_way postgres @; }

quota_begins() { keep read_too_much; }
read_too_much() {
  for _ in 1 2 3 4 5 6; do
    curl -s -o /dev/null --cacert "$WORK/ca.pem" -H @"$WORK/small.header" "https://localhost:${PORTS[1]}/v1/tasks?topic=$TOPIC"
  done
}
quota_ends() { :; }

bad_rows_begins() { shop_sql -c "select punctual.submit('forbidden', payload => '1', delay => interval '1 s')"; }
bad_rows_ends() { shop_sql -c 'delete from punctual.outbox_rejected'; }

bad_records_begins() { say 'no headers' | kcat -P -b "$PUNCTUAL_KAFKA" -t "$INTAKE"; }
bad_records_ends() { :; }

service_gone_begins() {
  touch "$WORK/service-gone"
  topic alarms.called
  call 1 /v1/topics/alarms.called/callback -o /dev/null -X PUT -d "{\"url\":\"https://localhost:$OUTSIDE_PORT/hook\"}"
  submit '{"topic":"alarms.called","delay":100,"payload":1,"ttr":"1h"}'
}
service_gone_ends() {
  rm "$WORK/service-gone"
  call 1 /v1/topics/alarms.called/callback -o /dev/null -X PUT -d "{\"url\":\"https://localhost:$OUTSIDE_PORT/hook?new\"}"
}

spoil() { say 'no [ such = file' >"$WORK/$1"; }
bad_auth_file_begins() { spoil auth-2.toml; }
bad_auth_file_ends() { cp "$WORK/auth.toml" "$WORK/auth-2.toml"; }

bad_url_file_begins() { cp -p "$WORK/url-2" "$WORK/url.kept" && : >"$WORK/url-2"; }
bad_url_file_ends() { cp "$WORK/url.kept" "$WORK/url-2"; }

bad_callback_keys_begins() { cp -p "$WORK/callback.keys" "$WORK/callback.kept" && : >"$WORK/callback.keys"; }
bad_callback_keys_ends() { cp "$WORK/callback.kept" "$WORK/callback.keys"; }

bad_certificate_begins() { spoil server-2.pem; }
bad_certificate_ends() { cp "$WORK/outside.pem" "$WORK/server-2.pem"; }

bad_key_file_begins() { spoil keys-2.toml; }
bad_key_file_ends() { cp "$WORK/keys.toml" "$WORK/keys-2.toml"; }

no_payload_key_begins() {
  local node
  printf '%s\n' '[keys]' "2 = '$(openssl rand -base64 32)'" >"$WORK/other-keys.toml"
  submit "{\"topic\":\"$TOPIC\",\"delay\":\"8s\",\"payload\":1}"
  for node in "${NODES[@]}"; do
    cp "$WORK/other-keys.toml" "$WORK/keys-$node.toml"
  done
}
no_payload_key_ends() { each_node cp "$WORK/keys.toml" "$WORK/keys-@.toml"; }

no_issuer_begins() {
  touch "$WORK/issuer-away"
  end node-2
  node_start 2
}
no_issuer_ends() {
  rm "$WORK/issuer-away"
}

audit_full_begins() { cat /dev/zero >"$WORK/audit/other" 2>/dev/null || true; }
audit_full_ends() { rm "$WORK/audit/other"; }

slow_log_begins() {
  kill -s STOP "${PIDS[reader-2]}"
  NODE=2 keep log_much
}
log_much() { call 2 "/v1/tasks?topic=$TOPIC#[1-1000]" -o /dev/null; } # each of them is a line of the log
slow_log_ends() { kill -s CONT "${PIDS[reader-2]}"; }

# Kafka of this stack has no login. The incident ends with a node that needs none.
no_token_begins() {
  printf '%s\n' security.protocol=SASL_PLAINTEXT sasl.mechanism=OAUTHBEARER sasl.oauthbearer.method=oidc \
    "sasl.oauthbearer.token.endpoint.url=https://localhost:$OUTSIDE_PORT/token" \
    sasl.oauthbearer.client.id=alarms sasl.oauthbearer.client.secret=alarms "https.ca.location=$WORK/ca.pem" >"$WORK/kafka.properties"
  end node-2
  node_start 2 --kafka-properties-file "$WORK/kafka.properties"
}
no_token_ends() {
  end node-2
  node_start 2
}

leak_begins() {
  cc -shared -fPIC -x c -o "$WORK/leak.so" - <<'END'
#include <stdlib.h>
#include <string.h>
__attribute__((constructor)) static void leak(void) {
  size_t size = 2ul << 30;
  void *lost = malloc(size);
  if (lost) memset(lost, 1, size);
}
END
  end node-2
  PRELOAD=$WORK/leak.so node_start 2
}
leak_ends() {
  end node-2
  node_start 2
}

too_large_begins() {
  local tasks='' payload second
  payload=$(head -c 3000 /dev/urandom | base64 -w 0)
  topic alarms.small
  for second in {6..90}; do tasks+=",{\"topic\":\"alarms.small\",\"delay\":\"${second}s\",\"payload_text\":\"$payload\"}"; done
  say "{\"tasks\":[${tasks#,}]}" >"$WORK/large.json"
  call 1 /v1/tasks/batch -o /dev/null -d @"$WORK/large.json"
  kafka_command kafka.admin.ConfigCommand --bootstrap-server "$PUNCTUAL_KAFKA" --alter \
    --entity-type topics --entity-name alarms.small --add-config max.message.bytes=1000
}
too_large_ends() {
  cli cancel --topic alarms.small --yes
  sleep 1 # what is claimed
  cli dead drop --topic alarms.small --yes
}

no_answers_begins() {
  topic alarms.unheard
  keep submit '{"topic":"alarms.unheard","delay":100,"payload":1,"ttr":"1s","retry":{"attempts_max":1}}'
}
no_answers_ends() {
  sleep 4 # until the last one has timed out
  cli dead drop --topic alarms.unheard --yes
}

paused_begins() { topic alarms.paused && cli topic pause alarms.paused; }
paused_ends() { cli topic resume alarms.paused; }

damaged_row_begins() {
  topic alarms.damaged
  sql -c "create function damaged() returns trigger language plpgsql as \$\$ begin
      if old.topic = 'alarms.damaged' then
        raise exception using errcode = 'data_corrupted', message = 'invalid page';
      end if;
      return old;
    end \$\$" -c 'create trigger damaged before delete on task for each row execute function damaged()'
  submit '{"topic":"alarms.damaged","delay":"3s","payload":1}'
}
damaged_row_ends() { sql -c 'drop trigger damaged on task' -c 'delete from quarantine'; }

far_stuck_begins() {
  sql -c "create function refuse() returns trigger language plpgsql as \$\$ begin
      raise exception using errcode = 'check_violation', message = 'no far tasks'; end \$\$" \
    -c "create trigger refuse before insert on task for each row
      when (new.id::text like '%-8888-8888-888888888888') execute function refuse()"
  sql -c "insert into task_far (shard, id, topic, first_id, attempt) select 0, id, '$TOPIC', id, 1 from (
      select (lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint + 900000), 12, '0')
        || repeat('8', 20))::uuid as id) as new"
}
far_stuck_ends() { sql -c 'drop trigger refuse on task' -c 'drop function refuse'; }

no_runs_begins() {
  call 1 "/v1/schedules/$TOPIC/often" -o /dev/null -X PUT -d '{"every":"5s","payload":1}'
  sql -c "create function no_runs() returns trigger language plpgsql as \$\$ begin
      raise exception using errcode = 'insufficient_privilege', message = 'no runs'; end \$\$" \
    -c 'create trigger no_runs before update on schedule for each row execute function no_runs()'
}
no_runs_ends() {
  sql -c 'drop trigger no_runs on schedule' -c 'drop function no_runs'
  call 1 "/v1/schedules/$TOPIC/often" -o /dev/null -X DELETE
}

no_partition_begins() {
  LAST_PARTITION=$(psql "$DATABASE" -XAtc "select inhrelid::regclass from pg_inherits
    where inhparent = 'execlog_finished'::regclass order by inhrelid::regclass::text desc limit 1")
  sql -c "drop table $LAST_PARTITION" -c "create view $LAST_PARTITION as select 1"
}
no_partition_ends() { sql -c "drop view $LAST_PARTITION"; }

kafka_topics() { kafka_command org.apache.kafka.tools.TopicCommand --bootstrap-server "$PUNCTUAL_KAFKA" "$@"; }
no_rejected_topic_begins() {
  kafka_topics --delete --topic "$INTAKE.rejected"
  say 'no headers' | kcat -P -b "$PUNCTUAL_KAFKA" -t "$INTAKE"
  for _ in 1 2 3; do say 1 | kcat -P -b "$PUNCTUAL_KAFKA" -t "$INTAKE" -H "punctual-topic=$TOPIC" -H punctual-delay=1s; done
}
no_rejected_topic_ends() { topic "$INTAKE.rejected"; }

retention_begins() {
  local offset
  no_rejected_topic_begins
  poll 60 partition_waits
  offset=$(kcat -Q -b "$PUNCTUAL_KAFKA" -t "$INTAKE:0:-1" | sed -E 's/.*offset ([0-9]+).*/\1/')
  say "{\"partitions\":[{\"topic\":\"$INTAKE\",\"partition\":0,\"offset\":$offset}],\"version\":1}" >"$WORK/offsets.json"
  kafka_command org.apache.kafka.tools.DeleteRecordsCommand --bootstrap-server "$PUNCTUAL_KAFKA" --offset-json-file "$WORK/offsets.json"
  # A reader has more records in memory than the one that waits. The next reader of the partition
  # begins at the stored offset, which is gone.
  each_node restart @
}
retention_ends() { topic "$INTAKE.rejected"; }
partition_waits() {
  local line="punctual_intake_rejected_topic_missing{intake=\"$INTAKE\"} 1"
  metric 1 "$line" || metric 2 "$line"
}
restart() { # NODE
  end "node-$1"
  node_start "$1"
  poll 60 is_ready "$1"
}

shop_down_begins() {
  keep shop_sql -c "select punctual.submit('$TOPIC', payload => '1', delay => interval '1 s')"
  sleep 2
  stack stop shop
}
shop_down_ends() { stack start shop; }

topic_deleted_begins() {
  topic alarms.deleted
  keep submit '{"topic":"alarms.deleted","delay":"2s","payload":1}'
  sleep 4
  kafka_topics --delete --topic alarms.deleted
}
topic_deleted_ends() { topic alarms.deleted; }

burst_begins() {
  local tasks='' payload
  payload=$(head -c 6000 /dev/urandom | base64 -w 0)
  topic alarms.burst
  each_node slow_way kafka @ bandwidth '{"rate":60}'
  for _ in {1..500}; do tasks+=",{\"topic\":\"alarms.burst\",\"delay\":2000,\"payload_text\":\"$payload\"}"; done
  say "{\"tasks\":[${tasks#,}]}" >"$WORK/burst.json"
  for _ in {1..12}; do call 1 /v1/tasks/batch -o /dev/null -d @"$WORK/burst.json"; done
}
burst_ends() { each_node quick_way kafka @; }

lock_begins() {
  PGAPPNAME=alarms-lock psql "$DATABASE" -X -q -c begin -c 'lock table execlog_batch in share mode' -c 'select pg_sleep(900)' \
    >>"$WORK/psql.log" 2>&1 &
  began lock $!
}
lock_ends() {
  sql -c "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'alarms-lock'"
  end lock
}

one_without_kafka_begins() { cut_way kafka 1; }
one_without_kafka_ends() { mend_way kafka 1; }

one_frozen_begins() { kill -s STOP "${PIDS[node-2]}"; }
one_frozen_ends() { kill -s CONT "${PIDS[node-2]}"; }

restarts_begins() {
  for _ in 1 2 3; do
    end node-2 KILL
    node_start 2
    wait_until 60 is_ready 2
    sleep 2 # a scrape of each life
  done
}
restarts_ends() { :; }

etcd_down_begins() { stack stop etcd; }
etcd_down_ends() { stack start etcd; }

# The other node learns of the death by the heartbeats alone.
killed_without_etcd_begins() {
  stack stop etcd
  end node-2 KILL
}
killed_without_etcd_ends() {
  stack start etcd
  node_start 2
}

# Longer than each `for`, so that an alert that is not silent has the time to fire.
kafka_down_begins() { stack stop kafka && sleep 45; }
kafka_down_ends() { stack start kafka; }

postgres_down_begins() { stack kill postgres; }
postgres_down_ends() { stack start postgres; }

disk_full_begins() { stack disk full; }
disk_full_ends() { stack disk free; }

clock_ahead_begins() { set_clock 20; }
clock_ahead_ends() { set_clock 0; }
set_clock() { # SECONDS
  "$PYTHON" - "$PUNCTUAL_TEST_CLOCK" "$1" <<'PYTHON'
import struct, sys, time
with open(sys.argv[1], "r+b", buffering=0) as file:
    following = (file.read(1)[0] + 1) % 256
    file.seek(24 * (1 + following))
    file.write(struct.pack("=3q", int(time.time() * 1e6), int(sys.argv[2]) * 1000000, 0))
    file.seek(0)
    file.write(bytes([following]))
PYTHON
}
