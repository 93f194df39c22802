//! Client certificates: the names in them, and the entries of the auth file for these names.
//!
//! A name that could be read in two ways is no name: comparing it with a pattern would mean
//! different things to different readers. No two entries cover the same name, so the order of
//! entries has no meaning.

use std::fmt;
use std::sync::Arc;

use crate::access::limits::Limits;
use crate::access::metrics::principals::PrincipalCounts;
use crate::access::principal::{Fingerprint, Principal};
use crate::access::rights::Rights;
use crate::domain::{PrincipalName, Timestamp};

/// The longest name, in bytes. SPIFFE has the same limit.
const NAME_BYTES_MAX: usize = 2048;

/// The verified certificate of a connection's caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerCertificate {
    pub id: Fingerprint,
    /// The names without those that are malformed. Empty when the certificate proves no identity.
    pub names: Vec<PeerName>,
    /// The end of its validity. The connection ends with it.
    pub until: Timestamp,
}

/// One name of a certificate: a URI or a DNS name of its subject alternative names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PeerName {
    /// `scheme://host/path`, as it stands in the certificate.
    Uri(String),
    /// In lower case.
    Dns(String),
}

impl PeerName {
    pub fn uri(text: &str) -> Option<Self> {
        is_uri(text).then(|| Self::Uri(text.to_owned()))
    }

    pub fn dns(text: &str) -> Option<Self> {
        let name = text.to_ascii_lowercase();
        is_dns(&name).then_some(Self::Dns(name))
    }
}

/// The names that an entry covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NamePattern {
    Exact(PeerName),
    /// The URIs that continue after this text. The text ends in `/`.
    Under(String),
}

impl NamePattern {
    /// Reads a URI, or `scheme://host/path/*`.
    pub fn uri(text: &str) -> Option<Self> {
        match text.strip_suffix("/*") {
            Some(start) => is_uri(start).then(|| Self::Under(format!("{start}/"))),
            None => PeerName::uri(text).map(Self::Exact),
        }
    }

    pub fn dns(text: &str) -> Option<Self> {
        PeerName::dns(text).map(Self::Exact)
    }

    fn covers(&self, name: &PeerName) -> bool {
        match (self, name) {
            (Self::Exact(own), name) => own == name,
            (Self::Under(start), PeerName::Uri(uri)) => uri.starts_with(start.as_str()),
            (Self::Under(_), PeerName::Dns(_)) => false,
        }
    }

    /// Returns true when a name exists that both cover.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Under(one), Self::Under(two)) => one.starts_with(two) || two.starts_with(one),
            (Self::Exact(name), pattern) | (pattern, Self::Exact(name)) => pattern.covers(name),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(PeerName::Uri(name) | PeerName::Dns(name)) => f.write_str(name),
            Self::Under(start) => write!(f, "{start}*"),
        }
    }
}

/// An entry of the auth file: the rights of the callers whose certificates have a name.
#[derive(Clone, Debug)]
pub struct CertificateEntry {
    pub names: NamePattern,
    pub rights: Arc<Rights>,
    pub limits: Limits,
    /// The counters of all callers of the entry together.
    pub counts: PrincipalCounts,
}

/// Returns the principal of a certificate. None when no entry covers a name, or when entries cover
/// several names: nobody could say which one is meant.
pub fn principal_of(entries: &[CertificateEntry], names: &[PeerName]) -> Option<Arc<Principal>> {
    let mut proven = None;
    for name in names {
        let Some(entry) = entries.iter().find(|entry| entry.names.covers(name)) else { continue };
        match proven {
            Some((other, _)) if other != name => return None,
            _ => proven = Some((name, entry)),
        }
    }
    let (PeerName::Uri(name) | PeerName::Dns(name), entry) = proven?;
    let name = PrincipalName::new(&format!("cert:{name}")).ok()?;
    let (rights, limits) = (entry.rights.clone(), entry.limits.clone());
    Some(Arc::new(Principal { name, rights, limits, counts: entry.counts.clone() }))
}

/// True for `scheme://host/path` of plain characters: without a query, a fragment, a user, an
/// escape, and segments that are empty or dots.
fn is_uri(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once("://") else { return false };
    let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
    let is_segment = |segment: &str| {
        !["", ".", ".."].contains(&segment)
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte))
    };
    uri.len() <= NAME_BYTES_MAX
        && scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && !host.is_empty()
        && host.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._:".contains(&byte)
        })
        && path.is_none_or(|path| path.split('/').all(is_segment))
}

