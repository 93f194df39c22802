//! Reads settings in two steps. `args` holds them as written (all text). [`Settings`] holds them as
//! parsed, and reports every problem at once.

mod access;
mod args;
mod etcd;
mod host;
mod migration;
mod properties;
mod reader;
mod secret;
mod settings;
mod tls;
mod units;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};

pub use self::access::{Access, AuditTrail};
pub use self::args::{AuthCommand, CheckAuth, CheckToken, NewToken, TokenCommand};
pub use self::args::{COMMIT, RELEASE};
pub use self::etcd::{Etcd, Identity, Login};
pub use self::migration::MigrationSettings;
pub use self::properties::Property;
pub use self::reader::SettingProblem;
pub use self::secret::Secret;
pub use self::settings::callbacks::CallbackSettings;
pub use self::settings::dev::{
    DevKafka, DevPostgres, DevSettings, SupervisorSettings, node_of_dev,
};
pub use self::settings::intake::{IntakeSettings, IntakeTopic};
pub use self::settings::outbox::{OutboxAction, OutboxCommand, OutboxSettings};
pub use self::settings::payload_keys::ResealCommand;
pub use self::settings::traces::TraceExport;
pub use self::settings::{Kafka, NodeLimits, Retention, Settings};
pub use self::tls::{Clients, Tls};
use crate::bench::args::BenchArgs;
use crate::client::args as client;
use crate::telemetry::logging::LogSettings;

/// The log of a dev server, without lines around the announcement that could hide it. The keeper of
/// the membership would warn at each step of the clock, which a dev server makes on purpose.
const LOG_OF_DEV: &str = "warn,punctual::node::membership::keeper=error";

/// The parsed command line: a command, and the settings of the log.
#[derive(Debug)]
pub struct Invocation {
    pub command: Command,
    pub log: LogSettings,
}

#[derive(Debug)]
pub enum Command {
    Dev(Box<DevSettings>),
    DevPostgres(SupervisorSettings),
    Serve(Box<Settings>),
    /// Asks the servers of a node.
    Check(Box<Settings>),
    Migrate(Box<MigrationSettings>),
    Outbox(OutboxCommand),
    Reseal(ResealCommand),
    Client(Box<client::ClientCommand>),
    Token(TokenCommand),
    Auth(AuthCommand),
    /// A completion script, or a manual page.
    Print(Vec<u8>),
    Bench {
        args: Box<BenchArgs>,
        /// Properties of the consumer.
        kafka: Vec<Property>,
    },
}

/// The reason why no command runs.
#[derive(Debug)]
pub enum CommandRefusal {
    /// Wrong usage, or `--help` and `--version`, which end here, too.
    Usage(clap::Error),
    /// The command line was understood, but its settings are wrong. The list has at least one
    /// problem.
    Problems(Vec<SettingProblem>),
}

impl CommandRefusal {
    /// Prints the reason, each problem on its own line. Returns the exit code: 2, but 0 after
    /// `--help` and `--version`.
    pub fn report(&self) -> ExitCode {
        let (said, code) = match self {
            Self::Usage(error) => (error.print(), u8::try_from(error.exit_code()).unwrap_or(2)),
            Self::Problems(problems) => (print_problems(problems), 2),
        };
        match unless_closed(said) {
            Ok(()) => ExitCode::from(code),
            // The output cannot be written, so only the exit code can still report the failure.
            Err(_unwritten) => ExitCode::from(2),
        }
    }
}

/// Writes a completion script or a manual page to stdout.
///
/// # Errors
/// When stdout cannot be written. A pipe that its reader has closed is no error.
pub fn print_document(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    unless_closed(out.write_all(text).and_then(|()| out.flush()))
}

/// Takes the end of a reader (`| head`) as the end of the output: it has read enough.
fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn print_problems(problems: &[SettingProblem]) -> io::Result<()> {
    let mut out = io::stderr().lock();
    problems.iter().try_for_each(|problem| writeln!(out, "punctual: {problem}"))
}

