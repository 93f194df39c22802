//! Finds connections to servers that others on the network could read, or answer in the server's
//! place.
//!
//! A false Postgres gets the password of the node's user. A false broker acknowledges records that
//! are in no topic. A false etcd names members that are none.

use std::net::IpAddr;

use crate::config::{Secret, SettingProblem, Settings};
use crate::postgres::PostgresSettings;

/// Properties of librdkafka that switch a check of the server off, each with that value.
const CHECKS_OFF: [(&str, &[&str], &str); 2] = [
    (
        "enable.ssl.certificate.verification",
        &["false", "f", "0"],
        "the certificate of a broker is not checked",
    ),
    (
        "ssl.endpoint.identification.algorithm",
        &["none"],
        "a certificate for any name is accepted from a broker",
    ),
];

/// The property of librdkafka with the address that gives tokens.
const TOKEN_URL: &str = "sasl.oauthbearer.token.endpoint.url";

/// Returns the problems of a URL of Postgres in `flag`. Beyond this machine, the URL must ask for a
/// verified server, unless `may_be_plain`.
pub fn of_postgres(flag: &'static str, url: &Secret, may_be_plain: bool) -> Vec<SettingProblem> {
    let problem = |text| vec![SettingProblem { flag, text }];
    match PostgresSettings::new(url.expose()) {
        Err(text) => problem(text),
        Ok(postgres) => {
            match postgres.unverified_hosts().into_iter().find(|host| !is_local(host)) {
                Some(host) if !may_be_plain => problem(format!(
                    "others on the network can read the connection to {host}, or answer in its \
                     place and get the password: add sslmode=verify-full (and sslrootcert) to the \
                     URL, or accept the risk with --postgres-plaintext, which --require-tls \
                     excludes (docs/operate/postgres.md)"
                )),
                _ => Vec::new(),
            }
        }
    }
}

/// Returns how Kafka and etcd can be read or answered by others. These are warnings, unless TLS is
/// required.
pub fn of_other_servers(settings: &Settings) -> Vec<SettingProblem> {
    let mut exposed: Vec<SettingProblem> = of_kafka(settings)
        .into_iter()
        .map(|text| SettingProblem { flag: "--kafka", text })
        .collect();
    let endpoints = settings.etcd.iter().flat_map(|etcd| &etcd.endpoints);
    let plain = endpoints.filter(|endpoint| !endpoint.starts_with("https://"));
    if let Some(host) = plain.map(|endpoint| host_of(endpoint)).find(|host| !is_local(host)) {
        let text = format!(
            "others on the network can read and change the list of nodes on {host}: use https:// \
             endpoints (docs/operate/etcd.md)"
        );
        exposed.push(SettingProblem { flag: "--etcd", text });
    }
    let endpoint = settings.traces.as_ref().map(|traces| traces.endpoint.as_str());
    let plain = endpoint.and_then(|endpoint| endpoint.strip_prefix("http://"));
    if let Some(host) = plain.map(host_of).filter(|host| !is_local(host)) {
        let text = format!(
            "others on the network can read spans, and the headers with a token, on their way to \
             {host}: use https://"
        );
        exposed.push(SettingProblem { flag: "--otlp-endpoint", text });
    }
    exposed
}

fn of_kafka(settings: &Settings) -> Vec<String> {
    let value_of = |name: &str| {
        let given = settings.kafka.properties.iter().rev().find(|property| property.name == name);
        given.map(|property| property.value.expose().trim().to_ascii_lowercase())
    };
    let tokens = of_token_server(&value_of(TOKEN_URL).unwrap_or_default());
    let protocol = value_of("security.protocol").unwrap_or_default();
    if ["ssl", "sasl_ssl"].contains(&protocol.as_str()) {
        let is_off = |(name, off, _): &(&str, &[&str], &str)| {
            value_of(name).is_some_and(|value| off.contains(&value.as_str()))
        };
        return CHECKS_OFF
            .into_iter()
            .filter(is_off)
            .map(|(name, _, effect)| {
                format!(
                    "{effect} (the Kafka property {name}): another machine can pass for a broker \
                     and acknowledge records that it does not store"
                )
            })
            .chain(tokens)
            .collect();
    }
    let hosts = settings.kafka.bootstrap.split(',').map(|server| host_of(server.trim()));
    hosts
        .filter(|host| !is_local(host))
        .take(1)
        .map(|host| {
            format!(
                "others on the network can read records and passwords on their way to {host}, or \
                 acknowledge records that no topic has: set the Kafka property security.protocol \
                 to SSL or SASL_SSL (docs/operate/kafka.md)"
            )
        })
        .chain(tokens)
        .collect()
}

/// Returns how others can read the secret on its way to a server of tokens.
fn of_token_server(url: &str) -> Option<String> {
    let place = url.strip_prefix("http://")?;
    let host = host_of(place.split(['/', '?', '#']).next().unwrap_or_default());
    (!is_local(host)).then(|| {
        format!(
            "others on the network can read the secret for tokens on its way to {host}: give the \
             Kafka property {TOKEN_URL} an https:// address (docs/operate/kafka.md)"
        )
    })
}

