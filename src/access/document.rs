//! The text of the auth file: TOML, of which every problem is told with its line.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::action::Action;
use super::pattern::Pattern;
use super::policy::{Policy, TokenEntry};
use super::principal::Principal;
use super::rights::{Rights, Rule};
use super::token::{TokenHash, TokenId};
use crate::domain::{PrincipalName, Timestamp};

/// A remark on one line of the file. It never holds a hash or a token.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Remark {
    /// Counted from 1.
    pub line: usize,
    pub text: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

/// The policy of a file without problems, and what its author may not have meant.
#[derive(Debug)]
pub struct Document {
    pub policy: Policy,
    pub warnings: Vec<Remark>,
}

/// Reads the text of an auth file.
///
/// # Errors
/// With all problems, in the order of their lines.
pub fn read(text: &str) -> Result<Document, Vec<Remark>> {
    let mut reader = Reader { text, problems: Vec::new(), warnings: Vec::new() };
    let (root, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().unwrap_or(0..0);
        reader.problem(&at, error.message());
    }
    // What cannot be parsed would only be told again as missing or unknown.
    let policy = if reader.problems.is_empty() { reader.document(&root) } else { None };
    let Reader { mut problems, mut warnings, .. } = reader;
    problems.sort();
    warnings.sort();
    match policy {
        Some(policy) if problems.is_empty() => Ok(Document { policy, warnings }),
        _ => Err(problems),
    }
}

/// Checks the name of a principal of the file.
///
/// # Errors
/// When it is no name, or kept for something else.
pub fn principal_name(name: &str) -> Result<PrincipalName, String> {
    let read = PrincipalName::new(name).map_err(|error| error.to_string())?;
    if read == PrincipalName::anonymous() {
        let text = "`anonymous` is the name of callers without a credential; their rights are in [anonymous]";
        return Err(text.to_owned());
    }
    if name.contains(':') {
        return Err(
            "names with `:` are kept for identities that are proven in other ways".to_owned()
        );
    }
    Ok(read)
}

/// Rules that allow, and rules that deny.
#[derive(Clone, Default, Debug)]
struct Grants {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

type Roles = BTreeMap<String, Grants>;
type Table<'a> = Spanned<DeTable<'a>>;
type Value<'a> = Spanned<DeValue<'a>>;

/// The tokens of all principals.
#[derive(Default, Debug)]
struct Tokens {
    entries: HashMap<TokenId, TokenEntry>,
    hashes: BTreeSet<String>,
}

struct Reader<'a> {
    text: &'a str,
    problems: Vec<Remark>,
    warnings: Vec<Remark>,
}