/// Settings that were parsed without a problem. The modules that will use them check them, too.
#[derive(Clone, Copy, Debug)]
pub enum CheckedSettings<'a> {
    Node(&'a Settings),
    Migration(&'a MigrationSettings),
    Outbox(&'a OutboxCommand),
    Reseal(&'a ResealCommand),
    /// The consumer of a benchmark.
    Consumer(&'a [Property]),
}

/// Reads the command line and the environment. `check` returns the problems that the modules using
/// the settings find.
pub fn read(
    words: impl IntoIterator<Item = OsString>,
    check: impl Fn(CheckedSettings<'_>) -> Vec<SettingProblem>,
) -> Result<Invocation, CommandRefusal> {
    interpret(command(), words, &host::Host::here(), check)
}

fn interpret(
    mut command: clap::Command,
    words: impl IntoIterator<Item = OsString>,
    host: &host::Host<'_>,
    check: impl Fn(CheckedSettings<'_>) -> Vec<SettingProblem>,
) -> Result<Invocation, CommandRefusal> {
    let matches = command.try_get_matches_from_mut(words).map_err(CommandRefusal::Usage)?;
    // The flag exists for its variable.
    if settings::exposed_secrets::is_on_command_line(&matches, "token") {
        let text = "a token on a command line is visible in the list of processes and in the \
                    shell's history; use PUNCTUAL_TOKEN or --token-file";
        return Err(CommandRefusal::Problems(vec![SettingProblem {
            flag: "--token",
            text: text.to_owned(),
        }]));
    }
    let cli = args::Cli::from_arg_matches(&matches)
        .map_err(|error| CommandRefusal::Usage(error.format(&mut command)))?;
    let mut problems = Vec::new();
    let is_dev = matches!(cli.command, args::CommandArgs::Dev(_));
    let is_default = matches.value_source("log") == Some(ValueSource::DefaultValue);
    let level = if is_dev && is_default { LOG_OF_DEV } else { &cli.log.log };
    let log = LogSettings::new(level, &cli.log.log_format)
        .map_err(|wrong| problems.push(SettingProblem { flag: wrong.flag, text: wrong.text }))
        .ok();
    let command = match cli.command {
        args::CommandArgs::Dev(args) => {
            settings::dev::read(&args).map(|settings| Command::Dev(Box::new(settings)))
        }
        args::CommandArgs::DevPostgres(args) => Ok(Command::DevPostgres(args.into())),
        args::CommandArgs::Serve(args)
        | args::CommandArgs::Server(args::ServerCommand::Start(args)) => {
            node(&args, &matches, host, check).map(Command::Serve)
        }
        args::CommandArgs::Server(args::ServerCommand::Check(args)) => {
            node(&args, &matches, host, check).map(Command::Check)
        }
        args::CommandArgs::Migrate(args)
        | args::CommandArgs::Server(args::ServerCommand::Migrate(args)) => {
            migration::read(&args, host).and_then(|settings| {
                fault(check(CheckedSettings::Migration(&settings)))
                    .map(|()| Command::Migrate(Box::new(settings)))
            })
        }
        args::CommandArgs::Outbox(args) => {
            settings::outbox::read(&args, host).and_then(|command| {
                fault(check(CheckedSettings::Outbox(&command))).map(|()| Command::Outbox(command))
            })
        }
        args::CommandArgs::PayloadKeys(args) => {
            settings::payload_keys::read(&args, host).and_then(|command| {
                fault(check(CheckedSettings::Reseal(&command))).map(|()| Command::Reseal(command))
            })
        }
        args::CommandArgs::Client(command) => Ok(Command::Client(command)),
        args::CommandArgs::Token(args) => Ok(Command::Token(args.command)),
        args::CommandArgs::Auth(args) => Ok(Command::Auth(args.command)),
        args::CommandArgs::Completions(args) => Ok(Command::Print(completions(args.shell))),
        args::CommandArgs::Man(args) => manual_page(&args.words).map(Command::Print),
        args::CommandArgs::Bench(args) => bench(*args, host).and_then(|(args, kafka)| {
            fault(check(CheckedSettings::Consumer(&kafka))).map(|()| Command::Bench { args, kafka })
        }),
    };
    match (command, log) {
        (Ok(command), Some(log)) => Ok(Invocation { command, log }),
        (command, _) => {
            problems.extend(command.err().unwrap_or_default());
            Err(CommandRefusal::Problems(problems))
        }
    }
}

fn fault(problems: Vec<SettingProblem>) -> Result<(), Vec<SettingProblem>> {
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Reads the settings of a node from its arguments, and from the matches that they come from.
fn node(
    args: &args::Serve,
    matches: &clap::ArgMatches,
    host: &host::Host<'_>,
    check: impl Fn(CheckedSettings<'_>) -> Vec<SettingProblem>,
) -> Result<Box<Settings>, Vec<SettingProblem>> {
    let mut warnings_of_words = settings::exposed_secrets::warnings(args, matches);
    let variables = host.variables.iter().cloned();
    let misspelt = settings::misspelt_variables::warnings(&args::Cli::command(), variables);
    warnings_of_words.extend(misspelt);
    let settings = Settings { warnings_of_words, ..settings::read(args, host)? };
    fault(check(CheckedSettings::Node(&settings)))?;
    Ok(Box::new(settings))
}

fn bench(
    words: args::BenchWords,
    host: &host::Host<'_>,
) -> Result<(Box<BenchArgs>, Vec<Property>), Vec<SettingProblem>> {
    let mut reader = reader::SettingsReader::default();
    let kafka_properties = properties::read(&words.kafka_properties, host, &mut reader);
    reader.finish((Box::new(words.bench), kafka_properties))
}

/// Generates shell completions.
fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "punctual", &mut script);
    script
}

/// Generates the manual page of a command, or of the whole program if there are no words.
fn manual_page(words: &[String]) -> Result<Vec<u8>, Vec<SettingProblem>> {
    let problem = |text: String| vec![SettingProblem { flag: "COMMAND", text }];
    // The help of each command has its own page.
    let mut all = command().disable_help_subcommand(true);
    all.build();
    let found = words.iter().try_fold(&all, |found, word| found.find_subcommand(word));
    let found = found.ok_or_else(|| {
        problem(format!("{} is no command; `punctual --help` lists them", words.join(" ")))
    })?;
    let mut page = Vec::new();
    clap_mangen::Man::new(found.clone())
        .render(&mut page)
        .map_err(|error| problem(error.to_string()))?;
    Ok(page)
}

/// Builds the parser. Values of variables are kept out of the help, because one of them is a
/// password.
fn command() -> clap::Command {
    with_rules(args::Cli::command().mut_subcommand("task", with_noun_in_usage))
}

/// Puts the noun into the usages of its commands. They are written for the form without it.
fn with_noun_in_usage(noun: clap::Command) -> clap::Command {
    let (short, long) = ("punctual ", format!("punctual {} ", noun.get_name()));
    noun.mut_subcommands(|command| {
        let usage = command.clone().render_usage().to_string();
        command.override_usage(usage.trim_start_matches("Usage: ").replace(short, &long))
    })
}

/// Applies the rules that all settings share. An empty variable counts as unset, because templates
/// leave empty variables for values that were not given.
fn with_rules(command: clap::Command) -> clap::Command {
    let complete = |arg: clap::Arg| {
        let is_empty = arg
            .get_env()
            .is_some_and(|name| std::env::var_os(name).is_some_and(|value| value.is_empty()));
        let arg = args::with_default(arg).hide_env_values(true);
        if is_empty { arg.env(Resettable::Reset) } else { arg }
    };
    command.mut_args(complete).mut_subcommands(with_rules)
}
