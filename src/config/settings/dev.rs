//! The parsed settings of `punctual dev`, and the settings of its node.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{CommandFactory as _, FromArgMatches as _};

use super::Settings;
use crate::config::args;
use crate::config::host::Host;
use crate::config::reader::{SettingProblem, SettingsReader};
use crate::config::secret::Secret;
use crate::config::units::{has_port, printable};

/// The topics of a dev server without `--topic`.
const DEFAULT_TOPIC: &str = "demo:4";

/// The settings of a dev server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DevSettings {
    /// The port of the REST API on loopback. 0 takes a free one.
    pub port: u16,
    pub kafka: DevKafka,
    pub postgres: DevPostgres,
    /// True to announce the addresses as one line of JSON.
    pub json: bool,
    /// The folders in which programs are found.
    pub path: OsString,
}

/// The Kafka of a dev server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DevKafka {
    /// A broker inside the process, with these topics: names with numbers of partitions.
    Own { port: u16, topics: Vec<(String, usize)> },
    /// The bootstrap servers of a real one.
    Real(String),
}

/// The Postgres of a dev server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DevPostgres {
    /// A server of its own: with its data in this folder, or in a temporary one.
    Own(Option<PathBuf>),
    /// The URL of a database.
    Real(Secret),
}

/// The settings of the process that keeps the Postgres of a dev server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SupervisorSettings {
    /// The folder of Postgres's programs.
    pub programs: PathBuf,
    /// The folder with the data, the socket and the log.
    pub folder: PathBuf,
    /// True to remove the folder at the end.
    pub is_temporary: bool,
    /// The user and the group that Postgres runs as.
    pub runs_as: Option<(u32, u32)>,
}

impl From<args::Supervisor> for SupervisorSettings {
    fn from(args: args::Supervisor) -> Self {
        let args::Supervisor { programs, folder, temporary, user, group } = args;
        Self { programs, folder, is_temporary: temporary, runs_as: user.zip(group) }
    }
}

