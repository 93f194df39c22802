//! Roles, and the rights that roles and rules give.

use std::collections::{BTreeMap, BTreeSet};

use toml::de::DeTable;

use super::reader::{Reader, Value, key_span};
use crate::access::action::Action;
use crate::access::pattern::Pattern;
use crate::access::rights::{Grants, Rule};
use crate::domain::text::escaped;

/// The keys of a table from which [`Roles::grants`] reads.
pub const GRANTS: [&str; 4] = ["roles", "allow", "deny", "operate"];

/// The roles of a file.
pub struct Roles {
    roles: BTreeMap<String, Grants>,
    /// The names that somebody has, even if there is no such role.
    used: BTreeSet<String>,
}

impl Roles {
    pub fn read(reader: &mut Reader<'_>, value: Option<&Value<'_>>) -> Self {
        let mut roles = BTreeMap::new();
        for (name, value) in reader.members(value, "roles") {
            let Some(table) = reader.table(value, &format!("the role {name:?}")) else { continue };
            reader.known_keys(table, &["allow", "deny"]);
            let grants = own_rules(reader, table);
            if grants.allow.is_empty() && grants.deny.is_empty() {
                reader.warning(&value.span(), format!("the role {name:?} allows nothing"));
            }
            roles.insert(name, grants);
        }
        Self { roles, used: BTreeSet::new() }
    }

    /// Reads all that gives rights in `table`: roles, own rules, and `operate`.
    pub fn grants(&mut self, reader: &mut Reader<'_>, table: &DeTable<'_>) -> Grants {
        let mut grants = own_rules(reader, table);
        let mut own = BTreeSet::new();
        for (role, at) in reader.texts(table.get("roles"), "roles") {
            match self.roles.get(&role) {
                None => reader.problem(&at, format!("there is no role {role:?}")),
                Some(_) if own.contains(&role) => {
                    reader.problem(&at, format!("the role {role:?} is named twice"));
                }
                Some(role) => grants.extend(role),
            }
            self.used.insert(role.clone());
            own.insert(role);
        }
        grants.operates = match table.get("operate") {
            None => false,
            Some(value) => value.get_ref().as_bool().unwrap_or_else(|| {
                reader.problem(&value.span(), "`operate` must be true or false");
                false
            }),
        };
        grants
    }

    /// Warns of the roles that nobody has. `value` is where the roles were read.
    pub fn warn_of_unused(&self, reader: &mut Reader<'_>, value: Option<&Value<'_>>) {
        for role in self.roles.keys().filter(|role| !self.used.contains(*role)) {
            let at = value.and_then(|roles| key_span(roles, role)).unwrap_or(0..0);
            reader.warning(&at, format!("nobody has the role {role:?}"));
        }
    }
}

fn own_rules(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Grants {
    let [allow, deny] = ["allow", "deny"].map(|key| rules(reader, table, key));
    Grants { allow, deny, operates: false }
}

fn rules(reader: &mut Reader<'_>, table: &DeTable<'_>, key: &str) -> Vec<Rule> {
    let items = reader.items(table.get(key), key);
    let mut rules = Vec::new();
    for item in items {
        let Some(rule) = reader.table(item, &format!("a rule of `{key}`")) else { continue };
        reader.known_keys(rule, &["actions", "topics"]);
        for needed in ["actions", "topics"] {
            if rule.get(needed).is_none_or(|value| {
                value.get_ref().as_array().is_some_and(|array| array.is_empty())
            }) {
                reader.problem(&item.span(), format!("a rule without {needed} does nothing"));
            }
        }
        let actions = actions(reader, rule.get("actions"));
        let topics = topics(reader, rule.get("topics"), key == "allow");
        rules.push(Rule { actions, topics });
    }
    rules
}

fn actions(reader: &mut Reader<'_>, value: Option<&Value<'_>>) -> Vec<Action> {
    let mut actions = Vec::new();
    for (name, at) in reader.texts(value, "actions") {
        match (name.as_str(), Action::in_rule(&name)) {
            ("*", _) => actions.extend(Action::ON_TOPICS),
            (_, Some(action)) => actions.push(action),
            (_, None) => {
                let known = Action::IN_RULES.map(Action::name).join(", ");
                reader.problem(
                    &at,
                    format!("{name:?} is not an action; the actions are {known}, and *"),
                );
            }
        }
    }
    actions
}

fn topics(reader: &mut Reader<'_>, value: Option<&Value<'_>>, is_allowed: bool) -> Vec<Pattern> {
    let mut topics = Vec::new();
    for (text, at) in reader.texts(value, "topics") {
        match Pattern::new(&text) {
            Ok(pattern) => {
                if is_allowed && pattern.is_ragged() {
                    let example = text.replace('*', "-secret");
                    reader.warning(&at, format!("`{text}` covers `{example}`, too"));
                }
                topics.push(pattern);
            }
            Err(error) => reader.problem(&at, escaped(&error.to_string())),
        }
    }
    topics
}
