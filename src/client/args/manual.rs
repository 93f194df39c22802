//! The text of `--help` after the flags: examples and exit codes.

pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused: the message says why, and what would be right
  2  wrong usage
  3  nothing was done: the node is unreachable or busy, or a server is unavailable; retry
  4  no such task
  5  too late to cancel, to move or to replace
  6  unknown whether it was done: the message says whether repeating is safe";

pub const OUTCOME_EXIT_CODES: &str = "\
Exit codes:
  0  done: the output is the verdict
  1  refused: the message says why, and what would be right
  2  wrong usage
  3  nothing was done: the node is unreachable or busy, or a server is unavailable; retry
  4  no such task
  5  too late: a later attempt was made, or the task is finished, dead or cancelled
  6  unknown whether it was done; repeating is safe";

pub const POP_EXIT_CODES: &str = "\
Exit codes:
  0  done: one task on each line, in JSON; none when the wait is over
  1  refused: the message says why, and what would be right
  2  wrong usage
  3  nothing was done: the node is unreachable or busy, or a server is unavailable; retry
  4  no such topic
  6  unknown whether tasks were given; those that were come again
  129, 130, 143  with --exec: ended by SIGHUP, SIGINT or SIGTERM, after the commands have ended";

pub const SHOW_EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused: the message says why, and what would be right
  2  wrong usage
  3  not shown: the node is unreachable or busy, or a server is unavailable; retry
  4  no such task";

pub const LIST_EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused: the message says why, and what would be right
  2  wrong usage
  3  not shown: the node is unreachable or busy, or a server is unavailable; retry";

// Usage lines are written by hand: clap would show an argument as required although its environment
// variable is set.

pub const SHOW_USAGE: &str = "\
punctual show <ID> [OPTIONS]
       punctual show --topic <TOPIC> --name <NAME> [OPTIONS]";

pub const MOVE_USAGE: &str = "\
punctual move <ID> <--due-at <TIME>|--delay <SPAN>> [OPTIONS]
       punctual move --topic <TOPIC> --name <NAME> <--due-at <TIME>|--delay <SPAN>> [OPTIONS]
       punctual move --topic <TOPIC> <--by <SPAN>|--to <TIME>> [--due-from <TIME>]
           [--due-to <TIME>] [--ids <ID,..>|--names <NAME>|--name-prefix <TEXT>|--key <TEXT>|
           --key-base64 <BASE64>] <--dry-run|--yes> [OPTIONS]";

pub const CANCEL_USAGE: &str = "\
punctual cancel <ID> [OPTIONS]
       punctual cancel --topic <TOPIC> --name <NAME> [OPTIONS]
       punctual cancel --topic <TOPIC> [--ids <ID,..>|--names <NAME>|--name-prefix <TEXT>|
           --key <TEXT>|--key-base64 <BASE64>] [--due-from <TIME>] [--due-to <TIME>]
           <--dry-run|--yes> [OPTIONS]
       punctual cancel --submitted-by <PRINCIPAL> [--topic <TOPIC>] <--dry-run|--yes> [OPTIONS]";

pub const FINISH_USAGE: &str = "\
punctual finish <ID> [--attempt <NUMBER>] [OPTIONS]
       punctual finish --topic <TOPIC> --name <NAME> [--attempt <NUMBER>] [OPTIONS]";

pub const POP_USAGE: &str = "\
punctual pop --topic <TOPIC> --group <NAME> [--wait <SPAN>] [--max <COUNT>] [--exec <COMMAND>]
           [OPTIONS]";

pub const FAIL_USAGE: &str = "\
punctual fail <ID> --attempt <NUMBER> [--retry-in <SPAN>|--retry-at <TIME>|--final]
           [--reason <TEXT>] [OPTIONS]
       punctual fail --topic <TOPIC> --name <NAME> --attempt <NUMBER> .. [OPTIONS]";

pub const EXTEND_USAGE: &str = "\
punctual extend <ID> --attempt <NUMBER> [--by <SPAN>] [OPTIONS]
       punctual extend --topic <TOPIC> --name <NAME> --attempt <NUMBER> [--by <SPAN>] [OPTIONS]";

pub const LIST_USAGE: &str = "\
punctual list [--topic <TOPIC>] [--submitted-by <PRINCIPAL>] [--state <STATE>]
           [--due-from <TIME>] [--due-to <TIME>] [OPTIONS]
       punctual list --topic <TOPIC> <--ids <ID,..>|--names <NAME>|--name-prefix <TEXT>|
           --key <TEXT>|--key-base64 <BASE64>> [OPTIONS]
       punctual list --counts [--topic <TOPIC>] [--state <STATE>] [OPTIONS]";

