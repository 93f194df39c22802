//! Reads values of a TOML text, and remembers each problem with its line.

use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::domain::Timestamp;

pub type Table<'a> = Spanned<DeTable<'a>>;
pub type Value<'a> = Spanned<DeValue<'a>>;

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

/// The rules that come from the settings of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeRules {
    /// The smallest burst of a limit on tasks: the most tasks of a batch. A smaller one would
    /// refuse large batches for ever.
    pub burst_min: u64,
    /// False when no caller can show a certificate to the node.
    pub takes_certificates: bool,
}

impl NodeRules {
    /// Refuses nothing.
    pub const NONE: Self = Self { burst_min: 0, takes_certificates: true };
}

/// A text with remarks. Functions that find a problem return the usable rest, so all problems are
/// found at once.
pub struct Reader<'a> {
    text: &'a str,
    pub rules: NodeRules,
    pub problems: Vec<Remark>,
    pub warnings: Vec<Remark>,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str, rules: NodeRules) -> Self {
        Self { text, rules, problems: Vec::new(), warnings: Vec::new() }
    }
}

impl Reader<'_> {
    /// Returns the line of a place, counted from 1.
    pub fn line(&self, at: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..at.start).unwrap_or_default();
        before.iter().filter(|byte| **byte == b'\n').count().saturating_add(1)
    }

    fn remark(&self, at: &Range<usize>, text: impl Into<String>) -> Remark {
        Remark { line: self.line(at), text: text.into() }
    }

    pub fn problem(&mut self, at: &Range<usize>, text: impl Into<String>) {
        let problem = self.remark(at, text);
        self.problems.push(problem);
    }

    pub fn warning(&mut self, at: &Range<usize>, text: impl Into<String>) {
        let warning = self.remark(at, text);
        self.warnings.push(warning);
    }

    pub fn time(&mut self, table: &DeTable<'_>, key: &str) -> Option<Timestamp> {
        let value = table.get(key)?;
        let time = value.get_ref().as_datetime().map(ToString::to_string);
        let time = time.and_then(|text| Timestamp::of_rfc3339(&text));
        if time.is_none() {
            let text = format!("`{key}` is not a time with a zone, such as 2027-03-01T00:00:00Z");
            self.problem(&value.span(), text);
        }
        time
    }

    /// Reads a string that must be there, with its place.
    pub fn text(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
        place: &Value<'_>,
    ) -> Option<(String, Range<usize>)> {
        if table.get(key).is_none() {
            self.problem(&place.span(), format!("`{key}` is missing"));
        }
        self.optional_text(table, key)
    }

    /// Reads a string, with its place.
    pub fn optional_text(
        &mut self,
        table: &DeTable<'_>,
        key: &str,
    ) -> Option<(String, Range<usize>)> {
        let value = table.get(key)?;
        let text = value.get_ref().as_str().map(str::to_owned);
        if text.is_none() {
            self.problem(&value.span(), format!("`{key}` is not a string"));
        }
        text.map(|text| (text, value.span()))
    }

    /// Returns the strings of an array with their places.
    pub fn texts(&mut self, value: Option<&Value<'_>>, key: &str) -> Vec<(String, Range<usize>)> {
        let mut texts = Vec::new();
        for item in self.items(value, key) {
            match item.get_ref().as_str() {
                Some(text) => texts.push((text.to_owned(), item.span())),
                None => self.problem(&item.span(), format!("an item of `{key}` is not a string")),
            }
        }
        texts
    }

    pub fn items<'v, 'i>(&mut self, value: Option<&'v Value<'i>>, key: &str) -> Vec<&'v Value<'i>> {
        let Some(value) = value else { return Vec::new() };
        match value.get_ref().as_array() {
            Some(array) => array.iter().collect(),
            None => {
                self.problem(&value.span(), format!("`{key}` is not an array"));
                Vec::new()
            }
        }
    }

    pub fn members<'v, 'i>(
        &mut self,
        value: Option<&'v Value<'i>>,
        key: &str,
    ) -> Vec<(String, &'v Value<'i>)> {
        let table = value.and_then(|value| self.table(value, &format!("`{key}`")));
        let members = table.into_iter().flatten();
        members.map(|(name, value)| (name.get_ref().to_string(), value)).collect()
    }

    pub fn table<'v, 'i>(&mut self, value: &'v Value<'i>, what: &str) -> Option<&'v DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.problem(&value.span(), format!("{what} is not a table"));
        }
        table
    }

    pub fn known_keys(&mut self, table: &DeTable<'_>, known: &[&str]) {
        for (key, _) in table {
            let name: &str = key.get_ref();
            if !known.contains(&name) {
                let known = known.join(", ");
                self.problem(
                    &key.span(),
                    format!("unknown key {name:?}; the valid keys are {known}"),
                );
            }
        }
    }
}

/// Returns the place of a key of a table.
pub fn key_span(table: &Value<'_>, name: &str) -> Option<Range<usize>> {
    let mut keys = table.get_ref().as_table()?.keys();
    keys.find(|key| key.get_ref() == name).map(Spanned::span)
}
