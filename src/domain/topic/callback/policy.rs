//! Which URLs a node calls: the hosts that its operator lists, at public addresses or in networks
//! that the operator lists as well.
//!
//! The check of a URL is by its text. The addresses of a name are checked each time when they are
//! looked up for a connection, and the connection goes to a checked address: a name that leads
//! elsewhere later (DNS rebinding) leads nowhere.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;
use url::{Host, Url};

use super::URL_BYTES_MAX;

/// The hosts and networks that a node may call.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CallbackPolicy {
    /// Empty: nothing is called.
    pub hosts: Vec<AllowedHost>,
    /// Networks whose addresses may be called although they are not public.
    pub networks: Vec<Network>,
}

/// Why a URL is not called.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RefusedUrl {
    #[error("callbacks are off: the nodes run without --callback-host")]
    Off,
    #[error("a URL may have {URL_BYTES_MAX} bytes at most")]
    TooLong,
    #[error("it is no URL: {0}")]
    Unreadable(String),
    #[error("a URL begins with https:// (or http:// for a host that --callback-host lists so)")]
    Scheme,
    #[error("a user and a password do not belong into the URL; set the header `authorization`")]
    UserInfo,
    #[error("the part behind # is sent to nobody; leave it out")]
    Fragment,
    #[error("{host} is not among the hosts of --callback-host")]
    Host { host: String },
    #[error("the address {0} is not public, and --callback-network does not list it")]
    Address(IpAddr),
}

/// A host of the allow-list: `hooks.example.com`, `*.example.com`, `*`, an address, each with
/// `:port` or the usual port alone, and with `http://` for a host without TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowedHost {
    is_plain: bool,
    pattern: HostPattern,
    port: u16,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum HostPattern {
    /// All hosts.
    Any,
    /// All names with this end, which begins with a dot.
    End(String),
    Name(String),
    Address(IpAddr),
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "{text}: expected a host (hooks.example.com, *.example.com, *), with :port if it is not 443, \
     and with http:// if it has no TLS"
)]
pub struct WrongHost {
    text: String,
}

impl FromStr for AllowedHost {
    type Err = WrongHost;

    fn from_str(text: &str) -> Result<Self, WrongHost> {
        let wrong = || WrongHost { text: text.to_owned() };
        let (is_plain, rest) = match text.split_once("://") {
            None => (false, text),
            Some(("https", rest)) => (false, rest),
            Some(("http", rest)) => (true, rest),
            Some(_) => return Err(wrong()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        // The port is behind the last colon that is not within brackets.
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => {
                (host, port.parse().map_err(|_error| wrong())?)
            }
            _ => (rest, if is_plain { 80 } else { 443 }),
        };
        let pattern = match host {
            "*" => HostPattern::Any,
            host => match host.strip_prefix('*') {
                Some(end) if end.starts_with('.') && is_name(&end[1..]) => {
                    HostPattern::End(end.to_ascii_lowercase())
                }
                Some(_) => return Err(wrong()),
                None => match Host::parse(host).map_err(|_error| wrong())? {
                    Host::Domain(name) if is_name(&name) => HostPattern::Name(name),
                    Host::Domain(_) => return Err(wrong()),
                    Host::Ipv4(address) => HostPattern::Address(address.into()),
                    Host::Ipv6(address) => HostPattern::Address(address.into()),
                },
            },
        };
        Ok(Self { is_plain, pattern, port })
    }
}

fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    text.split('.').all(is_part)
}

impl AllowedHost {
    fn matches(&self, is_plain: bool, host: &Host<&str>, port: u16) -> bool {
        let is_host = match (&self.pattern, host) {
            (HostPattern::Any, _) => true,
            (HostPattern::End(end), Host::Domain(name)) => {
                without_dot(name).len() > end.len() && without_dot(name).ends_with(end.as_str())
            }
            (HostPattern::Name(own), Host::Domain(name)) => without_dot(name) == own,
            (HostPattern::Address(own), Host::Ipv4(address)) => *own == IpAddr::V4(*address),
            (HostPattern::Address(own), Host::Ipv6(address)) => *own == IpAddr::V6(*address),
            (HostPattern::End(_) | HostPattern::Name(_), Host::Ipv4(_) | Host::Ipv6(_))
            | (HostPattern::Address(_), Host::Domain(_)) => false,
        };
        is_host && self.is_plain == is_plain && self.port == port
    }
}

