//! Checks of the headers `Host` and `Origin`: a node answers only to its own names.
//!
//! A page in a browser can point its own name at an address of the machine (DNS rebinding). The
//! page's requests then count as same-origin, also on loopback, but carry the page's name as the
//! host. So only known names are answered. A page cannot take an IP address for its name.

use std::net::{IpAddr, SocketAddr};

use axum::body::Body;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Request, Version, header};

use crate::api::problems::problem::Problem;

/// The hosts that a request may name, without ports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hosts {
    /// Lower-case names. One beginning with a dot stands for all names ending in it.
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    /// True when the node listens on all addresses of the machine, of which it has no list.
    takes_all_addresses: bool,
}

impl Hosts {
    /// Takes the address listened on, the advertised URL and further names.
    pub fn new(listen: SocketAddr, advertise: &str, names: &[String]) -> Self {
        let url = advertise.split_once("://").map_or(advertise, |(_, rest)| rest);
        let advertised = url.split('/').next().and_then(host_of);
        let names = names.iter().map(|name| name.trim().to_ascii_lowercase());
        let (addresses, names): (Vec<String>, Vec<String>) = names
            .chain(advertised)
            .chain(["localhost".to_owned()])
            .partition(|name| address_of(name).is_some());
        let addresses = addresses.iter().filter_map(|name| address_of(name));
        let own = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])];
        Self {
            names,
            addresses: addresses.chain(own).chain([listen.ip()]).collect(),
            takes_all_addresses: listen.ip().is_unspecified(),
        }
    }

    /// Adds an address listened on.
    #[must_use]
    pub fn and(mut self, address: IpAddr) -> Self {
        self.takes_all_addresses |= address.is_unspecified();
        self.addresses.push(address);
        self
    }

    /// Refuses a request naming a foreign host, several hosts, or none in HTTP/1.1.
    pub fn check(&self, request: &Request<Body>) -> Result<(), Problem> {
        let mut fields = request.headers().get_all(header::HOST).iter();
        let (field, second) = (fields.next(), fields.next());
        if second.is_some() {
            return Err(Problem::wrong_host("the request has several Host headers"));
        }
        let field = field.map(|value| value.to_str().ok().and_then(host_of));
        let target = request.uri().authority().map(|authority| host_of(authority.as_str()));
        match (field, target) {
            (None, None) if request.version() < Version::HTTP_11 => Ok(()),
            (None, None) => Err(Problem::wrong_host("the request names no host")),
            (Some(field), Some(target)) if field != target => {
                Err(Problem::wrong_host("the request names two hosts"))
            }
            (Some(host), _) | (None, Some(host)) => match host {
                Some(host) if self.has(&host) => Ok(()),
                _ => Err(Problem::wrong_host("the host of the request is not a name of this node")),
            },
        }
    }

    fn has(&self, host: &str) -> bool {
        if let Some(address) = address_of(host) {
            return self.takes_all_addresses || self.addresses.contains(&address);
        }
        self.names.iter().any(|name| {
            name == host
                || (name.starts_with('.') && host.len() > name.len() && host.ends_with(name))
        })
    }
}

/// Returns the host of `host:port` in lower case. Returns `None` for what is no host, and for one
/// with a user.
fn host_of(text: &str) -> Option<String> {
    let authority: Authority = text.parse().ok()?;
    let is_host = !authority.as_str().contains('@') && !authority.host().is_empty();
    is_host.then(|| authority.host().to_ascii_lowercase())
}

/// Reads an address, with or without brackets.
fn address_of(host: &str) -> Option<IpAddr> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    bare.parse().ok()
}

/// Refuses a request that a browser sends for a page of another origin. Programs send neither of
/// the headers.
pub fn check_origin(request: &Request<Body>) -> Result<(), Problem> {
    let headers = request.headers();
    let sites = headers.get_all("sec-fetch-site");
    if !sites.iter().all(|site| ["none", "same-origin"].iter().any(|own| site == own)) {
        return Err(Problem::foreign_origin("Sec-Fetch-Site"));
    }
    let own = own_authority(request, headers);
    let is_own = |origin: &str| {
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.zip(own).is_some_and(|(given, own)| given.eq_ignore_ascii_case(own))
    };
    let mut origins = headers.get_all(header::ORIGIN).iter();
    if !origins.all(|origin| origin.to_str().is_ok_and(is_own)) {
        return Err(Problem::foreign_origin("Origin"));
    }
    Ok(())
}