pub const DEAD_LIST_USAGE: &str =
    "punctual dead list [--topic <TOPIC>] [--due-from <TIME>] [--due-to <TIME>] [OPTIONS]";

pub const DEAD_REDRIVE_USAGE: &str = "\
punctual dead redrive <ID> [--to-topic <TOPIC>] [OPTIONS]
       punctual dead redrive --topic <TOPIC> [--due-from <TIME>] [--due-to <TIME>]
           [--to-topic <TOPIC>] <--dry-run|--yes> [OPTIONS]";

pub const DEAD_DROP_USAGE: &str = "\
punctual dead drop <ID> [OPTIONS]
       punctual dead drop --topic <TOPIC> [--due-from <TIME>] [--due-to <TIME>]
           <--dry-run|--yes> [OPTIONS]";

pub const SUBMIT_USAGE: &str = "\
punctual submit --topic <TOPIC> <--due-at <TIME>|--delay <SPAN>>
           <--payload <JSON>|--payload-text <TEXT>|--payload-file <FILE>|--tombstone> [OPTIONS]
       punctual submit <FILE|-> [OPTIONS]";

pub const SUBMIT_EXIT_CODES: &str = "\
Exit codes:
  0    done; with FILE: each line is stored, by this run or an earlier one
  1    refused: the message says why, and what would be right;
       with FILE: some lines were refused, or differ from the tasks of their names
  2    wrong usage
  3    nothing was done: the node is unreachable or busy, or a server is unavailable; retry;
       with FILE: some lines were not submitted
  5    --replace: too late, the task of this name is already claimed
  6    unknown whether it was done: the message says whether repeating is safe;
       with FILE: repeating the run is safe
  130  interrupted; with FILE: the message says how to resume";

pub const SUBMIT_EXAMPLES: &str = r#"Examples:
  punctual submit --topic orders --delay 30m --payload '{"order":17}' --key 17
  punctual submit --topic orders --due-at 2030-01-31T09:30:00+01:00 \
    --payload-text hello --name order-17
  punctual submit --topic orders --name order-17 --delay 2h \
    --payload-text later --replace
  punctual submit --topic orders --name order-17 --delay 2h \
    --payload-text first --replace --if-absent
  punctual submit --topic orders --name cart-17 --delay 10m \
    --payload-text idle --replace \
    --when later --not-after 2030-01-31T10:30:00Z
  punctual submit --topic orders --delay 1d --tombstone --key 17
  punctual submit --topic orders --delay 30m --payload '{"cancel":17}' \
    --name order-17 --ttr 30s --attempts-max 5 --backoff-min 10s

  Many at once: a file with one task per line, as for POST /v1/tasks.
  {"topic":"orders","delay":"30m","payload":{"order":17}}
  {"topic":"orders","delay":"1d","payload_text":"hello","name":"order-18"}

  punctual submit tasks.jsonl
  punctual submit tasks.jsonl --run-id import-2030-01  # resumes this run
  generate | punctual submit - --topic orders --json > results.jsonl"#;

pub const SHOW_EXAMPLES: &str = "\
Examples:
  punctual show 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f
  punctual show --topic orders --name order-17
  punctual show --topic orders --name order-17 --json | jq .receipt.offset";

pub const MOVE_EXAMPLES: &str = "\
Examples:
  punctual move 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f --delay 2h
  punctual move 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f \\
    --due-at 2030-01-31T09:30:00+01:00
  punctual move --topic orders --name order-17 --delay 2h
  punctual move --topic orders --by 1h --dry-run \\
    --due-from 2030-01-31T09:00:00Z --due-to 2030-01-31T10:00:00Z
  punctual move --topic orders --due-to 2030-01-31T00:00:00Z \\
    --to 2030-01-31T08:00:00Z --yes";

pub const CANCEL_EXAMPLES: &str = "\
Examples:
  punctual cancel 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f
  punctual cancel --topic orders --name order-17
  punctual cancel --topic orders --name order-17 \\
    --if-match 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f
  punctual cancel --topic orders --due-to 2030-02-01T00:00:00Z --dry-run
  punctual cancel --topic orders --name-prefix order-17/ --dry-run
  punctual cancel --topic orders --yes
  punctual cancel --submitted-by order-service --dry-run";

pub const FINISH_EXAMPLES: &str = "\
Examples:
  punctual finish 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f
  punctual finish 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f --attempt 2
  punctual finish --topic orders --name order-17";

pub const POP_EXAMPLES: &str = "\
Examples:
  punctual pop --topic orders --group mailer --max 10 | jq -r .id
  punctual pop --topic orders --group mailer \\
    --exec 'mail -s reminder shop@example.org'
  punctual pop --topic orders --group mailer --max 8 --exec ./handle";

