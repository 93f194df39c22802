//! The commands `token` and `auth`: they make and check tokens, and check auth files.

use std::fmt::{self, Write as _};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use crate::access::credential::token::{Token, TokenError};
use crate::access::document::{NodeRules, principal_name};
use crate::access::file::{self, Loaded};
use crate::access::{Action, Rights};
use crate::clock;
use crate::config::{AuthCommand, CheckAuth, CheckToken, NewToken, TokenCommand};
use crate::domain::{PrincipalName, Timestamp};

/// The most bytes read from stdin. A token has 61.
const INPUT_MAX: u64 = 4096;

/// The end of a command without its result: an exit code and the reason.
#[derive(Debug)]
struct Ended(u8, String);

impl Ended {
    fn usage(text: impl fmt::Display) -> Self {
        Self(2, text.to_string())
    }

    fn wrong(text: impl fmt::Display) -> Self {
        Self(1, text.to_string())
    }
}

/// Runs a command for tokens.
pub fn run(command: &TokenCommand) -> ExitCode {
    report(match command {
        TokenCommand::New(args) => new(args),
        TokenCommand::Check(args) => check(args, io::stdin()).and_then(|text| print(&text)),
    })
}

/// Runs a command for auth files.
pub fn run_auth(command: &AuthCommand) -> ExitCode {
    let AuthCommand::Check(CheckAuth { file, batch_max }) = command;
    let rules = NodeRules { burst_min: *batch_max, takes_certificates: true };
    report(check_file(file, rules).and_then(|text| print(&text)))
}

fn report(done: Result<(), Ended>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Ended(code, text)) => {
            // The exit code remains when stderr is closed.
            text.lines().try_for_each(|line| writeln!(io::stderr(), "punctual: {line}")).ok();
            ExitCode::from(code)
        }
    }
}

/// Writes to stdout. A token that nobody got is of no use.
fn print(text: &str) -> Result<(), Ended> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Ended::wrong(format!("cannot write to stdout: {error}")))
}

fn new(args: &NewToken) -> Result<(), Ended> {
    let name = principal_name(&args.principal)
        .map_err(|text| Ended::usage(format!("--principal: {text}")))?;
    let token = Token::generate()
        .map_err(|error| Ended::wrong(format!("the system gives no random numbers: {error}")))?;
    let expires = args.expires.map(|span| clock::wall().plus(span));
    let lines = lines_for_file(&name, &token, expires);
    io::stderr().write_all(lines.as_bytes()).map_err(|error| {
        Ended::wrong(format!("cannot write the lines for the auth file: {error}"))
    })?;
    print(&format!("{}\n", token.expose()))
}

/// Returns the lines of the auth file that make the token valid.
fn lines_for_file(name: &PrincipalName, token: &Token, expires: Option<Timestamp>) -> String {
    let is_bare = name.as_str().bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    let key = if is_bare { name.to_string() } else { format!("\"{name}\"") };
    // Whole seconds read better, and a token is not valid longer than it was asked for.
    let expires = expires.map(|at| Timestamp::from_millis(at.as_millis() / 1000 * 1000));
    let expires = expires.map(|at| format!(", expires = {at}")).unwrap_or_default();
    format!(
        "# For the auth file of each node. If the principal exists, add only its token:\n\
         [principals.{key}]\n\
         roles  = []\n\
         tokens = [\n  {{ id = \"{}\", sha256 = \"{}\"{expires} }},\n]\n",
        token.id(),
        token.hash()
    )
}

