//! Tests settings from the words on the command line to the settings of a node.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use clap::builder::Resettable;

use super::host::Host;
use super::*;
use crate::domain::ClusterWishes;

const ENOUGH: [&str; 4] =
    ["--database-url", "postgres://me:hunter2@db/punctual", "--kafka", "broker:9092"];

fn files(path: &Path) -> io::Result<String> {
    match path.to_str() {
        Some("password") => Ok("hunter2\n".to_owned()),
        Some("empty") => Ok("\n".to_owned()),
        Some("pem") => {
            Ok("-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n".to_owned())
        }
        Some("key.pem") => {
            Ok("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n".to_owned())
        }
        Some("url") => Ok("postgres://file@db/punctual\n".to_owned()),
        Some("properties") => {
            Ok("sasl.password=hunter2\n# a comment\nsecurity.protocol=SASL_SSL\n".to_owned())
        }
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Returns the parser without its variables, because the environment of the tests may hold
/// settings.
pub(super) fn deaf() -> clap::Command {
    fn forget(command: clap::Command) -> clap::Command {
        command.mut_args(|arg| arg.env(Resettable::Reset)).mut_subcommands(forget)
    }
    forget(command())
}

fn invoke(words: &[&str]) -> Result<Command, CommandRefusal> {
    let words = std::iter::once("punctual").chain(words.iter().copied()).map(OsString::from);
    let host = Host { name: "host-1".to_owned(), variables: Vec::new(), read_file: &files };
    interpret(deaf(), words, &host, |_| Vec::new()).map(|invocation| invocation.command)
}

pub(super) fn serve(words: &[&str]) -> Result<Settings, Vec<String>> {
    match invoke(&[&["serve"], words].concat()) {
        Ok(Command::Serve(settings)) => Ok(*settings),
        Ok(other) => panic!("{other:?}"),
        Err(CommandRefusal::Problems(problems)) => {
            Err(problems.iter().map(ToString::to_string).collect())
        }
        Err(CommandRefusal::Usage(error)) => panic!("{error}"),
    }
}

#[test]
fn the_commands_of_a_server_are_taken_with_their_noun_too() {
    let command = |words: &[&str]| invoke(&[words, &ENOUGH].concat()).unwrap();
    let (start, serve) = (command(&["server", "start"]), command(&["serve"]));
    match (start, serve) {
        (Command::Serve(start), Command::Serve(serve)) => assert_eq!(start, serve),
        other => panic!("{other:?}"),
    }
    assert!(matches!(command(&["server", "check"]), Command::Check(_)));
    let url = ["server", "migrate", "--database-url", "postgres://db/punctual"];
    assert!(matches!(invoke(&url), Ok(Command::Migrate(_))));
}

#[test]
fn the_commands_of_a_task_show_their_noun_in_their_usage() {
    let mut all = command();
    let show = all.find_subcommand_mut("show").unwrap().render_usage().to_string();
    assert!(show.starts_with("Usage: punctual show <ID>"), "{show}");
    let task = all.find_subcommand_mut("task").unwrap();
    for command in task.get_subcommands_mut() {
        let form = format!("punctual task {} ", command.get_name());
        let lines = command.render_usage().to_string();
        assert!(lines.starts_with(&format!("Usage: {form}")), "{lines}");
        assert_eq!(lines.matches("punctual ").count(), lines.matches(&form).count(), "{lines}");
    }
}

#[test]
fn an_answer_has_one_form() {
    let both = invoke(&["list", "--json", "-o", "table"]);
    assert!(matches!(both, Err(CommandRefusal::Usage(_))), "{both:?}");
}

fn serve_with(words: &[&str]) -> Result<Settings, Vec<String>> {
    serve(&[&ENOUGH, words].concat())
}

fn migrate(words: &[&str]) -> Result<MigrationSettings, Vec<String>> {
    match invoke(&[&["migrate", "--database-url", "postgres://db/punctual"], words].concat()) {
        Ok(Command::Migrate(settings)) => Ok(*settings),
        Err(CommandRefusal::Problems(problems)) => {
            Err(problems.iter().map(ToString::to_string).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_two_required_settings_are_enough() {
    let settings = serve(&ENOUGH).unwrap();
    assert_eq!(settings.database_url.expose(), "postgres://me:hunter2@db/punctual");
    assert_eq!(settings.kafka.bootstrap, "broker:9092");
    assert_eq!(settings.etcd, None);
    assert_eq!(settings.listen.to_string(), "127.0.0.1:7070");
    assert_eq!(
        (settings.node_name.as_str(), settings.advertise.as_str()),
        ("host-1", "http://127.0.0.1:7070")
    );
    assert_eq!(settings.cluster, "punctual");
    assert_eq!(settings.session_ttl, Duration::from_secs(3));
    assert_eq!(settings.delay_max, Duration::from_hours(1825 * 24));
    assert_eq!(settings.limits.in_flight_bytes, 256 << 20);
    assert_eq!(settings.kafka.producers.get(), 4);
    assert_eq!(settings.kafka.linger, Duration::from_micros(500));
    assert!(!settings.auto_migrate);
    assert_eq!(settings.warnings().len(), 1, "the URL has a password");
}

#[test]
fn topics_with_metrics_of_their_own_are_chosen_by_patterns() {
    let topics = |words: &[&str]| serve_with(words).map(|settings| settings.metrics_topics);
    assert_eq!(topics(&[]), Ok(vec![]));
    let chosen = topics(&["--metrics-topics", "orders.*, bills", "--metrics-topics", "x"]).unwrap();
    let chosen: Vec<String> = chosen.iter().map(ToString::to_string).collect();
    assert_eq!(chosen, ["orders.*", "bills", "x"]);
    let problems = topics(&["--metrics-topics", "a*b,good,_s*"]).unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].starts_with("--metrics-topics: `a*b` has a `*`"), "{problems:?}");
}

#[test]
fn spans_go_to_a_collector_with_headers_from_a_file() {
    let traces = |words: &[&str]| serve_with(words).map(|settings| settings.traces);
    assert_eq!(traces(&[]), Ok(None));
    assert_eq!(traces(&["--otlp-endpoint", ""]), Ok(None));
    let given = traces(&["--otlp-endpoint", "http://collector:4318/", "--trace-ratio", "0.01"]);
    let given = given.unwrap().unwrap();
    assert_eq!((given.endpoint.as_str(), given.per_million), ("http://collector:4318", 10_000));
    for (words, problem) in [
        (&["--otlp-endpoint", "collector:4318"][..], "--otlp-endpoint: not the URL"),
        (&["--otlp-endpoint", "http://collector:4318/v1/traces"], "--otlp-endpoint: not the URL"),
        (&["--otlp-endpoint", "https://user:secret@collector"], "--otlp-endpoint: not the URL"),
        (&["--trace-ratio", "1.5"], "--trace-ratio: `1.5` is not a number from 0 to 1"),
        (&["--trace-ratio", "NaN"], "--trace-ratio: `NaN` is not"),
        (&["--otlp-headers-file", "/run/headers"], "--otlp-headers-file: needs a collector"),
        (
            &["--otlp-endpoint", "http://c:1", "--otlp-headers-file", "/run/none"],
            "--otlp-headers-file: ",
        ),
    ] {
        let problems = traces(words).unwrap_err();
        let found = problems.iter().any(|found| found.starts_with(problem));
        assert!(found, "{words:?}: {problems:?}");
        assert!(!problems.concat().contains("secret"), "{problems:?}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let problems = serve(&[
        "--tick",
        "5",
        "--etcd",
        "etcd",
        "--in-flight-bytes",
        "1KiB",
        "--listen",
        "localhost",
    ])
    .unwrap_err();
    let flags: BTreeSet<&str> =
        problems.iter().filter_map(|problem| problem.split(':').next()).collect();
    let expected =
        ["--database-url", "--kafka", "--tick", "--etcd", "--in-flight-bytes", "--listen"];
    assert_eq!(flags, BTreeSet::from(expected), "{problems:?}");
    assert_eq!(problems.len(), expected.len(), "each once: {problems:?}");
}

#[test]
fn a_wrong_log_setting_is_reported_together_with_the_others() {
    let Err(CommandRefusal::Problems(problems)) =
        invoke(&["serve", "--log", "punctual=loud=er", "--log-format", "xml"])
    else {
        panic!("the settings were accepted")
    };
    let flags: Vec<&str> = problems.iter().map(|problem| problem.flag).collect();
    assert_eq!(flags, ["--log", "--database-url", "--kafka"]);
}

#[test]
fn what_the_modules_say_of_their_settings_is_a_problem_too() {
    let words = ["punctual", "serve"].iter().chain(&ENOUGH).map(OsString::from);
    let host = Host { name: "host-1".to_owned(), variables: Vec::new(), read_file: &files };
    let problem = SettingProblem { flag: "--kafka-property", text: "unknown".to_owned() };
    let Err(CommandRefusal::Problems(problems)) =
        interpret(deaf(), words, &host, |_| vec![problem.clone()])
    else {
        panic!("the settings were accepted")
    };
    assert_eq!(problems, [problem]);
}

#[test]
fn contradictions_are_problems() {
    let problems = serve_with(&["--database-url-file", "url"]).unwrap_err();
    assert!(problems[0].contains("given twice"), "{problems:?}");
    for words in [
        ["--topic-in-flight-tasks", "100001"],
        ["--body-max", "100MiB"],
        ["--payload-retention", "8d"],
        ["--kafka-property", "nothing"],
        ["--precision", "1500us"],
    ] {
        assert_eq!(serve_with(&words).map_err(|problems| problems.len()), Err(1), "{words:?}");
    }
    let problems = serve_with(&["--publish-deadline", "1s", "--linger", "1s"]).unwrap_err();
    assert_eq!(problems, ["--publish-deadline: must be longer than --linger"]);
}

#[test]
fn secrets_come_from_files_and_are_never_printed() {
    let settings = serve(&[
        "--database-url-file",
        "url",
        "--kafka",
        "b:1",
        "--kafka-properties-file",
        "properties",
    ])
    .unwrap();
    assert_eq!(settings.database_url.expose(), "postgres://file@db/punctual");
    assert_eq!(settings.kafka.properties.len(), 2);
    let settings = serve_with(&["--kafka-property", "sasl.password=hunter2"]).unwrap();
    assert!(!format!("{settings:?}").contains("hunter2"));
    let problems =
        serve_with(&["--database-url-file", "absent", "--kafka-property", "hunter2"]).unwrap_err();
    assert!(!format!("{problems:?}").contains("hunter2"));
}

#[test]
fn a_measurement_takes_the_properties_of_kafka_as_a_node_does() {
    let words = [
        "bench",
        "burst",
        "--kafka-properties-file",
        "properties",
        "--kafka-property",
        "ssl.ca.location=ca",
    ];
    let Ok(Command::Bench { kafka, .. }) = invoke(&words) else {
        panic!("the settings were refused")
    };
    let names: Vec<&str> = kafka.iter().map(|property| property.name.as_str()).collect();
    assert_eq!(names, ["ssl.ca.location", "sasl.password", "security.protocol"]);
    assert!(!format!("{:?}", invoke(&words)).contains("hunter2"));
    let twice = [
        "bench",
        "--kafka-property",
        "sasl.password=hunter2",
        "burst",
        "--kafka-properties-file",
        "properties",
    ];
    let Err(CommandRefusal::Problems(problems)) = invoke(&twice) else {
        panic!("the settings were accepted")
    };
    assert!(
        problems[0].text.contains("given twice") && !format!("{problems:?}").contains("hunter2"),
        "{problems:?}"
    );
}

#[test]
fn no_problem_repeats_the_password_of_a_place() {
    for words in [
        ["--etcd", "http://root:hunter2@etcd:2379"],
        ["--etcd", "root:hunter2@etcd:2379"],
        ["--kafka", "me:hunter2@broker:9092"],
        ["--advertise", "me:hunter2@node-1:7070"],
        ["--listen", "me:hunter2@127.0.0.1:7070"],
    ] {
        let all = [&["--database-url", "postgres://db/punctual"], &words[..]].concat();
        let all =
            if words[0] == "--kafka" { all } else { [&all[..], &["--kafka", "b:1"]].concat() };
        let problems = serve(&all).unwrap_err();
        assert!(problems.len() == 1 && problems[0].starts_with(words[0]), "{problems:?}");
        assert!(
            !problems[0].contains("hunter2") && problems[0].contains("with a user or password"),
            "{problems:?}"
        );
    }
}

#[test]
fn a_file_that_cannot_be_read_is_one_problem() {
    let problems = serve(&["--database-url-file", "absent", "--kafka", "b:1"]).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("--database-url-file: cannot read absent:"), "{problems:?}");
}

#[test]
fn listening_beyond_loopback_needs_a_decision_and_is_advertised_by_name() {
    const BEYOND: [&str; 2] = ["--listen", "0.0.0.0:7070"];
    let refused = serve_with(&BEYOND).unwrap_err();
    assert!(refused.len() == 1 && refused[0].contains("--allow-anonymous"), "{refused:?}");
    let settings = serve_with(&[&BEYOND[..], &["--allow-anonymous"]].concat()).unwrap();
    assert_eq!(settings.advertise, "http://host-1:7070");
    assert_eq!(settings.access.auth_file, None);
    let refused = serve_with(&[&BEYOND[..], &["--auth-file", "auth.toml"]].concat()).unwrap_err();
    assert!(refused[0].contains("--plaintext-behind-proxy"), "{refused:?}");
    let words = ["--auth-file", "auth.toml", "--plaintext-behind-proxy=true"];
    let settings = serve_with(&[&BEYOND[..], &words].concat()).unwrap();
    assert_eq!(settings.access.auth_file.as_deref(), Some(Path::new("auth.toml")));
    assert!(serve_with(&["--listen", "[::1]:0"]).is_ok());
}

#[test]
fn a_token_is_no_flag() {
    const TOKEN: &str = "pt_k3v9q0ab_hunter2";
    for command in [
        &["show", "--token", TOKEN, "--topic", "t", "--name", "n"][..],
        &["dead", "list", "--token", TOKEN],
        &["bench", "burst", "--token", TOKEN],
    ] {
        match invoke(command) {
            Err(CommandRefusal::Problems(problems)) => {
                let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
                assert!(told.len() == 1 && told[0].contains("PUNCTUAL_TOKEN"), "{told:?}");
                assert!(!told[0].contains(TOKEN), "{told:?}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_node_proves_to_etcd_who_it_is_by_a_password_a_certificate_or_both() {
    const TLS: [&str; 2] = ["--etcd", "https://etcd:2379"];
    let etcd = |words: &[&str]| serve_with(&[&TLS, words].concat()).unwrap();
    let settings = etcd(&["--etcd-user", "punctual", "--etcd-password-file", "password"]);
    assert_eq!(
        (settings.warnings().len(), format!("{settings:?}").contains("hunter2")),
        (1, false)
    );
    let login = settings.etcd.unwrap().login.unwrap();
    assert_eq!((login.user.as_str(), login.password.expose()), ("punctual", "hunter2"));
    let settings = etcd(&["--etcd-certificate-file", "pem", "--etcd-key-file", "key.pem"]);
    assert!(settings.etcd.is_some_and(|etcd| etcd.login.is_none() && etcd.identity.is_some()));
    let open = serve_with(&[
        "--etcd",
        "etcd:2379",
        "--etcd-user",
        "punctual",
        "--etcd-password",
        "hunter2",
    ])
    .unwrap();
    assert_eq!(open.warnings().len(), 3, "{:?}", open.warnings());
    for (words, flag) in [
        (["--etcd-user", "punctual", "", ""], "--etcd-user"),
        (["--etcd-password", "hunter2", "", ""], "--etcd-user"),
        (["--etcd-password-file", "password", "", ""], "--etcd-user"),
        (["--etcd-password-file", "password", "--etcd-password", "hunter2"], "--etcd-password"),
        (["--etcd-password-file", "none", "--etcd-user", "punctual"], "--etcd-password-file"),
        (["--etcd-password-file", "empty", "--etcd-user", "punctual"], "--etcd-password-file"),
        (["--etcd-certificate-file", "pem", "", ""], "--etcd-key-file"),
        (["--etcd-key-file", "key.pem", "", ""], "--etcd-certificate-file"),
        (
            ["--etcd-certificate-file", "password", "--etcd-key-file", "key.pem"],
            "--etcd-certificate-file",
        ),
        (["--etcd-certificate-file", "pem", "--etcd-key-file", "password"], "--etcd-key-file"),
    ] {
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let problems = serve_with(&[&TLS[..], &words].concat()).unwrap_err();
        assert!(
            problems.len() == 1
                && problems[0].starts_with(flag)
                && !problems[0].contains("hunter2"),
            "{problems:?}"
        );
    }
    let certificate = ["--etcd-certificate-file", "pem", "--etcd-key-file", "key.pem"];
    for words in [&["--etcd", "https://etcd:2379,etcd:2379"][..], &[]] {
        let problems = serve_with(&[words, &certificate].concat()).unwrap_err();
        assert!(
            problems.len() == 1 && problems[0].starts_with("--etcd-certificate-file"),
            "{problems:?}"
        );
    }
}

#[test]
fn a_private_authority_of_etcd_takes_https_endpoints() {
    let settings = serve_with(&["--etcd", "https://etcd:2379", "--etcd-ca-file", "pem"]).unwrap();
    assert!(settings.etcd.is_some_and(|etcd| etcd.ca.is_some() && etcd.identity.is_none()));
    for words in [&["--etcd", "etcd:2379", "--etcd-ca-file", "pem"][..], &["--etcd-ca-file", "pem"]]
    {
        let problems = serve_with(words).unwrap_err();
        assert!(problems.len() == 1 && problems[0].starts_with("--etcd-ca-file"), "{problems:?}");
    }
    let problems =
        serve_with(&["--etcd", "https://etcd:2379", "--etcd-ca-file", "password"]).unwrap_err();
    assert!(!problems[0].contains("hunter2"), "{problems:?}");
}

#[test]
fn a_certificate_and_its_key_come_together() {
    let pair = ["--tls-certificate-file", "c.pem", "--tls-key-file", "k.pem"];
    let with = |words: &[&str]| serve_with(&[&pair, words].concat());
    let settings = with(&["--listen", "0.0.0.0:7070", "--allow-anonymous"]).unwrap();
    assert_eq!(settings.advertise, "https://host-1:7070");
    let tls = settings.tls.unwrap();
    assert_eq!((tls.certificate_file.to_str(), tls.clients), (Some("c.pem"), None));
    for (auth, is_required) in [
        (&[][..], true),
        (&["--tls-client-auth", "required"], true),
        (&["--tls-client-auth", "optional"], false),
    ] {
        let settings = with(&[&["--tls-client-ca-file", "ca.pem"], auth].concat()).unwrap();
        assert_eq!(settings.tls.unwrap().clients.unwrap().is_required, is_required);
    }
    let ca = ["--tls-client-ca-file", "ca.pem", "--tls-client-auth", "off"];
    for (problems, flag) in [
        (serve_with(&pair[..2]), "--tls-key-file"),
        (serve_with(&pair[2..]), "--tls-certificate-file"),
        (serve_with(&ca[..2]), "--tls-client-ca-file"),
        (with(&ca), "--tls-client-auth"),
        (with(&["--tls-client-auth", "required"]), "--tls-client-auth"),
        (with(&["--tls-client-crl-file", "crl.pem"]), "--tls-client-crl-file"),
        (with(&["--operator-listen", "localhost"]), "--operator-listen"),
        (with(&["--operator-listen", "0.0.0.0:7071"]), "--operator-listen"),
        (with(&["--require-tls=maybe"]), "--require-tls"),
    ] {
        let problems = problems.unwrap_err();
        assert!(problems.len() == 1 && problems[0].starts_with(flag), "{flag}: {problems:?}");
    }
    let operators = ["--operator-listen", "0.0.0.0:7071", "--operator-anonymous"];
    assert!(with(&operators).unwrap().operator_listen.is_some());
}

#[test]
fn endpoints_of_etcd_are_listed_with_or_without_a_scheme() {
    let settings = serve_with(&["--etcd", "127.0.0.1:2379, https://etcd:2379/"]).unwrap();
    assert_eq!(settings.etcd.unwrap().endpoints, ["127.0.0.1:2379", "https://etcd:2379"]);
    assert_eq!(serve_with(&["--etcd", ""]).unwrap().etcd, None);
}

#[test]
fn auto_migrate_is_a_flag_or_a_word() {
    assert!(serve_with(&["--auto-migrate"]).unwrap().auto_migrate);
    assert!(serve_with(&["--auto-migrate=true"]).unwrap().auto_migrate);
    assert!(!serve_with(&["--auto-migrate=false"]).unwrap().auto_migrate);
    assert!(serve_with(&["--core-dumps"]).unwrap().core_dumps);
    assert!(!serve_with(&[]).unwrap().core_dumps, "a core dump holds payloads and passwords");
    assert!(serve_with(&["--auto-migrate=perhaps"]).is_err());
}

#[test]
fn a_migration_keeps_what_it_is_not_told() {
    let settings = migrate(&["--window", "500ms"]).unwrap();
    assert_eq!(
        settings.cluster,
        ClusterWishes { window: Some(Duration::from_millis(500)), ..ClusterWishes::default() }
    );
}

#[test]
fn a_migration_refuses_what_no_cluster_can_have() {
    assert_eq!(
        migrate(&["--shards", "63", "--leaf", "0s", "--window", "1m"]).unwrap_err().len(),
        3
    );
    assert_eq!(migrate(&["--leaf", "15m", "--horizon", "4d"]).unwrap_err().len(), 1);
    assert!(migrate(&["--leaf", "1s", "--horizon", "300s"]).is_ok());
}

#[test]
fn an_unknown_flag_ends_with_code_2_and_help_with_0() {
    for (words, code) in
        [(["serve", "--nope"], 2), (["serve", "--help"], 0), (["migrate", "--help"], 0)]
    {
        let Err(CommandRefusal::Usage(error)) = invoke(&words) else {
            panic!("{words:?} was taken")
        };
        assert_eq!(error.exit_code(), code);
    }
}

#[test]
fn the_command_line_is_well_formed() {
    command().debug_assert();
}

/// Returns flag, variable, default and help of each setting of `serve` and `migrate`.
fn manual() -> Vec<(String, String, String, String)> {
    let cli = command();
    let commands =
        cli.get_subcommands().filter(|command| ["serve", "migrate"].contains(&command.get_name()));
    let own = commands.flat_map(clap::Command::get_arguments);
    own.chain(cli.get_arguments())
        .filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
        .map(|arg| {
            let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let default = arg
                .get_default_values()
                .first()
                .map(|value| value.to_string_lossy().into_owned())
                .unwrap_or_default();
            let variable =
                arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            (format!("--{}", arg.get_long().unwrap_or_default()), variable, default, text)
        })
        .collect()
}

#[test]
fn the_manual_says_the_limits_that_are_enforced() {
    let manual = manual();
    for limits in settings::ALL_LIMITS.into_iter().chain(migration::ALL_LIMITS) {
        let (.., text) = manual.iter().find(|(flag, ..)| flag == limits.flag).expect(limits.flag);
        let from_to = format!("From {} to {}", limits.from, limits.to);
        assert!(text.contains(&from_to), "{}: its help does not say `{from_to}`", limits.flag);
    }
}

#[test]
fn every_setting_has_a_variable_named_like_it() {
    for (flag, variable, ..) in manual() {
        let expected = format!(
            "PUNCTUAL{}",
            flag.trim_start_matches('-').replace('-', "_").to_uppercase().replacen("", "_", 1)
        );
        // The repeatable flag holds one property, its variable the list of them.
        assert!(variable == expected || flag == "--kafka-property", "{flag}: {variable}");
    }
}

#[test]
fn the_docs_list_every_setting_with_its_variable_and_default() {
    let page = include_str!("../../docs/reference/settings.md");
    for (flag, variable, default, _) in manual() {
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| `{flag}`")))
            .unwrap_or_else(|| panic!("{flag} is missing"));
        assert!(row.contains(&variable), "{row}");
        assert!(
            default.is_empty() || row.contains(&format!("| `{default}` |")),
            "{row}: its default is {default}"
        );
    }
}

/// Returns all commands without subcommands, such as `dead list` and `serve`.
fn leaves(command: &clap::Command) -> Vec<&clap::Command> {
    let below: Vec<&clap::Command> = command.get_subcommands().flat_map(leaves).collect();
    if below.is_empty() { vec![command] } else { below }
}

#[test]
fn help_never_shows_the_value_of_a_variable() {
    let mut cli = command();
    cli.build();
    for command in leaves(&cli) {
        for arg in command.get_arguments() {
            assert!(
                arg.get_env().is_none() || arg.is_hide_env_values_set(),
                "{} {arg}",
                command.get_name()
            );
        }
    }
}

#[test]
fn every_command_has_an_example_of_itself() {
    let mut cli = command();
    cli.build();
    for command in leaves(&cli).into_iter().filter(|command| !command.is_hide_set()) {
        let mut command = command.clone();
        let help = command.render_long_help().to_string();
        let (_, examples) = help
            .split_once("Examples:")
            .unwrap_or_else(|| panic!("{}: no examples", command.get_name()));
        // The word `task` may be left out, and the examples do so.
        let name = command.get_bin_name().unwrap_or_default().replace(" task ", " ");
        assert!(examples.contains(&name), "{name}: {examples}");
    }
}
