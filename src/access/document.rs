//! Parses the auth file (TOML) into a policy, or returns all problems with their lines.

mod certificates;
mod issuers;
mod limits;
mod principals;
mod reader;
mod roles;

use toml::de::{DeTable, DeValue};

use self::principals::Principals;
pub use self::principals::principal_name;
pub use self::reader::{NodeRules, Remark};
use self::reader::{Reader, Table, Value};
use self::roles::{GRANTS, Roles};
use super::policy::Policy;
use super::principal::Caller;

/// The policy of a file without problems, and what its author may not have meant.
#[derive(Debug)]
pub struct Document {
    pub policy: Policy,
    pub warnings: Vec<Remark>,
    /// The lines of the issuers, in the order of [`Policy::issuers`].
    pub issuer_lines: Vec<usize>,
}

/// Reads the text of an auth file.
///
/// # Errors
/// With all problems, in the order of their lines.
pub fn read(text: &str, rules: NodeRules) -> Result<Document, Vec<Remark>> {
    let mut reader = Reader::new(text, rules);
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().unwrap_or(0..0);
        reader.problem(&at, error.message());
    }
    // What cannot be parsed would only be told again as missing or unknown.
    let read = reader.problems.is_empty().then(|| policy(&mut reader, &root));
    let Reader { mut problems, mut warnings, .. } = reader;
    problems.sort();
    warnings.sort();
    match read {
        Some((policy, issuer_lines)) if problems.is_empty() => {
            Ok(Document { policy, warnings, issuer_lines })
        }
        _ => Err(problems),
    }
}

fn policy(reader: &mut Reader<'_>, root: &Table<'_>) -> (Policy, Vec<usize>) {
    let table = root.get_ref();
    let known = ["version", "roles", "principals", "certificate", "jwt", "anonymous", "topics"];
    reader.known_keys(table, &known);
    match table.get("version") {
        Some(version) if is_one(version.get_ref()) => {}
        Some(version) => reader.problem(&version.span(), "`version` must be 1"),
        None => reader.problem(&(0..0), "`version = 1` is missing"),
    }
    let mut roles = Roles::read(reader, table.get("roles"));
    let anonymous = table.get("anonymous").and_then(|value| anonymous(reader, value, &mut roles));
    let Principals { principals, tokens, .. } =
        Principals::read(reader, table.get("principals"), &mut roles);
    let certificates = certificates::read(reader, table.get("certificate"), &mut roles);
    let issuers = issuers::read(reader, table.get("jwt"), &mut roles);
    let topic_limits = limits::of_topics(reader, table.get("topics"));
    let is_empty = principals.is_empty()
        && certificates.is_empty()
        && issuers.is_empty()
        && anonymous.is_none();
    if is_empty && reader.problems.is_empty() {
        reader.problem(&(0..0), "there is no principal, so nobody has any rights");
    }
    roles.warn_of_unused(reader, table.get("roles"));
    let (issuers, places): (Vec<_>, Vec<_>) = issuers.into_iter().unzip();
    let lines = places.iter().map(|place| reader.line(place)).collect();
    let policy = Policy::new(principals, tokens, anonymous);
    let policy = policy.with_certificates(certificates).with_issuers(issuers);
    (policy.with_topic_limits(topic_limits), lines)
}

fn anonymous(reader: &mut Reader<'_>, value: &Value<'_>, roles: &mut Roles) -> Option<Caller> {
    let table = reader.table(value, "`anonymous`")?;
    reader.known_keys(table, &[&GRANTS[..], &["limits"]].concat());
    let rights = roles.grants(reader, table).rights();
    Some(Caller::anonymous_within(rights, limits::read(reader, table)))
}

fn is_one(value: &DeValue<'_>) -> bool {
    value.as_integer().is_some_and(|integer| integer.radix() == 10 && integer.as_str() == "1")
}

#[cfg(test)]
mod tests;