/// Describes the token that `input` holds.
fn check(args: &CheckToken, input: impl io::Read) -> Result<String, Ended> {
    let mut text = String::new();
    input
        .take(INPUT_MAX)
        .read_to_string(&mut text)
        .map_err(|error| Ended::usage(format!("cannot read the token from stdin: {error}")))?;
    let token = Token::parse(text.trim()).map_err(|error: TokenError| Ended::wrong(error))?;
    let path = args.auth_file.as_deref().filter(|path| !path.as_os_str().is_empty());
    let id = token.id();
    let Some(path) = path else {
        return Ok(format!(
            "token {id}: format and checksum are right\nadd --auth-file FILE to see its principal\n"
        ));
    };
    let loaded = load(path, NodeRules::NONE)?;
    let shown = path.display();
    let now = clock::wall();
    let caller = loaded.policy.verify(&token, now).map_err(|reason| {
        Ended::wrong(format!("token {id}: format and checksum are right, but {reason} ({shown})"))
    })?;
    let expires = loaded.policy.entry(id).and_then(|entry| entry.expires);
    let expires = expires.map_or_else(|| "never".to_owned(), |at| at.to_string());
    let principal = &caller.principal;
    let rights = rights_of(&principal.rights);
    Ok(format!(
        "token {id}: format and checksum are right\n\
         principal     {}\n\
         expires       {expires}\n\
         {rights}",
        principal.name
    ))
}

/// Describes the principals of a file and their rights.
fn check_file(path: &Path, rules: NodeRules) -> Result<String, Ended> {
    let Loaded { policy, .. } = load(path, rules)?;
    let (count, tokens) = (policy.principals().len(), policy.tokens());
    let certificates = policy.certificates();
    let mut text = format!(
        "principals {count}, tokens {tokens}, certificate entries {}, issuers {}\n",
        certificates.len(),
        policy.issuers().all().len()
    );
    // A write to a string cannot fail.
    for principal in policy.principals() {
        let rights = rights_of(&principal.rights);
        write!(text, "\n{}\n{rights}", principal.name).ok();
        for (expires, id) in policy.expiries(Some(principal)) {
            writeln!(text, "  token {id} expires {expires}").ok();
        }
    }
    if let Some(rights) = policy.anonymous_rights() {
        write!(text, "\n{}\n{}", PrincipalName::anonymous(), rights_of(rights)).ok();
    }
    for entry in certificates {
        write!(text, "\ncert:{}\n{}", entry.names, rights_of(&entry.rights)).ok();
    }
    for issuer in policy.issuers().all() {
        for map in &issuer.maps {
            let (name, rights) = (&issuer.name, map.grants.rights());
            write!(text, "\njwt:{name}/* with {map}\n{}", rights_of(&rights)).ok();
        }
    }
    Ok(text)
}

/// Loads a file and prints its warnings.
fn load(path: &Path, rules: NodeRules) -> Result<Loaded, Ended> {
    let loaded = file::load(path, rules).map_err(|error| Ended::usage(error.lines().join("\n")))?;
    for warning in &loaded.warnings {
        writeln!(io::stderr(), "punctual: warning: {warning}").ok();
    }
    Ok(loaded)
}

