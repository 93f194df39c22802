//! Finds variables of the environment that look like settings and are none.
//!
//! Other variables may begin like settings: Kubernetes makes some for each service, and a script
//! has its own. Hence only names close to that of a setting are told.

use std::collections::BTreeSet;

const PREFIX: &str = "PUNCTUAL_";
/// The most letters in which a misspelt name differs: two slips.
const DISTANCE_MAX: usize = 2;
/// The shortest name of a setting, without the prefix, that another name can be taken for. Too many
/// other names are close to a shorter one by chance.
const LENGTH_MIN: usize = 6;

/// Returns a warning for each of `variables` that is no setting of `command` and close to one.
pub(in crate::config) fn warnings(
    command: &clap::Command,
    variables: impl IntoIterator<Item = String>,
) -> Vec<String> {
    let mut known = BTreeSet::new();
    collect(command, &mut known);
    let unknown = variables
        .into_iter()
        .filter(|name| name.starts_with(PREFIX) && !known.contains(name.as_str()));
    let mut warnings: Vec<String> = unknown
        .filter_map(|name| {
            let meant = closest(&name, &known)?;
            Some(format!("the variable {name} is no setting, and is ignored: is {meant} meant?"))
        })
        .collect();
    warnings.sort();
    warnings
}

fn collect(command: &clap::Command, known: &mut BTreeSet<String>) {
    let names = command.get_arguments().filter_map(|arg| arg.get_env());
    known.extend(names.filter_map(|name| name.to_str()).map(str::to_owned));
    command.get_subcommands().for_each(|below| collect(below, known));
}

fn closest<'a>(name: &str, known: &'a BTreeSet<String>) -> Option<&'a str> {
    let short = |name: &'a str| name.strip_prefix(PREFIX).filter(|own| own.len() >= LENGTH_MIN);
    let name = name.strip_prefix(PREFIX)?;
    known
        .iter()
        .filter_map(|one| Some((strsim::damerau_levenshtein(name, short(one)?), one)))
        .filter(|(distance, _one)| *distance <= DISTANCE_MAX)
        .min()
        .map(|(_distance, one)| one.as_str())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::config::args::Cli;

    fn told(names: &[&str]) -> Vec<String> {
        warnings(&Cli::command(), names.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn a_misspelt_variable_is_told_with_the_setting_that_is_meant() {
        assert_eq!(
            told(&["PUNCTUAL_RECEIPT_RETENTON", "PUNCTUAL_ADUIT_FILE", "PUNCTUAL_KAFKA"]),
            [
                "the variable PUNCTUAL_ADUIT_FILE is no setting, and is ignored: is \
                 PUNCTUAL_AUDIT_FILE meant?",
                "the variable PUNCTUAL_RECEIPT_RETENTON is no setting, and is ignored: is \
                 PUNCTUAL_RECEIPT_RETENTION meant?",
            ]
        );
    }

    #[test]
    fn variables_of_others_are_not_told() {
        let of_others = [
            "PUNCTUAL_SERVICE_HOST",
            "PUNCTUAL_PORT_7070_TCP_ADDR",
            "PUNCTUAL_OPERATOR_PORT",
            "PUNCTUAL_BIN",
            "PUNCTUAL_TASK_KEY",
            "PUNCTUAL_TEST_TOPICS",
            "KAFKA",
        ];
        assert_eq!(told(&of_others), Vec::<String>::new());
    }
}