/// Takes the dot of a full name away, which a resolver takes away, too.
fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// A range of addresses, such as `10.0.0.0/8`, or a single one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    length: u8,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{text}: expected a network such as 10.0.0.0/8 or fd00::/8, or an address")]
pub struct WrongNetwork {
    text: String,
}

impl FromStr for Network {
    type Err = WrongNetwork;

    fn from_str(text: &str) -> Result<Self, WrongNetwork> {
        let wrong = || WrongNetwork { text: text.to_owned() };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse().map_err(|_error| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_error| wrong())?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(longest);
        if length > longest { Err(wrong()) } else { Ok(Self { address, length }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let shift = |bits: u32| bits.saturating_sub(u32::from(self.length));
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let different = own.to_bits() ^ other.to_bits();
                different.checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let different = own.to_bits() ^ other.to_bits();
                different.checked_shr(shift(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl CallbackPolicy {
    /// Returns the URL, if a node may call it. The addresses of a name are not checked here.
    ///
    /// # Errors
    /// When it is no URL, or not of a listed host.
    pub fn check(&self, text: &str) -> Result<Url, RefusedUrl> {
        if self.hosts.is_empty() {
            return Err(RefusedUrl::Off);
        }
        if text.len() > URL_BYTES_MAX {
            return Err(RefusedUrl::TooLong);
        }
        let url = Url::parse(text).map_err(|error| RefusedUrl::Unreadable(error.to_string()))?;
        let is_plain = match url.scheme() {
            "https" => false,
            "http" => true,
            _ => return Err(RefusedUrl::Scheme),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(RefusedUrl::UserInfo);
        }
        if url.fragment().is_some() {
            return Err(RefusedUrl::Fragment);
        }
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(RefusedUrl::Scheme);
        };
        if !self.hosts.iter().any(|allowed| allowed.matches(is_plain, &host, port)) {
            let is_listed_so =
                self.hosts.iter().any(|allowed| allowed.matches(!is_plain, &host, port));
            let host = format!("{host}:{port}");
            return Err(if is_plain && is_listed_so {
                RefusedUrl::Scheme
            } else {
                RefusedUrl::Host { host }
            });
        }
        match host {
            Host::Domain(_) => {}
            Host::Ipv4(address) => self.check_address(address.into())?,
            Host::Ipv6(address) => self.check_address(address.into())?,
        }
        Ok(url)
    }

    /// Checks an address that a node is about to connect to.
    ///
    /// # Errors
    /// When it is not public, and in no listed network.
    pub fn check_address(&self, address: IpAddr) -> Result<(), RefusedUrl> {
        // An IPv4 address within IPv6 leads to the IPv4 address.
        let plain = address.to_canonical();
        let is_listed = self.networks.iter().any(|network| network.contains(plain));
        if is_listed || is_public(plain) { Ok(()) } else { Err(RefusedUrl::Address(address)) }
    }
}

/// The address at which Azure serves the platform to its own machines: the agent of the host, DNS,
/// and secrets of extensions. It looks public and is not.
const AZURE_PLATFORM: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Returns false for the special addresses of the registry of IANA (RFC 6890): of this machine, of
/// private and of linked networks, of benchmarks and documents, for many receivers, and reserved
/// ones; and for [`AZURE_PLATFORM`].
fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_unspecified()
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (b == 18 || b == 19))
        || address == AZURE_PLATFORM;
    !is_special
}

/// Returns true for global unicast addresses (2000::/3) that lead to no IPv4 address by a tunnel or
/// a translator, and are not for documents, benchmarks or protocols.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let is_global = (a & 0xe000) == 0x2000;
    let is_special =
        (a == 0x2001 && (b < 0x0200 || b == 0x0db8)) || a == 0x2002 || (a & 0xfff0) == 0x3ff0;
    is_global && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(hosts: &[&str], networks: &[&str]) -> CallbackPolicy {
        CallbackPolicy {
            hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn only_listed_hosts_are_called_at_their_ports_and_with_tls() {
        let listed = policy(
            &[
                "hooks.example.com",
                "*.shop.example",
                "jobs.example:8443",
                "http://plain.example:81",
            ],
            &[],
        );
        for url in [
            "https://hooks.example.com/jobs?a=1",
            "https://HOOKS.example.com:443",
            "https://a.shop.example/",
            "https://a.b.shop.example./",
            "https://jobs.example:8443/x",
            "http://plain.example:81/x",
        ] {
            assert!(listed.check(url).is_ok(), "{url}: {:?}", listed.check(url));
        }
        let host = |host: &str| RefusedUrl::Host { host: host.to_owned() };
        for (url, reason) in [
            ("https://example.com/", host("example.com:443")),
            ("https://hooks.example.com.evil.example/", host("hooks.example.com.evil.example:443")),
            ("https://evil-shop.example/", host("evil-shop.example:443")),
            ("https://shop.example/", host("shop.example:443")),
            ("https://.shop.example/", host(".shop.example:443")),
            ("https://hooks.example.com:22/", host("hooks.example.com:22")),
            ("http://hooks.example.com/", host("hooks.example.com:80")),
            ("http://hooks.example.com:443/", RefusedUrl::Scheme),
            ("https://plain.example:81/", host("plain.example:81")),
            ("https://93.184.216.34/", host("93.184.216.34:443")),
            ("ftp://hooks.example.com/", RefusedUrl::Scheme),
            ("file:///etc/passwd", RefusedUrl::Scheme),
            ("gopher://hooks.example.com/", RefusedUrl::Scheme),
            ("https://user@hooks.example.com/", RefusedUrl::UserInfo),
            ("https://:secret@hooks.example.com/", RefusedUrl::UserInfo),
            ("https://hooks.example.com@evil.example/", RefusedUrl::UserInfo),
            ("https://hooks.example.com/#part", RefusedUrl::Fragment),
        ] {
            assert_eq!(listed.check(url), Err(reason), "{url}");
        }
        assert!(matches!(listed.check("hooks.example.com"), Err(RefusedUrl::Unreadable(_))));
        let long = format!("https://hooks.example.com/{}", "x".repeat(URL_BYTES_MAX));
        assert_eq!(listed.check(&long), Err(RefusedUrl::TooLong));
        assert_eq!(policy(&[], &["0.0.0.0/0"]).check("https://a.example/"), Err(RefusedUrl::Off));
    }

    #[test]
    fn an_address_that_is_not_public_is_refused_in_every_spelling() {
        let open = policy(&["*", "http://*"], &[]);
        for url in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0x7f.1/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://0/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[::127.0.0.1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://[2002:7f00:1::]/",
            "http://[2001:0:7f00:1::]/",
            "http://[fe80::1]/",
            "http://[fd00::1]/",
            "http://[fec0::1]/",
            "http://[ff02::1]/",
            "http://[2001:db8::1]/",
            "http://169.254.169.254/latest/meta-data/",
            "http://168.63.129.16/machine/?comp=goalstate",
            "http://[::ffff:168.63.129.16]:80/",
            "http://10.1.2.3/",
            "http://172.16.0.1/",
            "http://192.168.1.1/",
            "http://100.64.0.1/",
            "http://198.18.0.1/",
            "http://192.0.0.8/",
            "http://224.0.0.1/",
            "http://240.0.0.1/",
            "http://255.255.255.255/",
            "http://①②⑦.0.0.1/",
        ] {
            assert!(
                matches!(open.check(url), Err(RefusedUrl::Address(_))),
                "{url}: {:?}",
                open.check(url)
            );
        }
        for url in ["https://93.184.216.34/", "https://[2606:4700::1111]/", "http://172.32.0.1/"] {
            assert!(open.check(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn networks_of_the_operator_are_called() {
        let own = policy(&["http://*"], &["10.20.0.0/16", "127.0.0.1", "fd00::/8"]);
        for address in ["10.20.255.1", "127.0.0.1", "::ffff:10.20.0.1", "fd12::1", "1.1.1.1"] {
            assert_eq!(own.check_address(address.parse().unwrap()), Ok(()), "{address}");
        }
        for address in ["10.21.0.1", "127.0.0.2", "fe80::1", "::1"] {
            let address = address.parse().unwrap();
            assert_eq!(own.check_address(address), Err(RefusedUrl::Address(address)));
        }
        for wrong in ["10.0.0.0/33", "10.0.0/8", "fd00::/129", "", "example.com"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
        assert!(
            policy(&["*"], &["0.0.0.0/0"]).check_address("169.254.1.1".parse().unwrap()).is_ok()
        );
    }

    #[test]
    fn a_wrong_host_of_the_list_is_refused() {
        for wrong in
            ["", "ftp://a", "a b", "*x.example", "a:port", "a:70000", "https://", "a/path", "*."]
        {
            assert!(wrong.parse::<AllowedHost>().is_err(), "{wrong}");
        }
        for right in ["a", "A.example", "[::1]:8443", "http://10.0.0.1:8080", "*:8443", "*.a.b"] {
            assert!(right.parse::<AllowedHost>().is_ok(), "{right}");
        }
    }
}