impl Reader<'_> {
    fn remark(&self, at: &Range<usize>, text: impl Into<String>) -> Remark {
        let before = self.text.as_bytes().get(..at.start).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count().saturating_add(1);
        Remark { line, text: text.into() }
    }

    fn problem(&mut self, at: &Range<usize>, text: impl Into<String>) {
        let problem = self.remark(at, text);
        self.problems.push(problem);
    }

    fn warning(&mut self, at: &Range<usize>, text: impl Into<String>) {
        let warning = self.remark(at, text);
        self.warnings.push(warning);
    }

    fn document(&mut self, root: &Table<'_>) -> Option<Policy> {
        let table = root.get_ref();
        self.known_keys(table, &["version", "roles", "principals", "anonymous"]);
        match table.get("version") {
            Some(version) if is_one(version.get_ref()) => {}
            Some(version) => self.problem(&version.span(), "`version` is not 1"),
            None => self.problem(&(0..0), "`version = 1` is missing"),
        }
        let roles = self.roles(table.get("roles"));
        let mut used = BTreeSet::new();
        let anonymous =
            table.get("anonymous").and_then(|value| self.anonymous(value, &roles, &mut used));
        let mut tokens = Tokens::default();
        let principals = self.principals(table.get("principals"), &roles, &mut used, &mut tokens);
        if principals.is_empty() && anonymous.is_none() && self.problems.is_empty() {
            self.problem(&(0..0), "there is no principal, so nobody could do anything");
        }
        let unused = roles.keys().filter(|role| !used.contains(*role));
        for role in unused {
            let at = table.get("roles").and_then(|roles| key_span(roles, role)).unwrap_or(0..0);
            self.warning(&at, format!("nobody has the role {role:?}"));
        }
        Some(Policy::new(principals, tokens.entries, anonymous))
    }

    fn roles(&mut self, value: Option<&Value<'_>>) -> Roles {
        let mut roles = Roles::new();
        for (name, value) in self.members(value, "roles") {
            let Some(table) = self.table(value, &format!("the role {name:?}")) else { continue };
            self.known_keys(table, &["allow", "deny"]);
            let grants = self.grants(table);
            if grants.allow.is_empty() && grants.deny.is_empty() {
                self.warning(&value.span(), format!("the role {name:?} allows nothing"));
            }
            roles.insert(name, grants);
        }
        roles
    }

    fn anonymous(
        &mut self,
        value: &Value<'_>,
        roles: &Roles,
        used: &mut BTreeSet<String>,
    ) -> Option<Rights> {
        let table = self.table(value, "`anonymous`")?;
        self.known_keys(table, &["roles", "allow", "deny", "operate"]);
        Some(self.rights(table, roles, used))
    }

    fn principals(
        &mut self,
        value: Option<&Value<'_>>,
        roles: &Roles,
        used: &mut BTreeSet<String>,
        tokens: &mut Tokens,
    ) -> Vec<Arc<Principal>> {
        let mut principals = Vec::new();
        for (name, value) in self.members(value, "principals") {
            let named = self.principal_name(&name, value);
            let Some(table) = self.table(value, &format!("the principal {name:?}")) else {
                continue;
            };
            self.known_keys(table, &["roles", "allow", "deny", "operate", "tokens"]);
            let rights = self.rights(table, roles, used);
            if !rights.operates() && Action::ON_TOPICS.iter().all(|a| !rights.allows_anywhere(*a)) {
                self.warning(&value.span(), format!("the principal {name:?} has no rights"));
            }
            let Some(name) = named else { continue };
            let principal = Arc::new(Principal { name, rights });
            self.tokens(table, &principal, value, tokens);
            principals.push(principal);
        }
        principals
    }

    fn principal_name(&mut self, name: &str, value: &Value<'_>) -> Option<PrincipalName> {
        let named = principal_name(name);
        named.map_err(|text| self.problem(&value.span(), format!("{name:?}: {text}"))).ok()
    }

    /// Reads what gives rights: roles, own rules, and `operate`.
    fn rights(
        &mut self,
        table: &DeTable<'_>,
        roles: &Roles,
        used: &mut BTreeSet<String>,
    ) -> Rights {
        let Grants { mut allow, mut deny } = self.grants(table);
        let mut own = BTreeSet::new();
        for (role, at) in self.texts(table.get("roles"), "roles") {
            match roles.get(&role) {
                None => self.problem(&at, format!("there is no role {role:?}")),
                Some(_) if own.contains(&role) => {
                    self.problem(&at, format!("the role {role:?} is named twice"));
                }
                Some(grants) => {
                    allow.extend(grants.allow.iter().cloned());
                    deny.extend(grants.deny.iter().cloned());
                }
            }
            used.insert(role.clone());
            own.insert(role);
        }
        let operates = match table.get("operate") {
            None => false,
            Some(value) => value.get_ref().as_bool().unwrap_or_else(|| {
                self.problem(&value.span(), "`operate` is neither true nor false");
                false
            }),
        };
        Rights::new(&allow, &deny, operates)
    }

    fn grants(&mut self, table: &DeTable<'_>) -> Grants {
        Grants { allow: self.rules(table, "allow"), deny: self.rules(table, "deny") }
    }

    fn rules(&mut self, table: &DeTable<'_>, key: &str) -> Vec<Rule> {
        let items = self.items(table.get(key), key);
        let mut rules = Vec::new();
        for item in items {
            let Some(rule) = self.table(item, &format!("a rule of `{key}`")) else { continue };
            self.known_keys(rule, &["actions", "topics"]);
            for needed in ["actions", "topics"] {
                if rule.get(needed).is_none_or(|value| {
                    value.get_ref().as_array().is_some_and(|array| array.is_empty())
                }) {
                    self.problem(&item.span(), format!("a rule without {needed} does nothing"));
                }
            }
            let actions = self.actions(rule.get("actions"));
            let topics = self.topics(rule.get("topics"), key == "allow");
            rules.push(Rule { actions, topics });
        }
        rules
    }

    fn actions(&mut self, value: Option<&Value<'_>>) -> Vec<Action> {
        let mut actions = Vec::new();
        for (name, at) in self.texts(value, "actions") {
            match (name.as_str(), Action::on_topics(&name)) {
                ("*", _) => actions.extend(Action::ON_TOPICS),
                (_, Some(action)) => actions.push(action),
                ("operate", None) => self.problem(
                    &at,
                    "`operate` concerns no topic: write `operate = true` in the principal",
                ),
                (_, None) => {
                    let known = Action::ON_TOPICS.map(Action::name).join(", ");
                    self.problem(&at, format!("{name:?} is no action; there are {known}, and *"));
                }
            }
        }
        actions
    }

    fn topics(&mut self, value: Option<&Value<'_>>, is_allowed: bool) -> Vec<Pattern> {
        let mut topics = Vec::new();
        for (text, at) in self.texts(value, "topics") {
            match Pattern::new(&text) {
                Ok(pattern) => {
                    if is_allowed && pattern.is_ragged() {
                        let example = text.replace('*', "-secret");
                        self.warning(&at, format!("`{text}` covers `{example}` as well"));
                    }
                    topics.push(pattern);
                }
                Err(error) => self.problem(&at, printable(&error.to_string())),
            }
        }
        topics
    }

    fn tokens(
        &mut self,
        table: &DeTable<'_>,
        principal: &Arc<Principal>,
        place: &Value<'_>,
        tokens: &mut Tokens,
    ) {
        let items = self.items(table.get("tokens"), "tokens");
        if items.is_empty() {
            self.warning(&place.span(), format!("the principal {:?} has no token", principal.name));
        }
        for item in items {
            let Some(token) = self.table(item, "a token") else { continue };
            self.known_keys(token, &["id", "sha256", "expires", "not_before"]);
            let id = self.text(token, "id", item).and_then(|(text, at)| {
                let id = TokenId::new(&text);
                if id.is_none() {
                    self.problem(&at, format!("{text:?} is no token id: 8 of a-z and 0-9"));
                }
                id.map(|id| (id, at))
            });
            let hash = self.text(token, "sha256", item).and_then(|(text, at)| {
                let hash = TokenHash::new(&text);
                if hash.is_none() {
                    self.problem(&at, "`sha256` has 64 hexadecimal digits; is this the token?");
                }
                hash.map(|hash| (hash, at))
            });
            let not_before = self.time(token, "not_before");
            let expires = self.time(token, "expires");
            if let (Some(from), Some(to)) = (not_before, expires)
                && to <= from
            {
                self.problem(&item.span(), "the token expires before it is valid");
            }
            let (Some((id, id_at)), Some((hash, hash_at))) = (id, hash) else { continue };
            if !tokens.hashes.insert(hash.to_string()) {
                self.problem(&hash_at, "another token has this hash");
            }
            let principal = Arc::clone(principal);
            let entry = TokenEntry { principal, hash, not_before, expires };
            if tokens.entries.insert(id, entry).is_some() {
                self.problem(&id_at, format!("another token has the id {id}"));
            }
        }
    }

    fn time(&mut self, table: &DeTable<'_>, key: &str) -> Option<Timestamp> {
        let value = table.get(key)?;
        let time = value.get_ref().as_datetime().map(ToString::to_string);
        let time = time.and_then(|text| Timestamp::of_rfc3339(&text));
        if time.is_none() {
            let text = format!("`{key}` is no time with a zone, such as 2027-03-01T00:00:00Z");
            self.problem(&value.span(), text);
        }
        time
    }

    fn text(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        place: &Value<'_>,
    ) -> Option<(String, Range<usize>)> {
        let Some(value) = table.get(key) else {
            self.problem(&place.span(), format!("`{key}` is missing"));
            return None;
        };
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.problem(&value.span(), format!("`{key}` is no string"));
        }
        text.map(|text| (text, value.span()))
    }

    /// Returns the strings of an array with their places.
    fn texts(&mut self, value: Option<&Value<'_>>, key: &str) -> Vec<(String, Range<usize>)> {
        let mut texts = Vec::new();
        for item in self.items(value, key) {
            match item.get_ref().as_str() {
                Some(text) => texts.push((text.to_owned(), item.span())),
                None => self.problem(&item.span(), format!("an item of `{key}` is no string")),
            }
        }
        texts
    }

    fn items<'v, 'i>(&mut self, value: Option<&'v Value<'i>>, key: &str) -> Vec<&'v Value<'i>> {
        let Some(value) = value else { return Vec::new() };
        match value.get_ref().as_array() {
            Some(array) => array.iter().collect(),
            None => {
                self.problem(&value.span(), format!("`{key}` is no array"));
                Vec::new()
            }
        }
    }

    fn members<'v, 'i>(
        &mut self,
        value: Option<&'v Value<'i>>,
        key: &str,
    ) -> Vec<(String, &'v Value<'i>)> {
        let table = value.and_then(|value| self.table(value, &format!("`{key}`")));
        let members = table.into_iter().flatten();
        members.map(|(name, value)| (name.get_ref().to_string(), value)).collect()
    }

    fn table<'v, 'i>(&mut self, value: &'v Value<'i>, what: &str) -> Option<&'v DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.problem(&value.span(), format!("{what} is no table"));
        }
        table
    }

    fn known_keys(&mut self, table: &DeTable<'_>, known: &[&str]) {
        for (key, _) in table {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let known = known.join(", ");
                self.problem(&key.span(), format!("unknown key {name:?}; there are {known}"));
            }
        }
    }
}

fn is_one(value: &DeValue<'_>) -> bool {
    value.as_integer().is_some_and(|integer| integer.radix() == 10 && integer.as_str() == "1")
}

fn key_span(table: &Value<'_>, name: &str) -> Option<Range<usize>> {
    let mut keys = table.get_ref().as_table()?.keys();
    keys.find(|key| key.get_ref() == name).map(Spanned::span)
}

/// Escapes control characters, which a message must not bring to a terminal.
fn printable(text: &str) -> String {
    let escaped =
        |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests;
