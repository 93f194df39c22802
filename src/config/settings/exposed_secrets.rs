//! Finds secrets that were given as flags. Everybody on the machine can read the arguments of a
//! process.

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::config::args;
use crate::config::host::variable_of;
use crate::config::secret::Secret;

/// Properties of librdkafka that hold a secret (`_RK_SENSITIVE` in its source, without names of
/// users and of files).
const SECRET_PROPERTIES: [&str; 10] = [
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "ssl_key",
];

/// Returns true when a setting was given as a flag, in any of the commands.
pub(in crate::config) fn is_on_command_line(matches: &ArgMatches, id: &str) -> bool {
    let is_here = matches.try_contains_id(id).is_ok()
        && matches.value_source(id) == Some(ValueSource::CommandLine);
    is_here || matches.subcommand().is_some_and(|(_, below)| is_on_command_line(below, id))
}

/// Returns a warning for each flag of a node with a secret. `args` are those of `matches`.
pub(in crate::config) fn warnings(args: &args::Serve, matches: &ArgMatches) -> Vec<String> {
    let is_flag = |id: &str| is_on_command_line(matches, id);
    let (database, etcd) = (&args.database.database_url, &args.etcd.password);
    let outboxes = &args.outboxes.outbox;
    let mut exposed = Vec::new();
    if is_flag("database_url") && database.iter().any(has_password) {
        exposed.push(warning("--database-url", "--database-url"));
    }
    if is_flag("password") && etcd.iter().any(|password| !password.expose().trim().is_empty()) {
        exposed.push(warning("--etcd-password", "--etcd-password"));
    }
    if is_flag("outbox") && outboxes.iter().any(has_password) {
        exposed.push(warning("--outbox", "--outbox"));
    }
    let kafka = &args.kafka.properties;
    let lists = kafka.list.iter().filter(|_list| is_flag("list")).map(Secret::expose);
    let pairs = kafka.flags.iter().map(Secret::expose);
    let pairs = pairs.chain(lists.flat_map(|list| list.split(',')));
    let secret = |pair: &str| {
        let (name, _) = pair.split_once('=').filter(|(_, value)| !value.trim().is_empty())?;
        SECRET_PROPERTIES.into_iter().find(|secret| *secret == name.trim())
    };
    let warn = |name: &str| warning(&format!("--kafka-property {name}"), "--kafka-properties");
    exposed.extend(pairs.filter_map(secret).map(warn));
    exposed
}

/// Makes the warning about `given`. `flag` has a variable and a file in its place.
fn warning(given: &str, flag: &str) -> String {
    let variable = variable_of(flag);
    format!(
        "{given} has a secret on the command line, where others can read it in the list of \
         processes: use {variable} or {flag}-file"
    )
}

/// Returns true for a URL of Postgres with a password: after the user, or as a parameter.
fn has_password(url: &Secret) -> bool {
    let (place, parameters) = url.expose().split_once('?').unwrap_or((url.expose(), ""));
    let place = place.split_once("://").map_or(place, |(_scheme, place)| place);
    let authority = place.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _hosts)| user);
    let has_text = |text: Option<&str>| text.is_some_and(|text| !text.is_empty());
    has_text(user.split_once(':').map(|(_user, password)| password))
        || parameters.split('&').any(|parameter| has_text(parameter.strip_prefix("password=")))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::config::host::Host;
    use crate::config::tests::{deaf, serve};
    use crate::config::{Command, interpret};

    const SAFE: [&str; 4] = ["--database-url", "postgres://me@db/p", "--kafka", "broker:1"];

    fn warned(words: &[&str]) -> Vec<String> {
        serve(words).unwrap().warnings()
    }

    #[test]
    fn a_secret_in_a_flag_is_warned_of_with_the_better_way_and_without_its_value() {
        let [_, _, kafka @ ..] = SAFE;
        let etcd = ["--etcd", "https://etcd:1", "--etcd-user", "me", "--etcd-password", "hunter2"];
        let outbox = |url| ["--outbox", url];
        for (words, given, better) in [
            (
                [&kafka[..], &["--database-url", "postgres://me:hunter2@a,b:1/p"]].concat(),
                "--database-url has",
                "PUNCTUAL_DATABASE_URL or --database-url-file",
            ),
            (
                [&kafka[..], &["--database-url", "postgres:///p?user=me&password=hunter2"]]
                    .concat(),
                "--database-url has",
                "PUNCTUAL_DATABASE_URL or --database-url-file",
            ),
            (
                [&SAFE[..], &etcd].concat(),
                "--etcd-password has",
                "PUNCTUAL_ETCD_PASSWORD or --etcd-password-file",
            ),
            (
                [&SAFE[..], &outbox("shop=postgres://me:hunter2@shop/p")].concat(),
                "--outbox has",
                "PUNCTUAL_OUTBOX or --outbox-file",
            ),
            (
                [&SAFE[..], &["--kafka-property", "sasl.password = hunter2"]].concat(),
                "--kafka-property sasl.password has",
                "PUNCTUAL_KAFKA_PROPERTIES or --kafka-properties-file",
            ),
            (
                [&SAFE[..], &["--kafka-properties", "acks=all,ssl.key.password=hunter2"]].concat(),
                "--kafka-property ssl.key.password has",
                "PUNCTUAL_KAFKA_PROPERTIES or --kafka-properties-file",
            ),
        ] {
            let warned = warned(&words);
            assert_eq!(warned.len(), 1, "{words:?}: {warned:?}");
            assert!(warned[0].starts_with(given) && warned[0].ends_with(better), "{warned:?}");
            assert!(!warned[0].contains("hunter2"), "{warned:?}");
        }
        let harmless = ["--kafka-property", "sasl.username=me", "--outbox", "a=postgres://me@b/p"];
        assert_eq!(warned(&[&SAFE[..], &harmless].concat()), Vec::<String>::new());
    }

    #[test]
    fn a_secret_from_elsewhere_than_a_flag_is_not_warned_of() {
        let file = ["--kafka", "broker:1", "--kafka-properties-file", "properties"];
        let words = [&["--database-url-file", "url"][..], &file].concat();
        assert_eq!(warned(&words), Vec::<String>::new());
        // A default stands for a variable, which a test cannot set.
        let url = "postgres://me:hunter2@db/p";
        let with_url =
            |serve: clap::Command| serve.mut_arg("database_url", |arg| arg.default_value(url));
        let parser = deaf().mut_subcommand("serve", with_url);
        let words = ["punctual", "serve", "--kafka", "broker:1"].map(OsString::from);
        let read = interpret(parser, words, &Host::here(), |_| Vec::new());
        match read.map(|invocation| invocation.command) {
            Ok(Command::Serve(settings)) => {
                assert_eq!(settings.database_url.expose(), url);
                assert_eq!(settings.warnings(), Vec::<String>::new());
            }
            other => panic!("{other:?}"),
        }
    }
}
