//! Reads the access settings, and refuses to start a node that would be open by accident.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::args;
use super::reader::SettingsReader;

/// The page that the messages name.
const PAGE: &str = "docs/operate/access.md";

/// The settings of access.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// `None`: every caller may do everything.
    pub auth_file: Option<PathBuf>,
    pub audit: Option<AuditTrail>,
    /// The file with the payload keys. `None`: records are stored as they are.
    pub payload_keys: Option<PathBuf>,
}

/// Where the audit trail goes, and what it has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditTrail {
    /// `-` for stdout.
    pub file: PathBuf,
    pub has_reads: bool,
    pub is_lossy: bool,
}

/// What callers must prove.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Auth {
    Nothing,
    /// Tokens, by the auth file.
    File,
}

/// Flags for starts refused without them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Waivers {
    pub allow_anonymous: bool,
    pub plaintext_behind_proxy: bool,
}

impl Waivers {
    pub(super) fn read(args: &args::Access, reader: &mut SettingsReader) -> Self {
        Self {
            allow_anonymous: reader.truth("--allow-anonymous", &args.allow_anonymous),
            plaintext_behind_proxy: reader
                .truth("--plaintext-behind-proxy", &args.plaintext_behind_proxy),
        }
    }
}

/// Reads the settings, and refuses a start that would be open by accident.
pub(super) fn read(
    args: &args::Access,
    (listen, has_tls): (SocketAddr, bool),
    waivers: Waivers,
    reader: &mut SettingsReader,
) -> Access {
    let auth_file = args.auth_file.clone().filter(|path| !path.as_os_str().is_empty());
    let auth = if auth_file.is_some() { Auth::File } else { Auth::Nothing };
    if reader.took("--listen")
        && let Err(text) = may_start(listen, auth, has_tls, waivers)
    {
        reader.problem("--listen", text);
    }
    let payload_keys = args.payload_key_file.clone().filter(|path| !path.as_os_str().is_empty());
    Access { auth_file, audit: audit_of(args, reader), payload_keys }
}

fn audit_of(args: &args::Access, reader: &mut SettingsReader) -> Option<AuditTrail> {
    let is_lossy = reader.truth("--audit-lossy", &args.audit_lossy);
    let file = args.audit_file.clone().filter(|path| !path.as_os_str().is_empty());
    let Some(file) = file else {
        let audit = args.audit.is_some().then_some("--audit");
        for flag in audit.into_iter().chain(is_lossy.then_some("--audit-lossy")) {
            reader.problem(flag, "it needs --audit-file".to_owned());
        }
        return None;
    };
    Some(AuditTrail { file, has_reads: args.audit.as_deref() == Some("reads"), is_lossy })
}

/// Decides whether a node may start.
///
/// # Errors
/// With the reason, the flag to use and the page to read.
pub(super) fn may_start(
    listen: SocketAddr,
    auth: Auth,
    has_tls: bool,
    waivers: Waivers,
) -> Result<(), String> {
    if auth == Auth::File && waivers.allow_anonymous {
        return Err(format!(
            "--allow-anonymous and --auth-file exclude each other: list the rights of anonymous \
             callers in the file, under [anonymous] ({PAGE})"
        ));
    }
    if listen.ip().is_loopback() {
        return Ok(());
    }
    match auth {
        Auth::Nothing if !waivers.allow_anonymous => Err(format!(
            "{listen} is beyond loopback, and without --auth-file anyone who reaches it may \
             submit, read and cancel all tasks; give --auth-file, or accept that with \
             --allow-anonymous ({PAGE})"
        )),
        Auth::File if !has_tls && !waivers.plaintext_behind_proxy => Err(format!(
            "{listen} is beyond loopback, and without TLS others on the network can read the \
             tokens; give --tls-certificate-file and --tls-key-file, or, behind a proxy with TLS \
             on a trusted network, --plaintext-behind-proxy ({PAGE})"
        )),
        Auth::Nothing | Auth::File => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_of_the_table_of_starts() {
        let none = Waivers::default();
        let open = Waivers { allow_anonymous: true, ..none };
        let proxied = Waivers { plaintext_behind_proxy: true, ..none };
        let both = Waivers { allow_anonymous: true, plaintext_behind_proxy: true };
        // Listening address, auth, TLS, waivers, and a part of the reason or that it starts.
        let table = [
            ("127.0.0.1:7070", Auth::Nothing, false, none, None),
            ("127.0.0.1:7070", Auth::Nothing, true, none, None),
            ("127.0.0.1:7070", Auth::Nothing, false, open, None),
            ("127.0.0.1:7070", Auth::File, false, none, None),
            ("[::1]:7070", Auth::Nothing, false, none, None),
            ("[::1]:7070", Auth::File, true, none, None),
            ("127.0.0.1:7070", Auth::File, false, open, Some("[anonymous]")),
            ("0.0.0.0:7070", Auth::Nothing, false, none, Some("--allow-anonymous")),
            ("0.0.0.0:7070", Auth::Nothing, true, none, Some("--allow-anonymous")),
            ("0.0.0.0:7070", Auth::Nothing, false, proxied, Some("--allow-anonymous")),
            ("0.0.0.0:7070", Auth::Nothing, false, open, None),
            ("0.0.0.0:7070", Auth::Nothing, true, open, None),
            ("[::]:7070", Auth::Nothing, false, none, Some("--auth-file")),
            ("10.0.0.1:7070", Auth::Nothing, false, none, Some("--auth-file")),
            ("10.0.0.1:7070", Auth::File, false, none, Some("--plaintext-behind-proxy")),
            ("10.0.0.1:7070", Auth::File, false, proxied, None),
            ("10.0.0.1:7070", Auth::File, true, none, None),
            ("10.0.0.1:7070", Auth::File, true, open, Some("[anonymous]")),
            ("10.0.0.1:7070", Auth::File, false, both, Some("[anonymous]")),
        ];
        for (listen, auth, has_tls, waivers, reason) in table {
            let started = may_start(listen.parse().unwrap(), auth, has_tls, waivers);
            let cell = format!("{listen} {auth:?} {has_tls} {waivers:?}: {started:?}");
            match reason {
                None => assert!(started.is_ok(), "{cell}"),
                Some(part) => {
                    let text = started.expect_err(&cell);
                    assert!(text.contains(part) && text.contains(PAGE), "{cell}");
                }
            }
        }
    }
}
