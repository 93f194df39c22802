//! Profiles: nodes with names, and how to reach and trust them, in a file of the user.
//!
//! A profile belongs to its URL: with another URL from a flag or a variable, no profile is used, so
//! that its token is never sent elsewhere.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::without_user;
use crate::client::args::NodeOptions;

/// The node without a profile and a URL.
const DEFAULT_URL: &str = "http://127.0.0.1:7070";
const NAME_LENGTH_MAX: usize = 64;
/// Bits of the mode with which others than the owner may change a file, and everybody read it.
const WRITABLE: u32 = 0o022;
const READABLE: u32 = 0o004;
/// The members of a profile.
const MEMBERS: [&str; 6] =
    ["url", "token_file", "ca_file", "certificate_file", "key_file", "plaintext"];
const EXAMPLE: &str = "default = \"prod\"\n\n\
                       [profiles.prod]\n\
                       url = \"https://punctual.example:7070\"\n\
                       token_file = \"prod.token\"\n\
                       ca_file = \"ca.pem\"";

/// A node, and how to reach and trust it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Profile {
    pub url: String,
    pub token_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
    certificate_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    plaintext: bool,
}

/// The profiles of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profiles {
    pub path: PathBuf,
    /// The profile that is used when none is named.
    pub default: Option<String>,
    pub profiles: BTreeMap<String, Profile>,
}

/// Returns the place of the profiles: as given, or the usual one in the home folder.
///
/// # Errors
/// When this machine has no home folder.
pub fn path_of(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = given.filter(|path| !path.as_os_str().is_empty()) {
        return Ok(path.to_owned());
    }
    usual_path().ok_or_else(|| {
        "there is no home folder (HOME, XDG_CONFIG_HOME); name the file with --profiles-file \
         (PUNCTUAL_PROFILES_FILE)"
            .to_owned()
    })
}

fn usual_path() -> Option<PathBuf> {
    let folder = |name| {
        let folder = std::env::var_os(name).map(PathBuf::from);
        folder.filter(|folder| folder.is_absolute())
    };
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    Some(config?.join("punctual").join("config.toml"))
}

/// Completes the flags with those of the profile, if one is used. The URL is then always given.
///
/// # Errors
/// When there is no such profile, the file is wrong, or a URL and a profile are given.
pub fn complete(node: &NodeOptions) -> Result<NodeOptions, String> {
    let name = node.profile.as_deref().filter(|name| !name.is_empty());
    let profile = match (&node.url, name) {
        (Some(_), Some(name)) => {
            return Err(format!(
                "the profile `{name}` has a URL of its own; leave out --profile \
                 (PUNCTUAL_PROFILE), or --url (PUNCTUAL_URL)"
            ));
        }
        (Some(_), None) => return Ok(node.clone()),
        (None, Some(name)) => Some(named(node, name)?),
        (None, None) => default(node)?,
    };
    let Some(profile) = profile else {
        return Ok(NodeOptions { url: Some(DEFAULT_URL.to_owned()), ..node.clone() });
    };
    let mut node = NodeOptions { url: Some(profile.url), ..node.clone() };
    let credentials = &mut node.credentials;
    // A token of a flag or a variable wins, as everywhere.
    if credentials.token.is_none() && credentials.token_file.is_none() {
        check_secret(profile.token_file.as_deref())?;
        credentials.token_file = profile.token_file;
    }
    credentials.plaintext |= profile.plaintext;
    if node.certificate_file.is_none() && node.key_file.is_none() {
        check_secret(profile.key_file.as_deref())?;
        (node.certificate_file, node.key_file) = (profile.certificate_file, profile.key_file);
    }
    node.ca_file = node.ca_file.or(profile.ca_file);
    Ok(node)
}

fn named(node: &NodeOptions, name: &str) -> Result<Profile, String> {
    let mut all = Profiles::read(&path_of(node.profiles_file.as_deref())?)?;
    all.profiles.remove(name).ok_or_else(|| all.unknown(name))
}

