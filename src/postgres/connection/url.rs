//! Reads what the driver does not: URLs with several hosts, and the reasons against a URL.
//!
//! The driver knows one host. A URL with a list of hosts becomes one URL per host, as libpq
//! describes it: `postgres://a,b:5433/db`, or `?host=a,b&port=5432,5433`.

use std::net::IpAddr;

use sqlx::postgres::PgSslMode;

/// The maximum number of hosts. Each new connection asks all of them.
const HOSTS_MAX: usize = 8;

/// The URL parameter of libpq that chooses among several hosts. The driver does not know it.
const TARGET: &str = "target_session_attrs";

/// The URL parameters that are known: those of the driver, and [`TARGET`].
const PARAMETERS: [&str; 19] = [
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    TARGET,
];

/// The parameters that may be lists, with one value per host.
const LISTS: [&str; 3] = ["host", "hostaddr", "port"];

/// The parameters that name an authority.
const ROOTS: [&str; 3] = ["sslrootcert", "ssl-root-cert", "ssl-ca"];

/// Returns one URL per host, each as the driver takes it.
///
/// # Errors
/// With the reason, without any part of the URL, when a parameter or a list is wrong.
pub(super) fn per_host(url: &str) -> Result<Vec<String>, String> {
    if let Some(reason) = unknown_parameter(url) {
        return Err(reason);
    }
    let target = parameters(url).find(|(name, _)| *name == TARGET);
    if target.is_some_and(|(_, value)| !["read-write", "primary"].contains(&value)) {
        return Err(format!(
            "its {TARGET} must be read-write or primary; Punctual always uses the primary"
        ));
    }
    // Without a scheme it is no URL, and the driver refuses it.
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(vec![url.to_owned()]) };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let count = host_count(url, hosts)?;
    let hosts = values(hosts);
    let url_of = |index: usize| {
        let host = of_host(&hosts, index);
        let query: Vec<String> = parameters(url)
            .filter(|(name, _)| *name != TARGET)
            .map(|(name, value)| {
                let value = if LISTS.contains(&name) {
                    of_host(&values(value), index)
                } else {
                    value.into()
                };
                format!("{name}={value}")
            })
            .collect();
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        format!("{scheme}://{user}{host}{path}{query}")
    };
    Ok((0..count).map(url_of).collect())
}

/// Returns the number of hosts. Every list has one value, or one for each host.
fn host_count(url: &str, authority: &str) -> Result<usize, String> {
    let lists = parameters(url).filter(|(name, _)| LISTS.contains(name)).map(|(_, value)| value);
    let lists: Vec<Vec<String>> = lists.chain([authority]).map(values).collect();
    let count = lists.iter().map(Vec::len).max().unwrap_or(1);
    if count > HOSTS_MAX {
        return Err(format!("the URL names {count} hosts; name at most {HOSTS_MAX}"));
    }
    if lists.iter().any(|list| list.len() != 1 && list.len() != count) {
        return Err("the URL names several hosts and another number of ports or addresses; give \
                    one for all of them, or one for each"
            .to_owned());
    }
    if lists.iter().any(|list| list.len() > 1 && list.iter().any(String::is_empty)) {
        return Err("the URL has a list of several hosts with an empty name".to_owned());
    }
    Ok(count)
}

/// Returns the values of a list. A comma may be written as `%2C`.
fn values(list: &str) -> Vec<String> {
    list.replace("%2C", ",").replace("%2c", ",").split(',').map(str::to_owned).collect()
}

/// Returns the value of a host. The only value of a list is that of all hosts.
fn of_host(list: &[String], index: usize) -> String {
    list.get(index).or(list.first()).cloned().unwrap_or_default()
}

/// Returns true when the URL names an authority of its own.
pub(super) fn has_root(url: &str) -> bool {
    parameters(url).any(|(name, _)| ROOTS.contains(&name))
}

/// Finds an unknown URL parameter. The driver would ignore the parameter, and would log the value:
/// a password, if the name was a mistyped `password`.
fn unknown_parameter(url: &str) -> Option<String> {
    let is_known = |name: &str| {
        PARAMETERS.contains(&name) || name.starts_with("options[") || name.starts_with("options%5B")
    };
    let is_unknown = parameters(url).any(|(name, _)| !is_known(name));
    is_unknown.then(|| {
        format!("the URL has an unknown parameter; the valid ones are {}", PARAMETERS.join(", "))
    })
}

fn parameters(url: &str) -> impl Iterator<Item = (&str, &str)> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Explains why the driver does not accept a URL, without repeating any part of it.
pub(super) fn reason_against(url: &str) -> &'static str {
    let wrong = parameters(url).find_map(|(name, value)| match name {
        "sslmode" | "ssl-mode" if value.parse::<PgSslMode>().is_err() => {
            Some("its sslmode must be disable, allow, prefer, require, verify-ca or verify-full")
        }
        "port" if value.parse::<u16>().is_err() => Some("its port must be a number up to 65535"),
        "hostaddr" if value.parse::<IpAddr>().is_err() => {
            Some("its hostaddr must be an IP address")
        }
        "statement-cache-capacity" if value.parse::<usize>().is_err() => {
            Some("its statement-cache-capacity must be a number")
        }
        _ => None,
    });
    wrong.unwrap_or(
        "not a URL of the form postgres://user:password@host:port/database (in a password, write / \
         ? # and @ as %2F %3F %23 and %40)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_hosts_becomes_one_url_per_host() {
        for (url, wanted) in [
            ("postgres://me:a,b@db/p", vec!["postgres://me:a,b@db/p"]),
            (
                "postgres://me:x@a,b:5433/p?target_session_attrs=read-write",
                vec!["postgres://me:x@a/p", "postgres://me:x@b:5433/p"],
            ),
            (
                "postgres://a,[::1]:5433/p?target_session_attrs=primary&sslmode=disable",
                vec!["postgres://a/p?sslmode=disable", "postgres://[::1]:5433/p?sslmode=disable"],
            ),
            ("postgres://a,b?port=5433", vec!["postgres://a?port=5433", "postgres://b?port=5433"]),
            (
                "postgres:///p?host=/run/a%2C/run/b&port=1,2&user=me",
                vec![
                    "postgres:///p?host=/run/a&port=1&user=me",
                    "postgres:///p?host=/run/b&port=2&user=me",
                ],
            ),
            ("nonsense", vec!["nonsense"]),
        ] {
            assert_eq!(per_host(url).unwrap(), wanted, "{url}");
        }
    }

    #[test]
    fn a_list_that_fits_no_hosts_is_refused() {
        for (url, reason) in [
            ("postgres://me:hunter2@a,b/p?target_session_attrs=any", "read-write or primary"),
            ("postgres://me:hunter2@a,b/p?target_session_attrs=standby", "read-write or primary"),
            ("postgres://me:hunter2@a,b/p?port=1,2,3", "another number of ports"),
            ("postgres://me:hunter2@a,,b/p", "an empty name"),
            ("postgres://me:hunter2@a,b,c,d,e,f,g,h,i/p", "at most 8"),
        ] {
            let said = per_host(url).unwrap_err();
            assert!(said.contains(reason) && !said.contains("hunter2"), "{url}: {said}");
        }
    }
}