pub const FAIL_EXAMPLES: &str = "\
Examples:
  punctual fail 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f --attempt 1
  punctual fail --topic orders --name order-17 --attempt 1 \\
    --retry-in 10m --reason 'no answer'
  punctual fail --topic orders --name order-17 --attempt 2 \\
    --final --reason 'no such order'";

pub const EXTEND_EXAMPLES: &str = "\
Examples:
  punctual extend 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f --attempt 1
  punctual extend --topic orders --name order-17 --attempt 1 --by 5m";

pub const LIST_EXAMPLES: &str = "\
Examples:
  punctual list --topic orders
  punctual list --due-to 2030-01-31T09:30:00Z --limit 1000
  punctual list --topic orders --all --json | jq -r .id
  punctual list --submitted-by order-service
  punctual list --topic orders --key order-17
  punctual list --topic orders --state awaiting
  punctual list --counts";

pub const DEAD_EXAMPLES: &str = "\
Examples:
  punctual dead list --topic orders
  punctual dead redrive 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f
  punctual dead redrive --topic orders --dry-run
  punctual dead redrive --topic orders --yes
  punctual dead redrive --topic orders --to-topic orders-v2 --yes
  punctual dead drop 01934b2e-7d3c-8017-9f2b-6a1c0e4d5b7f
  punctual dead drop --topic orders --due-to 2030-01-31T00:00:00Z --yes";

pub const BACKFILL_USAGE: &str = "\
punctual schedule backfill <TOPIC> <NAME> --from <TIME> --to <TIME>
           [--dry-run] [OPTIONS]
       punctual schedule backfill <TOPIC> <NAME> --last <SPAN>
           [--dry-run] [OPTIONS]";

pub const TOPIC_POLICY_USAGE: &str = "\
punctual topic policy <TOPIC> <FILE|-> [OPTIONS]
       punctual topic policy <TOPIC> --delete [OPTIONS]";

pub const SCHEDULE_EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused: the message says why, and what would be right
  2  wrong usage
  3  nothing was done: the node is unreachable or busy, or a server is unavailable; retry
  4  no such schedule
  6  unknown whether it was done: the message says whether repeating is safe";

pub const SCHEDULE_EXAMPLES: &str = r#"Examples:
  punctual schedule set orders nightly nightly.json
  echo '{"every":"15m","payload":"poll"}' \
    | punctual schedule set orders poll - --dry-run
  punctual schedule list orders
  punctual schedule show orders nightly
  punctual schedule next orders nightly --count 5
  punctual schedule pause orders nightly
  punctual schedule resume orders nightly
  punctual schedule trigger orders nightly
  punctual schedule backfill orders nightly \
    --from 2026-11-20T00:00:00Z --to 2026-11-22T00:00:00Z
  punctual schedule backfill orders nightly --last 3d --dry-run
  punctual schedule apply -f schedules.yaml --prune --dry-run
  punctual schedule delete orders nightly"#;

pub const PROFILE_EXIT_CODES: &str = "\
Exit codes:
  0  done
  2  wrong usage, or a wrong file";

pub const PROFILE_EXAMPLES: &str = r#"Examples:
  (umask 077; mkdir -p ~/.config/punctual
   printf '[profiles.prod]\nurl = "https://node-1:7070"\n' \
     >> ~/.config/punctual/config.toml)
  punctual profile list
  punctual profile use prod
  punctual cluster status --profile prod"#;

pub const CLUSTER_EXIT_CODES: &str = LIST_EXIT_CODES;

pub const CLUSTER_EXAMPLES: &str = "\
Examples:
  punctual cluster status
  punctual cluster status --watch
  punctual cluster nodes --watch=10s --url http://node-2:7070
  punctual cluster nodes -o json | jq -r '.nodes[] | [.name,.standing] | @tsv'
  punctual cluster topics";

pub const TOPIC_EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  refused: the message says why, and what would be right
  2  wrong usage
  3  nothing was done: the node is unreachable or busy, or a server is unavailable; retry
  4  no such topic, or no callback of it
  6  unknown whether it was done: the message says whether repeating is safe";

pub const TOPIC_EXAMPLES: &str = r#"Examples:
  punctual topic list
  punctual topic show orders
  punctual topic pause orders --reason 'the consumer fails on each record'
  punctual topic resume orders
  echo '{"ttr":"30s","delay_max":"90d","pending_max":5000000}' \
    | punctual topic policy orders -
  punctual topic policy orders --delete
  echo '{"url":"https://jobs.example.com/a"}' \
    | punctual topic callback orders -
  punctual topic callback orders"#;

/// Returns the examples, followed by the exit codes.
pub fn with_codes(examples: &str, codes: &str) -> String {
    format!("{examples}\n\n{codes}")
}