/// Returns the default profile. A file that is not there has none, unless a flag names it.
fn default(node: &NodeOptions) -> Result<Option<Profile>, String> {
    let path = match &node.profiles_file {
        Some(path) => path.clone(),
        None => match usual_path().filter(|path| path.exists()) {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    let mut all = Profiles::read(&path)?;
    Ok(all.default.take().and_then(|name| all.profiles.remove(&name)))
}

impl Profiles {
    /// Reads a file.
    ///
    /// # Errors
    /// When the file cannot be read, is writable for others, or has anything wrong.
    pub fn read(path: &Path) -> Result<Self, String> {
        // A writer of the file chooses the node that gets the token.
        refuse_mode(path, WRITABLE, "write to it; run chmod go-w")?;
        let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!("{}: there is no such file; write it like:\n\n{EXAMPLE}", path.display())
            }
            _ => format!("{}: {error}", path.display()),
        })?;
        Self::parse(path, &text).map_err(|problem| format!("{}: {problem}", path.display()))
    }

    fn parse(path: &Path, text: &str) -> Result<Self, String> {
        let root = DeTable::parse(text).map_err(|error| {
            // Its own text shows the line, which may have a token.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            format!("line {}: {}", before.matches('\n').count() + 1, error.message())
        })?;
        let root = root.into_inner();
        let (mut default, mut profiles) = (None, BTreeMap::new());
        for (key, value) in &root {
            match (&**key.get_ref(), value.get_ref()) {
                ("default", DeValue::String(name)) => default = Some(name.to_string()),
                ("profiles", DeValue::Table(tables)) => {
                    for (name, table) in tables {
                        let name = &**name.get_ref();
                        check_name(name)?;
                        let profile = Profile::of(table.get_ref(), path.parent());
                        let profile =
                            profile.map_err(|text| format!("profile `{name}`: {text}"))?;
                        profiles.insert(name.to_owned(), profile);
                    }
                }
                (other, _) => {
                    return Err(format!(
                        "`{other}` is not right here; write it like:\n\n{EXAMPLE}"
                    ));
                }
            }
        }
        let all = Self { path: path.to_owned(), default, profiles };
        match &all.default {
            Some(name) if !all.profiles.contains_key(name) => {
                Err(format!("`default` names no profile: {}", all.unknown(name)))
            }
            _ => Ok(all),
        }
    }

    fn unknown(&self, name: &str) -> String {
        let names: Vec<&str> = self.profiles.keys().map(String::as_str).collect();
        let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        format!("there is no profile `{name}`; {} has: {has}", self.path.display())
    }

    /// Makes a profile the default one, in the file. Comments and order of the file stay. Returns
    /// the profiles as they are now.
    ///
    /// # Errors
    /// When there is no such profile, or the file cannot be written.
    pub fn choose(&self, name: &str) -> Result<Self, String> {
        if !self.profiles.contains_key(name) {
            return Err(self.unknown(name));
        }
        let shown = self.path.display();
        let failed = |error: io::Error| format!("{shown}: {error}");
        let text = std::fs::read_to_string(&self.path).map_err(failed)?;
        let text = with_default(&text, name);
        // The text is edited by lines. A file that would read differently is not written.
        let wanted = Self { default: Some(name.to_owned()), ..self.clone() };
        if Self::parse(&self.path, &text).as_ref() != Ok(&wanted) {
            return Err(format!(
                "{shown}: cannot edit this file; write default = \"{name}\" yourself"
            ));
        }
        // A link to the file stays a link.
        let target = std::fs::canonicalize(&self.path).map_err(failed)?;
        let mut beside = target.clone().into_os_string();
        beside.push(".new");
        std::fs::write(&beside, text).map_err(failed)?;
        let permissions = std::fs::metadata(&target).map_err(failed)?.permissions();
        std::fs::set_permissions(&beside, permissions).map_err(failed)?;
        std::fs::rename(&beside, &target).map_err(failed)?;
        Ok(wanted)
    }
}

impl Profile {
    /// Reads a profile. Its files are relative to `folder`, that of the file with the profiles.
    fn of(value: &DeValue<'_>, folder: Option<&Path>) -> Result<Self, String> {
        let DeValue::Table(table) = value else { return Err("it is not a table".to_owned()) };
        let mut profile = Self::default();
        for (key, value) in table {
            let key = &**key.get_ref();
            let file = |text: &str| Some(folder.unwrap_or(Path::new("")).join(text));
            match (key, value.get_ref()) {
                ("url", DeValue::String(url)) => profile.url = url.to_string(),
                ("token_file", DeValue::String(text)) => profile.token_file = file(text),
                ("ca_file", DeValue::String(text)) => profile.ca_file = file(text),
                ("certificate_file", DeValue::String(text)) => {
                    profile.certificate_file = file(text);
                }
                ("key_file", DeValue::String(text)) => profile.key_file = file(text),
                ("plaintext", DeValue::Boolean(plaintext)) => profile.plaintext = *plaintext,
                ("token", _) => {
                    return Err(
                        "a token does not belong here; write it to a file of its own, and \
                                name that with `token_file`"
                            .to_owned(),
                    );
                }
                (known, _) if MEMBERS.contains(&known) => {
                    return Err(format!("`{known}` is a string (`plaintext`: true or false)"));
                }
                (other, _) => {
                    let known = MEMBERS.join(", ");
                    return Err(format!("there is no member `{other}`; there are {known}"));
                }
            }
        }
        if profile.url.is_empty() {
            return Err("`url` is missing: the URL of a node".to_owned());
        }
        if without_user(&profile.url) != profile.url {
            return Err("`url` has a user or a password; leave them out, and name the file with \
                        the token with `token_file`"
                .to_owned());
        }
        if profile.certificate_file.is_some() != profile.key_file.is_some() {
            return Err("`certificate_file` and `key_file` need each other".to_owned());
        }
        Ok(profile)
    }
}

