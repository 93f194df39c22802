//! The parsed settings of callbacks.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use crate::config::args::CallbackArgs;
use crate::config::reader::SettingsReader;
use crate::domain::topic::callback::policy::CallbackPolicy;

const HOST: &str = "--callback-host";
const NETWORK: &str = "--callback-network";
const KEY_FILE: &str = "--callback-key-file";

/// The hosts and networks that callbacks may call, and the file with the keys that sign requests.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CallbackSettings {
    pub policy: CallbackPolicy,
    /// `None`: this node carries out no callbacks.
    pub key_file: Option<PathBuf>,
}

/// Parses the settings of callbacks.
pub(in crate::config) fn callbacks(
    args: &CallbackArgs,
    reader: &mut SettingsReader,
) -> CallbackSettings {
    let hosts = parsed(&args.callback_host, HOST, reader);
    let networks = parsed(&args.callback_network, NETWORK, reader);
    let key_file = args.callback_key_file.clone().filter(|path| !path.as_os_str().is_empty());
    if !hosts.is_empty() && key_file.is_none() {
        reader.problem(HOST, format!("it needs {KEY_FILE}: services check who calls them"));
    }
    let without_host = [(NETWORK, !networks.is_empty()), (KEY_FILE, key_file.is_some())];
    for (flag, _) in without_host.into_iter().filter(|(_, is_set)| *is_set && hosts.is_empty()) {
        reader.problem(flag, format!("it needs {HOST}"));
    }
    CallbackSettings { policy: CallbackPolicy { hosts, networks }, key_file }
}

fn parsed<T, E>(words: &[String], flag: &'static str, reader: &mut SettingsReader) -> Vec<T>
where
    T: FromStr<Err = E>,
    E: Display,
{
    let mut values = Vec::new();
    for word in words.iter().map(|word| word.trim()).filter(|word| !word.is_empty()) {
        match word.parse::<T>() {
            Ok(value) => values.push(value),
            Err(error) => reader.problem(flag, error.to_string()),
        }
    }
    values
}