fn own_authority<'a>(request: &'a Request<Body>, headers: &'a HeaderMap) -> Option<&'a str> {
    let field = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    request.uri().authority().map(Authority::as_str).or(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(listen: &str) -> Hosts {
        let names = ["Punctual.Example".to_owned(), ".svc.cluster.local".to_owned()];
        Hosts::new(listen.parse().unwrap(), "http://Node-1:7070", &names)
    }

    fn request(uri: &str, headers: &[(&str, &str)]) -> Request<Body> {
        let request = Request::builder().uri(uri);
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn own_names_are_answered_in_any_case_and_with_any_port() {
        for host in [
            "localhost",
            "LOCALHOST:7070",
            "127.0.0.1:7070",
            "[::1]:7070",
            "[::1]",
            "10.0.0.5:7070",
            "node-1:7070",
            "NODE-1",
            "punctual.example",
            "a.svc.cluster.local:80",
        ] {
            let hosts = hosts("10.0.0.5:7070");
            assert!(hosts.check(&request("/v1/tasks", &[("host", host)])).is_ok(), "{host}");
        }
    }

    #[test]
    fn other_names_and_none_are_not() {
        let hosts = hosts("10.0.0.5:7070");
        for headers in [
            &[][..],
            &[("host", "evil.example:7070")],
            &[("host", "")],
            &[("host", "svc.cluster.local")],
            &[("host", "localhost.evil.example")],
            &[("host", "evil@localhost")],
            &[("host", "10.0.0.6")],
            &[("host", "localhost"), ("host", "localhost")],
        ] {
            assert!(hosts.check(&request("/v1/tasks", headers)).is_err(), "{headers:?}");
        }
        let mut old = request("/v1/tasks", &[]);
        *old.version_mut() = Version::HTTP_10;
        assert!(hosts.check(&old).is_ok(), "HTTP/1.0 has no Host, and no browser sends it");
    }

    #[test]
    fn the_target_counts_and_must_agree_with_the_header() {
        let hosts = hosts("127.0.0.1:7070");
        let check = |uri: &str, headers: &[(&str, &str)]| hosts.check(&request(uri, headers));
        assert!(check("http://localhost:7070/v1/tasks", &[]).is_ok());
        assert!(check("http://evil.example/v1/tasks", &[]).is_err());
        assert!(check("http://localhost/v1/tasks", &[("host", "LOCALHOST:7070")]).is_ok());
        assert!(check("http://localhost/v1/tasks", &[("host", "127.0.0.1")]).is_err());
        assert!(check("http://evil.example/v1/tasks", &[("host", "localhost")]).is_err());
    }

    #[test]
    fn a_node_on_all_addresses_answers_to_all_of_them_and_to_no_foreign_name() {
        let hosts = hosts("0.0.0.0:7070");
        let check = |host: &str| hosts.check(&request("/v1/tasks", &[("host", host)]));
        assert!(check("192.168.3.4:7070").is_ok() && check("[fe80::1]:7070").is_ok());
        assert!(check("evil.example").is_err());
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let check = |headers: &[(&str, &str)]| {
            let mut all = vec![("host", "localhost:7070")];
            all.extend(headers);
            check_origin(&request("/v1/tasks", &all))
        };
        for own in [
            &[][..],
            &[("sec-fetch-site", "none")],
            &[("sec-fetch-site", "same-origin"), ("origin", "http://localhost:7070")],
            &[("origin", "https://LOCALHOST:7070")],
        ] {
            assert!(check(own).is_ok(), "{own:?}");
        }
        for foreign in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")],
            &[("origin", "https://evil.example")],
            &[("origin", "http://localhost:8080")],
            &[("origin", "null")],
            &[("origin", "")],
        ] {
            assert!(check(foreign).is_err(), "{foreign:?}");
        }
    }
}
