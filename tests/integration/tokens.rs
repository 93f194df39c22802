//! Tokens and auth files on the command line, and the starts refused without them.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;

use crate::support::node::program;

const DEADLINE: Duration = Duration::from_secs(60);

/// An auth file deleted with the test.
pub struct AuthFile(PathBuf);

impl AuthFile {
    pub fn new(name: &str, text: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}-{name}.toml", std::process::id()));
        let mut file = std::fs::File::create(&path).unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for AuthFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

pub async fn run(words: &[&str], input: &str) -> Output {
    let mut command = program(words);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that reads no input may have ended before.
    child.stdin.take().unwrap().write_all(input.as_bytes()).await.ok();
    tokio::time::timeout(DEADLINE, child.wait_with_output()).await.expect("it ends").unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_token_is_found_in_a_file_with_the_printed_lines() {
    let words = ["token", "new", "--principal", "orders", "--expires", "90d"];
    let made = run(&words, "").await;
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    let (token, lines) = (text(&made.stdout), text(&made.stderr));
    assert!(!lines.contains(token.trim()) && token.starts_with("pt_"), "{lines}");
    let file = AuthFile::new("new", &format!("version = 1\n{lines}"));

    let checked = run(&["token", "check", "--auth-file", file.path()], &token).await;
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));
    assert!(text(&checked.stdout).contains("principal     orders\n"), "{}", text(&checked.stdout));
    let listed = run(&["auth", "check", file.path()], "").await;
    assert!(listed.status.success() && text(&listed.stdout).contains("\norders\n"));

    let cut = run(&["token", "check"], &token[..40]).await;
    assert_eq!(cut.status.code(), Some(1), "{}", text(&cut.stderr));
    for output in [&checked, &listed, &cut] {
        let told = text(&output.stdout) + &text(&output.stderr);
        assert!(!told.contains(&token[..40]), "{told}");
    }
}

/// The command of a node that must end before it looks for a server.
fn serve_without_servers(file: &AuthFile) -> [&str; 7] {
    let database_url = "postgres://nobody@127.0.0.1:1/nothing";
    let kafka = "127.0.0.1:1";
    ["serve", "--database-url", database_url, "--kafka", kafka, "--auth-file", file.path()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_problem_of_an_auth_file_is_told_before_a_node_starts() {
    let file = AuthFile::new("wrong", "version = 2\nsurprise = true\n");
    let checked = run(&["auth", "check", file.path()], "").await;
    let served = run(&serve_without_servers(&file), "").await;
    for output in [checked, served] {
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("line 1: ") && told.contains("line 2: "), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_auth_file_that_does_not_go_with_the_flags_is_refused_at_the_start() {
    let limited = "version = 1\n[anonymous]\noperate = true\nlimits = { tasks_per_second = 999 }\n";
    let certified = "version = 1\n[[certificate]]\nuri = \"spiffe://shop/*\"\noperate = true\n";
    for (name, text, flags, part, checked_as) in [
        (
            "burst",
            limited,
            &["--batch-max", "1000"][..],
            "--batch-max",
            &["--batch-max", "999"][..],
        ),
        ("certificate", certified, &[], "--tls-client-ca-file", &[]),
    ] {
        let file = AuthFile::new(name, text);
        let output = run(&[&serve_without_servers(&file)[..], flags].concat(), "").await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(part), "{told}");
        let check = [&["auth", "check", file.path()][..], checked_as].concat();
        assert!(run(&check, "").await.status.success(), "the file itself is right");
    }
    let file = AuthFile::new("burst-checked", limited);
    let checked = run(&["auth", "check", file.path()], "").await;
    let told = text(&checked.stderr);
    assert!(checked.status.code() == Some(2) && told.contains("line 4: "), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_would_be_open_by_accident_does_not_start() {
    let file = AuthFile::new("start", "version = 1\n[principals.ann]\noperate = true\n");
    let serve = [
        "serve",
        "--database-url",
        "postgres://nobody@127.0.0.1:1/nothing",
        "--kafka",
        "127.0.0.1:1",
        "--listen",
        "0.0.0.0:0",
    ];
    for (words, flag) in [
        (&[][..], "--allow-anonymous"),
        (&["--auth-file", file.path()], "--plaintext-behind-proxy"),
        (&["--auth-file", file.path(), "--allow-anonymous"], "[anonymous]"),
    ] {
        let output = run(&[&serve[..], words].concat(), "").await;
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(flag) && told.contains("docs/operate/access.md"), "{told}");
    }
    assert!(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operate/access.md")).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_neither_a_flag_nor_sent_in_clear_over_the_network() {
    const TOKEN: &str = "pt_k3v9q0ab_f00d";
    let flag = run(&["list", "--token", TOKEN], "").await;
    let beyond = program(&["list", "--url", "http://192.0.2.1:7070"])
        .env("PUNCTUAL_TOKEN", TOKEN)
        .output()
        .await
        .unwrap();
    let user = run(&["list", "--url", "http://me:f00d@127.0.0.1:1"], "").await;
    for (output, part) in [(flag, "--token-file"), (beyond, "--plaintext"), (user, "--token-file")]
    {
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(part) && !told.contains("f00d"), "{told}");
    }
}