/// Checks the file of a profile with a secret. A missing one is told by its reader.
fn check_secret(file: Option<&Path>) -> Result<(), String> {
    file.map_or(Ok(()), |path| {
        refuse_mode(path, READABLE | WRITABLE, "use the secret in it; run chmod go-w,o-r")
    })
}

/// Refuses a file with any of `bits` in the mode: with these, others may do the `deed`.
fn refuse_mode(path: &Path, bits: u32, deed: &str) -> Result<(), String> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let mode = metadata.mode() & 0o7777;
    if mode & bits == 0 {
        return Ok(());
    }
    let shown = path.display();
    Err(format!("{shown} has mode {mode:04o}: others than its owner may {deed} {shown}"))
}

fn check_name(name: &str) -> Result<(), String> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.bytes().all(is_legal);
    let text = || format!("`{name}` is no name of a profile: 1 to 64 of a-z A-Z 0-9 . _ and -");
    is_name.then_some(()).ok_or_else(text)
}

/// Returns `text` with another default profile.
fn with_default(text: &str, name: &str) -> String {
    let line = format!("default = \"{name}\"");
    let is_default = |line: &str| {
        let rest = line.trim_start().strip_prefix("default");
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    // Members of the whole file come before the first table.
    let head = text.lines().take_while(|line| !line.trim_start().starts_with('['));
    let place = head.into_iter().position(is_default);
    let mut lines: Vec<&str> = text.lines().collect();
    match place.and_then(|place| lines.get_mut(place)) {
        Some(old) => *old = &line,
        None => lines.insert(0, &line),
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use super::*;

    const TEXT: &str = r#"# Ours.
default = "test" # for now

[profiles.test]
url = "http://127.0.0.1:7071"

[profiles.prod]
url = "https://prod:7070"
token_file = "prod.token"
ca_file = "/etc/ca.pem"
certificate_file = "me.crt"
key_file = "me.key"
"#;

    struct File(PathBuf);

    impl File {
        fn new(text: &str) -> Self {
            let name = format!("punctual-profiles-{:032x}", rand::random::<u128>());
            let file = Self(std::env::temp_dir().join(name));
            std::fs::write(&file.0, text).unwrap();
            file.chmod(0o600);
            file
        }

        fn chmod(&self, mode: u32) {
            std::fs::set_permissions(&self.0, Permissions::from_mode(mode)).unwrap();
        }

        /// The flags of a command that uses this file.
        fn node(&self) -> NodeOptions {
            let node = NodeOptions::at("http://a", Duration::from_secs(1));
            NodeOptions { url: None, profiles_file: Some(self.0.clone()), ..node }
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            std::fs::remove_file(&self.0).ok();
        }
    }

    #[test]
    fn a_profile_completes_what_flags_leave_open() {
        let file = File::new(TEXT);
        let folder = file.0.parent().unwrap();
        let default = complete(&file.node()).unwrap();
        assert_eq!(default.url.as_deref(), Some("http://127.0.0.1:7071"));
        assert_eq!(default.credentials.token_file, None);
        let prod = NodeOptions { profile: Some("prod".to_owned()), ..file.node() };
        let node = complete(&prod).unwrap();
        assert_eq!(node.url.as_deref(), Some("https://prod:7070"));
        assert_eq!(node.credentials.token_file, Some(folder.join("prod.token")));
        assert_eq!(node.ca_file.as_deref(), Some(Path::new("/etc/ca.pem")));
        assert_eq!(node.key_file, Some(folder.join("me.key")));
        let mut own = prod.clone();
        own.credentials.token = Some("pt_x".parse().unwrap());
        own.ca_file = Some(PathBuf::from("other.pem"));
        let node = complete(&own).unwrap();
        assert_eq!((node.credentials.token_file, node.ca_file), (None, own.ca_file));
    }

    #[test]
    fn a_url_of_its_own_gets_nothing_of_a_profile() {
        let file = File::new(&TEXT.replace("default = \"test\"", "default = \"prod\""));
        let own = NodeOptions { url: Some("http://other".to_owned()), ..file.node() };
        let node = complete(&own).unwrap();
        assert_eq!(node.url.as_deref(), Some("http://other"));
        assert_eq!((node.credentials.token_file, node.ca_file, node.key_file), (None, None, None));
        let both = NodeOptions { profile: Some("prod".to_owned()), ..own };
        assert!(complete(&both).unwrap_err().contains("leave out --profile"));
    }

    #[test]
    fn without_profiles_the_node_of_this_machine_is_called() {
        let file = File::new("");
        assert_eq!(complete(&file.node()).unwrap().url.as_deref(), Some(DEFAULT_URL));
        let nowhere = File(PathBuf::from("/nowhere/config.toml"));
        assert!(complete(&nowhere.node()).unwrap_err().contains("no such file"));
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        for (text, said) in [
            ("[profiles.a]\nurl = 1", "profile `a`: `url` is a string"),
            ("[profiles.a]", "profile `a`: `url` is missing"),
            ("[profiles.a]\nurl = \"u\"\ntoken = \"pt_secret\"", "does not belong here"),
            ("[profiles.a]\nurl = \"u\"\nurls = 1", "no member `urls`; there are url, token_file"),
            ("[profiles.a]\nurl = \"u\"\nkey_file = \"k\"", "need each other"),
            ("[profiles.\"a b\"]\nurl = \"u\"", "`a b` is no name"),
            ("default = \"b\"\n[profiles.a]\nurl = \"u\"", "there is no profile `b`;"),
            ("profile = 1", "`profile` is not right here"),
            ("[profiles.a]\nurl = \"https://me:pt_secret@node\"", "has a user or a password"),
            ("[profiles.a]\ntoken = pt_secret", "config.toml: line 2: "),
            ("[", "config.toml: line 1: "),
        ] {
            let problem = Profiles::parse(Path::new("config.toml"), text)
                .map_err(|problem| format!("config.toml: {problem}"))
                .unwrap_err();
            assert!(problem.contains(said) && !problem.contains("pt_secret"), "{problem}");
        }
        let file = File::new(TEXT);
        let unknown = NodeOptions { profile: Some("stage".to_owned()), ..file.node() };
        assert!(complete(&unknown).unwrap_err().ends_with(" has: prod, test"));
    }

    #[test]
    fn files_that_others_may_change_and_secrets_that_they_may_read_are_refused() {
        let (token, key) = (File::new("pt_secret"), File::new("secret"));
        let file = File::new(&format!(
            "default = \"a\"\n[profiles.a]\nurl = \"u\"\ntoken_file = \"{}\"\n\
             certificate_file = \"c\"\nkey_file = \"{}\"\n",
            token.0.display(),
            key.0.display(),
        ));
        for (wrong, modes, remedy) in [
            (&file, &[0o620, 0o602, 0o666][..], "chmod go-w "),
            (&token, &[0o604, 0o660, 0o644][..], "chmod go-w,o-r "),
            (&key, &[0o644][..], "chmod go-w,o-r "),
        ] {
            for mode in modes {
                wrong.chmod(*mode);
                let problem = complete(&file.node()).unwrap_err();
                let path = wrong.0.display().to_string();
                assert!(problem.starts_with(&path) && problem.contains(remedy), "{problem}");
                assert!(!problem.contains("pt_secret"), "{problem}");
            }
            wrong.chmod(0o640);
        }
        assert_eq!(complete(&file.node()).unwrap().credentials.token_file, Some(token.0.clone()));
        // A token of its own does not need that of the profile.
        token.chmod(0o644);
        let mut own = file.node();
        own.credentials.token = Some("pt_x".parse().unwrap());
        assert_eq!(complete(&own).unwrap().credentials.token_file, None);
    }

    #[test]
    fn another_default_leaves_the_rest_of_the_file_as_it_was() {
        let file = File::new(TEXT);
        Profiles::read(&file.0).unwrap().choose("prod").unwrap();
        let text = std::fs::read_to_string(&file.0).unwrap();
        assert_eq!(text, TEXT.replace("default = \"test\" # for now", "default = \"prod\""));
        assert!(Profiles::read(&file.0).unwrap().choose("stage").is_err());
        let file = File::new("# Mine.\n[profiles.a]\nurl = \"u\"\n");
        Profiles::read(&file.0).unwrap().choose("a").unwrap();
        assert_eq!(Profiles::read(&file.0).unwrap().default.as_deref(), Some("a"));
        // A default in a line of its own cannot be found here.
        let odd =
            File::new("\"default\" = \"a\"\n[profiles.a]\nurl = \"u\"\n[profiles.b]\nurl = \"u\"");
        let refused = Profiles::read(&odd.0).unwrap().choose("b").unwrap_err();
        assert!(refused.contains("cannot edit this file"), "{refused}");
    }
}
