//! Entries for client certificates.

use std::ops::Range;
use std::sync::Arc;

use toml::de::DeTable;

use super::limits;
use super::reader::{Reader, Value};
use super::roles::{GRANTS, Roles};
use crate::access::credential::certificate::{CertificateEntry, NamePattern};
use crate::access::metrics::principals::PrincipalCounts;

/// Reads the entries of `[[certificate]]`.
pub fn read(
    reader: &mut Reader<'_>,
    value: Option<&Value<'_>>,
    roles: &mut Roles,
) -> Vec<CertificateEntry> {
    let mut entries: Vec<CertificateEntry> = Vec::new();
    for item in reader.items(value, "certificate") {
        let Some(table) = reader.table(item, "an entry of `certificate`") else { continue };
        if !reader.rules.takes_certificates {
            let text = "no caller can show a certificate without --tls-client-ca-file";
            reader.problem(&item.span(), text);
        }
        reader.known_keys(table, &[&["uri", "dns", "limits"], &GRANTS[..]].concat());
        let grants = roles.grants(reader, table);
        let limits = limits::read(reader, table);
        let Some((names, at)) = names(reader, table, item) else { continue };
        if grants.is_nothing() {
            reader.warning(&item.span(), format!("the certificates of {names} have no rights"));
        }
        if let Some(other) = entries.iter().find(|other| other.names.overlaps(&names)) {
            let text = format!("another entry, {}, covers names of {names}", other.names);
            reader.problem(&at, text);
        }
        let (rights, counts) = (Arc::new(grants.rights()), PrincipalCounts::default());
        entries.push(CertificateEntry { names, rights, limits, counts });
    }
    entries
}

/// Reads the names of an entry: its `uri` or its `dns`.
fn names(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    place: &Value<'_>,
) -> Option<(NamePattern, Range<usize>)> {
    let (key, read): (_, fn(&str) -> Option<NamePattern>) =
        match (table.get("uri"), table.get("dns")) {
            (Some(_), None) => ("uri", NamePattern::uri),
            (None, Some(_)) => ("dns", NamePattern::dns),
            _ => {
                reader.problem(&place.span(), "an entry has either `uri` or `dns`");
                return None;
            }
        };
    let (text, at) = reader.text(table, key, place)?;
    let names = read(&text);
    if names.is_none() {
        let form = match key {
            "uri" => {
                "scheme://host/path in plain characters, without a query, `%` and `..`; a `*` only \
                 after the last `/`"
            }
            _ => "a host name without a `*`",
        };
        reader.problem(&at, format!("{text:?} is not a `{key}` of a certificate: {form}"));
    }
    names.map(|names| (names, at))
}