/// Returns the host of `host:port`, with or without a scheme.
fn host_of(place: &str) -> &str {
    let place = place.split_once("://").map_or(place, |(_, place)| place);
    place.rsplit_once(':').map_or(place, |(host, _)| host)
}

/// True for a host on this machine: the connection stays inside.
fn is_local(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::config::{self, Command, CommandRefusal};

    /// Returns the problems of these words, or what the node would warn of.
    fn read(words: &[&str]) -> Result<Vec<String>, Vec<String>> {
        let words = ["punctual"].iter().chain(words).map(OsString::from);
        let texts =
            |problems: Vec<SettingProblem>| problems.iter().map(ToString::to_string).collect();
        match config::read(words, crate::app::problems) {
            Ok(invocation) => match invocation.command {
                Command::Serve(settings) => Ok(texts(of_other_servers(&settings))),
                _ => Ok(Vec::new()),
            },
            Err(CommandRefusal::Problems(problems)) => Err(texts(problems)),
            Err(CommandRefusal::Usage(error)) => panic!("{error}"),
        }
    }

    fn serve(words: &[&str]) -> Result<Vec<String>, Vec<String>> {
        let enough = ["serve", "--database-url", "postgres://localhost/p", "--kafka", "[::1]:1"];
        let is_given = |flag| words.contains(&flag);
        let enough: Vec<&str> = match (is_given("--database-url"), is_given("--kafka")) {
            (true, true) => vec!["serve"],
            (true, false) => ["serve", "--kafka", "[::1]:1"].to_vec(),
            (false, true) => enough[..3].to_vec(),
            (false, false) => enough.to_vec(),
        };
        read(&[&enough, words].concat())
    }

    #[test]
    fn postgres_on_another_machine_is_verified_or_accepted_as_it_is() {
        for command in [&["serve", "--kafka", "localhost:1"][..], &["migrate"]] {
            let with =
                |url, more: &[&str]| read(&[command, &["--database-url", url], more].concat());
            for url in
                ["postgres://me:hunter2@db/p", "postgres://me:hunter2@10.0.0.1/p?sslmode=require"]
            {
                let said = with(url, &[]).unwrap_err();
                assert!(said.len() == 1 && said[0].contains("--postgres-plaintext"), "{said:?}");
                assert!(!said[0].contains("hunter2"), "{said:?}");
                assert_eq!(with(url, &["--postgres-plaintext"]), Ok(Vec::new()), "{url}");
            }
            for url in [
                "postgres://me@db/p?sslmode=verify-full",
                "postgres://me@localhost/p",
                "postgres://me@127.0.0.2/p",
                "postgres://me@[::1]/p",
                "postgres:///p?host=/run/postgresql",
            ] {
                assert_eq!(with(url, &[]), Ok(Vec::new()), "{url}");
            }
        }
        let said =
            serve(&["--database-url", "postgres://db/p", "--postgres-plaintext", "--require-tls"]);
        assert!(said.unwrap_err()[0].starts_with("--database-url: "));
    }

    #[test]
    fn kafka_and_etcd_on_other_machines_are_warned_of_or_refused() {
        let ssl = [
            "--kafka",
            "kafka:1",
            "--kafka-property",
            "security.protocol=SASL_SSL",
            "--kafka-property",
            "sasl.mechanism=PLAIN",
        ];
        let off = |property| [&ssl[..], &["--kafka-property", property]].concat();
        for (words, wanted) in [
            (vec!["--kafka", "localhost:1,kafka:1"], "way to kafka,"),
            (
                vec!["--kafka", "kafka:1", "--kafka-property", "security.protocol=plaintext"],
                "way to kafka,",
            ),
            (off("enable.ssl.certificate.verification=false"), "certificate of a broker"),
            (off("ssl.endpoint.identification.algorithm=none"), "any name"),
            (off("sasl.oauthbearer.token.endpoint.url=http://login:1/t"), "way to login:"),
            (vec!["--etcd", "https://etcd:1,http://10.0.0.1:2"], "on 10.0.0.1:"),
            (vec!["--etcd", "etcd:1"], "on etcd:"),
        ] {
            let warned = serve(&words).unwrap();
            assert!(warned.len() == 1 && warned[0].contains(wanted), "{words:?}: {warned:?}");
            let refused = serve(&[&words[..], &["--require-tls"]].concat());
            assert_eq!(refused, Err(warned), "{words:?}");
        }
        for words in
            [&ssl[..], &["--etcd", "https://etcd:1"], &["--etcd", "localhost:1,http://[::1]:2"]]
        {
            let words = [words, &["--require-tls"]].concat();
            assert_eq!(serve(&words), Ok(Vec::new()), "{words:?}");
        }
    }
}