/// Parses `args`. Returns the settings, or all problems.
pub(in crate::config) fn read(args: &args::Dev) -> Result<DevSettings, Vec<SettingProblem>> {
    let mut reader = SettingsReader::default();
    let kafka = match args.kafka.as_deref().map(str::trim) {
        Some(servers) => {
            if servers.is_empty() || servers.split(',').any(|server| !has_port(server.trim())) {
                reader.problem("--kafka", format!("{} is not host:port", printable(servers)));
            }
            if !args.topics.is_empty() {
                let text = "only for dev's own broker; create the topics of --kafka there";
                reader.problem("--topic", text);
            }
            DevKafka::Real(servers.to_owned())
        }
        None => DevKafka::Own { port: args.kafka_port, topics: topics(&args.topics, &mut reader) },
    };
    let postgres = match &args.database_url {
        Some(url) => {
            if args.data.is_some() {
                reader.problem("--data", "only for dev's own Postgres, not for --database-url");
            }
            if !url.expose().starts_with("postgres") {
                let form = "postgres://user:password@host:port/database";
                reader.problem("--database-url", format!("not a URL of the form {form}"));
            }
            DevPostgres::Real(url.clone())
        }
        None => DevPostgres::Own(args.data.clone()),
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    reader.finish(DevSettings { port: args.port, kafka, postgres, json: args.json, path })
}

fn topics(words: &[String], reader: &mut SettingsReader) -> Vec<(String, usize)> {
    let default = [DEFAULT_TOPIC.to_owned()];
    let words = if words.is_empty() { &default } else { words };
    let mut topics: Vec<(String, usize)> = Vec::new();
    for word in words {
        let (name, count) = word.split_once(':').unwrap_or((word, "1"));
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_name = (1..=249).contains(&name.len()) && name.bytes().all(is_legal);
        let count = count.parse().ok().filter(|count| (1..=100).contains(count));
        match count {
            Some(_) if topics.iter().any(|(known, _)| known == name) => {
                reader.problem("--topic", format!("{name} is given twice"));
            }
            Some(count) if is_name => topics.push((name.to_owned(), count)),
            _ => {
                let form = "write it as NAME:PARTITIONS, such as demo:4, with 1 to 100 partitions";
                reader.problem("--topic", format!("{} is not a topic; {form}", printable(word)));
            }
        }
    }
    topics
}

/// Reads the settings of the node of a dev server from flags of `serve`. Variables of the
/// environment do not count: they may be meant for production.
///
/// # Errors
/// When a flag is refused.
pub fn node_of_dev(flags: &[String]) -> Result<Settings, Vec<SettingProblem>> {
    let without_variables = |arg: clap::Arg| args::with_default(arg).env(Resettable::Reset);
    let serve = |command: clap::Command| command.mut_args(without_variables);
    let command = args::Cli::command().mut_args(without_variables).mut_subcommand("serve", serve);
    let words = ["punctual", "serve"].map(str::to_owned).into_iter().chain(flags.iter().cloned());
    let refused =
        |error: clap::Error| vec![SettingProblem { flag: "dev", text: error.to_string() }];
    let matches = command.try_get_matches_from(words).map_err(refused)?;
    match args::Cli::from_arg_matches(&matches).map_err(refused)?.command {
        args::CommandArgs::Serve(args) => super::read(&args, &Host::here()),
        _ => Err(vec![SettingProblem { flag: "dev", text: "not a node".to_owned() }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_words(words: &[&str]) -> Result<DevSettings, Vec<String>> {
        let words = ["punctual", "dev"].iter().chain(words);
        let cli = <args::Cli as clap::Parser>::try_parse_from(words).unwrap();
        let args::CommandArgs::Dev(args) = cli.command else { unreachable!() };
        read(&args).map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn without_flags_everything_is_its_own() {
        let settings = read_words(&[]).unwrap();
        let topics = vec![("demo".to_owned(), 4)];
        assert_eq!(settings.kafka, DevKafka::Own { port: 9092, topics });
        assert_eq!((settings.port, settings.postgres), (7070, DevPostgres::Own(None)));
    }

    #[test]
    fn topics_are_names_with_partitions() {
        let words = ["--topic", "orders", "--topic", "mails:12", "--kafka-port", "0"];
        let topics = vec![("orders".to_owned(), 1), ("mails".to_owned(), 12)];
        assert_eq!(read_words(&words).unwrap().kafka, DevKafka::Own { port: 0, topics });
        for wrong in ["a b", ":4", "a:0", "a:101", "a:x", ""] {
            let told = read_words(&["--topic", wrong]).unwrap_err();
            assert!(told[0].contains("such as demo:4"), "{wrong}: {told:?}");
        }
        assert!(read_words(&["--topic", "a", "--topic", "a:2"]).is_err());
    }

    #[test]
    fn flags_of_its_own_servers_do_not_go_with_real_ones() {
        let words = ["--kafka", "k:9092", "--topic", "a", "--database-url", "postgres://h/d"];
        assert_eq!(read_words(&words).unwrap_err().len(), 1);
        let words = ["--database-url", "mysql://h/d", "--data", "x", "--kafka", "k"];
        assert_eq!(read_words(&words).unwrap_err().len(), 3);
        let real = read_words(&["--kafka", "k:1,l:2", "--database-url", "postgres://h/d"]).unwrap();
        assert_eq!(real.kafka, DevKafka::Real("k:1,l:2".to_owned()));
    }

    #[test]
    fn the_node_of_a_dev_server_is_read_from_flags_alone() {
        let flags = ["--database-url", "postgres:///d", "--kafka", "k:1", "--claim-loops", "1"];
        let settings = node_of_dev(&flags.map(str::to_owned)).unwrap();
        assert_eq!((settings.claim_loops, settings.etcd), (1, None));
        assert!(node_of_dev(&["--no-such-flag".to_owned()]).is_err());
    }
}