/// True for a host name. A wildcard names no caller.
fn is_dns(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(patterns: &[NamePattern]) -> Vec<CertificateEntry> {
        let entry = |names: &NamePattern| CertificateEntry {
            names: names.clone(),
            rights: Arc::default(),
            limits: Limits::default(),
            counts: PrincipalCounts::default(),
        };
        patterns.iter().map(entry).collect()
    }

    fn proven(patterns: &[NamePattern], names: &[PeerName]) -> Option<String> {
        principal_of(&entries(patterns), names).map(|principal| principal.name.to_string())
    }

    fn uri(text: &str) -> PeerName {
        PeerName::uri(text).unwrap()
    }

    #[test]
    fn a_name_that_an_entry_covers_is_the_principal() {
        let orders = NamePattern::uri("spiffe://shop/ns/orders/*").unwrap();
        let dns = NamePattern::dns("Orders.shop.svc").unwrap();
        let patterns = [orders, dns];
        let found = proven(&patterns, &[uri("spiffe://shop/ns/orders/sa/web")]);
        assert_eq!(found.as_deref(), Some("cert:spiffe://shop/ns/orders/sa/web"));
        let found = proven(&patterns, &[PeerName::dns("orders.shop.SVC").unwrap()]);
        assert_eq!(found.as_deref(), Some("cert:orders.shop.svc"));
        for other in [
            "spiffe://shop/ns/orders",
            "spiffe://shop/ns/orders-2/sa/web",
            "spiffe://shop/ns/Orders/sa/web",
            "spiffe://shop.example/ns/orders/sa/web",
            "https://shop/ns/orders/sa/web",
        ] {
            assert_eq!(proven(&patterns, &[uri(other)]), None, "{other}");
        }
        assert_eq!(proven(&patterns, &[]), None);
        // A DNS name is no URI, even if the text is equal.
        let host = NamePattern::dns("orders").unwrap();
        assert_eq!(proven(&[host], &[PeerName::Uri("orders".to_owned())]), None);
    }

    #[test]
    fn a_certificate_of_two_principals_proves_neither() {
        let patterns = [
            NamePattern::uri("spiffe://shop/orders").unwrap(),
            NamePattern::uri("spiffe://shop/payments").unwrap(),
        ];
        let (orders, payments) = (uri("spiffe://shop/orders"), uri("spiffe://shop/payments"));
        let both = [orders.clone(), payments];
        assert_eq!(proven(&patterns, &both), None);
        let twice = [orders.clone(), orders.clone(), uri("spiffe://other/x")];
        assert!(proven(&patterns, &twice).is_some(), "one name, and one that nobody asks for");
        let wide = [NamePattern::uri("spiffe://shop/*").unwrap()];
        assert_eq!(proven(&wide, &both), None, "two names under one entry are two principals");
    }

    #[test]
    fn a_star_stands_after_a_slash_at_the_end() {
        for wrong in [
            "spiffe://*",
            "spiffe://shop*",
            "spiffe://shop/ns*",
            "spiffe://shop/*/web",
            "spiffe://shop/ns/**",
            "spiffe://shop//*",
            "spiffe://shop/../*",
            "spiffe://shop/a?x=/*",
            "*",
            "/*",
            "",
        ] {
            assert_eq!(NamePattern::uri(wrong), None, "{wrong}");
        }
        assert_eq!(NamePattern::dns("*.shop.svc"), None);
        let pattern = NamePattern::uri("spiffe://shop/*").unwrap();
        assert_eq!(pattern.to_string(), "spiffe://shop/*");
    }

    #[test]
    fn overlaps_are_found_both_ways() {
        let pattern = |text: &str| NamePattern::uri(text).unwrap();
        for (one, two, overlaps) in [
            ("spiffe://a/*", "spiffe://a/b/*", true),
            ("spiffe://a/*", "spiffe://a/b", true),
            ("spiffe://a/b", "spiffe://a/b", true),
            ("spiffe://a/*", "spiffe://ab/*", false),
            ("spiffe://a/b/*", "spiffe://a/b", false),
            ("spiffe://a/b", "spiffe://a/c", false),
        ] {
            assert_eq!(pattern(one).overlaps(&pattern(two)), overlaps, "{one} {two}");
            assert_eq!(pattern(two).overlaps(&pattern(one)), overlaps, "{two} {one}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_for_a_principal_proves_nothing() {
        let long = format!("spiffe://shop/{}", "x".repeat(400));
        assert_eq!(proven(&[NamePattern::uri("spiffe://shop/*").unwrap()], &[uri(&long)]), None);
    }
}