/// Describes rights, a line for each action.
fn rights_of(rights: &Rights) -> String {
    let mut text = String::new();
    for action in Action::ON_TOPICS.into_iter().chain([Action::Callback]) {
        let (allowed, denied) = rights.patterns(action);
        let joined = |patterns: &[crate::access::pattern::Pattern]| {
            patterns.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let except =
            if denied.is_empty() { String::new() } else { format!("; not {}", joined(denied)) };
        let what = if rights.allows_anywhere(action) {
            format!("{}{except}", joined(allowed))
        } else {
            "-".to_owned()
        };
        // A write to a string cannot fail.
        writeln!(text, "  {:<14}{what}", action.name()).ok();
    }
    let (operated, _denied) = rights.patterns(Action::Operate);
    let operates = match operated {
        _ if rights.operates() => "yes".to_owned(),
        [] => "-".to_owned(),
        topics => topics.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    };
    writeln!(text, "  {:<14}{operates}", Action::Operate.name()).ok();
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::document;

    #[test]
    fn the_printed_lines_are_an_auth_file_for_the_printed_token() {
        for name in ["order-service", "ann@shop.example", "team/a.b"] {
            let token = Token::generate().unwrap();
            let expires = Timestamp::from_millis(1_893_456_000_999);
            let principal = principal_name(name).unwrap();
            let lines = lines_for_file(&principal, &token, Some(expires));
            let read = document::read(&format!("version = 1\n{lines}"), NodeRules::NONE).unwrap();
            let at = |millis| read.policy.verify(&token, Timestamp::from_millis(millis));
            assert_eq!(at(0).unwrap().principal.name.as_str(), name);
            assert!(at(1_893_456_000_000).is_err(), "{lines}");
            assert!(!lines.contains(token.expose()), "{lines}");
        }
    }

    #[test]
    fn a_token_is_checked_alone_and_against_a_file() {
        let path = std::env::temp_dir().join(format!("punctual-{:032x}", rand::random::<u128>()));
        let (token, other) = (Token::generate().unwrap(), Token::generate().unwrap());
        let lines = lines_for_file(&principal_name("orders").unwrap(), &token, None);
        let alone = CheckToken { auth_file: None };
        let in_file = CheckToken { auth_file: Some(path.clone()) };
        let code = |args: &CheckToken, text: &str| match check(args, text.as_bytes()) {
            Ok(told) => {
                assert!(!told.contains(text), "{told}");
                (0, told)
            }
            Err(Ended(code, told)) => (code, told),
        };
        assert_eq!(code(&alone, &format!("{}\n", token.expose())).0, 0);
        let cut = &token.expose()[..60];
        let (failed, told) = code(&alone, cut);
        assert!(failed == 1 && told.contains("not a token") && !told.contains(cut), "{told}");
        let mut changed = token.expose().to_owned();
        changed.replace_range(30..31, if &changed[30..31] == "x" { "y" } else { "x" });
        let (failed, told) = code(&alone, &changed);
        assert!(failed == 1 && told.contains("checksum"), "{told}");
        assert_eq!(code(&in_file, token.expose()).0, 2);

        std::fs::write(&path, format!("version = 1\n{lines}")).unwrap();
        let set = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&path, mode).unwrap();
        };
        set(0o600);
        let (done, told) = code(&in_file, token.expose());
        assert!(
            done == 0 && told.contains("principal     orders\nexpires       never\n"),
            "{told}"
        );
        assert_eq!(code(&in_file, other.expose()).0, 1);
        assert!(
            check_file(&path, NodeRules::NONE).unwrap().starts_with(
                "principals 1, tokens 1, certificate entries 0, issuers 0\n\norders\n"
            )
        );
        let expires = Timestamp::from_millis(1_893_456_000_000);
        let expiring = lines_for_file(&principal_name("mails").unwrap(), &other, Some(expires));
        std::fs::write(&path, format!("version = 1\n{lines}{expiring}")).unwrap();
        let told = check_file(&path, NodeRules::NONE).unwrap();
        let line = format!("  token {} expires 2030-01-01T00:00:00Z\n", other.id());
        assert_eq!(
            (told.matches(&line).count(), told.matches("expires").count()),
            (1, 1),
            "{told}"
        );
        set(0o666);
        assert_eq!(code(&in_file, token.expose()).0, 2);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn rights_are_told_by_action() {
        let text = "version = 1\n\
                    [anonymous]\n\
                    allow = [{ actions = ['read'], topics = ['b', 'a.*'] }]\n\
                    deny = [{ actions = ['*'], topics = ['a.x'] }]\n";
        let read = document::read(text, NodeRules::NONE).unwrap();
        let told = rights_of(read.policy.anonymous_rights().unwrap());
        assert!(told.contains("  read          b, a.*; not a.x\n"), "{told}");
        let none = ["submit        -", "read-payload  -", "operate       -"];
        assert!(none.iter().all(|line| told.contains(&format!("  {line}\n"))), "{told}");
    }
}
