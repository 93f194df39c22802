//! Places on the network, as people write them.

/// A place as it was given, in a message; what may hold a password is not repeated.
pub(super) fn printable(place: &str) -> String {
    if place.contains('@') { "what is given, with a user or a password,".to_owned() } else { format!("`{place}`") }
}

/// `host:port`, with an IPv6 address in brackets.
pub(super) fn has_port(place: &str) -> bool {
    let Some((host, port)) = place.rsplit_once(':') else { return false };
    let is_host = if host.starts_with('[') { host.ends_with(']') } else { !host.contains(':') };
    let is_clean = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@?".contains(c));
    is_host && is_clean && port.parse::<u16>().is_ok_and(|port| port > 0)
}
